//! Rates of a response: how much of it may be sent by now.

use std::time::{Duration, Instant};

use tw_request::key_bandwidth::{KeyBandwidth, Reservation};
use tw_request::request::Request;
use tw_request::vars::Template;
use tw_request::wire::ClientGone;

const SECOND: Duration = Duration::from_secs(1);

/// Rates of one response: its own, and those that it shares with others.
pub(crate) struct SendRate {
    own: Option<OwnRate>,
    shared: Vec<SharedUse>,
}

impl SendRate {
    /// The rates of `r`, whose head was framed; `None` if it has none.
    pub(crate) fn new(r: &Request) -> Option<Self> {
        let own = OwnRate::new(r);
        let shared: Vec<_> =
            r.costs.key_bandwidths.iter().map(|rate| SharedUse::begin(rate, r.costs.sent.head)).collect();
        (own.is_some() || !shared.is_empty()).then_some(Self { own, shared })
    }

    /// Returns true if the response has rates.
    pub(crate) fn limits(r: &Request) -> bool {
        r.costs.limit_rate.is_some()
            || r.plan().core.send.limit_rate.is_some()
            || !r.costs.key_bandwidths.is_empty()
    }

    /// Waits until something of the next `want` bytes may be sent, and returns how much: at least one byte. The error: the client is
    /// gone.
    pub(crate) async fn allowance(&mut self, r: &Request, want: usize) -> Result<usize, ClientGone> {
        let mut room = want.max(1) as u64;
        if let Some(own) = &mut self.own {
            room = room.min(own.allowance(r).await?);
        }
        for shared in &mut self.shared {
            room = room.min(shared.allowance(r, room).await?);
        }
        Ok(usize::try_from(room).unwrap_or(usize::MAX))
    }
}

/// `limit_rate`: bytes per second from the start of the response, after `limit_rate_after`.
///
/// As in nginx, the first second's bytes may leave at once, and what was sent has the time that it is worth before more is:
/// bytes leave in pieces that are worth sending.
struct OwnRate {
    rate: u64,
    after: u64,
    start: Instant,
    /// Bytes sent before the first call: the head.
    head: Option<u64>,
}

impl OwnRate {
    fn new(r: &Request) -> Option<Self> {
        let send = &r.plan().core.send;
        let value = |template: &Option<Template>| {
            template.as_ref().and_then(|t| tw_conf::units::size(&t.value(r))).unwrap_or(0)
        };
        let rate = r.costs.limit_rate.unwrap_or_else(|| value(&send.limit_rate));
        let start = tw_rt::clock::now();
        (rate > 0).then(|| Self { rate, after: value(&send.limit_rate_after), start, head: None })
    }

    /// Waits until something may be sent and returns how much: at least one byte. The error: the client is gone.
    async fn allowance(&mut self, r: &Request) -> Result<u64, ClientGone> {
        loop {
            match self.look(r.costs.sent.bytes, tw_rt::clock::now()) {
                Ok(room) => return Ok(room),
                Err(wait) => r.wire().sleep(wait).await?,
            }
        }
    }

    /// Bytes that may be sent at `now`, after `sent` ones; the error is the time to wait.
    fn look(&mut self, sent: u64, now: Instant) -> Result<u64, Duration> {
        let passed = now.saturating_duration_since(self.start);
        // The head has its time with what follows it.
        let is_first = *self.head.get_or_insert(sent) == sent;
        let early = self.worth(sent.saturating_sub(self.after)).saturating_sub(passed);
        if !is_first && !early.is_zero() {
            return Err(early);
        }
        // The current second counts as given.
        let given = u128::from(self.rate).saturating_mul((passed + SECOND).as_nanos()) / SECOND.as_nanos();
        let given = u64::try_from(given).unwrap_or(u64::MAX).saturating_add(self.after);
        match given.saturating_sub(sent) {
            0 => Err(self.worth(sent - given + 1)),
            room => Ok(room),
        }
    }

    /// The time of so many bytes.
    fn worth(&self, bytes: u64) -> Duration {
        let nanos = (u128::from(bytes) * SECOND.as_nanos()).div_ceil(u128::from(self.rate));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// Use of a shared rate by one response.
struct SharedUse {
    rate: KeyBandwidth,
    /// Bytes of the response that may have been sent.
    granted: u64,
}

impl SharedUse {
    /// Begins a response whose head has so many bytes. They count, but do not wait.
    fn begin(rate: &KeyBandwidth, head: u64) -> Self {
        Reservation::new(rate, head, tw_rt::clock::now()).take();
        Self { rate: rate.clone(), granted: 0 }
    }

    /// Waits until something of the next `want` bytes may be sent and returns how much: at least one byte. The error: the client is
    /// gone.
    async fn allowance(&mut self, r: &Request, want: u64) -> Result<u64, ClientGone> {
        let sent = r.costs.sent.bytes;
        if self.granted <= sent {
            let bytes = want.min(self.rate.piece());
            let reservation = Reservation::new(&self.rate, bytes, tw_rt::clock::now());
            if !reservation.wait.is_zero() {
                r.wire().sleep(reservation.wait).await?;
            }
            reservation.take();
            self.granted = sent + bytes;
        }
        Ok(self.granted - sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that leave, and at which millisecond, when a client takes `taken` bytes at a time of `size`, a head of 100 bytes
    /// before them.
    fn leaves(rate: u64, after: u64, size: u64, taken: u64) -> Vec<(u128, u64)> {
        let start = Instant::now();
        let mut pace = OwnRate { rate, after, start, head: None };
        let mut now = start;
        let mut sent = 100;
        let mut rest = Vec::new();
        while sent < 100 + size {
            match pace.look(sent, now) {
                Ok(room) => {
                    assert_eq!(pace.look(sent, now), Ok(room), "it is not sent yet");
                    let n = room.min(taken).min(100 + size - sent);
                    sent += n;
                    rest.push((now.duration_since(start).as_millis(), n));
                }
                Err(wait) => now += wait,
            }
        }
        rest
    }

    #[test]
    fn bytes_sent_take_their_time_at_the_rate() {
        const ALL: u64 = u64::MAX;
        for (rate, after, size, taken, expected) in [
            (500, 0, 1700, ALL, &[(0, 400), (1000, 500), (2000, 500), (3000, 300)][..]),
            (500, 1000, 1700, ALL, &[(0, 1400), (1000, 300)]),
            (u64::MAX, 0, 1700, ALL, &[(0, 1700)]),
            (500, ALL, 1700, ALL, &[(0, 1700)]),
            // The client takes less.
            (500, 0, 800, 200, &[(0, 200), (600, 200), (1000, 200), (1400, 200)]),
            // The head was worth more than a second.
            (50, 0, 60, ALL, &[(1020, 1), (2020, 50), (3020, 9)]),
        ] {
            assert_eq!(leaves(rate, after, size, taken), expected, "{rate} {after} {size} {taken}");
        }
    }
}
