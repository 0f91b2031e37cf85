//! `proxy_redirect`: `Location` and `Refresh` of a response, changed so that they lead here.

use std::sync::Arc;

use tw_conf::{ConfError, Node, Word};
use tw_core::regex::{Caseless, Match, Regex};
use tw_core::session::Session as _;
use tw_request::protocol::Resolve;
use tw_request::request::Request;
use tw_request::route::Pattern;
use tw_request::vars::Template;

use super::target::{PassUrl, RawPassUrl};

/// `proxy_redirect` as written.
pub(super) enum RawRedirect {
    Off,
    Default,
    Rule(Word, Word),
}

/// Rule for inner blocks, where `default` may mean something else.
#[derive(Clone)]
pub(super) enum InheritedRedirect {
    Off,
    Default,
    Rule(RedirectRule),
}

/// Text that is replaced, and its replacement.
#[derive(Clone)]
pub(super) struct RedirectRule {
    from: From,
    to: Template,
}

#[derive(Clone)]
enum From {
    /// A beginning, which may hold variables.
    Prefix(Template),
    Regex(Arc<Regex>),
}

impl RawRedirect {
    /// Reads the directive; `pass` is the target, if it is written before.
    pub(super) fn read(
        node: &Node,
        before: Option<&Vec<Self>>,
        pass: Option<&RawPassUrl>,
    ) -> Result<Self, ConfError> {
        let first = node.arg(0)?;
        let before = before.map_or(&[][..], Vec::as_slice);
        if before.iter().any(|rule| matches!(rule, Self::Off)) {
            return Err(node.error("is duplicate"));
        }
        if let Some(second) = node.args.get(1) {
            return Ok(Self::Rule(first.clone(), second.clone()));
        }
        match (&*first.bytes, pass) {
            (b"off", _) if before.is_empty() => Ok(Self::Off),
            (b"off", _) => Err(node.error("is duplicate")),
            (b"default", None) => {
                Err(node
                    .fail("\"proxy_redirect default\" should be placed after the \"proxy_pass\" directive"))
            }
            (b"default", Some(pass)) if pass.has_variables() => Err(node.fail(
                "\"proxy_redirect default\" cannot be used with \"proxy_pass\" directive with variables",
            )),
            (b"default", Some(_)) => Ok(Self::Default),
            _ => Err(node.fail(format!("invalid parameter \"{first}\""))),
        }
    }

    pub(super) fn resolve(self, cx: &mut Resolve<'_>) -> Result<InheritedRedirect, ConfError> {
        let (from, to) = match self {
            Self::Off => return Ok(InheritedRedirect::Off),
            Self::Default => return Ok(InheritedRedirect::Default),
            Self::Rule(from, to) => (from, to),
        };
        let pattern = match &*from.bytes {
            [b'~', b'*', rest @ ..] => Some((rest, Caseless::Yes)),
            [b'~', rest @ ..] => Some((rest, Caseless::No)),
            _ => None,
        };
        let from = match pattern {
            None => From::Prefix(cx.template(&from)?),
            Some((pattern, caseless)) => From::Regex(cx.regex_of(pattern, caseless, from.span)?),
        };
        Ok(InheritedRedirect::Rule(RedirectRule { from, to: cx.template(&to)? }))
    }
}

/// The rules of one location.
pub(super) fn rules(
    inherited_redirects: Option<&[InheritedRedirect]>,
    target: Option<&PassUrl>,
    cx: &mut Resolve<'_>,
) -> Result<Arc<[RedirectRule]>, ConfError> {
    let usual = [InheritedRedirect::Default];
    let Some(target) = target else { return Ok([].into()) };
    let mut rules = Vec::new();
    for rule in inherited_redirects.unwrap_or(&usual) {
        match rule {
            InheritedRedirect::Off => return Ok([].into()),
            InheritedRedirect::Rule(rule) => rules.push(rule.clone()),
            InheritedRedirect::Default => match target.fixed() {
                None if inherited_redirects.is_some() => {
                    return Err(ConfError::new(
                        "\"proxy_redirect default\" cannot be used with \"proxy_pass\" directive with variables",
                    ));
                }
                None => {}
                Some(fixed) => {
                    let location = match cx.block.location() {
                        Some(Pattern::Exact(uri) | Pattern::Prefix { uri, .. }) => uri.clone(),
                        _ => b"/".as_slice().into(),
                    };
                    // A path in the URL replaces the location; a URL without a path stands for the whole server.
                    let (from, to) = if fixed.has_path() {
                        (fixed.url.to_vec(), location)
                    } else {
                        ([&fixed.url, b"/".as_slice()].concat(), b"/".as_slice().into())
                    };
                    rules.push(RedirectRule {
                        from: From::Prefix(Template::text(&from)),
                        to: Template::text(&to),
                    });
                }
            },
        }
    }
    Ok(rules.into())
}

/// Value changed by the first rule that matches; `None` if none does.
pub(super) fn apply(rules: &[RedirectRule], r: &Request, value: &[u8], is_refresh: bool) -> Option<Vec<u8>> {
    let begin = if is_refresh { url_in_refresh(value)? } else { 0 };
    let (before, url) = value.split_at(begin);
    rules.iter().find_map(|rule| Some([before, &*rule.apply(r, url)?].concat()))
}

/// Offset of the URL in a `Refresh`.
fn url_in_refresh(value: &[u8]) -> Option<usize> {
    let at = value.windows(4).position(|four| four.eq_ignore_ascii_case(b"url="))?;
    Some(at + 4)
}

impl RedirectRule {
    pub(super) fn apply(&self, r: &Request, value: &[u8]) -> Option<Vec<u8>> {
        let mut changed = Vec::new();
        match &self.from {
            From::Prefix(prefix) => {
                let prefix = prefix.value(r);
                let rest = value.strip_prefix(&*prefix)?;
                self.to.eval(r, &mut changed);
                changed.extend_from_slice(rest);
            }
            From::Regex(regex) => {
                if r.matches(regex, value) != Ok(Match::Yes) {
                    return None;
                }
                r.store_named_captures(regex);
                self.to.eval(r, &mut changed);
            }
        }
        Some(changed)
    }
}
