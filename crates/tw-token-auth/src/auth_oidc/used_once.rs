//! Values that are accepted once: states of logins, identifiers of logout tokens.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{SHA256, digest};
use tw_base::FatalMutex;

tw_base::limits! {
    /// Limits of this file.
    pub(super) const LIMITS;

    /// States of logins, and identifiers of logout tokens, that are remembered after their use.
    pub(super) const USED_MAX: usize = 32_768, count, "half of them, the oldest, could be used again";
}

/// Hash of a value.
type Hash = [u8; 32];

/// Values that were used within a time. Its lock is held for a look-up.
pub(super) struct UsedOnce {
    /// Time for which a value is remembered at least, unless too many come.
    time: Duration,
    halves: FatalMutex<Halves>,
}

/// Values of the current time and of the one before.
struct Halves {
    since: Option<Instant>,
    current: HashSet<Hash>,
    before: HashSet<Hash>,
}

impl UsedOnce {
    /// Remembers values for `time`.
    pub(super) fn new(time: Duration) -> Self {
        let halves = Halves { since: None, current: HashSet::new(), before: HashSet::new() };
        Self { time, halves: FatalMutex::new(halves) }
    }

    /// Notes the use of a value. Returns `false` if it was used before.
    pub(super) fn take(&self, value: &[u8], now: Instant) -> bool {
        let mut hash = Hash::default();
        hash.copy_from_slice(digest(&SHA256, value).as_ref());
        let mut halves = self.halves.lock();
        let age = halves.since.map(|since| now.saturating_duration_since(since));
        if age.is_none_or(|age| age >= self.time) || halves.current.len() >= USED_MAX {
            // All values in the current half are older than `time` then.
            let is_stale = age.is_some_and(|age| age >= self.time * 2);
            let last = std::mem::take(&mut halves.current);
            halves.before = if is_stale { HashSet::new() } else { last };
            halves.since = Some(now);
        }
        !halves.before.contains(&hash) && halves.current.insert(hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_is_accepted_once_within_the_time() {
        let used = UsedOnce::new(Duration::from_secs(10));
        let begin = Instant::now();
        let at = |secs| begin + Duration::from_secs(secs);
        for (value, secs, expected) in [
            (b"a", 0, true),
            (b"a", 0, false),
            (b"b", 9, true),
            (b"a", 10, false),
            (b"b", 19, false),
            (b"b", 20, true),
            (b"a", 20, true),
            (b"b", 29, false),
            (b"b", 60, true),
        ] {
            assert_eq!(used.take(value, at(secs)), expected, "{value:?} {secs}");
        }
    }

    #[test]
    fn memory_is_bounded_and_the_latest_are_remembered() {
        let used = UsedOnce::new(Duration::from_secs(10));
        let now = Instant::now();
        let count = USED_MAX as u32 * 3;
        assert!((0..count).all(|value| used.take(&value.to_le_bytes(), now)));
        let halves = used.halves.lock();
        assert!(halves.current.len() + halves.before.len() <= USED_MAX * 2);
        drop(halves);
        let latest = count - USED_MAX as u32..count;
        assert!(latest.into_iter().all(|value| !used.take(&value.to_le_bytes(), now)));
    }
}
