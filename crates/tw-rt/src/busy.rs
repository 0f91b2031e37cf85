//! Busy time of a loop, which load balancing between loops compares.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use crate::clock::Reading;

/// Time that a loop has not spent waiting for events; written by its thread, read by any.
#[derive(Debug, Default)]
pub struct BusyTime {
    ended_ns: AtomicU64,
    /// Start of the current turn, as [`Reading::ns`]; 0 while the loop waits.
    since_ns: AtomicU64,
}

impl BusyTime {
    pub(crate) fn begin(&self, now_ns: u64) {
        self.since_ns.store(now_ns.max(1), Relaxed);
    }

    pub(crate) fn end(&self, turn_ns: u64) {
        self.ended_ns.store(self.ended_ns.load(Relaxed) + turn_ns, Relaxed);
        self.since_ns.store(0, Relaxed);
    }

    /// Nanoseconds in turns until `now`, the one that is going on included. A turn that ends while it is read may be
    /// counted twice or not at all.
    pub fn until(&self, now: Instant) -> u64 {
        let going_on = match self.since_ns.load(Relaxed) {
            0 => 0,
            since => Reading::at(now).ns.saturating_sub(since),
        };
        self.ended_ns.load(Relaxed) + going_on
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn busy_time_includes_the_current_turn() {
        let busy = BusyTime::default();
        let base = Instant::now();
        let at = |ms| base + Duration::from_millis(ms);
        let ns = |ms| Reading::at(at(ms)).ns;
        assert_eq!(busy.until(at(5)), 0);
        busy.begin(ns(10));
        assert_eq!(busy.until(at(13)), 3_000_000);
        busy.end(4_000_000);
        assert_eq!(busy.until(at(100)), 4_000_000);
        busy.begin(ns(100));
        assert_eq!(busy.until(at(101)), 5_000_000);
    }
}
