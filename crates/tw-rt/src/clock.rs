//! Time of the loop: the clock is read once a turn, further reads cost nothing.
//!
//! On a loop thread [`now`] and [`unix`] answer from two thread-local cells that the loop sets when it wakes up, so
//! all work of one turn sees one time, at most one turn old. On any other thread they read the clock.

use std::cell::Cell;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, Timespec, clock_gettime};

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

/// A reading of the monotonic clock, in its nanoseconds. Computing with them takes a tenth of the instructions that [`Instant`] takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Reading {
    pub(crate) ns: u64,
}

/// One moment on both scales.
#[derive(Clone, Copy)]
struct Anchor {
    instant: Instant,
    ns: u64,
}

/// The anchor of this process. The instant is read first: no time that is computed from it lies in the future.
fn anchor() -> &'static Anchor {
    static ANCHOR: OnceLock<Anchor> = OnceLock::new();
    ANCHOR.get_or_init(|| Anchor { instant: Instant::now(), ns: Reading::now().ns })
}

impl Reading {
    /// Reads the clock.
    pub(crate) fn now() -> Self {
        Self { ns: span_ns(clock_gettime(ClockId::Monotonic)) }
    }

    /// The reading of this moment.
    pub(crate) fn at(instant: Instant) -> Self {
        let anchor = anchor();
        let ns = match instant.checked_duration_since(anchor.instant) {
            Some(after) => anchor.ns.saturating_add(nanoseconds(after)),
            None => anchor.ns.saturating_sub(nanoseconds(anchor.instant - instant)),
        };
        Self { ns }
    }

    /// The moment of this reading.
    fn instant(self) -> Instant {
        let anchor = anchor();
        anchor.instant + Duration::from_nanos(self.ns.saturating_sub(anchor.ns))
    }
}

/// Nanoseconds of a time that the kernel told.
pub(crate) const fn span_ns(t: Timespec) -> u64 {
    t.tv_sec.unsigned_abs() * 1_000_000_000 + t.tv_nsec.unsigned_abs()
}

/// A span in nanoseconds, of which 64 bits hold 584 years.
pub(crate) const fn nanoseconds(span: Duration) -> u64 {
    span.as_secs().wrapping_mul(1_000_000_000).wrapping_add(span.subsec_nanos() as u64)
}

#[derive(Clone, Copy)]
struct Turn {
    now: Instant,
    now_ns: u64,
    unix: UnixTime,
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
        Some(turn) => turn.now,
        None => Instant::now(),
    }
}

/// Monotonic time in milliseconds since some moment before this process. On a loop it costs one thread-local read.
pub fn millis() -> u64 {
    match TURN.get() {
        Some(turn) => turn.now_ns / 1_000_000,
        None => Reading::now().ns / 1_000_000,
    }
}

/// Wall-clock time: of this turn on a loop, else read now. On a loop it costs one thread-local read.
pub fn unix() -> UnixTime {
    match TURN.get() {
        Some(turn) => turn.unix,
        None => UnixTime::from_ns(nanoseconds(wall_now())),
    }
}

/// Reads the monotonic clock even on a loop; for spans shorter than a turn. About 20 ns.
pub fn precise() -> Instant {
    Instant::now()
}

/// Reads the wall clock even on a loop, as a span since 1970; for time stamps finer than those of [`unix`]. About 20 ns.
pub fn wall_precise() -> Duration {
    wall_now()
}

/// Starts a turn of this thread's loop at `now`.
pub(crate) fn turn(now: Reading) {
    let (now, now_ns) = (now.instant(), now.ns);
    let (wall_ns, measured_ns) = match TURN.get() {
        Some(last) if now_ns.wrapping_sub(last.measured_ns) < REALTIME_REFRESH_NS => {
            (last.wall_ns, last.measured_ns)
        }
        _ => (nanoseconds(wall_now()), now_ns),
    };
    let unix = UnixTime::from_ns(wall_ns + (now_ns - measured_ns));
    TURN.set(Some(Turn { now, now_ns, unix, wall_ns, measured_ns }));
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
