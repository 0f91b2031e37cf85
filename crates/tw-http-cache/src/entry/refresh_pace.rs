//! Pace of the updates of an open entry before it becomes stale (`cache_refresh_ahead`).

use std::cell::Cell;
use std::time::{Duration, Instant};

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Time between two updates of an entry before it becomes stale (`proxy_cache_refresh_ahead`) that one loop starts.
    ///
    /// Rest between two attempts of one loop to update the same entry: the upstream server may fail.
    const AGAIN: Duration = Duration::from_secs(1), time, "the entry is used meanwhile";
}

/// Attempts of one loop to update an entry.
#[derive(Default)]
pub(crate) struct RefreshPace {
    /// Time of the last attempt.
    last: Cell<Option<Instant>>,
    /// Number of hits by this loop: the index does not count many of a plain record.
    hits: Cell<u8>,
}

impl RefreshPace {
    /// Returns true, and notes `now`, if an attempt may be made.
    pub(crate) fn may_begin(&self, now: Instant) -> bool {
        let may = self.last.get().is_none_or(|last| now.saturating_duration_since(last) >= AGAIN);
        if may {
            self.last.set(Some(now));
        }
        may
    }

    /// Counts a hit. Returns the number of hits before it.
    pub(crate) fn count_hit(&self) -> u8 {
        let hits = self.hits.get();
        self.hits.set(hits.saturating_add(1));
        hits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_loop_tries_once_a_second() {
        let (pace, now) = (RefreshPace::default(), Instant::now());
        assert!(pace.may_begin(now));
        assert!(!pace.may_begin(now + AGAIN / 2));
        assert!(pace.may_begin(now + AGAIN));
    }
}
