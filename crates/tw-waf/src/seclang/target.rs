//! Variables of a rule: `ARGS|!ARGS:/^_/|&REQUEST_HEADERS:Host`.

use regex_automata::meta::Regex;

use super::pattern;
use crate::variable::{Shape, Variable};

/// Values of a collection that a target selects.
#[derive(Debug, Clone)]
pub(crate) enum Selector {
    /// All.
    All,
    /// Values with this name, in any letter case.
    Name(Box<[u8]>),
    /// Values with a name that matches.
    Pattern(Regex, Box<[u8]>),
}

impl Selector {
    /// Returns true if it selects `name`.
    pub(crate) fn selects(&self, name: &[u8]) -> bool {
        match self {
            Self::All => true,
            Self::Name(selected) => selected.eq_ignore_ascii_case(name),
            Self::Pattern(regex, _) => regex.is_match(name),
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::All, Self::All) => true,
            (Self::Name(one), Self::Name(two)) => one.eq_ignore_ascii_case(two),
            (Self::Pattern(_, one), Self::Pattern(_, two)) => one == two,
            _ => false,
        }
    }
}

/// Use of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// The values are compared.
    Values,
    /// The number of values is compared.
    Count,
}

/// Target of a rule.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    /// Variable.
    pub(crate) variable: Variable,
    /// Selected values.
    pub(crate) selector: Selector,
    /// Use of them.
    pub(crate) used: Use,
}

impl Target {
    /// Returns true if both select the same values.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.variable == other.variable && self.selector.is_same(&other.selector)
    }
}

/// Targets of a rule and their exceptions.
#[derive(Debug, Clone, Default)]
pub(crate) struct Targets {
    /// Targets in their order.
    pub(crate) included: Vec<Target>,
    /// Values that are left out.
    pub(crate) excluded: Vec<Target>,
}

impl Targets {
    /// Parses a list. The error is its reason.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, String> {
        let mut targets = Self::default();
        for part in split(text) {
            targets.add(part.trim_ascii())?;
        }
        Ok(targets)
    }

    fn add(&mut self, part: &[u8]) -> Result<(), String> {
        let (is_excluded, part) = part.strip_prefix(b"!").map_or((false, part), |rest| (true, rest));
        let (used, part) = part.strip_prefix(b"&").map_or((Use::Values, part), |rest| (Use::Count, rest));
        let target = parse_one(part, used)?;
        if is_excluded {
            self.excluded.push(target)
        } else {
            self.included.push(target)
        }
        Ok(())
    }

    /// Adds the targets and exceptions of an update.
    pub(crate) fn update(&mut self, update: &Self) {
        self.included.extend(update.included.iter().cloned());
        self.excluded.extend(update.excluded.iter().cloned());
    }

    /// Puts `update` in the place of the target `replaced`.
    pub(crate) fn replace(&mut self, replaced: &Self, update: &Self) {
        let Some(old) = replaced.included.first() else { return };
        if let Some(at) = self.included.iter().position(|target| target.is_same(old)) {
            self.included.remove(at);
            self.update(update);
        }
    }
}

/// Parses one target without `!` and `&`.
pub(crate) fn parse_one(part: &[u8], used: Use) -> Result<Target, String> {
    let shown = || String::from_utf8_lossy(part).into_owned();
    let separator = memchr::memchr(b':', part).or_else(|| {
        // `TX.name` is `TX:name`.
        let dot = memchr::memchr(b'.', part)?;
        let name = std::str::from_utf8(part.get(..dot)?).ok()?;
        Variable::find(name).filter(|variable| variable.is_persistent() || *variable == Variable::Tx)?;
        Some(dot)
    });
    let (name, selector) = match separator {
        Some(at) => {
            let (name, rest) = part.split_at(at);
            (name, rest.get(1..))
        }
        None => (part, None),
    };
    let name = String::from_utf8_lossy(name).into_owned();
    let Some(variable) = Variable::find(&name) else { return Err(unknown(&name)) };
    let selector = match selector {
        None => Selector::All,
        Some(text) => parse_selector(text)?,
    };
    if variable.shape() == Shape::Single && !matches!(selector, Selector::All) {
        return Err(format!("variable \"{}\" has no values with names", shown()));
    }
    if variable == Variable::Xml {
        check_xml(&selector)?;
    }
    Ok(Target { variable, selector, used })
}

/// Message for a variable that does not exist here.
fn unknown(name: &str) -> String {
    let reason = match name.to_ascii_uppercase().as_str() {
        "GEO" => ": use \"geoip2\" and a header of its own",
        "FILES_TMPNAMES" => ": parts of a form are not stored in files",
        _ => "",
    };
    format!("variable \"{name}\" is not supported{reason}")
}

fn parse_selector(text: &[u8]) -> Result<Selector, String> {
    let text = text.strip_prefix(b"'").and_then(|text| text.strip_suffix(b"'")).unwrap_or(text);
    // An XPath begins with a slash, too.
    if let Some(pattern) =
        text.strip_prefix(b"/").and_then(|text| text.strip_suffix(b"/")).filter(|text| !text.is_empty())
    {
        let caseless = [b"(?i:", pattern, b")"].concat();
        let (regex, _) = pattern::compile(&caseless)?;
        return Ok(Selector::Pattern(regex, pattern.into()));
    }
    Ok(Selector::Name(text.into()))
}

/// Names of the two selections of XML.
pub(crate) const XML_TEXT: &[u8] = b"/*";
pub(crate) const XML_ATTRIBUTES: &[u8] = b"//@*";

fn check_xml(selector: &Selector) -> Result<(), String> {
    match selector {
        Selector::All => Ok(()),
        Selector::Name(name) if **name == *XML_TEXT || **name == *XML_ATTRIBUTES => Ok(()),
        _ => Err("of XML only the selections \"/*\" and \"//@*\" are supported".to_owned()),
    }
}

/// Splits a list at `|`, except in a regular expression.
fn split(text: &[u8]) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    let mut begin = 0;
    let mut in_pattern = false;
    let mut in_quotes = false;
    let mut previous = b'|';
    for (at, &byte) in text.iter().enumerate() {
        if byte == b'\'' && !in_pattern && (in_quotes || previous == b':') {
            in_quotes = !in_quotes;
        } else if in_quotes {
        } else if byte == b'/'
            && previous == b':'
            && !text.get(at..).unwrap_or_default().starts_with(b"//@")
            && !text.get(at..).unwrap_or_default().starts_with(b"/*")
        {
            in_pattern = true;
        } else if byte == b'/' && in_pattern && previous != b'\\' {
            in_pattern = false;
        } else if byte == b'|' && !in_pattern {
            parts.push(text.get(begin..at).unwrap_or_default());
            begin = at + 1;
        } else if byte == b',' && !in_pattern {
            // SecRuleUpdateTargetById separates targets by commas.
            parts.push(text.get(begin..at).unwrap_or_default());
            begin = at + 1;
        }
        previous = byte;
    }
    parts.push(text.get(begin..).unwrap_or_default());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_parsed() {
        let targets = Targets::parse(b"ARGS|!ARGS:/^a|b$/|&REQUEST_HEADERS:Host|XML:/*|XML://@*").unwrap();
        assert_eq!(targets.included.len(), 4);
        assert_eq!(targets.included[1].used, Use::Count);
        assert!(targets.included[1].selector.selects(b"HOST"));
        assert!(targets.excluded[0].selector.selects(b"B"));
        assert!(!targets.excluded[0].selector.selects(b"xa1"));
    }

    #[test]
    fn unknown_variables_are_refused() {
        for text in [&b"NOTHING"[..], b"GEO:COUNTRY", b"REQUEST_METHOD:a", b"XML:/a/b", b"ARGS:/(/"] {
            assert!(Targets::parse(text).is_err(), "{}", String::from_utf8_lossy(text));
        }
    }
}
