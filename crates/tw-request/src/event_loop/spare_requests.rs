//! Memory of requests that have ended, for those that begin.

use std::time::{Duration, Instant};

use tw_base::memory;

use crate::protocol::Session;

/// Time after which requests that were not used are freed.
const SPARE_TIME: Duration = Duration::from_secs(10);
/// Time after which they are freed while little memory is left.
const SPARE_TIME_LOW: Duration = Duration::from_millis(200);

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Requests a loop keeps in memory for the next use.
    const SPARE_REQUESTS: usize = 1024, count,
        "what is more is freed, and what was not used for ten seconds, or for a fifth of one while less than half of memory_budget \
        is left";
}

/// Memory of requests that have ended.
#[derive(Default)]
pub struct SpareRequests {
    /// The next request gets the last one.
    #[expect(clippy::vec_box, reason = "a request of 2 KiB is handed over without being moved")]
    all: Vec<Box<Session>>,
    /// Number of requests at the bottom that were not used since the time.
    unused: usize,
    since: Option<Instant>,
}

impl SpareRequests {
    /// Takes the request that was given back last.
    pub fn take(&mut self) -> Option<Box<Session>> {
        let spare = self.all.pop();
        self.unused = self.unused.min(self.all.len());
        spare
    }

    /// Keeps a request, which is unbound, if there is room.
    pub fn put(&mut self, r: Box<Session>) {
        if self.all.len() < SPARE_REQUESTS {
            self.all.push(r);
        }
    }

    /// Frees what was not used for some time: after many requests at once, a loop needs less.
    pub fn free_unused(&mut self, now: Instant) {
        let time = if memory::is_low() { SPARE_TIME_LOW } else { SPARE_TIME };
        if self.since.is_some_and(|since| now.saturating_duration_since(since) < time) {
            return;
        }
        self.all.drain(..self.unused);
        self.all.shrink_to(2 * self.all.len());
        (self.unused, self.since) = (self.all.len(), Some(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Request;

    #[test]
    fn unused_requests_are_freed() {
        let mut spare = SpareRequests::default();
        let now = Instant::now();
        (0..=SPARE_REQUESTS).for_each(|_| spare.put(Box::new(Request::new())));
        assert_eq!(spare.all.len(), SPARE_REQUESTS);
        spare.free_unused(now);
        assert_eq!(spare.all.len(), SPARE_REQUESTS, "their time begins");
        // Three of them are used.
        let used: Vec<_> = (0..3).filter_map(|_| spare.take()).collect();
        used.into_iter().for_each(|r| spare.put(r));
        spare.free_unused(now + SPARE_TIME / 2);
        assert_eq!(spare.all.len(), SPARE_REQUESTS, "too early");
        spare.free_unused(now + SPARE_TIME);
        assert_eq!(spare.all.len(), 3);
        spare.free_unused(now + 2 * SPARE_TIME);
        assert!(spare.all.is_empty() && spare.take().is_none());
    }
}
