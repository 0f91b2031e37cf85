//! Profiles as callgrind writes them: own instructions of each function, and the calls between functions.
//!
//! The format is described in valgrind's manual, "Callgrind Format Specification". Names are compressed: `fn=(7) name`
//! defines number 7, and later `fn=(7)` refers to it. A line that begins with a position is a cost of the current
//! function, unless the line before it was `calls=`: then it is the cost of the callee.

use std::collections::{BTreeMap, BTreeSet};

/// Functions that allocate memory, without the prefix of the allocator.
const ALLOCATING: &[&str] = &["malloc", "zalloc", "calloc", "realloc", "rezalloc", "recalloc"];
/// Prefixes of the allocator's functions.
const ALLOCATOR: &[&str] = &["mi_", "_mi_"];

/// Number of instructions and calls in one span of time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Profile {
    /// Own instructions of each function, without those of functions that it calls.
    pub(super) own: BTreeMap<String, u64>,
    /// Calls of each function.
    pub(super) calls: BTreeMap<String, u64>,
    /// Calls of functions that allocate memory, from outside of the allocator.
    pub(super) allocations: u64,
}

impl Profile {
    /// All instructions.
    pub(super) fn total(&self) -> u64 {
        self.own.values().sum()
    }

    /// Functions by their own instructions, the most expensive first.
    pub(super) fn by_cost(&self) -> Vec<(&str, u64)> {
        let mut list: Vec<_> = self.own.iter().map(|(name, own)| (name.as_str(), *own)).collect();
        list.sort_by(|(a, a_own), (b, b_own)| b_own.cmp(a_own).then(a.cmp(b)));
        list
    }

    /// Median of each function over several profiles, the lower one of two. Work that is done in few of them, such as
    /// that of a timer, does not count.
    pub(super) fn median(profiles: &[Self]) -> Self {
        let each = |counts: fn(&Self) -> &BTreeMap<String, u64>| {
            let names: BTreeSet<&String> =
                profiles.iter().flat_map(|profile| counts(profile).keys()).collect();
            let count = |profile, name| counts(profile).get(name).copied().unwrap_or(0);
            let medians = names
                .into_iter()
                .map(|name| (name.clone(), median(profiles.iter().map(|profile| count(profile, name)))));
            medians.filter(|(_, median)| *median > 0).collect()
        };
        Self {
            own: each(|profile| &profile.own),
            calls: each(|profile| &profile.calls),
            allocations: median(profiles.iter().map(|profile| profile.allocations)),
        }
    }

    /// Reads a profile; `None` if its format is unknown.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut profile = Self::default();
        let mut names: BTreeMap<&str, &str> = BTreeMap::new();
        let mut function = "";
        let mut callee = "";
        let mut is_call = false;
        let mut total = None;
        for line in text.lines() {
            if let Some(word) = line.strip_prefix("fn=") {
                function = name(&mut names, word)?;
            } else if let Some(word) = line.strip_prefix("cfn=") {
                callee = name(&mut names, word)?;
            } else if let Some(words) = line.strip_prefix("calls=") {
                let count: u64 = words.split(' ').next()?.parse().ok()?;
                *profile.calls.entry(callee.to_owned()).or_default() += count;
                if allocates(callee) && !is_of_allocator(function) {
                    profile.allocations += count;
                }
                is_call = true;
            } else if let Some(events) = line.strip_prefix("events: ") {
                // Other events are counted only with options that nobody gave.
                (events.trim() == "Ir").then_some(())?;
            } else if let Some(count) = line.strip_prefix("totals: ") {
                total = Some(count.trim().parse::<u64>().ok()?);
            } else if line.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '*'))
                && !std::mem::take(&mut is_call)
            {
                // A position without a cost costs nothing.
                let cost = line.split(' ').nth(1).map_or(Some(0), |cost| cost.parse().ok())?;
                *profile.own.entry(function.to_owned()).or_default() += cost;
            }
        }
        // A file that was cut off has no totals.
        (total == Some(profile.total())).then_some(profile)
    }
}

/// The lower median; 0 of nothing.
fn median(counts: impl Iterator<Item = u64>) -> u64 {
    let mut counts: Vec<u64> = counts.collect();
    counts.sort_unstable();
    counts.get(counts.len().saturating_sub(1) / 2).copied().unwrap_or(0)
}

/// Resolves `(7) name` or `(7)`; a name without a number stands for itself.
fn name<'t>(names: &mut BTreeMap<&'t str, &'t str>, word: &'t str) -> Option<&'t str> {
    if !word.starts_with('(') {
        return Some(word);
    }
    let (number, text) = word.split_at(word.find(')')? + 1);
    match text.trim_start() {
        "" => names.get(number).copied(),
        text => {
            names.insert(number, text);
            Some(text)
        }
    }
}

fn is_of_allocator(function: &str) -> bool {
    ALLOCATOR.iter().any(|prefix| function.starts_with(prefix)) || ALLOCATING.contains(&function)
}

/// Returns `true` for `mi_malloc`, `mi_malloc_aligned`, `malloc` and the like.
fn allocates(function: &str) -> bool {
    let word = function.strip_prefix("mi_").unwrap_or(function);
    ALLOCATING.iter().any(|kind| {
        word.strip_prefix(kind)
            .is_some_and(|rest| rest.is_empty() || (word != function && rest.starts_with('_')))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# callgrind format\nversion: 1\npositions: line\nevents: Ir\nsummary: 130\n\n\
        ob=(1) /usr/bin/server\nfl=(1) ???\nfn=(1) server::request\n0 10\n+3 5\n\
        cob=(2) libc.so\ncfn=(2) mi_malloc_aligned\ncalls=3 0\n0 90\n* 5\n\n\
        fn=(2)\n0 60\ncfn=(3) mi_malloc\ncalls=1 0 \n0 30\n\nfn=(3)\n0 30\n-1 20\n\n\
        fn=(4) other::name<with (brackets)>\ncfn=(3)\ncalls=2 0\n0 40\n\ntotals: 130\n";

    #[test]
    fn own_instructions_exclude_those_of_callees() {
        let profile = Profile::parse(TEXT).unwrap();
        let expected = [("mi_malloc_aligned", 60), ("mi_malloc", 50), ("server::request", 20)];
        assert_eq!(profile.by_cost(), expected);
        assert_eq!((profile.total(), profile.calls["mi_malloc"]), (130, 3));
    }

    #[test]
    fn allocations_are_calls_from_outside_of_the_allocator() {
        assert_eq!(Profile::parse(TEXT).unwrap().allocations, 5);
        for (function, expected) in [
            ("mi_malloc", true),
            ("mi_realloc_aligned", true),
            ("mi_zalloc", true),
            ("malloc", true),
            ("calloc", true),
            ("mi_free", false),
            ("malloc_consolidate", false),
            ("server::malloc", false),
        ] {
            assert_eq!(allocates(function), expected, "{function}");
        }
    }

    #[test]
    fn median_leaves_out_rare_work() {
        let profile = |request, timer, allocations| Profile {
            own: [("request".to_owned(), request), ("timer".to_owned(), timer)].into(),
            calls: [("request".to_owned(), request / 10)].into(),
            allocations,
        };
        let profiles = [profile(110, 0, 3), profile(100, 9_000, 2), profile(120, 0, 2)];
        let expected = Profile {
            own: [("request".to_owned(), 110)].into(),
            calls: [("request".to_owned(), 11)].into(),
            allocations: 2,
        };
        assert_eq!(Profile::median(&profiles), expected);
        assert_eq!(Profile::median(&[]), Profile::default());
    }

    #[test]
    fn cut_off_and_unknown_profiles_are_refused() {
        assert_eq!(Profile::parse(""), None);
        assert_eq!(Profile::parse(TEXT.split_once("totals").unwrap().0), None);
        assert_eq!(Profile::parse(&TEXT.replace("0 60", "0 61")), None);
        assert_eq!(Profile::parse(&TEXT.replace("events: Ir", "events: Ir Dr")), None);
        assert_eq!(Profile::parse(&TEXT.replace("fn=(2)\n", "fn=(9)\n")), None);
    }
}
