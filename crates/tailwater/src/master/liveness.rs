//! Time since the last sign of life of a worker process.
//!
//! Time is counted in checks, as in the watchdog of loops. A check that comes late, because the master itself stood
//! still or was busy, counts as one in time: signs that came meanwhile have not been read yet.

use std::time::{Duration, Instant};

// DIFF(nginx): a worker process that is stopped or hangs does not keep its place.
/// Interval of the signs of life of a worker process. Each costs two wake-ups of a core.
pub(super) const SIGN_INTERVAL: Duration = Duration::from_secs(3);
/// Longest silence of the serving process before another one replaces it. Several signs of life: a single late one is
/// tolerated. A loop that stands still for as long (or for `loop_watchdog`) ends the signs.
pub(super) const LIVENESS_TIMEOUT: Duration = Duration::from_secs(10);

/// The silence since the last sign of life.
#[derive(Debug, Clone, Copy)]
pub(super) struct LivenessTimer {
    span: Duration,
    looked: Instant,
}

impl LivenessTimer {
    /// None yet.
    pub(super) fn begin(now: Instant) -> Self {
        Self { span: Duration::ZERO, looked: now }
    }

    /// Looks whether it has become too long.
    pub(super) fn is_too_long(&mut self, now: Instant) -> bool {
        self.span += now.saturating_duration_since(self.looked).min(SIGN_INTERVAL);
        self.looked = now;
        self.span >= LIVENESS_TIMEOUT
    }

    /// Time of the next check.
    pub(super) fn next_look(&self) -> Instant {
        self.looked + LIVENESS_TIMEOUT.saturating_sub(self.span).min(SIGN_INTERVAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn liveness_expires_after_the_timeout() {
        let start = Instant::now();
        let mut silence = LivenessTimer::begin(start);
        let mut looks = Vec::new();
        let mut is_too_long = false;
        while !is_too_long {
            let now = silence.next_look();
            looks.push(now.duration_since(start).as_secs());
            is_too_long = silence.is_too_long(now);
        }
        assert_eq!(looks, [3, 6, 9, 10]);
        // Frequent looks do not shorten the time.
        let mut silence = LivenessTimer::begin(start);
        let millis = |ms| start + Duration::from_millis(ms);
        assert!((1..10_000).all(|ms| !silence.is_too_long(millis(ms))));
        assert!(silence.is_too_long(millis(10_000)));
    }

    #[test]
    fn late_check_does_not_expire_liveness() {
        let start = Instant::now();
        let mut silence = LivenessTimer::begin(start);
        assert!(!silence.is_too_long(start + Duration::from_secs(3_600)));
        assert_eq!(silence.next_look(), start + Duration::from_secs(3_603));
        // A clock that stands still.
        assert!(!silence.is_too_long(start));
    }
}
