//! From a host name to a server and from a URI to a location.
//!
//! Both look-ups are made of plain data built at load: hash maps for exact names, one sorted list with parent links for
//! prefixes (a binary search, then at most one step per nested prefix), and regular expressions in the order written.

use std::collections::HashMap;

use super::generation::{PlanId, ServerId};
use crate::regex::{BacktrackLimit, Captures, Match, Regex};

/// Servers of one listening address by name.
#[derive(Default)]
pub struct Names {
    exact: HashMap<Box<[u8]>, ServerId>,
    /// `*.example.com` (key `.example.com` matches below it) and `.example.com` (also the name itself, in `exact`).
    suffixes: HashMap<Box<[u8]>, ServerId>,
    /// `www.example.*`, key `www.example.`.
    prefixes: HashMap<Box<[u8]>, ServerId>,
    regexes: Vec<(std::sync::Arc<Regex>, ServerId)>,
}

/// A `server_name` argument.
#[derive(Debug, Clone)]
pub enum Name {
    /// A whole name, lower case.
    Exact(Box<[u8]>),
    /// Anything below: `.example.com`.
    Below(Box<[u8]>),
    /// `.example.com`: the name itself and anything below.
    Dot(Box<[u8]>),
    /// `mail.*`: key `mail.`.
    Prefix(Box<[u8]>),
    /// `~pattern`.
    Regex(std::sync::Arc<Regex>),
}

/// Whether a name was new to its listening address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Added {
    /// It was.
    New,
    /// Another server has it already; the new one is ignored.
    Conflicting,
}

impl Names {
    /// Adds a name of a server.
    pub fn add(&mut self, name: &Name, server: ServerId) -> Added {
        match name {
            Name::Exact(name) => insert(&mut self.exact, name, server),
            Name::Below(name) => insert(&mut self.suffixes, name, server),
            Name::Prefix(name) => insert(&mut self.prefixes, name, server),
            Name::Dot(name) => {
                let whole = insert(&mut self.exact, &name[1..], server);
                let below = insert(&mut self.suffixes, name, server);
                if whole == Added::New && below == Added::New { Added::New } else { Added::Conflicting }
            }
            Name::Regex(regex) => {
                self.regexes.push((regex.clone(), server));
                Added::New
            }
        }
    }

    /// The server for `host` (lower case, without port): exact name, longest suffix, longest prefix, first regex.
    /// A matching regex sets `captures`.
    pub fn find(
        &self,
        host: &[u8],
        captures: &mut Captures,
    ) -> Result<Option<(ServerId, Option<&Regex>)>, BacktrackLimit> {
        if let Some(&server) = self.exact.get(host) {
            return Ok(Some((server, None)));
        }
        let dots = || host.iter().enumerate().filter(|(_, b)| **b == b'.').map(|(at, _)| at);
        if !self.suffixes.is_empty()
            && let Some(&server) = dots().filter(|at| *at > 0).find_map(|at| self.suffixes.get(&host[at..]))
        {
            return Ok(Some((server, None)));
        }
        if !self.prefixes.is_empty()
            && let Some(&server) =
                dots().collect::<Vec<_>>().iter().rev().find_map(|at| self.prefixes.get(&host[..=*at]))
        {
            return Ok(Some((server, None)));
        }
        for (regex, server) in &self.regexes {
            if !host.is_empty() && regex.captures(host, captures)? == Match::Yes {
                return Ok(Some((*server, Some(regex))));
            }
        }
        Ok(None)
    }
}

fn insert(map: &mut HashMap<Box<[u8]>, ServerId>, name: &[u8], server: ServerId) -> Added {
    match map.entry(name.into()) {
        std::collections::hash_map::Entry::Occupied(_) => Added::Conflicting,
        std::collections::hash_map::Entry::Vacant(free) => {
            free.insert(server);
            Added::New
        }
    }
}

/// The locations of one block: a server, or a location that contains others.
#[derive(Default)]
pub struct Locations {
    exact: HashMap<Box<[u8]>, PlanId>,
    /// Sorted by name.
    prefixes: Vec<Prefix>,
    regexes: Vec<RegexLocation>,
}

struct Prefix {
    name: Box<[u8]>,
    plan: PlanId,
    /// `^~`: regular expressions are not tried.
    no_regex: bool,
    /// The longest other prefix that this one begins with.
    parent: Option<usize>,
    inner: Option<Box<Locations>>,
    /// Set when the location redirects `/dir` to `/dir/` (a proxy with a trailing slash).
    auto_redirect: bool,
}

struct RegexLocation {
    regex: std::sync::Arc<Regex>,
    plan: PlanId,
    inner: Option<Box<Locations>>,
}

/// How a location is written.
#[derive(Debug, Clone)]
pub enum Pattern {
    /// `= /uri`
    Exact(Box<[u8]>),
    /// `/uri`, or `^~ /uri` when `no_regex`.
    Prefix {
        /// The URI.
        uri: Box<[u8]>,
        /// `^~`.
        no_regex: bool,
    },
    /// `~` or `~*`.
    Regex(std::sync::Arc<Regex>),
    /// `@name`.
    Named(Box<[u8]>),
}

/// The outcome of a look-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// This location.
    Plan(PlanId),
    /// No location: the enclosing block itself.
    None,
    /// The location wants the same URI with a slash at its end.
    AddSlash(PlanId),
}

/// What [`Locations::find`] found so far: the plan, and whether regular expressions are still to be tried.
struct Best {
    plan: Option<PlanId>,
    final_: bool,
}

impl Locations {
    /// Builds the look-up from locations in the order written.
    pub fn new(list: Vec<(Pattern, PlanId, Option<Locations>, bool)>) -> Self {
        let mut built = Self::default();
        for (pattern, plan, inner, auto_redirect) in list {
            let inner = inner.filter(|l| !l.is_empty()).map(Box::new);
            match pattern {
                Pattern::Exact(uri) => {
                    built.exact.insert(uri, plan);
                }
                Pattern::Prefix { uri, no_regex } => {
                    built.prefixes.push(Prefix {
                        name: uri,
                        plan,
                        no_regex,
                        parent: None,
                        inner,
                        auto_redirect,
                    });
                }
                Pattern::Regex(regex) => built.regexes.push(RegexLocation { regex, plan, inner }),
                Pattern::Named(_) => {}
            }
        }
        built.prefixes.sort_by(|a, b| a.name.cmp(&b.name));
        let mut stack: Vec<usize> = Vec::new();
        for at in 0..built.prefixes.len() {
            while let Some(&top) = stack.last() {
                if built.prefixes[at].name.starts_with(&built.prefixes[top].name) {
                    break;
                }
                stack.pop();
            }
            built.prefixes[at].parent = stack.last().copied();
            stack.push(at);
        }
        built
    }

    fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.prefixes.is_empty() && self.regexes.is_empty()
    }

    /// The location for `uri` (normalised path). A matching regex sets `captures` and is returned for its names.
    pub fn find<'a>(
        &'a self,
        uri: &[u8],
        captures: &mut Captures,
        matched: &mut Option<&'a Regex>,
    ) -> Result<Found, BacktrackLimit> {
        if let Some(slash) = self.wants_slash(uri) {
            return Ok(Found::AddSlash(slash));
        }
        let best = self.search(uri, captures, matched)?;
        Ok(best.plan.map_or(Found::None, Found::Plan))
    }

    fn search<'a>(
        &'a self,
        uri: &[u8],
        captures: &mut Captures,
        matched: &mut Option<&'a Regex>,
    ) -> Result<Best, BacktrackLimit> {
        if let Some(&plan) = self.exact.get(uri) {
            return Ok(Best { plan: Some(plan), final_: true });
        }
        let mut best = Best { plan: None, final_: false };
        let mut no_regex = false;
        if let Some(prefix) = self.longest_prefix(uri) {
            best.plan = Some(prefix.plan);
            no_regex = prefix.no_regex;
            if let Some(inner) = &prefix.inner {
                let found = inner.search(uri, captures, matched)?;
                if found.final_ {
                    return Ok(found);
                }
                best.plan = found.plan.or(best.plan);
            }
        }
        if no_regex {
            // Those of the enclosing block are still tried.
            return Ok(best);
        }
        for location in &self.regexes {
            if location.regex.captures(uri, captures)? == Match::Yes {
                *matched = Some(&location.regex);
                let plan = match &location.inner {
                    Some(inner) => inner.search(uri, captures, matched)?.plan.unwrap_or(location.plan),
                    None => location.plan,
                };
                return Ok(Best { plan: Some(plan), final_: true });
            }
        }
        Ok(best)
    }

    fn longest_prefix(&self, uri: &[u8]) -> Option<&Prefix> {
        // The greatest name not above `uri` begins with every prefix of `uri` in the list, or is that prefix itself.
        let after = self.prefixes.partition_point(|p| *p.name <= *uri);
        let mut at = after.checked_sub(1);
        while let Some(index) = at {
            let prefix = &self.prefixes[index];
            if uri.starts_with(&prefix.name) {
                return Some(prefix);
            }
            at = prefix.parent;
        }
        None
    }

    fn wants_slash(&self, uri: &[u8]) -> Option<PlanId> {
        if self.exact.contains_key(uri) {
            return None;
        }
        let at = self.prefixes.partition_point(|p| *p.name <= *uri);
        let next = self.prefixes.get(at)?;
        let with_slash = next.auto_redirect && next.name.strip_suffix(b"/") == Some(uri);
        with_slash.then_some(next.plan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regex::Caseless;

    fn prefix(uri: &str) -> Pattern {
        Pattern::Prefix { uri: uri.as_bytes().into(), no_regex: false }
    }

    fn regex(pattern: &str) -> Pattern {
        Pattern::Regex(Regex::new(pattern.as_bytes(), Caseless::No).unwrap().into())
    }

    #[test]
    fn locations_are_found_as_nginx_documents() {
        let nested = Locations::new(vec![
            (regex(r"\.php$"), PlanId(20), None, false),
            (prefix("/app/static/"), PlanId(21), None, false),
            (
                Pattern::Prefix { uri: b"/app/stop/".as_slice().into(), no_regex: true },
                PlanId(22),
                None,
                false,
            ),
        ]);
        let l = Locations::new(vec![
            (Pattern::Exact(b"/".as_slice().into()), PlanId(0), None, false),
            (prefix("/"), PlanId(1), None, false),
            (prefix("/documents/"), PlanId(2), None, false),
            (Pattern::Prefix { uri: b"/images/".as_slice().into(), no_regex: true }, PlanId(3), None, false),
            (regex(r"\.(gif|jpg)$"), PlanId(4), None, false),
            (prefix("/app/"), PlanId(5), Some(nested), false),
            (prefix("/proxy/"), PlanId(6), None, true),
        ]);
        for (uri, expected) in [
            ("/", Found::Plan(PlanId(0))),
            ("/index.html", Found::Plan(PlanId(1))),
            ("/documents/document.html", Found::Plan(PlanId(2))),
            ("/images/1.gif", Found::Plan(PlanId(3))),
            ("/documents/1.jpg", Found::Plan(PlanId(4))),
            ("/documents", Found::Plan(PlanId(1))),
            ("/app/x.php", Found::Plan(PlanId(20))),
            ("/app/static/x", Found::Plan(PlanId(21))),
            ("/app/static/x.php", Found::Plan(PlanId(20))),
            ("/app/x.gif", Found::Plan(PlanId(4))),
            ("/app/stop/x.php", Found::Plan(PlanId(22))),
            ("/app/stop/x.gif", Found::Plan(PlanId(4))),
            ("/proxy", Found::AddSlash(PlanId(6))),
            ("*", Found::None),
        ] {
            let found = l.find(uri.as_bytes(), &mut Captures::default(), &mut None).unwrap();
            assert_eq!(found, expected, "{uri}");
        }
    }

    #[test]
    fn names_are_found_as_nginx_documents() {
        let mut names = Names::default();
        for (at, name) in [
            Name::Exact(b"example.org".as_slice().into()),
            Name::Below(b".example.org".as_slice().into()),
            Name::Dot(b".example.net".as_slice().into()),
            Name::Prefix(b"mail.".as_slice().into()),
            Name::Regex(Regex::new(br"^www\d+\.", Caseless::Yes).unwrap().into()),
        ]
        .iter()
        .enumerate()
        {
            assert_eq!(names.add(name, ServerId(at as u32)), Added::New);
        }
        assert_eq!(
            names.add(&Name::Exact(b"example.net".as_slice().into()), ServerId(9)),
            Added::Conflicting
        );
        for (host, expected) in [
            ("example.org", Some(0)),
            ("a.b.example.org", Some(1)),
            ("example.net", Some(2)),
            ("x.example.net", Some(2)),
            ("mail.example.com", Some(3)),
            ("www12.example.com", Some(4)),
            ("other", None),
            ("", None),
        ] {
            let found = names.find(host.as_bytes(), &mut Captures::default()).unwrap();
            assert_eq!(found.map(|(s, _)| s.0), expected, "{host}");
        }
    }
}
