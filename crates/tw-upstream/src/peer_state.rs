//! State of a peer that all loops share: connections, failures, counters. It outlives changes of the
//! [`Peer`](crate::Peer)'s parameters and reloads.

use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst,
};

use tw_base::{Counter, FatalMutex, Histogram};

use crate::queue::RequestQueue;

/// Time before any time of a caller, and still far from the smallest number.
pub(crate) const NEVER: i64 = i64::MIN / 2;

/// Shared state of one peer. All of it can be read at any time; related numbers may then be from different moments.
#[derive(Debug)]
pub struct PeerState {
    pub(crate) queue: Arc<RequestQueue>,
    /// Number of leases.
    connections: AtomicU32,
    /// The `current_weight` of nginx in units of 1/[`WHOLE_STEP`](crate::peer::WHOLE_STEP); changed under the lock of the group.
    pub(crate) current: AtomicI64,
    /// Weight lost by failures: nginx's `weight - effective_weight`.
    pub(crate) reduced: AtomicU32,
    /// Number of failures that count now.
    pub(crate) fails: AtomicU32,
    /// Time of the last failure (nginx: `accessed`).
    pub(crate) failed_ms: AtomicI64,
    /// Time of the last trial after failures (nginx: `checked`).
    pub(crate) checked_ms: AtomicI64,
    /// Start of its slow start.
    pub(crate) ramp_ms: AtomicI64,
    /// Time until which a hint of another node has an effect.
    pub(crate) suspect_until_ms: AtomicI64,
    /// Time of the last request that tries the peer after a hint.
    pub(crate) trial_ms: AtomicI64,
    /// Time of the last hint.
    pub(crate) hinted_ms: AtomicI64,
    /// True if a hint asks for a health check.
    pub(crate) wants_check: AtomicBool,
    health: AtomicU8,
    /// Result of the latest health check: 0 none, 1 passed, 2 failed.
    last_check: AtomicU8,
    /// Time since which it is out because of failures or health checks.
    out_since_ms: AtomicI64,
    pub(crate) selected_ms: AtomicI64,
    pub(crate) times: Times,
    /// Counters since the peer is known.
    pub counters: PeerCounters,
}

/// Counters of a peer since it is known.
#[derive(Debug, Default)]
pub struct PeerCounters {
    /// Number of times it was chosen.
    pub requests: Counter,
    /// Responses by the first digit of their status, 1 to 5.
    pub responses: [Counter; 5],
    /// Attempts that failed.
    pub fails: Counter,
    /// Number of times it was out because of failures.
    pub unavail: Counter,
    /// Health checks that were made.
    pub checks: Counter,
    /// Health checks that failed.
    pub check_fails: Counter,
    /// Number of times health checks found it unhealthy.
    pub unhealthy: Counter,
    /// Bytes sent to it.
    pub sent: Counter,
    /// Bytes received from it.
    pub received: Counter,
    /// Milliseconds for which it was out, without the current span.
    pub downtime_ms: Counter,
    /// Time until connected.
    pub connect: Histogram,
    /// Time until the head, or the first byte, of the response.
    pub header: Histogram,
    /// Time until the end of the response.
    pub response: Histogram,
}

/// Moving averages in milliseconds, and requests in flight; for `least_time` and status pages.
#[derive(Debug, Default)]
pub(crate) struct Times {
    pub(crate) connect: Average,
    pub(crate) header: Average,
    pub(crate) response: Average,
    pub(crate) inflight: Average,
    pub(crate) flight: FatalMutex<Flight>,
}

/// Requests whose time is not known yet.
#[derive(Debug, Default)]
pub(crate) struct Flight {
    pub(crate) requests: i64,
    /// Time that they had taken together at `changed_ms`, in milliseconds.
    pub(crate) spent_ms: i64,
    pub(crate) changed_ms: i64,
}

/// nginx's average: a twentieth of the new value, rounded; the first value as it is.
#[derive(Debug, Default)]
pub(crate) struct Average(AtomicU64);

/// Health of a peer according to its checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Healthy, or never checked.
    Healthy,
    /// Checks have failed.
    Unhealthy,
    /// Has to pass its first check before it gets requests (`mandatory`).
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
    pub(crate) fn new(queue: Arc<RequestQueue>) -> Self {
        Self {
            queue,
            connections: AtomicU32::new(0),
            current: AtomicI64::new(0),
            reduced: AtomicU32::new(0),
            fails: AtomicU32::new(0),
            failed_ms: AtomicI64::new(NEVER),
            checked_ms: AtomicI64::new(NEVER),
            ramp_ms: AtomicI64::new(NEVER),
            suspect_until_ms: AtomicI64::new(NEVER),
            trial_ms: AtomicI64::new(NEVER),
            hinted_ms: AtomicI64::new(NEVER),
            wants_check: AtomicBool::new(false),
            health: AtomicU8::new(0),
            last_check: AtomicU8::new(0),
            out_since_ms: AtomicI64::new(NEVER),
            selected_ms: AtomicI64::new(NEVER),
            times: Times::default(),
            counters: PeerCounters::default(),
        }
    }

    /// Number of leases.
    pub fn connections(&self) -> u32 {
        self.connections.load(SeqCst)
    }

    /// Health according to its checks.
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

    /// Result of the latest health check; `None` before the first one.
    pub fn last_check(&self) -> Option<bool> {
        match self.last_check.load(Relaxed) {
            0 => None,
            code => Some(code == 1),
        }
    }

    /// Records the result of a health check.
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

    /// Counts one connection less, and wakes a waiting request.
    pub(crate) fn give_back(&self) {
        self.connections.fetch_sub(1, SeqCst);
        self.queue.wake_one();
    }

    /// Takes the peer out.
    pub(crate) fn goes_out(&self, now: i64) {
        // The first of several reasons counts.
        let _ = self.out_since_ms.compare_exchange(NEVER, now, Relaxed, Relaxed);
    }

    /// Takes the peer in again, with a slow start.
    pub(crate) fn comes_back(&self, now: i64) {
        self.ramp_ms.store(now, Relaxed);
        let since = self.out_since_ms.swap(NEVER, Relaxed);
        if since != NEVER {
            self.counters.downtime_ms.add(u64::try_from(now - since).unwrap_or(0));
        }
        self.queue.wake_all();
    }

    /// Milliseconds for which the peer was out until `now`.
    pub fn downtime_ms(&self, now: u64) -> u64 {
        let before = self.counters.downtime_ms.value();
        match self.out_since_ms.load(Relaxed) {
            NEVER => before,
            since => before + u64::try_from(signed(now) - since).unwrap_or(0),
        }
    }

    /// Time at which it was last chosen, in milliseconds of the caller's clock.
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
