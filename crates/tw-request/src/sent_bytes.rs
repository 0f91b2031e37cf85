//! Count of the bytes sent to clients.

use super::request::Request;

impl Request {
    /// Counts bytes sent to the client, for the request, its loop, and the time to the first byte of a cache hit.
    pub fn count_sent(&mut self, bytes: usize) {
        self.costs.sent.bytes += bytes as u64;
        self.client().event_loop.tally.sent.add(bytes as u64);
        if self.upstream.cache.awaits_first_byte() && self.costs.sent.body() > 0 {
            self.record_first_byte();
        }
    }
}
