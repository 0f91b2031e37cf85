//! Time of the loop: the clock is read once a turn, further reads cost nothing.
//!
//! On a loop thread [`now`] and [`unix`] answer from two thread-local cells that the loop sets when it wakes up, so
//! all work of one turn sees one time, at most one turn old. On any other thread they read the clock.

use std::cell::Cell;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Largest age of the measured difference between the two clocks. A step of the system clock shows in log times after
/// at most this long.
const REALTIME_REFRESH: Duration = Duration::from_millis(100);

/// Wall-clock time with the resolution that logs, `Date` and `$msec` need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnixTime {
    /// Whole seconds since 1970-01-01 00:00 UTC.
    pub secs: i64,
    /// Milliseconds of the second, 0 to 999.
    pub msec: u16,
}

#[derive(Clone, Copy)]
struct Turn {
    now: Instant,
    millis: u64,
    unix: UnixTime,
    /// Wall clock at `measured`, as a span since the epoch.
    wall: Duration,
    measured: Instant,
    /// Span of [`millis`] at `measured`.
    measured_span: Duration,
}

thread_local! {
    static TURN: Cell<Option<Turn>> = const { Cell::new(None) };
}

/// Monotonic time: of this turn on a loop, else read now. On a loop it costs one thread-local read.
pub fn now() -> Instant {
    match TURN.get() {
        Some(turn) => turn.now,
        None => Instant::now(),
    }
}

/// Monotonic time in milliseconds since some moment in the life of this process. On a loop it costs one thread-local read.
pub fn millis() -> u64 {
    match TURN.get() {
        Some(turn) => turn.millis,
        None => whole_millis(process_span(Instant::now())),
    }
}

/// Time from some moment in the life of this process to `now`.
fn process_span(now: Instant) -> Duration {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    now.saturating_duration_since(*BEGAN.get_or_init(|| now))
}

fn whole_millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Wall-clock time: of this turn on a loop, else read now. On a loop it costs one thread-local read.
pub fn unix() -> UnixTime {
    match TURN.get() {
        Some(turn) => turn.unix,
        None => UnixTime::from_span(wall_now()),
    }
}

/// Reads the monotonic clock even on a loop; for spans shorter than a turn. About 20 ns.
pub fn precise() -> Instant {
    Instant::now()
}

/// Reads the clock again if the time of this turn is before `passed`, which has passed.
pub(crate) fn catch_up(passed: Instant) {
    if TURN.get().is_some_and(|this| this.now < passed) {
        turn(Instant::now());
    }
}

/// Reads the wall clock even on a loop, as a span since 1970; for time stamps finer than those of [`unix`]. About 20 ns.
pub fn wall_precise() -> Duration {
    wall_now()
}

/// Starts a turn of this thread's loop at `now`.
pub(crate) fn turn(now: Instant) {
    let recent = TURN.get().map(|last| (last, now.saturating_duration_since(last.measured)));
    let (wall, measured, measured_span, since) = match recent {
        Some((last, since)) if since < REALTIME_REFRESH => {
            (last.wall, last.measured, last.measured_span, since)
        }
        _ => (wall_now(), now, process_span(now), Duration::ZERO),
    };
    let unix = UnixTime::from_span(wall + since);
    let millis = whole_millis(measured_span + since);
    TURN.set(Some(Turn { now, millis, unix, wall, measured, measured_span }));
}

fn wall_now() -> Duration {
    // A clock set before 1970 counts as 1970: no log or header could show it anyway.
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

impl UnixTime {
    fn from_span(span: Duration) -> Self {
        Self { secs: span.as_secs() as i64, msec: span.subsec_millis() as u16 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_freezes_time_until_the_next() {
        let start = Instant::now();
        turn(start);
        let unix_then = unix();
        while start.elapsed() < Duration::from_millis(3) {}
        assert_eq!((now(), unix()), (start, unix_then));

        let later = start + Duration::from_millis(1500);
        turn(later);
        assert_eq!(now(), later);
        turn(Instant::now());
        assert!(now() > start);
    }

    #[test]
    fn wall_time_follows_the_monotonic_clock_between_measurements() {
        let start = Instant::now();
        turn(start);
        let a = unix();
        turn(start + Duration::from_millis(50));
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
