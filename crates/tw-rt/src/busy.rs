//! Busy time of a loop, which load balancing between loops compares.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Time that a loop has not spent waiting for events; written by its thread, read by any.
#[derive(Debug)]
pub struct BusyTime {
    base: Instant,
    ended_ns: AtomicU64,
    /// Start of the current turn, in nanoseconds from `base`; 0 while the loop waits.
    since_ns: AtomicU64,
}

impl Default for BusyTime {
    fn default() -> Self {
        Self { base: Instant::now(), ended_ns: AtomicU64::new(0), since_ns: AtomicU64::new(0) }
    }
}

impl BusyTime {
    pub(crate) fn begin(&self, now: Instant) {
        self.since_ns.store(self.at(now).max(1), Relaxed);
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
            since => self.at(now).saturating_sub(since),
        };
        self.ended_ns.load(Relaxed) + going_on
    }

    fn at(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.base).as_nanos()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn busy_time_includes_the_current_turn() {
        let busy = BusyTime::default();
        let at = |ms| busy.base + Duration::from_millis(ms);
        assert_eq!(busy.until(at(5)), 0);
        busy.begin(at(10));
        assert_eq!(busy.until(at(13)), 3_000_000);
        busy.end(4_000_000);
        assert_eq!(busy.until(at(100)), 4_000_000);
        busy.begin(at(100));
        assert_eq!(busy.until(at(101)), 5_000_000);
    }
}
