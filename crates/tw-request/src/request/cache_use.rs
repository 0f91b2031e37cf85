//! Statistics of the cache that a request uses.

use super::Request;
use crate::cache_info::{CountedResponse, HitFrom, PendingHit};

impl Request {
    /// Records the time of a hit whose first byte was sent: of its body, or of its head without a body.
    pub fn record_first_byte(&mut self) {
        let hit = self.upstream.cache.report.hit.take();
        let (Some(PendingHit { began, jobs }), Some(cache)) = (hit, &self.upstream.cache.cache) else {
            return;
        };
        // The clock of the loop stands still in a turn, and most hits begin and end in one.
        let took = tw_rt::clock::precise().saturating_duration_since(began);
        let from = if self.costs.account.jobs() > jobs { HitFrom::Disk } else { HitFrom::Inline };
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        cache.record_hit(self.client().event_loop.index, from, ns);
    }

    /// Counts the response of a request that has ended, if a cache was used.
    pub fn count_cache_use(&mut self) {
        if self.upstream.cache.report.hit.is_some() && self.costs.sent.complete {
            self.record_first_byte();
        }
        let facts = &self.upstream.cache;
        let (Some(cache), Some(status)) = (&facts.cache, facts.report.status) else { return };
        let response =
            CountedResponse { status, bytes: self.costs.sent.body(), is_collapsed: facts.report.follows };
        cache.count_response(self.client().event_loop.index, response);
    }
}
