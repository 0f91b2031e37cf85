//! What all loops know of a peer: connections, failures, counters. The shared half of a [`Peer`](crate::Peer): it lives on
//! when the parameters of the peer change and when the configuration is loaded anew.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use tw_base::{Counter, Histogram, Whole};

use crate::queue::RequestQueue;

/// Before any moment that a caller can name, and still far from the end of the numbers.
pub(crate) const NEVER: i64 = i64::MIN / 2;

/// What happens with one peer, whoever looks at it. All of it can be read at any time; numbers that belong together may
/// then be of different moments.
#[derive(Debug)]
pub struct PeerState {
    pub(crate) line: Arc<RequestQueue>,
    /// Leases that are out.
    connections: AtomicU32,
    /// The `current_weight` of nginx in units of 1/[`WHOLE_STEP`](crate::peer::WHOLE_STEP); changed under the lock of the group.
    pub(crate) current: AtomicI64,
    /// How much of the weight failures have taken away: nginx's `weight - effective_weight`.
    pub(crate) reduced: AtomicU32,
    /// Failures that count now.
    pub(crate) fails: AtomicU32,
    /// When the last failure was (nginx: `accessed`).
    pub(crate) failed_ms: AtomicI64,
    /// When the peer was last put to the test (nginx: `checked`).
    pub(crate) checked_ms: AtomicI64,
    /// Since when its weight grows again.
    pub(crate) ramp_ms: AtomicI64,
    health: AtomicU8,
    /// What the latest health check has said: 0 nothing, 1 passed, 2 failed.
    last_check: AtomicU8,
    /// Since when it is left alone because of failures or health checks.
    out_since_ms: AtomicI64,
    pub(crate) selected_ms: AtomicI64,
    pub(crate) times: Times,
    /// What has happened since the peer is known.
    pub counters: PeerCounters,
}

/// What has happened with a peer since it is known.
#[derive(Debug, Default)]
pub struct PeerCounters {
    /// How often it was chosen.
    pub requests: Counter,
    /// Responses by the first digit of their status, 1 to 5.
    pub responses: [Counter; 5],
    /// Attempts that failed.
    pub fails: Counter,
    /// How often it was left alone because of failures.
    pub unavail: Counter,
    /// Health checks that were made.
    pub checks: Counter,
    /// Health checks that failed.
    pub check_fails: Counter,
    /// How often health checks found it unhealthy.
    pub unhealthy: Counter,
    /// Bytes sent to it.
    pub sent: Counter,
    /// Bytes received from it.
    pub received: Counter,
    /// Milliseconds in which it was left alone, without the span that is still going on.
    pub downtime_ms: Counter,
    /// Time until connected.
    pub connect: Histogram,
    /// Time until the head, or the first byte, of the response.
    pub header: Histogram,
    /// Time until the end of the response.
    pub response: Histogram,
}

/// Moving averages in milliseconds, and what is under way; for `least_time` and for who looks.
#[derive(Debug, Default)]
pub(crate) struct Times {
    pub(crate) connect: Average,
    pub(crate) header: Average,
    pub(crate) response: Average,
    pub(crate) inflight: Average,
    pub(crate) flight: Whole<Flight>,
}

/// Requests whose time is not known yet.
#[derive(Debug, Default)]
pub(crate) struct Flight {
    pub(crate) requests: i64,
    /// What they had taken together at `changed_ms`, in milliseconds.
    pub(crate) spent_ms: i64,
    pub(crate) changed_ms: i64,
}

/// nginx's average: a twentieth of the new value, rounded; the first value as it is.
#[derive(Debug, Default)]
pub(crate) struct Average(AtomicU64);

/// What health checks say of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Good, or never asked.
    Healthy,
    /// Checks have failed.
    Unhealthy,
    /// It has to pass its first check before it gets requests (`mandatory`).
    Checking,
}

impl Average {
    pub(crate) fn value(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Two loops that add at the same moment may lose one of the values.
    pub(crate) fn add(&self, value: u64) {
        let old = self.value();
        // Twentieths: 0.5 + value * 0.05 + old * 0.95, cut off.
        let new = if old == 0 { value } else { (10 + value + old.saturating_mul(19)) / 20 };
        self.0.store(new, Relaxed);
    }
}

impl PeerState {
    pub(crate) fn new(line: Arc<RequestQueue>) -> Self {
        Self {
            line,
            connections: AtomicU32::new(0),
            current: AtomicI64::new(0),
            reduced: AtomicU32::new(0),
            fails: AtomicU32::new(0),
            failed_ms: AtomicI64::new(NEVER),
            checked_ms: AtomicI64::new(NEVER),
            ramp_ms: AtomicI64::new(NEVER),
            health: AtomicU8::new(0),
            last_check: AtomicU8::new(0),
            out_since_ms: AtomicI64::new(NEVER),
            selected_ms: AtomicI64::new(NEVER),
            times: Times::default(),
            counters: PeerCounters::default(),
        }
    }

    /// Leases that are out now.
    pub fn connections(&self) -> u32 {
        self.connections.load(SeqCst)
    }

    /// What health checks say.
    pub fn health(&self) -> Health {
        match self.health.load(Relaxed) {
            0 => Health::Healthy,
            1 => Health::Unhealthy,
            _ => Health::Checking,
        }
    }

    pub(crate) fn set_health(&self, health: Health) {
        let code = match health {
            Health::Healthy => 0,
            Health::Unhealthy => 1,
            Health::Checking => 2,
        };
        self.health.store(code, Relaxed);
    }

    /// Whether the latest health check was passed; `None` before the first one.
    pub fn last_check(&self) -> Option<bool> {
        match self.last_check.load(Relaxed) {
            0 => None,
            code => Some(code == 1),
        }
    }

    /// A health check has ended.
    pub(crate) fn note_check(&self, passed: bool) {
        if !passed {
            self.counters.check_fails.add(1);
        }
        self.last_check.store(if passed { 1 } else { 2 }, Relaxed);
    }

    /// Counts one connection more, unless there are `max`; zero is no limit.
    pub(crate) fn take(&self, max: u32) -> bool {
        let more = |n: u32| if max > 0 && n >= max { None } else { n.checked_add(1) };
        self.connections.fetch_update(SeqCst, SeqCst, more).is_ok()
    }

    /// Counts one connection less, and calls who waits for that.
    pub(crate) fn give_back(&self) {
        self.connections.fetch_sub(1, SeqCst);
        self.line.wake_one();
    }

    /// From now on nobody uses the peer.
    pub(crate) fn goes_out(&self, now: i64) {
        // The first of several reasons counts.
        let _ = self.out_since_ms.compare_exchange(NEVER, now, Relaxed, Relaxed);
    }

    /// From now on the peer is used again, with a weight that grows.
    pub(crate) fn comes_back(&self, now: i64) {
        self.ramp_ms.store(now, Relaxed);
        let since = self.out_since_ms.swap(NEVER, Relaxed);
        if since != NEVER {
            self.counters.downtime_ms.add(u64::try_from(now - since).unwrap_or(0));
        }
        self.line.wake_all();
    }

    /// Milliseconds in which the peer was left alone until `now`.
    pub fn downtime_ms(&self, now: u64) -> u64 {
        let before = self.counters.downtime_ms.value();
        match self.out_since_ms.load(Relaxed) {
            NEVER => before,
            since => before + u64::try_from(signed(now) - since).unwrap_or(0),
        }
    }

    /// When it was last chosen, in milliseconds of the caller's clock.
    pub fn selected_ms(&self) -> Option<u64> {
        u64::try_from(self.selected_ms.load(Relaxed)).ok()
    }
}

/// A moment of the caller's clock, in which spans can be negative. A clock of milliseconds ends in 292 million years.
pub(crate) fn signed(now: u64) -> i64 {
    i64::try_from(now).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averages_are_nginxs() {
        let average = Average::default();
        for (value, expected) in [(100, 100), (100, 100), (0, 95), (10, 91), (1000, 136)] {
            average.add(value);
            assert_eq!(average.value(), expected, "{value}");
        }
    }

    #[test]
    fn connections_have_a_limit() {
        let state = PeerState::new(Arc::default());
        assert!(state.take(2) && state.take(2) && !state.take(2) && state.take(0));
        state.give_back();
        state.give_back();
        assert!(state.take(2) && !state.take(2));
        assert_eq!(state.connections(), 2);
    }

    #[test]
    fn downtime_adds_up() {
        let state = PeerState::new(Arc::default());
        state.goes_out(100);
        state.goes_out(150);
        assert_eq!(state.downtime_ms(160), 60);
        state.comes_back(200);
        state.comes_back(300);
        state.goes_out(400);
        assert_eq!(state.downtime_ms(500), 200);
    }
}
