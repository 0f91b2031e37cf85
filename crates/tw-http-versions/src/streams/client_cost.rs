//! Cost that a client causes on one connection, compared with the size of its requests and responses.

use std::cell::Cell;

/// Number of bytes that may be transferred for one of a head or a body (as in nginx).
const FLOOD_FACTOR: u64 = 8;

tw_base::limits! {
    /// Limits of this module.
    pub(super) const LIMITS;

    /// Bytes in HTTP/2 and HTTP/3 beyond eight times those of heads and bodies: settings, pings, priorities, empty and unknown frames.
    ///
    /// As in nginx.
    const FLOOD_ALLOWANCE: u64 = 1 << 20, bytes, "the connection is closed (ENHANCE_YOUR_CALM, H3_EXCESSIVE_LOAD)";
    /// Requests in HTTP/2 and HTTP/3 that a client takes back before they are answered, beyond as many as it lets be answered.
    const RESETS_MAX: u64 = 100, count, "the connection is closed (ENHANCE_YOUR_CALM, H3_EXCESSIVE_LOAD)";
}

/// Counters of a connection.
#[derive(Default)]
pub(crate) struct ClientCost {
    /// Received bytes, those of frames included.
    received: Cell<u64>,
    /// Sent bytes, where frames of answers cost something.
    sent: Cell<u64>,
    /// Bytes of responses that were made.
    responses: Cell<u64>,
    /// Requests that were answered.
    answered: Cell<u64>,
    /// Requests that the client canceled before.
    canceled: Cell<u64>,
}

/// Abuse that ends a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Abuse {
    /// Needless frames: settings, pings, priorities, empty ones.
    Flood,
    /// Requests whose responses the client does not wait for.
    Resets,
}

impl ClientCost {
    /// Counts received bytes.
    pub(crate) fn count_received(&self, bytes: usize) {
        self.received.set(self.received.get() + bytes as u64);
    }

    /// Counts sent bytes.
    pub(crate) fn count_sent(&self, bytes: usize) {
        self.sent.set(self.sent.get() + bytes as u64);
    }

    /// Counts bytes of a response.
    pub(crate) fn count_response(&self, bytes: usize) {
        self.responses.set(self.responses.get() + bytes as u64);
    }

    /// Counts the end of a request, which was answered or canceled.
    pub(crate) fn count_end(&self, is_canceled: bool) {
        let count = if is_canceled { &self.canceled } else { &self.answered };
        count.set(count.get() + 1);
    }

    /// Number of received bytes.
    pub(crate) fn received(&self) -> u64 {
        self.received.get()
    }

    /// Number of received and sent bytes: it has changed if there was progress.
    pub(crate) fn transferred(&self) -> u64 {
        self.received.get() + self.sent.get()
    }

    // DIFF(nginx): there is no limit of canceled requests.
    /// Returns the abuse of the client, if its limit is passed. `payload` is the size of the heads and bodies that it has sent.
    pub(crate) fn abuse(&self, payload: u64) -> Option<Abuse> {
        if self.transferred() / FLOOD_FACTOR > payload + self.responses.get() + FLOOD_ALLOWANCE {
            return Some(Abuse::Flood);
        }
        (self.canceled.get() > self.answered.get() + RESETS_MAX).then_some(Abuse::Resets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_and_bodies_allow_eight_times_as_many_bytes() {
        let cost = ClientCost::default();
        cost.count_received(5 << 20);
        cost.count_sent(3 << 20);
        assert_eq!(cost.abuse(0), None);
        cost.count_sent(8);
        assert_eq!(cost.abuse(0), Some(Abuse::Flood));
        assert_eq!(cost.abuse(1), None);
        cost.count_response(1);
        assert_eq!(cost.abuse(0), None);
    }

    #[test]
    fn answered_requests_allow_as_many_canceled_ones() {
        let cost = ClientCost::default();
        (0..RESETS_MAX).for_each(|_| cost.count_end(true));
        assert_eq!(cost.abuse(0), None);
        cost.count_end(true);
        assert_eq!(cost.abuse(0), Some(Abuse::Resets));
        cost.count_end(false);
        assert_eq!(cost.abuse(0), None);
    }
}
