//! Search list of the system: the full names that a short name stands for (resolv.conf(5), `search` and `ndots`).

use crate::error::ResolveError;
use crate::name::Name;

/// Most dots that `ndots` takes, as in the C library.
const NDOTS_MAX: usize = 15;

/// Domains that are appended to names with few dots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SearchList {
    /// `search` or `domain`, in order; `None` is the root. The number is not limited, as in the C library since 2.26.
    pub(crate) domains: Vec<Option<Name>>,
    /// `options ndots`: a name with as many dots is queried as written before the list is used.
    ndots: usize,
    /// `options no-tld-query`: a name without dots is never queried as written.
    pub(crate) skips_bare: bool,
}

/// Errors of the candidates so far, which determine the final error.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    /// Error of the name as written, if that was queried first.
    as_is: Option<ResolveError>,
    server_failure: Option<ResolveError>,
    last: Option<ResolveError>,
}

/// One whole name to ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) name: Name,
    /// True for the name as written, without an appended domain.
    pub(crate) is_as_is: bool,
}

impl Default for SearchList {
    fn default() -> Self {
        Self { domains: Vec::new(), ndots: 1, skips_bare: false }
    }
}

impl SearchList {
    pub(crate) fn set_ndots(&mut self, count: usize) {
        self.ndots = count.min(NDOTS_MAX);
    }

    /// Full names to query, in order; empty if the name cannot exist.
    pub(crate) fn candidates(&self, name: &[u8]) -> Vec<Candidate> {
        let as_is = Name::parse(name).map(|name| Candidate { name, is_as_is: true });
        if name.ends_with(b".") {
            return as_is.into_iter().collect();
        }
        let dots = name.iter().filter(|byte| **byte == b'.').count();
        let is_first = dots >= self.ndots;
        let has_root = self.domains.contains(&None);
        // Without a search list, only the name itself can be asked for.
        let tries_as_is = dots > 0 || self.domains.is_empty() || !self.skips_bare;
        let mut all = Vec::with_capacity(self.domains.len() + 1);
        if is_first {
            all.extend(as_is.clone());
        }
        for domain in &self.domains {
            let full = match domain {
                None => Name::parse(name),
                Some(domain) => Name::parse(&[name, b".", domain.as_bytes()].concat()),
            };
            all.extend(full.map(|name| Candidate { name, is_as_is: false }));
        }
        if !is_first && !has_root && tries_as_is {
            all.extend(as_is);
        }
        all
    }
}

impl Failures {
    /// Records the error of a candidate. Returns `true` if the rest of the list is to be queried: not after a failure
    /// that is unrelated to the name. The name as written comes last in any case.
    pub(crate) fn goes_on(&mut self, candidate: &Candidate, error: ResolveError, is_first: bool) -> bool {
        self.last = Some(error);
        if error == ResolveError::ServerFailure {
            self.server_failure = Some(error);
        }
        if candidate.is_as_is && is_first {
            self.as_is = Some(error);
            return true;
        }
        matches!(error, ResolveError::NotFound | ResolveError::ServerFailure)
    }

    /// Why the name has no addresses.
    pub(crate) fn error(self) -> ResolveError {
        self.as_is.or(self.server_failure).or(self.last).unwrap_or(ResolveError::NotFound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(domains: &[&str], ndots: usize) -> SearchList {
        let domains = domains.iter().map(|domain| Name::parse(domain.as_bytes())).collect();
        let mut list = SearchList { domains, ..SearchList::default() };
        list.set_ndots(ndots);
        list
    }

    fn names(list: &SearchList, name: &str) -> String {
        let all = list.candidates(name.as_bytes());
        all.iter().map(|candidate| candidate.name.to_string()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn dots_decide_when_the_list_is_used() {
        let pod = ["ns.svc.cluster.local", "svc.cluster.local", "cluster.local"];
        for (domains, ndots, name, expected) in [
            (&pod[..0], 1, "a", "a"),
            (&pod[..0], 1, "a.b", "a.b"),
            (&pod[1..2], 1, "a", "a.svc.cluster.local a"),
            (&pod[1..2], 1, "a.b", "a.b a.b.svc.cluster.local"),
            (&pod, 5, "db", "db.ns.svc.cluster.local db.svc.cluster.local db.cluster.local db"),
            (&pod[1..], 5, "db.ns", "db.ns.svc.cluster.local db.ns.cluster.local db.ns"),
            (&pod[1..2], 5, "a.b.c.d.e.f", "a.b.c.d.e.f a.b.c.d.e.f.svc.cluster.local"),
            (&pod, 5, "db.", "db"),
            (&pod[2..], 0, "a", "a a.cluster.local"),
            (&["", "x"], 1, "a", "a a.x"),
            (&pod, 1, "", ""),
        ] {
            assert_eq!(names(&list(domains, ndots), name), expected, "{name} {ndots}");
        }
        let mut list = list(&["x"], 99);
        assert_eq!(names(&list, "1.2.3.4.5.6.7.8.9.10.11.12.13.14.15.16").split(' ').count(), 2);
        list.skips_bare = true;
        assert_eq!(names(&list, "a"), "a.x");
    }

    #[test]
    fn only_missing_names_and_failing_servers_go_on() {
        let candidates = list(&["x"], 2).candidates(b"a.b");
        let mut failures = Failures::default();
        for (error, expected) in [
            (ResolveError::NotFound, true),
            (ResolveError::ServerFailure, true),
            (ResolveError::Refused, false),
            (ResolveError::TimedOut, false),
        ] {
            assert_eq!(failures.goes_on(&candidates[0], error, false), expected, "{error}");
        }
        assert_eq!(failures.error(), ResolveError::ServerFailure);
        let mut failures = Failures::default();
        let as_is = Candidate { is_as_is: true, ..candidates[0].clone() };
        assert!(failures.goes_on(&as_is, ResolveError::Refused, true));
        assert!(failures.goes_on(&candidates[0], ResolveError::NotFound, false));
        assert_eq!(failures.error(), ResolveError::Refused);
    }
}
