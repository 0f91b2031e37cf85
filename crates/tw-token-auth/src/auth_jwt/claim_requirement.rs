//! `auth_jwt_require_claim` and `auth_jwt_require_header`: a value of a token is compared with an expected one.
//!
//! The expected value is text, or JSON behind `json=` or in a variable. What has no variable in it is read with the configuration. A
//! regular expression of a variable is compiled in a pool, which may take milliseconds, and kept.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Number, Value as Json};
use tw_base::FatalMutex;
use tw_conf::{ConfError, Node, Word};
use tw_core::regex::{Caseless, Regex};
use tw_request::protocol::Resolve;
use tw_request::request::Request;
use tw_request::vars::Template;

use super::claim_name::{ClaimName, Nesting};
use super::operator::{Bound, Operator, Verdict};
use super::variables::TokenPart;
use crate::jose::VerifiedToken;

tw_base::limits! {
    /// Limits of this file.
    pub(super) const LIMITS;

    /// Bytes of an expected value with variables (auth_jwt_require_claim).
    ///
    /// Bytes of an expected value that has variables: parsed for every request, in some microseconds.
    pub(super) const EXPECTED_SIZE_MAX: usize = 4096, bytes, "the token is refused: 401";
    /// Bytes of a regular expression with variables (auth_jwt_require_claim).
    pub(super) const PATTERN_SIZE_MAX: usize = 1024, bytes, "the token is refused: 401";
    /// Regular expressions with variables kept compiled by a configuration.
    pub(super) const PATTERNS_KEPT: usize = 64, count, "the one compiled longest ago is compiled again when it is needed";
}

/// One directive as written.
pub(super) struct RawClaimRequirement {
    part: TokenPart,
    name: ClaimName,
    operator: Operator,
    value: Word,
    /// The directive but for the value, for the log.
    shown: Box<str>,
}

/// One directive.
pub(super) struct ClaimRequirement {
    part: TokenPart,
    name: ClaimName,
    operator: Operator,
    expected: Expected,
    shown: Box<str>,
}

/// Expected value.
enum Expected {
    Value(Json),
    Pattern(Regex),
    /// Text with variables.
    Text(Template),
    /// JSON with variables.
    Json(Template),
}

/// A regular expression, or the reason why it is none.
pub(super) type CompiledPattern = Result<Regex, String>;

/// Result of a check.
pub(super) enum Check {
    Met,
    Unmet(Unmet),
    /// This pattern has to be compiled first.
    Uncompiled(Box<str>),
}

/// Reason why a requirement is not met; `Display` has the text of the log.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unmet {
    Missing,
    NoExpected,
    TooLarge(usize),
    NoJson,
    InvalidPattern(String),
    TooManySteps,
    Incomparable,
    Differs,
}

impl fmt::Display for Unmet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("it is missing"),
            Self::NoExpected => f.write_str("the expected value is empty"),
            Self::TooLarge(max) => write!(f, "the expected value has more than {max} bytes"),
            Self::NoJson => f.write_str("the expected value is no JSON"),
            Self::InvalidPattern(why) => write!(f, "the regular expression is invalid: {why}"),
            Self::TooManySteps => f.write_str("the regular expression needs too many steps"),
            Self::Incomparable => f.write_str("the operator does not compare values of these types"),
            Self::Differs => f.write_str("it has another value"),
        }
    }
}

impl RawClaimRequirement {
    /// Reads `name operator value`.
    pub(super) fn read(node: &Node, part: TokenPart) -> Result<Self, ConfError> {
        let [name, operator, value] = node.words()?;
        let shown = format!("\"{} {name} {operator}\"", node.name).into();
        let invalid = |why| ConfError::new(format!("invalid value \"{name}\": {why}")).at(name.span);
        let name = ClaimName::parse(&name.bytes).map_err(invalid)?;
        let operator = Operator::parse(&operator.bytes).ok_or_else(|| node.invalid_value(operator))?;
        if value.bytes.is_empty() || value.is("json=") {
            return Err(node.invalid_value(value));
        }
        Ok(Self { part, name, operator, value: value.clone(), shown })
    }

    /// Compiles it.
    pub(super) fn resolve(self, cx: &mut Resolve<'_>) -> Result<ClaimRequirement, ConfError> {
        let Self { part, name, operator, value, shown } = self;
        let expected = match value.param("json") {
            Some(json) => Expected::Json(cx.template(&Word { bytes: json.into(), ..value.clone() })?),
            None if value.bytes.starts_with(b"$") => Expected::Json(cx.template(&value)?),
            None => Expected::Text(cx.template(&value)?),
        };
        let constant = match &expected {
            Expected::Json(template) => template.constant().map(|json| {
                let invalid =
                    |error| ConfError::new(format!("invalid JSON in \"{value}\": {error}")).at(value.span);
                serde_json::from_slice(json).map_err(invalid)
            }),
            Expected::Text(template) => {
                template.constant().map(|text| Ok(Json::String(String::from_utf8_lossy(text).into_owned())))
            }
            Expected::Value(_) | Expected::Pattern(_) => None,
        };
        let expected = match constant.transpose()? {
            None => expected,
            Some(constant) if operator.is_match() => {
                let Json::String(pattern) = constant else {
                    let message = format!("\"{value}\" is no regular expression: it has to be a text");
                    return Err(ConfError::new(message).at(value.span));
                };
                let compiled = Regex::new(pattern.as_bytes(), Caseless::No);
                Expected::Pattern(compiled.map_err(|error| {
                    let message = format!("regex compilation failed: {error} in \"{pattern}\"");
                    ConfError::new(message).at(value.span)
                })?)
            }
            Some(constant) => Expected::Value(constant),
        };
        Ok(ClaimRequirement { part, name, operator, expected, shown })
    }
}

impl ClaimRequirement {
    /// The directive but for its value, for the log.
    pub(super) fn shown(&self) -> &str {
        &self.shown
    }

    /// Checks a token. `leeway` makes bounds of times wider.
    pub(super) fn check(
        &self,
        r: &Request,
        token: &VerifiedToken,
        nesting: Option<&Nesting>,
        leeway: Duration,
        patterns: &PatternCache,
    ) -> Check {
        let members = match self.part {
            TokenPart::Header => token.header(),
            TokenPart::Claims => token.claims(),
        };
        let Some(value) = self.name.find(members, nesting) else { return Check::Unmet(Unmet::Missing) };
        let computed;
        let expected = match &self.expected {
            Expected::Value(expected) => expected,
            Expected::Pattern(pattern) => return self.operator.matches(value, pattern).into(),
            Expected::Text(template) => match text(template, r) {
                Ok(text) => {
                    computed = Json::String(String::from_utf8_lossy(&text).into_owned());
                    &computed
                }
                Err(unmet) => return Check::Unmet(unmet),
            },
            Expected::Json(template) => match text(template, r).and_then(|text| parse(&text)) {
                Ok(json) => {
                    computed = json;
                    &computed
                }
                Err(unmet) => return Check::Unmet(unmet),
            },
        };
        if self.operator.is_match() {
            return self.check_pattern(value, expected, patterns);
        }
        match self.with_leeway(expected, leeway) {
            Some(expected) => self.operator.compare(value, &Json::Number(expected)).into(),
            None => self.operator.compare(value, expected).into(),
        }
    }

    fn check_pattern(&self, value: &Json, pattern: &Json, patterns: &PatternCache) -> Check {
        let Json::String(pattern) = pattern else { return Check::Unmet(Unmet::Incomparable) };
        if pattern.len() > PATTERN_SIZE_MAX {
            return Check::Unmet(Unmet::TooLarge(PATTERN_SIZE_MAX));
        }
        match patterns.find(pattern).as_deref() {
            None => Check::Uncompiled(pattern.as_str().into()),
            Some(Ok(regex)) => self.operator.matches(value, regex).into(),
            Some(Err(why)) => Check::Unmet(Unmet::InvalidPattern(why.clone())),
        }
    }

    /// Expected time for clocks that differ: `exp` may be a bit earlier, `nbf` a bit later. `None` if the value is no such bound.
    fn with_leeway(&self, expected: &Json, leeway: Duration) -> Option<Number> {
        let Json::Number(expected) = expected else { return None };
        if leeway.is_zero() || self.part != TokenPart::Claims {
            return None;
        }
        let leeway = leeway.as_secs() as i64;
        let shift = match self.operator.bound()? {
            Bound::Lower if self.name.is_top("exp") => -leeway,
            Bound::Upper if self.name.is_top("nbf") => leeway,
            Bound::Lower | Bound::Upper => return None,
        };
        match expected.as_i64() {
            Some(whole) => Some(whole.saturating_add(shift).into()),
            None => Number::from_f64(expected.as_f64()? + shift as f64),
        }
    }
}

impl From<Verdict> for Check {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Fulfilled => Self::Met,
            Verdict::Unfulfilled => Self::Unmet(Unmet::Differs),
            Verdict::Incomparable => Self::Unmet(Unmet::Incomparable),
            Verdict::TooManySteps => Self::Unmet(Unmet::TooManySteps),
        }
    }
}

/// Text of an expected value.
fn text(template: &Template, r: &Request) -> Result<Vec<u8>, Unmet> {
    let text = template.value(r);
    match text.len() {
        0 => Err(Unmet::NoExpected),
        1..=EXPECTED_SIZE_MAX => Ok(text),
        _ => Err(Unmet::TooLarge(EXPECTED_SIZE_MAX)),
    }
}

fn parse(text: &[u8]) -> Result<Json, Unmet> {
    serde_json::from_slice(text).map_err(|_| Unmet::NoJson)
}

/// Compiles a pattern; belongs in a pool.
pub(super) fn compile(pattern: &str) -> CompiledPattern {
    Regex::new(pattern.as_bytes(), Caseless::No)
}

/// Compiled patterns of variables, least recently compiled first. The lock is held for a look-up.
#[derive(Default)]
pub(super) struct PatternCache(FatalMutex<VecDeque<(Box<str>, Arc<CompiledPattern>)>>);

impl PatternCache {
    fn find(&self, pattern: &str) -> Option<Arc<CompiledPattern>> {
        let known_values = self.0.lock();
        known_values.iter().find(|(text, _)| **text == *pattern).map(|(_, compiled)| compiled.clone())
    }

    /// Keeps a pattern.
    pub(super) fn put(&self, pattern: Box<str>, compiled: CompiledPattern) {
        let compiled = Arc::new(compiled);
        let mut known_values = self.0.lock();
        known_values.retain(|(text, _)| *text != pattern);
        if known_values.len() >= PATTERNS_KEPT {
            known_values.pop_front();
        }
        known_values.push_back((pattern, compiled));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_pattern_makes_room() {
        let cache = PatternCache::default();
        for nth in 0..=PATTERNS_KEPT {
            let pattern = nth.to_string();
            cache.put(pattern.as_str().into(), compile(&pattern));
        }
        assert!(cache.find("0").is_none());
        assert!(cache.find("1").is_some_and(|compiled| compiled.is_ok()));
        cache.put("(".into(), compile("("));
        assert!(cache.find("(").is_some_and(|compiled| compiled.is_err()));
        assert!(cache.find("1").is_none());
    }
}
