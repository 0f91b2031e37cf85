//! `proxy_cookie_domain`, `proxy_cookie_path`, `proxy_cookie_flags`: cookies of a response, changed so that the client
//! sends them here.

use std::borrow::Cow;
use std::sync::Arc;

use tw_conf::{ConfError, Node, Word};
use tw_core::regex::{Caseless, Match, Regex};
use tw_core::session::Session as _;
use tw_request::protocol::Resolve;
use tw_request::request::Request;
use tw_request::vars::Template;

/// A domain or path and its replacement as written.
pub(super) enum RawCookieRule {
    Off,
    Rule(Word, Word),
}

/// Flags of a cookie as written.
pub(super) enum RawCookieFlags {
    Off,
    Rule(Word, Vec<Word>),
}

/// Changes of the flags of a cookie.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
struct Flags {
    secure: Option<bool>,
    http_only: Option<bool>,
    same_site: Option<SameSite>,
}

/// Changes of `SameSite`. Of several the first in this order counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum SameSite {
    Strict,
    Lax,
    None,
    Gone,
}

/// Changes of cookies at one location.
#[derive(Clone, Default)]
pub(super) struct CookieRules {
    domains: Arc<[CookieRule]>,
    paths: Arc<[CookieRule]>,
    flags: Arc<[(CookiePattern, Box<[Template]>)]>,
}

/// Part of a cookie that a rule changes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Domain,
    Path,
}

struct CookieRule {
    from: CookiePattern,
    to: Template,
}

/// Pattern that a text is compared with.
enum CookiePattern {
    Text(Template),
    Regex(Arc<Regex>),
}

impl RawCookieRule {
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

impl RawCookieFlags {
    pub(super) fn read(node: &Node, before: Option<&Vec<Self>>) -> Result<Self, ConfError> {
        let first = node.arg(0)?;
        if before.is_some_and(|rules| rules.iter().any(|rule| matches!(rule, Self::Off))) {
            return Err(node.error("is duplicate"));
        }
        match node.args.get(1..) {
            Some([]) if &*first.bytes == b"off" && before.is_none_or(Vec::is_empty) => return Ok(Self::Off),
            Some([]) if &*first.bytes == b"off" => return Err(node.error("is duplicate")),
            None | Some([]) => return Err(node.fail(format!("invalid parameter \"{first}\""))),
            Some(_) => {}
        }
        let flags: Vec<Word> = node.args.iter().skip(1).cloned().collect();
        let is_wrong = |word: &&Word| !word.bytes.contains(&b'$') && !Flags::default().add(&word.bytes);
        // DIFF(nginx): a flag that is none is refused if that can be seen when the configuration is read.
        match flags.iter().find(is_wrong) {
            Some(word) => Err(node.fail(format!("invalid cookie flag \"{word}\""))),
            None => Ok(Self::Rule(first.clone(), flags)),
        }
    }
}

impl CookiePattern {
    fn resolve(word: &Word, caseless: Caseless, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let (pattern, caseless) = match &*word.bytes {
            [b'~', b'*', rest @ ..] => (rest, Caseless::Yes),
            [b'~', rest @ ..] => (rest, caseless),
            _ => return cx.template(word).map(Self::Text),
        };
        let regex = cx.regex_of(pattern, caseless, word.span)?;
        Ok(Self::Regex(regex))
    }
}

impl CookieRules {
    pub(super) fn resolve(
        domains: Option<Vec<RawCookieRule>>,
        paths: Option<Vec<RawCookieRule>>,
        flags: Option<Vec<RawCookieFlags>>,
        outer: Option<&Self>,
        cx: &mut Resolve<'_>,
    ) -> Result<Self, ConfError> {
        let mut rules = outer.cloned().unwrap_or_default();
        let resolve = |cookie_rules: Vec<RawCookieRule>, kind: Kind, cx: &mut Resolve<'_>| {
            let mut rules = Vec::new();
            for rule in cookie_rules {
                let RawCookieRule::Rule(mut from, mut to) = rule else { continue };
                // The dot in front of a domain has no meaning.
                if kind == Kind::Domain && from.bytes.first() != Some(&b'~') {
                    [&mut from, &mut to].into_iter().for_each(without_dot);
                }
                let caseless = if kind == Kind::Domain { Caseless::Yes } else { Caseless::No };
                rules.push(CookieRule {
                    from: CookiePattern::resolve(&from, caseless, cx)?,
                    to: cx.template(&to)?,
                });
            }
            Ok::<Arc<[CookieRule]>, ConfError>(rules.into())
        };
        if let Some(cookie_rules) = domains {
            rules.domains = resolve(cookie_rules, Kind::Domain, cx)?;
        }
        if let Some(cookie_rules) = paths {
            rules.paths = resolve(cookie_rules, Kind::Path, cx)?;
        }
        if let Some(cookie_flags) = flags {
            let mut resolved = Vec::new();
            for cookie_flags in cookie_flags {
                let RawCookieFlags::Rule(name, flags) = cookie_flags else { continue };
                let flags = flags.iter().map(|flag| cx.template(flag)).collect::<Result<_, _>>()?;
                resolved.push((CookiePattern::resolve(&name, Caseless::Yes, cx)?, flags));
            }
            rules.flags = resolved.into();
        }
        Ok(rules)
    }

    /// Changed value of a `Set-Cookie`; `None` if nothing changes.
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
        let holds = |what: &CookiePattern| match what {
            CookiePattern::Text(text) => text.value(r).eq_ignore_ascii_case(&name),
            CookiePattern::Regex(regex) => r.matches(regex, &name) == Ok(Match::Yes),
        };
        if let Some((_, flags)) = self.flags.iter().find(|(what, _)| holds(what)) {
            let mut wanted_flags = Flags::default();
            for flag in flags {
                let _ = wanted_flags.add(&flag.value(r));
            }
            is_changed |= wanted_flags.apply(&mut parts);
        }
        is_changed.then(|| parts.join(&b"; "[..]))
    }
}

impl CookieRule {
    /// A domain is replaced as a whole; a dot in front of it is not compared, and stays.
    fn domain(&self, r: &Request, value: &[u8]) -> Option<Vec<u8>> {
        match &self.from {
            CookiePattern::Text(text) => {
                let bare = value.strip_prefix(b".").unwrap_or(value);
                let dot = &value[..value.len() - bare.len()];
                text.value(r).eq_ignore_ascii_case(bare).then(|| [dot, &self.to.value(r)].concat())
            }
            CookiePattern::Regex(regex) => self.whole(r, regex, value),
        }
    }

    fn whole(&self, r: &Request, regex: &Regex, value: &[u8]) -> Option<Vec<u8>> {
        if r.matches(regex, value) != Ok(Match::Yes) {
            return None;
        }
        r.store_named_captures(regex);
        Some(self.to.value(r))
    }

    /// Of a path the beginning is replaced; what a regular expression matches, as a whole.
    fn path(&self, r: &Request, value: &[u8]) -> Option<Vec<u8>> {
        match &self.from {
            CookiePattern::Text(text) => {
                let text = text.value(r);
                let rest = value.strip_prefix(&*text)?;
                Some([&*self.to.value(r), rest].concat())
            }
            CookiePattern::Regex(regex) => self.whole(r, regex, value),
        }
    }
}

impl Flags {
    /// Adds one flag; returns `false` for unknown text. An empty one is allowed and ignored.
    fn add(&mut self, flag: &[u8]) -> bool {
        let site = |this: &mut Self, site| {
            this.same_site = Some(this.same_site.map_or(site, |before: SameSite| before.min(site)));
        };
        match &*flag.to_ascii_lowercase() {
            b"" => {}
            b"secure" => self.secure = Some(true),
            b"nosecure" => self.secure = self.secure.or(Some(false)),
            b"httponly" => self.http_only = Some(true),
            b"nohttponly" => self.http_only = self.http_only.or(Some(false)),
            b"samesite=strict" => site(self, SameSite::Strict),
            b"samesite=lax" => site(self, SameSite::Lax),
            b"samesite=none" => site(self, SameSite::None),
            b"nosamesite" => site(self, SameSite::Gone),
            _ => return false,
        }
        true
    }

    /// Changes the flags; returns `true` if any is another than before.
    fn apply(self, parts: &mut Vec<Cow<'_, [u8]>>) -> bool {
        if let Some(is_on) = self.secure {
            set_flag(parts, b"Secure", is_on.then_some(b""));
        }
        if let Some(is_on) = self.http_only {
            set_flag(parts, b"HttpOnly", is_on.then_some(b""));
        }
        if let Some(same_site) = self.same_site {
            let value: Option<&[u8]> = match same_site {
                SameSite::Strict => Some(b"Strict"),
                SameSite::Lax => Some(b"Lax"),
                SameSite::None => Some(b"None"),
                SameSite::Gone => None,
            };
            set_flag(parts, b"SameSite", value);
        }
        self != Self::default()
    }
}

/// Sees to it that a cookie has a flag with this value, or does not have it. One that has it keeps it as it was written.
fn set_flag(parts: &mut Vec<Cow<'_, [u8]>>, name: &[u8], value: Option<&[u8]>) {
    let is_it = |part: &[u8]| split(part).0.eq_ignore_ascii_case(name);
    let Some(value) = value else {
        let mut at = 0;
        return parts.retain(|part| {
            at += 1;
            at == 1 || !is_it(part)
        });
    };
    let wanted_value = if value.is_empty() { name.to_vec() } else { [name, b"=", value].concat() };
    match parts.iter_mut().skip(1).find(|part| is_it(part)) {
        Some(part) if value.is_empty() || split(part).1.eq_ignore_ascii_case(value) => {}
        Some(part) => *part = wanted_value.into(),
        None => parts.push(wanted_value.into()),
    }
}

fn without_dot(word: &mut Word) {
    if let Some(rest) = word.bytes.strip_prefix(b".") {
        word.bytes = rest.into();
    }
}

/// Name and value of a part of a cookie.
fn split(part: &[u8]) -> (&[u8], &[u8]) {
    match part.iter().position(|byte| *byte == b'=') {
        Some(at) => (part[..at].trim_ascii(), part[at + 1..].trim_ascii()),
        None => (part, b""),
    }
}
