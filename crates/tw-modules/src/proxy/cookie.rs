//! `proxy_cookie_domain`, `proxy_cookie_path`, `proxy_cookie_flags`: cookies of a response, changed so that the client sends
//! them here.

use std::borrow::Cow;
use std::sync::Arc;

use tw_conf::{ConfError, Node, Word};
use tw_core::regex::{Caseless, Match, Regex};
use tw_core::session::Session as _;
use tw_server::http::request::Request;
use tw_server::load::Resolve;
use tw_server::vars::Template;

/// A domain or path and its replacement as written.
pub(super) enum Written {
    Off,
    Rule(Word, Word),
}

/// Flags of a cookie as written.
pub(super) enum WrittenFlags {
    Off,
    Rule(Word, Vec<Flag>),
}

/// What becomes of one flag.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Flag {
    Secure(bool),
    HttpOnly(bool),
    SameSite(Option<&'static str>),
}

/// What is changed at one location.
#[derive(Clone, Default)]
pub(super) struct Rules {
    domains: Arc<[Rule]>,
    paths: Arc<[Rule]>,
    flags: Arc<[(What, Box<[Flag]>)]>,
}

struct Rule {
    from: What,
    to: Template,
}

/// What a text is compared with.
enum What {
    Text(Template),
    Regex(Arc<Regex>),
}

impl Written {
    pub(super) fn read(node: &Node, before: Option<&Vec<Self>>) -> Result<Self, ConfError> {
        let first = node.arg(0)?;
        match node.args.get(1) {
            Some(second) => Ok(Self::Rule(first.clone(), second.clone())),
            None if &*first.bytes == b"off" && before.is_none_or(Vec::is_empty) => Ok(Self::Off),
            None if &*first.bytes == b"off" => Err(node.error("is duplicate")),
            None => Err(node.fail(format!("invalid parameter \"{first}\""))),
        }
    }
}

impl WrittenFlags {
    pub(super) fn read(node: &Node) -> Result<Self, ConfError> {
        let first = node.arg(0)?;
        if node.args.len() == 1 {
            return match &*first.bytes {
                b"off" => Ok(Self::Off),
                _ => Ok(Self::Rule(first.clone(), Vec::new())),
            };
        }
        let known = [
            ("secure", Flag::Secure(true)),
            ("nosecure", Flag::Secure(false)),
            ("httponly", Flag::HttpOnly(true)),
            ("nohttponly", Flag::HttpOnly(false)),
            ("samesite=strict", Flag::SameSite(Some("Strict"))),
            ("samesite=lax", Flag::SameSite(Some("Lax"))),
            ("samesite=none", Flag::SameSite(Some("None"))),
            ("nosamesite", Flag::SameSite(None)),
        ];
        let flag = |word: &Word| {
            let found = known.iter().find(|(name, _)| word.bytes.eq_ignore_ascii_case(name.as_bytes()));
            let found = found.map(|(_, flag)| *flag);
            found.ok_or_else(|| node.fail(format!("invalid cookie flag \"{word}\"")))
        };
        let flags = node.args.iter().skip(1).map(flag).collect::<Result<_, _>>()?;
        Ok(Self::Rule(first.clone(), flags))
    }
}

impl What {
    fn resolve(word: &Word, caseless: Caseless, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let (pattern, caseless) = match &*word.bytes {
            [b'~', b'*', rest @ ..] => (rest, Caseless::Yes),
            [b'~', rest @ ..] => (rest, caseless),
            _ => return cx.template(word).map(Self::Text),
        };
        let regex = cx.regex(pattern, caseless).map_err(|error| {
            let shown = String::from_utf8_lossy(pattern);
            ConfError::new(format!("regex compilation failed: {error} in \"{shown}\"")).at(word.span)
        })?;
        Ok(Self::Regex(regex))
    }
}

impl Rules {
    pub(super) fn resolve(
        domains: Option<Vec<Written>>,
        paths: Option<Vec<Written>>,
        flags: Option<Vec<WrittenFlags>>,
        outer: Option<&Self>,
        cx: &mut Resolve<'_>,
    ) -> Result<Self, ConfError> {
        let mut rules = outer.cloned().unwrap_or_default();
        let resolve = |written: Vec<Written>, caseless: Caseless, cx: &mut Resolve<'_>| {
            let mut rules = Vec::new();
            for written in written {
                let Written::Rule(from, to) = written else { continue };
                rules.push(Rule { from: What::resolve(&from, caseless, cx)?, to: cx.template(&to)? });
            }
            Ok::<Arc<[Rule]>, ConfError>(rules.into())
        };
        if let Some(written) = domains {
            rules.domains = resolve(written, Caseless::Yes, cx)?;
        }
        if let Some(written) = paths {
            rules.paths = resolve(written, Caseless::No, cx)?;
        }
        if let Some(written) = flags {
            let mut resolved = Vec::new();
            for written in written {
                let WrittenFlags::Rule(name, flags) = written else { continue };
                resolved.push((What::resolve(&name, Caseless::Yes, cx)?, flags.into()));
            }
            rules.flags = resolved.into();
        }
        Ok(rules)
    }

    /// The value of a `Set-Cookie` as it goes on; `None` if nothing changes.
    pub(super) fn apply(&self, r: &Request, cookie: &[u8]) -> Option<Vec<u8>> {
        if self.domains.is_empty() && self.paths.is_empty() && self.flags.is_empty() {
            return None;
        }
        let mut parts: Vec<Cow<'_, [u8]>> =
            cookie.split(|byte| *byte == b';').map(|part| Cow::Borrowed(part.trim_ascii())).collect();
        let mut is_changed = false;
        for part in parts.iter_mut().skip(1) {
            let (name, value) = split(part);
            let changed = if name.eq_ignore_ascii_case(b"domain") {
                self.domains.iter().find_map(|rule| rule.domain(r, value))
            } else if name.eq_ignore_ascii_case(b"path") {
                self.paths.iter().find_map(|rule| rule.path(r, value))
            } else {
                None
            };
            if let Some(value) = changed {
                *part = Cow::Owned([name, b"=", &value].concat());
                is_changed = true;
            }
        }
        let name = parts.first().map(|pair| split(pair).0.to_vec()).unwrap_or_default();
        let holds = |what: &What| match what {
            What::Text(text) => text.value(r).eq_ignore_ascii_case(&name),
            What::Regex(regex) => r.matches(regex, &name) == Ok(Match::Yes),
        };
        if let Some((_, flags)) = self.flags.iter().find(|(what, _)| holds(what)) {
            flags.iter().for_each(|flag| is_changed |= flag.apply(&mut parts));
        }
        is_changed.then(|| parts.join(&b"; "[..]))
    }
}

impl Rule {
    /// A domain is replaced as a whole; a dot in front of it says nothing.
    fn domain(&self, r: &Request, value: &[u8]) -> Option<Vec<u8>> {
        let bare = value.strip_prefix(b".").unwrap_or(value);
        let holds = match &self.from {
            What::Text(text) => {
                let text = text.value(r);
                text.strip_prefix(b".").unwrap_or(&text).eq_ignore_ascii_case(bare)
            }
            What::Regex(regex) => r.matches(regex, bare) == Ok(Match::Yes),
        };
        holds.then(|| self.to.value(r))
    }

    /// Of a path the beginning is replaced; what a regular expression matches, as a whole.
    fn path(&self, r: &Request, value: &[u8]) -> Option<Vec<u8>> {
        match &self.from {
            What::Text(text) => {
                let text = text.value(r);
                let rest = value.strip_prefix(&*text)?;
                Some([&*self.to.value(r), rest].concat())
            }
            What::Regex(regex) => (r.matches(regex, value) == Ok(Match::Yes)).then(|| self.to.value(r)),
        }
    }
}

impl Flag {
    /// Whether that changes anything.
    fn apply(self, parts: &mut Vec<Cow<'_, [u8]>>) -> bool {
        let name: &[u8] = match self {
            Self::Secure(_) => b"Secure",
            Self::HttpOnly(_) => b"HttpOnly",
            Self::SameSite(_) => b"SameSite",
        };
        let at =
            parts.iter().skip(1).position(|part| split(part).0.eq_ignore_ascii_case(name)).map(|at| at + 1);
        let wanted = match self {
            Self::Secure(on) | Self::HttpOnly(on) => on.then(|| name.to_vec()),
            Self::SameSite(value) => value.map(|value| [name, b"=", value.as_bytes()].concat()),
        };
        match (at, wanted) {
            (None, None) => return false,
            (Some(at), None) => drop(parts.remove(at)),
            (None, Some(wanted)) => parts.push(wanted.into()),
            (Some(at), Some(wanted)) => parts[at] = wanted.into(),
        }
        true
    }
}

/// Name and value of a part of a cookie.
fn split(part: &[u8]) -> (&[u8], &[u8]) {
    match part.iter().position(|byte| *byte == b'=') {
        Some(at) => (part[..at].trim_ascii(), part[at + 1..].trim_ascii()),
        None => (part, b""),
    }
}
