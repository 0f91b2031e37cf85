//! Waiting for a condition with a deadline: the only way for a test to wait.

use std::time::{Duration, Instant};

/// The time a test grants to something that normally takes milliseconds.
///
/// Long, because it is spent only by a test that is about to fail, possibly on a machine busy with a build.
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// Pause after each check of a condition; short beside anything a test waits for.
const REST: Duration = Duration::from_millis(1);

/// Largest part of the deadline that one check and its pause use up. A machine that is paused, or a virtual one
/// without a processor, loses seconds at once for all processes, which is not the fault of the server.
const ROUND_MAX: Duration = Duration::from_secs(1);

/// Calls `cond` until it is true; false if `within` has passed first. Blocks the calling thread.
///
/// `cond` is called at least once, also with a deadline of zero.
#[must_use = "a wait whose outcome nobody looks at is a sleep"]
pub fn until(within: Duration, mut cond: impl FnMut() -> bool) -> bool {
    some(within, || cond().then_some(())).is_some()
}

/// Calls `look` until it finds something; `None` if `within` has passed first. Blocks the calling thread.
pub fn some<T>(within: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let mut time = RemainingTime::of(within);
    loop {
        if let Some(value) = look() {
            return Some(value);
        }
        if time.is_over() {
            return None;
        }
        pause(REST);
        time.passes();
    }
}

/// Remaining time of a deadline, of which one check uses at most [`ROUND_MAX`].
#[derive(Debug)]
pub(crate) struct RemainingTime {
    span: Duration,
    since: Instant,
}

impl RemainingTime {
    pub(crate) fn of(span: Duration) -> Self {
        Self { span, since: Instant::now() }
    }

    /// Takes off what has passed since the last time.
    pub(crate) fn passes(&mut self) {
        let now = Instant::now();
        self.span = self.span.saturating_sub((now - self.since).min(ROUND_MAX));
        self.since = now;
    }

    pub(crate) fn is_over(&self) -> bool {
        self.span.is_zero()
    }

    /// Longest wait of one check; never zero, which a socket takes for no timeout.
    pub(crate) fn round(&self) -> Duration {
        self.span.clamp(REST, ROUND_MAX)
    }
}

/// Sleeps, for tests of durations: the length of a load, the gap between two segments on the wire. To wait for a
/// condition, use [`until`].
///
/// For what is itself a span of time: the length of a load, the gap between two segments on the wire.
pub fn pause(span: Duration) {
    #[expect(clippy::disallowed_methods, reason = "the one sleep every deadline is built on")]
    std::thread::sleep(span);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_looked_at_until_it_holds() {
        let mut looks = 0;
        assert!(until(TIMEOUT, || {
            looks += 1;
            looks == 3
        }));
        assert_eq!(looks, 3);
    }

    #[test]
    fn the_deadline_ends_the_wait_after_one_look_at_least() {
        let mut looks = 0;
        assert!(!until(Duration::ZERO, || {
            looks += 1;
            false
        }));
        assert_eq!(looks, 1);
        assert_eq!(some(Duration::from_millis(5), || None::<u8>), None);
    }

    #[test]
    fn pauses_of_the_machine_do_not_use_up_the_deadline() {
        let mut looks = 0;
        assert!(until(ROUND_MAX + Duration::from_millis(200), || {
            looks += 1;
            // The first look takes longer than the whole time.
            if looks == 1 {
                pause(ROUND_MAX + Duration::from_millis(250));
            }
            looks > 2
        }));
    }
}
