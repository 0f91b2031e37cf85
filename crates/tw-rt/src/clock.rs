//! Time of the loop: the clock is read once a turn, further reads cost nothing.
//!
//! On a loop thread [`now`] and [`unix`] answer from two thread-local cells that the loop sets when it wakes up, so
//! all work of one turn sees one time, at most one turn old. On any other thread they read the clock.

use std::cell::Cell;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Largest age of the measured difference between the two clocks. A step of the system clock shows in log times after
/// at most this long.
const REALTIME_REFRESH_NS: u64 = 100_000_000;

/// Wall-clock time with the resolution that logs, `Date` and `$msec` need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnixTime {
    /// Whole seconds since 1970-01-01 00:00 UTC.
    pub secs: i64,
    /// Milliseconds of the second, 0 to 999.
    pub msec: u16,
}

/// A reading of the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) instant: Instant,
    /// Nanoseconds from some moment in the life of this process to this reading. Computing with them takes a tenth of the instructions.
    pub(crate) ns: u64,
}

impl Reading {
    /// Reads the clock.
    pub(crate) fn now() -> Self {
        Self::at(Instant::now())
    }

    /// The reading of this moment.
    pub(crate) fn at(instant: Instant) -> Self {
        static BEGAN: OnceLock<Instant> = OnceLock::new();
        let began = BEGAN.get_or_init(|| instant);
        Self { instant, ns: nanoseconds(instant.saturating_duration_since(*began)) }
    }

    fn millis(self) -> u64 {
        self.ns / 1_000_000
    }
}

/// A span in nanoseconds, of which 64 bits hold 584 years.
pub(crate) const fn nanoseconds(span: Duration) -> u64 {
    span.as_secs().wrapping_mul(1_000_000_000).wrapping_add(span.subsec_nanos() as u64)
}

#[derive(Clone, Copy)]
struct Turn {
    now: Reading,
    /// Wall clock at `measured_ns`, in nanoseconds since the epoch.
    wall_ns: u64,
    measured_ns: u64,
}

thread_local! {
    static TURN: Cell<Option<Turn>> = const { Cell::new(None) };
}

/// Monotonic time: of this turn on a loop, else read now. On a loop it costs one thread-local read.
pub fn now() -> Instant {
    match TURN.get() {
        Some(turn) => turn.now.instant,
        None => Instant::now(),
    }
}

/// Monotonic time in milliseconds since some moment in the life of this process. On a loop it costs one thread-local read.
pub fn millis() -> u64 {
    match TURN.get() {
        Some(turn) => turn.now.millis(),
        None => Reading::now().millis(),
    }
}

/// Wall-clock time: of this turn on a loop, else read now. On a loop it costs one thread-local read.
pub fn unix() -> UnixTime {
    match TURN.get() {
        Some(turn) => UnixTime::from_ns(turn.wall_ns + (turn.now.ns - turn.measured_ns)),
        None => UnixTime::from_ns(nanoseconds(wall_now())),
    }
}

/// Reads the monotonic clock even on a loop; for spans shorter than a turn. About 20 ns.
pub fn precise() -> Instant {
    Instant::now()
}

/// Reads the clock again if the time of this turn is before `passed`, which has passed.
pub(crate) fn catch_up(passed: Instant) {
    if TURN.get().is_some_and(|this| this.now.instant < passed) {
        turn(Reading::now());
    }
}

/// Reads the wall clock even on a loop, as a span since 1970; for time stamps finer than those of [`unix`]. About 20 ns.
pub fn wall_precise() -> Duration {
    wall_now()
}

/// Starts a turn of this thread's loop at `now`.
pub(crate) fn turn(now: Reading) {
    let turn = match TURN.get() {
        Some(last) if now.ns.wrapping_sub(last.measured_ns) < REALTIME_REFRESH_NS => Turn { now, ..last },
        _ => Turn { now, wall_ns: nanoseconds(wall_now()), measured_ns: now.ns },
    };
    TURN.set(Some(turn));
}

fn wall_now() -> Duration {
    // A clock set before 1970 counts as 1970: no log or header could show it anyway.
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

impl UnixTime {
    fn from_ns(ns: u64) -> Self {
        let millis = ns / 1_000_000;
        Self { secs: (millis / 1000) as i64, msec: (millis % 1000) as u16 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_freezes_time_until_the_next() {
        let start = Instant::now();
        turn(Reading::at(start));
        let unix_then = unix();
        while start.elapsed() < Duration::from_millis(3) {}
        assert_eq!((now(), unix()), (start, unix_then));

        let later = start + Duration::from_millis(1500);
        turn(Reading::at(later));
        assert_eq!(now(), later);
        turn(Reading::now());
        assert!(now() > start);
    }

    #[test]
    fn wall_time_follows_the_monotonic_clock_between_measurements() {
        let start = Instant::now();
        turn(Reading::at(start));
        let a = unix();
        turn(Reading::at(start + Duration::from_millis(50)));
        let b = unix();
        let span = |t: UnixTime| t.secs * 1000 + i64::from(t.msec);
        assert!((49..=51).contains(&(span(b) - span(a))), "{a:?} {b:?}");
    }

    #[test]
    fn other_threads_read_the_clock() {
        std::thread::spawn(|| {
            let a = now();
            while a.elapsed() < Duration::from_micros(10) {}
            assert!(now() > a);
            assert!(unix().secs > 1_700_000_000);
        })
        .join()
        .unwrap();
    }
}
