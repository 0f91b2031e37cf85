//! Cache of answers and their lifetimes: policy without a clock.
//!
//! ```text
//! stored ──ttl──► stale ──STALE_MAX──► gone        negative answers are never stale
//! ```
//!
//! At most `ENTRIES_MAX` answers are kept. Clients that choose host names can cause queries for any number of names,
//! so a new answer evicts one that was not used since the hand passed it last ("clock"), at the same cost for any
//! number.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::answer::{Question, Records};

/// Shortest lifetime of an answer, whatever its TTL, so that concurrent requests cause one query.
const TTL_MIN: Duration = Duration::from_secs(1);
/// Time after a failure during which an expired answer is used without waiting for servers (RFC 8767: at most one try
/// in 30 s).
const RETRY_AFTER: Duration = Duration::from_secs(10);
/// Entries that are looked at to find one that can go: more would make a turn long.
const HAND_STEPS_MAX: usize = 64;

tw_base::limits! {
    /// Limits of the cache.
    pub(crate) const LIMITS;

    /// Answers kept by a resolver.
    pub(crate) const ENTRIES_MAX: usize = 16_384, count, "an answer that was not used lately goes";
    /// Time that a name is taken not to exist.
    ///
    /// Longest lifetime of a negative answer: a name that an operator adds should be found soon.
    const NEGATIVE_TTL_MAX: Duration = Duration::from_secs(30), time, "it is asked for again";
    /// Time that the answer of a name server holds, unless `valid` says it.
    const TTL_MAX: Duration = Duration::from_secs(86_400), time, "the name is asked for again";
    /// Time that an old answer is used while no name server answers.
    ///
    /// Time for which an expired answer may be used when no server answers (RFC 8767: 1 to 3 days).
    const STALE_MAX: Duration = Duration::from_secs(86_400), time, "the name cannot be resolved";
}

/// Cached answer: records, or an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// There is something.
    Found(Records),
    /// Negative answer.
    Missing,
}

/// Cached answer with the end of its lifetime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CachedAnswer {
    pub(crate) outcome: Answer,
    pub(crate) expires: Instant,
}

/// Result of a cache lookup.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CacheLookup {
    /// A valid answer.
    Fresh(CachedAnswer),
    /// An expired answer. `retry` is true if it is time to query again.
    Stale { old: CachedAnswer, retry: bool },
    /// No answer.
    Absent,
}

/// Lifetime of an answer with this `ttl`. `valid` overrides that of answers, but not of negative ones.
pub(crate) fn lifetime(outcome: &Answer, ttl: Option<u32>, valid: Option<Duration>) -> Option<Duration> {
    let said = ttl.map(|secs| Duration::from_secs(secs.into()));
    match outcome {
        Answer::Found(_) => Some(valid.unwrap_or_else(|| said.unwrap_or_default().clamp(TTL_MIN, TTL_MAX))),
        // RFC 2308, section 5: without an SOA it is not kept.
        Answer::Missing => said.map(|said| said.min(valid.unwrap_or(NEGATIVE_TTL_MAX)).min(NEGATIVE_TTL_MAX)),
    }
}

#[derive(Debug)]
struct Entry {
    question: Question,
    settled: CachedAnswer,
    /// Until then an old answer is used at once.
    retry_at: Instant,
    is_used: bool,
}

/// Answers by question.
#[derive(Debug)]
pub(crate) struct Cache {
    index: HashMap<Question, usize>,
    entries: Vec<Entry>,
    hand: usize,
    entries_max: usize,
}

impl Cache {
    /// Makes an empty cache with at most this many entries.
    pub(crate) fn new(entries_max: usize) -> Self {
        Self { index: HashMap::new(), entries: Vec::new(), hand: 0, entries_max: entries_max.max(1) }
    }

    /// Looks up a question at `now`.
    pub(crate) fn lookup(&mut self, question: &Question, now: Instant) -> CacheLookup {
        let found_entry = self.index.get(question).and_then(|at| self.entries.get_mut(*at));
        let Some(entry) = found_entry else { return CacheLookup::Absent };
        let Entry { settled, retry_at, is_used, .. } = entry;
        if now < settled.expires {
            *is_used = true;
            return CacheLookup::Fresh(settled.clone());
        }
        if settled.outcome == Answer::Missing || now >= settled.expires + STALE_MAX {
            return CacheLookup::Absent;
        }
        *is_used = true;
        CacheLookup::Stale { old: settled.clone(), retry: now >= *retry_at }
    }

    /// Keeps an answer.
    pub(crate) fn store(&mut self, question: &Question, settled: CachedAnswer) {
        let retry_at = settled.expires;
        let known_value = self.index.get(question).copied();
        let entry = Entry { question: question.clone(), settled, retry_at, is_used: known_value.is_some() };
        let at = match known_value {
            Some(at) => at,
            None if self.entries.len() < self.entries_max => {
                self.index.insert(question.clone(), self.entries.len());
                self.entries.push(entry);
                return;
            }
            None => {
                let at = self.unused();
                if let Some(old) = self.entries.get(at) {
                    self.index.remove(&old.question);
                }
                self.index.insert(question.clone(), at);
                at
            }
        };
        if let Some(slot) = self.entries.get_mut(at) {
            *slot = entry;
        }
    }

    /// No server has answered: an old answer is good for a while.
    pub(crate) fn delay_retry(&mut self, question: &Question, now: Instant) {
        if let Some(entry) = self.index.get(question).and_then(|at| self.entries.get_mut(*at)) {
            entry.retry_at = now + RETRY_AFTER;
        }
    }

    /// The place of an entry that can go. There is at least one entry.
    fn unused(&mut self) -> usize {
        for _ in 0..HAND_STEPS_MAX {
            let at = self.hand;
            self.hand = (self.hand + 1) % self.entries.len();
            match self.entries.get_mut(at) {
                Some(entry) if entry.is_used => entry.is_used = false,
                _ => return at,
            }
        }
        self.hand
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Kind;
    use crate::name::Name;

    const SECOND: Duration = Duration::from_secs(1);

    fn question(name: &str) -> Question {
        Question { name: Name::parse(name.as_bytes()).unwrap(), kind: Kind::A }
    }

    fn addresses_answer() -> Answer {
        Answer::Found(Records::Addresses([[192, 0, 2, 1].into()].into()))
    }

    #[test]
    fn lifetimes_of_answers() {
        let secs = Duration::from_secs;
        for (outcome, ttl, valid, expected) in [
            (addresses_answer(), Some(300), None, Some(300)),
            (addresses_answer(), Some(0), None, Some(1)),
            (addresses_answer(), Some(u32::MAX), None, Some(86_400)),
            (addresses_answer(), Some(300), Some(5), Some(5)),
            (addresses_answer(), Some(1), Some(200_000), Some(200_000)),
            (Answer::Missing, None, None, None),
            (Answer::Missing, None, Some(5), None),
            (Answer::Missing, Some(0), None, Some(0)),
            (Answer::Missing, Some(7), None, Some(7)),
            (Answer::Missing, Some(900), None, Some(30)),
            (Answer::Missing, Some(900), Some(5), Some(5)),
            (Answer::Missing, Some(900), Some(600), Some(30)),
        ] {
            let span = lifetime(&outcome, ttl, valid.map(secs));
            assert_eq!(span, expected.map(secs), "{outcome:?} {ttl:?} {valid:?}");
        }
    }

    #[test]
    fn an_answer_is_fresh_then_stale_then_gone() {
        let now = Instant::now();
        let mut cache = Cache::new(10);
        let settled = CachedAnswer { outcome: addresses_answer(), expires: now + 60 * SECOND };
        assert_eq!(cache.lookup(&question("a"), now), CacheLookup::Absent);
        cache.store(&question("a"), settled.clone());
        assert_eq!(cache.lookup(&question("b"), now), CacheLookup::Absent);
        let fresh = CacheLookup::Fresh(settled.clone());
        let stale = |retry| CacheLookup::Stale { old: settled.clone(), retry };
        assert_eq!(cache.lookup(&question("a"), now), fresh);
        assert_eq!(cache.lookup(&question("a"), now + 59 * SECOND), fresh);
        assert_eq!(cache.lookup(&question("a"), now + 60 * SECOND), stale(true));
        cache.delay_retry(&question("a"), now + 70 * SECOND);
        assert_eq!(cache.lookup(&question("a"), now + 71 * SECOND), stale(false));
        assert_eq!(cache.lookup(&question("a"), now + 70 * SECOND + RETRY_AFTER), stale(true));
        assert_eq!(cache.lookup(&question("a"), now + 60 * SECOND + STALE_MAX), CacheLookup::Absent);
        // A new answer is a new beginning.
        let settled = CachedAnswer { outcome: addresses_answer(), expires: now + 900 * SECOND };
        cache.store(&question("a"), settled.clone());
        assert_eq!(cache.lookup(&question("a"), now + 100 * SECOND), CacheLookup::Fresh(settled));
    }

    #[test]
    fn negative_answer_is_never_stale() {
        let now = Instant::now();
        let mut cache = Cache::new(10);
        let settled = CachedAnswer { outcome: Answer::Missing, expires: now + SECOND };
        cache.store(&question("a"), settled.clone());
        assert_eq!(cache.lookup(&question("a"), now), CacheLookup::Fresh(settled));
        assert_eq!(cache.lookup(&question("a"), now + SECOND), CacheLookup::Absent);
        cache.delay_retry(&question("nobody"), now);
    }

    #[test]
    fn full_cache_keeps_used_answers() {
        let now = Instant::now();
        let mut cache = Cache::new(8);
        let settled = CachedAnswer { outcome: addresses_answer(), expires: now + 60 * SECOND };
        cache.store(&question("popular"), settled.clone());
        for n in 0..1000 {
            assert_ne!(cache.lookup(&question("popular"), now), CacheLookup::Absent, "{n}");
            cache.store(&question(&format!("random{n}")), settled.clone());
            assert!(cache.index.contains_key(&question(&format!("random{n}"))));
            assert!(cache.index.len() <= 8 && cache.entries.len() == cache.index.len());
        }
    }

    #[test]
    fn cache_of_used_answers_takes_new_ones() {
        let now = Instant::now();
        let mut cache = Cache::new(2 * HAND_STEPS_MAX);
        let settled = CachedAnswer { outcome: addresses_answer(), expires: now + 60 * SECOND };
        for n in 0..10 * HAND_STEPS_MAX {
            cache.store(&question(&format!("n{n}")), settled.clone());
            for used in 0..=n {
                cache.lookup(&question(&format!("n{used}")), now);
            }
        }
        assert_eq!(cache.index.len(), 2 * HAND_STEPS_MAX);
        assert!(cache.entries.iter().enumerate().all(|(at, entry)| cache.index[&entry.question] == at));
    }
}
