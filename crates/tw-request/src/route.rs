//! From a URI to a location.
//!
//! The look-up is made of plain data built at load: hash maps for exact names, one sorted list with parent links for
//! prefixes (a binary search, then at most one step per nested prefix), regular expressions in the order written, and after
//! them predicates.

use std::sync::Arc;

use foldhash::HashMap;
use tw_core::regex::{Match, Regex};

use crate::ids::PlanId;

/// The locations of one block: a server, or a location that contains others.
#[derive(Default)]
pub struct Locations {
    exact: HashMap<Box<[u8]>, PlanId>,
    /// Sorted by name.
    prefixes: Vec<Prefix>,
    /// Names that end in a slash, without it, of locations to which it is added.
    slashless: HashMap<Box<[u8]>, PlanId>,
    regexes: Vec<RegexLocation>,
    predicates: Vec<PredicateLocation>,
}

struct Prefix {
    name: Box<[u8]>,
    plan: PlanId,
    /// `^~`: regular expressions are not tried.
    no_regex: bool,
    /// The longest other prefix that this one begins with.
    parent: Option<usize>,
    inner: Option<Box<Locations>>,
}

struct RegexLocation {
    regex: Arc<Regex>,
    plan: PlanId,
    inner: Option<Box<Locations>>,
}

struct PredicateLocation {
    plan: PlanId,
    inner: Option<Box<Locations>>,
}

/// Pattern of a location.
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
    Regex(Arc<Regex>),
    /// `$variable`, with the dollar: requests for which the variable is neither empty nor `0`.
    Predicate(Box<[u8]>),
    /// `@name`.
    Named(Box<[u8]>),
}

/// A location as it is written into its block.
pub struct WrittenLocation {
    /// Pattern of its URIs.
    pub pattern: Pattern,
    /// Plan of the location.
    pub plan: PlanId,
    /// True if a URI that lacks only the slash at its end is redirected to it.
    pub adds_slash: bool,
    /// The locations in it.
    pub inner: Locations,
}

/// Tests of one request on the way to its location.
pub trait LocationTests {
    /// Matches the URI against the regular expression of a location, and keeps what a match has captured: the captures of an
    /// outer location are replaced by those of an inner one, but its named groups remain variables.
    fn matches(&mut self, regex: &Regex, uri: &[u8]) -> Result<Match, FailedTest>;

    /// Evaluates the variable of the predicate location that has this plan; true if it is neither empty nor `0`.
    fn is_set(&mut self, plan: PlanId) -> Result<bool, FailedTest>;
}

/// A test that came to no result, so that no location can be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailedTest;

/// Result of [`Locations::search`] in one block.
enum Best {
    /// No location.
    None,
    /// The one with the longest prefix; a regular expression or a predicate of the enclosing block comes before it.
    Prefix(PlanId),
    /// One that nothing comes before: the URI itself, a regular expression or a predicate.
    Final(PlanId),
}

impl Best {
    fn plan(self) -> Option<PlanId> {
        match self {
            Self::None => None,
            Self::Prefix(plan) | Self::Final(plan) => Some(plan),
        }
    }
}

impl Locations {
    /// Builds the look-up from locations in the order written.
    pub fn new(list: Vec<WrittenLocation>) -> Self {
        let mut built = Self::default();
        for WrittenLocation { pattern, plan, adds_slash, inner } in list {
            if let (true, Pattern::Exact(uri) | Pattern::Prefix { uri, .. }) = (adds_slash, &pattern)
                && let Some(name) = uri.strip_suffix(b"/")
            {
                // `= /uri/` comes before `/uri/`.
                let is_first = matches!(pattern, Pattern::Exact(_)) || !built.slashless.contains_key(name);
                if is_first {
                    built.slashless.insert(name.into(), plan);
                }
            }
            let inner = (!inner.is_empty()).then(|| Box::new(inner));
            match pattern {
                Pattern::Exact(uri) => {
                    built.exact.insert(uri, plan);
                }
                Pattern::Prefix { uri, no_regex } => {
                    built.prefixes.push(Prefix { name: uri, plan, no_regex, parent: None, inner });
                }
                Pattern::Regex(regex) => built.regexes.push(RegexLocation { regex, plan, inner }),
                Pattern::Predicate(_) => built.predicates.push(PredicateLocation { plan, inner }),
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

    /// The location that would be chosen without regular expressions and predicates, of those not in another one.
    pub fn prefix_of(&self, uri: &[u8]) -> Option<PlanId> {
        self.longest_prefix(uri).map(|prefix| prefix.plan)
    }

    /// Returns true if there is no location.
    pub fn is_empty(&self) -> bool {
        self.exact.is_empty()
            && self.prefixes.is_empty()
            && self.regexes.is_empty()
            && self.predicates.is_empty()
    }

    /// The location for `uri` (normalised path), or the one to which it lacks a slash; `None` if the enclosing block itself
    /// answers.
    pub fn find(&self, uri: &[u8], tests: &mut dyn LocationTests) -> Result<Option<PlanId>, FailedTest> {
        self.search(uri, tests).map(Best::plan)
    }

    fn search(&self, uri: &[u8], tests: &mut dyn LocationTests) -> Result<Best, FailedTest> {
        if let Some(&plan) = self.exact.get(uri) {
            return Ok(Best::Final(plan));
        }
        let mut best = Best::None;
        let prefix = self.longest_prefix(uri);
        if let Some(plan) = self.slashless.get(uri)
            && prefix.is_none_or(|prefix| *prefix.name != *uri)
        {
            return Ok(Best::Final(*plan));
        }
        if let Some(prefix) = prefix {
            best = Best::Prefix(prefix.plan);
            if let Some(inner) = &prefix.inner {
                match inner.search(uri, tests)? {
                    Best::None => {}
                    Best::Prefix(plan) => best = Best::Prefix(plan),
                    found_best @ Best::Final(_) => return Ok(found_best),
                }
            }
            if prefix.no_regex {
                // Regular expressions of the enclosing block are still tried.
                return Ok(best);
            }
        }
        for location in &self.regexes {
            if tests.matches(&location.regex, uri)? == Match::Yes {
                return within(location.inner.as_deref(), location.plan, uri, tests);
            }
        }
        for location in &self.predicates {
            if tests.is_set(location.plan)? {
                return within(location.inner.as_deref(), location.plan, uri, tests);
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
}

/// The location of `plan`, which nothing comes before, or the one of those in it.
fn within(
    inner: Option<&Locations>,
    plan: PlanId,
    uri: &[u8],
    tests: &mut dyn LocationTests,
) -> Result<Best, FailedTest> {
    let plan_id = match inner {
        Some(inner) => inner.search(uri, tests)?.plan(),
        None => None,
    };
    Ok(Best::Final(plan_id.unwrap_or(plan)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tw_core::regex::{Captures, Caseless};

    /// Tests of a request for which the predicates of some plans are set.
    #[derive(Default)]
    struct Tests {
        captures: Captures,
        /// First groups of what matched, in order.
        noted: Vec<String>,
        set: &'static [u32],
        /// Plan whose predicate cannot be evaluated.
        fails: Option<u32>,
    }

    impl LocationTests for Tests {
        fn matches(&mut self, regex: &Regex, uri: &[u8]) -> Result<Match, FailedTest> {
            let matched = regex.captures_of_match(uri, &mut self.captures).map_err(|_| FailedTest)?;
            if let (Match::Yes, Some(group)) = (matched, self.captures.group(1)) {
                self.noted.push(String::from_utf8(group.to_vec()).unwrap());
            }
            Ok(matched)
        }

        fn is_set(&mut self, plan: PlanId) -> Result<bool, FailedTest> {
            if self.fails == Some(plan.0) { Err(FailedTest) } else { Ok(self.set.contains(&plan.0)) }
        }
    }

    fn predicate() -> Pattern {
        Pattern::Predicate(b"$x".as_slice().into())
    }

    fn prefix(uri: &str) -> Pattern {
        Pattern::Prefix { uri: uri.as_bytes().into(), no_regex: false }
    }

    fn regex(pattern: &str) -> Pattern {
        Pattern::Regex(Regex::new(pattern.as_bytes(), Caseless::No).unwrap().into())
    }

    fn no_regex(uri: &str) -> Pattern {
        Pattern::Prefix { uri: uri.as_bytes().into(), no_regex: true }
    }

    fn location(pattern: Pattern, plan: u32) -> WrittenLocation {
        block(pattern, plan, vec![])
    }

    fn block(pattern: Pattern, plan: u32, inner: Vec<WrittenLocation>) -> WrittenLocation {
        WrittenLocation { pattern, plan: PlanId(plan), adds_slash: false, inner: Locations::new(inner) }
    }

    #[test]
    fn locations_are_found_as_nginx_documents() {
        let nested = vec![
            location(regex(r"\.php$"), 20),
            location(prefix("/app/static/"), 21),
            location(no_regex("/app/stop/"), 22),
        ];
        let l = Locations::new(vec![
            location(Pattern::Exact(b"/".as_slice().into()), 0),
            location(prefix("/"), 1),
            location(prefix("/documents/"), 2),
            location(no_regex("/images/"), 3),
            location(regex(r"\.(gif|jpg)$"), 4),
            block(prefix("/app/"), 5, nested),
        ]);
        for (uri, expected) in [
            ("/", Some(0)),
            ("/index.html", Some(1)),
            ("/documents/document.html", Some(2)),
            ("/images/1.gif", Some(3)),
            ("/documents/1.jpg", Some(4)),
            ("/documents", Some(1)),
            ("/app/x.php", Some(20)),
            ("/app/static/x", Some(21)),
            ("/app/static/x.php", Some(20)),
            ("/app/x.gif", Some(4)),
            ("/app/stop/x.php", Some(22)),
            ("/app/stop/x.gif", Some(4)),
            ("*", None),
        ] {
            let plan_id = l.find(uri.as_bytes(), &mut Tests::default()).unwrap();
            assert_eq!(plan_id.map(|plan| plan.0), expected, "{uri}");
        }
    }

    #[test]
    fn uri_without_its_trailing_slash_is_recognized() {
        let sent = |pattern, plan| WrittenLocation { adds_slash: true, ..location(pattern, plan) };
        let l = Locations::new(vec![
            sent(prefix("/a/"), 1),
            location(prefix("/a-a"), 2),
            location(prefix("/b"), 3),
            sent(prefix("/b/"), 4),
            location(regex("^/[ac]$"), 5),
            WrittenLocation {
                adds_slash: true,
                ..block(prefix("/"), 6, vec![sent(prefix("/c/"), 7), sent(prefix("/d/"), 8)])
            },
        ]);
        for (uri, expected) in [
            ("/a", 1),
            ("/a/", 1),
            ("/a-", 6),
            ("/a-a", 2),
            ("/b", 3),
            ("/b/", 4),
            ("/c", 7),
            ("/d", 8),
            ("/e", 6),
        ] {
            let plan_id = l.find(uri.as_bytes(), &mut Tests::default()).unwrap();
            assert_eq!(plan_id, Some(PlanId(expected)), "{uri}");
        }
    }

    #[test]
    fn every_matching_regex_is_reported() {
        let inner = vec![location(regex(r"\.html$"), 1), location(regex(r"\.(php)$"), 2)];
        let l = Locations::new(vec![
            location(regex("^/other/"), 0),
            block(regex("^/(?<user>[a-z]+)/"), 3, inner),
            location(prefix("/"), 4),
        ]);
        for (uri, plan, expected) in
            [("/joe/x.php", 2, &["joe", "php"][..]), ("/joe/x", 3, &["joe"]), ("/JOE/x.php", 4, &[])]
        {
            let mut tests = Tests::default();
            let plan_id = l.find(uri.as_bytes(), &mut tests).unwrap();
            assert_eq!(plan_id, Some(PlanId(plan)), "{uri}");
            assert_eq!(tests.noted, expected, "{uri}");
            assert_eq!(tests.captures.group(1), expected.last().map(|s| s.as_bytes()), "{uri}");
        }
    }

    #[test]
    fn predicates_come_after_regexes_and_before_prefixes() {
        let l = Locations::new(vec![
            location(predicate(), 0),
            location(predicate(), 1),
            location(Pattern::Exact(b"/exact".as_slice().into()), 2),
            block(prefix("/prefix"), 3, vec![location(predicate(), 4)]),
            block(no_regex("/stop"), 5, vec![location(predicate(), 6)]),
            block(regex("^/regex"), 7, vec![location(predicate(), 8)]),
            block(
                predicate(),
                9,
                vec![location(prefix("/in"), 10), location(predicate(), 11), location(regex("^/in/r"), 12)],
            ),
        ]);
        for (uri, set, expected) in [
            ("/", &[][..], None),
            ("/", &[0, 1], Some(0)),
            ("/", &[1], Some(1)),
            ("/exact", &[0], Some(2)),
            ("/prefix", &[], Some(3)),
            ("/prefix", &[0], Some(0)),
            ("/prefix", &[4], Some(4)),
            ("/prefix", &[0, 4], Some(4)),
            ("/stop", &[0], Some(5)),
            ("/stop", &[0, 6], Some(6)),
            ("/regex", &[0], Some(7)),
            ("/regex", &[0, 8], Some(8)),
            ("/", &[9], Some(9)),
            ("/in", &[9], Some(10)),
            ("/in", &[9, 11], Some(11)),
            ("/in/r", &[9, 11], Some(12)),
            ("/in", &[1, 9], Some(1)),
        ] {
            let mut tests = Tests { set, ..Tests::default() };
            assert_eq!(
                l.find(uri.as_bytes(), &mut tests).unwrap().map(|plan| plan.0),
                expected,
                "{uri} {set:?}"
            );
        }
        let find = |uri: &str, fails| {
            l.find(uri.as_bytes(), &mut Tests { set: &[9], fails: Some(fails), ..Tests::default() })
        };
        assert_eq!(find("/", 0), Err(FailedTest));
        assert_eq!(find("/in", 11), Err(FailedTest));
        assert_eq!(find("/exact", 0), Ok(Some(PlanId(2))));
    }
}
