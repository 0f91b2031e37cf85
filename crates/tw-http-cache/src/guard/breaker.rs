//! Breaker of a cache's disk: while the disk fails or is slow, requests go to the upstream server and nothing is stored.
//!
//! ```text
//! closed ── enough operations are slow or fail ──► open ── a pause ──► one key in 16 ──► 2 ──► 4 ──► 8 ──► closed
//!                                                   ▲                      │ again slow, or a failure
//!                                                   └── a longer pause ────┘
//! ```
//! While a part of the keys is admitted, these are always the same keys. What is in memory is served in every state: only
//! operations that would wait for the disk are left out. Without `slow=` there is no breaker, but each member of a cache with
//! several directories has one, and a second one for storing.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tw_base::{Counter, FatalMutex};
use tw_cache::Key;
use tw_disk::{DiskError, Errno};

/// One bad operation in so many is too much: the 99th percentile.
const BAD_SHARE: u32 = 100;
/// First and longest pause in which the disk is left alone.
pub(crate) const PAUSE_MIN: Duration = Duration::from_secs(5);
/// Least time without any progress after which operations count as stuck.
const STUCK_MIN: Duration = Duration::from_millis(250);
/// All keys are admitted.
const ALL: u8 = 16;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Time over which slow and failed operations of a cache's disk are counted (`slow=`).
    const BREAKER_WINDOW: Duration = Duration::from_secs(10), time, "counting begins anew";
    /// Operations of a cache's disk that may be slow or fail in that time; more are allowed if they are less than one in a
    /// hundred.
    const BAD_MIN: u32 = 5, count, "the disk is left alone for a while";
    /// Time for which a slow disk is left alone; the first time 5 s, then twice as long each time.
    const PAUSE_MAX: Duration = Duration::from_secs(80), time, "one key in 16 is looked up on it again";
}

/// Breaker of the disk of one cache, for all event loops.
#[derive(Debug)]
pub(crate) struct Breaker {
    /// Number of keys out of 16 that are admitted.
    admitted: AtomicU8,
    window: FatalMutex<Window>,
    /// Number of times it has opened.
    pub(crate) trips: Counter,
}

#[derive(Debug)]
struct Window {
    since: Option<Instant>,
    operations: u32,
    bad: u32,
    /// Operations in progress, and the time since which at least [`BAD_MIN`] are and none has ended.
    running: u32,
    moved: Option<Instant>,
    /// End of the pause, while it is open.
    until: Option<Instant>,
    pause: Duration,
}

/// Event for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BreakerChange {
    /// The disk is left alone for this time.
    Opened(Duration),
    /// All keys are admitted again.
    Closed,
}

/// Result of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskOutcome {
    /// The operation took this time, waiting for a thread included.
    Done(Duration),
    /// The disk has failed.
    Failed,
}

/// Answer to an operation that is about to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BreakerAdmission {
    /// True if it may begin. The caller then tells its [end](Breaker::ended).
    pub(crate) is_admitted: bool,
    pub(crate) change: Option<BreakerChange>,
}

impl Breaker {
    pub(crate) const fn new() -> Self {
        let window = Window {
            since: None,
            operations: 0,
            bad: 0,
            running: 0,
            moved: None,
            until: None,
            pause: PAUSE_MIN,
        };
        Self { admitted: AtomicU8::new(ALL), window: FatalMutex::new(window), trips: Counter::new() }
    }

    /// Share of the keys that are admitted, in sixteenths.
    pub(crate) fn admitted(&self) -> u8 {
        self.admitted.load(Relaxed)
    }

    /// Returns true if nothing is held back.
    pub(crate) fn admits_all(&self) -> bool {
        self.admitted() == ALL
    }

    /// Opens it, because an operation has shown that the disk does not work.
    pub(crate) fn trip(&self, now: Instant) -> Option<BreakerChange> {
        self.open(&mut self.window.lock(), now)
    }

    /// Has it admit the first keys, after it was open in a process before.
    pub(crate) fn resume(&self, now: Instant) {
        let mut window = self.window.lock();
        window.until = None;
        self.admit(&mut window, 1, now);
    }

    /// Counts an operation that went well beside those of requests.
    pub(crate) fn note_good(&self, now: Instant) -> Option<BreakerChange> {
        let mut window = self.window.lock();
        let change = self.advance(&mut window, now);
        window.operations = window.operations.saturating_add(1);
        change
    }

    /// Ends a pause that is over, without an operation.
    pub(crate) fn tick(&self, now: Instant) -> Option<BreakerChange> {
        if self.admits_all() { None } else { self.advance(&mut self.window.lock(), now) }
    }

    /// Asks for an operation on the entry with this key, which is slow if it takes longer than `slow`.
    pub(crate) fn begin(&self, key: Key, slow: Duration, now: Instant) -> BreakerAdmission {
        let mut window = self.window.lock();
        // Operations that never end are not counted as slow ones: they are seen by that.
        let is_stuck = window.running >= BAD_MIN
            && window.moved.is_some_and(|moved| now.saturating_duration_since(moved) > slow.max(STUCK_MIN));
        let change = if is_stuck { self.open(&mut window, now) } else { self.advance(&mut window, now) };
        let is_admitted = sixteenth(key) < self.admitted();
        if is_admitted {
            window.running += 1;
            // Further operations that begin are no progress.
            if window.running <= BAD_MIN {
                window.moved = Some(now);
            }
        }
        BreakerAdmission { is_admitted, change }
    }

    /// Asks whether a response with this key may be stored. No operation begins.
    pub(crate) fn storing(&self, key: Key, now: Instant) -> BreakerAdmission {
        if self.admitted() == ALL {
            return BreakerAdmission { is_admitted: true, change: None };
        }
        // A pause ends even if nothing is read: entries may have left the index meanwhile.
        let change = self.advance(&mut self.window.lock(), now);
        BreakerAdmission { is_admitted: sixteenth(key) < self.admitted(), change }
    }

    /// Takes the result of an admitted operation; `None` if it did not need the disk, or was given up.
    pub(crate) fn ended(
        &self,
        outcome: Option<DiskOutcome>,
        slow: Duration,
        now: Instant,
    ) -> Option<BreakerChange> {
        let mut window = self.window.lock();
        window.running = window.running.saturating_sub(1);
        window.moved = Some(now);
        let is_bad = match outcome {
            None => return None,
            Some(DiskOutcome::Failed) => true,
            Some(DiskOutcome::Done(time)) => time > slow,
        };
        let before = self.advance(&mut window, now);
        window.operations = window.operations.saturating_add(1);
        window.bad += u32::from(is_bad);
        let is_too_much =
            window.bad >= BAD_MIN && u64::from(window.bad) * u64::from(BAD_SHARE) > window.operations.into();
        if is_too_much { self.open(&mut window, now).or(before) } else { before }
    }

    /// Ends a pause or a window that is over.
    fn advance(&self, window: &mut Window, now: Instant) -> Option<BreakerChange> {
        if let Some(until) = window.until {
            if now < until {
                return None;
            }
            window.until = None;
            self.admit(window, 1, now);
            return None;
        }
        let since = *window.since.get_or_insert(now);
        if now.saturating_duration_since(since) < BREAKER_WINDOW {
            return None;
        }
        let (admitted, had_any) = (self.admitted(), window.operations > 0);
        if admitted == ALL || !had_any {
            self.admit(window, admitted, now);
            return None;
        }
        self.admit(window, admitted * 2, now);
        if admitted * 2 < ALL {
            return None;
        }
        window.pause = PAUSE_MIN;
        Some(BreakerChange::Closed)
    }

    /// Begins a window in which this share is admitted.
    fn admit(&self, window: &mut Window, admitted: u8, now: Instant) {
        self.admitted.store(admitted, Relaxed);
        (window.since, window.operations, window.bad) = (Some(now), 0, 0);
    }

    fn open(&self, window: &mut Window, now: Instant) -> Option<BreakerChange> {
        if window.until.is_some() {
            return None;
        }
        // An operation that never ends is counted no more.
        window.running = 0;
        self.admit(window, 0, now);
        let pause = window.pause;
        window.until = Some(now + pause);
        window.pause = (pause * 2).min(PAUSE_MAX);
        self.trips.add(1);
        Some(BreakerChange::Opened(pause))
    }
}

/// Returns true for errors that a broken or overloaded disk causes. A missing file is none.
pub(crate) fn is_failure(error: &DiskError) -> bool {
    let of_device = [Errno::IO, Errno::NODEV, Errno::NXIO, Errno::TIMEDOUT, Errno::STALE, Errno::NOTCONN];
    error.is_passing() || error.errno().is_some_and(|errno| of_device.contains(&errno))
}

/// Returns true for errors of a disk that can be read only.
pub(crate) fn is_refusal(error: &DiskError) -> bool {
    let refusals = [Errno::NOSPC, Errno::DQUOT, Errno::ROFS, Errno::ACCESS, Errno::PERM, Errno::NOENT];
    error.errno().is_some_and(|errno| refusals.contains(&errno))
}

fn sixteenth(key: Key) -> u8 {
    let [first, ..] = key.0;
    first % ALL
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: Duration = Duration::from_millis(50);
    const SECOND: Duration = Duration::from_secs(1);

    fn key(first: u8) -> Key {
        Key([first; 16])
    }

    /// An operation on each of the sixteenths, each of which takes this time. Returns the admitted ones and the last change.
    fn round(breaker: &Breaker, now: Instant, time: Duration) -> (u32, Option<BreakerChange>) {
        let (mut admitted, mut change) = (0, None);
        for first in 0..16 {
            let admission = breaker.begin(key(first), SLOW, now);
            change = admission.change.or(change);
            if admission.is_admitted {
                admitted += 1;
                change = breaker.ended(Some(DiskOutcome::Done(time)), SLOW, now).or(change);
            }
        }
        (admitted, change)
    }

    #[test]
    fn slow_disk_is_left_alone_and_taken_back_by_degrees() {
        let (breaker, mut now) = (Breaker::new(), Instant::now());
        assert_eq!(round(&breaker, now, SLOW), (16, None));
        let (admitted, change) = round(&breaker, now, 2 * SLOW);
        assert_eq!((admitted, change), (5, Some(BreakerChange::Opened(PAUSE_MIN))));
        assert_eq!(round(&breaker, now + 4 * SECOND, SLOW), (0, None));
        now += PAUSE_MIN;
        for expected in [1, 2, 4, 8] {
            assert_eq!(round(&breaker, now, SLOW), (expected, None));
            assert_eq!(round(&breaker, now + 5 * SECOND, SLOW), (expected, None));
            now += BREAKER_WINDOW;
        }
        assert_eq!(round(&breaker, now, SLOW), (16, Some(BreakerChange::Closed)));
        assert_eq!((breaker.admits_all(), breaker.trips.value()), (true, 1));
    }

    #[test]
    fn pauses_get_longer_while_the_disk_stays_slow() {
        let (breaker, mut now) = (Breaker::new(), Instant::now());
        let mut pauses = Vec::new();
        for _ in 0..7 {
            let pause = loop {
                match round(&breaker, now, 2 * SLOW).1 {
                    Some(BreakerChange::Opened(pause)) => break pause,
                    _ => now += SECOND,
                }
            };
            pauses.push(pause.as_secs());
            now += pause;
        }
        assert_eq!(pauses, [5, 10, 20, 40, 80, 80, 80]);
    }

    #[test]
    fn few_slow_operations_among_many_are_no_reason() {
        let (breaker, now) = (Breaker::new(), Instant::now());
        for nth in 0..2000_u32 {
            assert!(breaker.begin(key(1), SLOW, now).is_admitted);
            let time = if nth % 200 == 199 { 10 * SLOW } else { SLOW / 2 };
            assert_eq!(breaker.ended(Some(DiskOutcome::Done(time)), SLOW, now), None);
        }
        assert!(breaker.admits_all());
    }

    #[test]
    fn failures_open_it() {
        let (breaker, now) = (Breaker::new(), Instant::now());
        for nth in 0..BAD_MIN {
            assert!(breaker.begin(key(1), SLOW, now).is_admitted);
            let change = breaker.ended(Some(DiskOutcome::Failed), SLOW, now);
            assert_eq!(change.is_some(), nth == BAD_MIN - 1);
        }
        assert!(!breaker.begin(key(1), SLOW, now).is_admitted);
    }

    #[test]
    fn operations_that_never_end_open_it() {
        let (breaker, now) = (Breaker::new(), Instant::now());
        for _ in 0..BAD_MIN {
            assert!(breaker.begin(key(1), SLOW, now).is_admitted);
        }
        // Others end meanwhile: the disk answers.
        let later = now + SECOND;
        assert_eq!(breaker.ended(None, SLOW, later), None);
        assert!(breaker.begin(key(1), SLOW, later).is_admitted);
        let admission = breaker.begin(key(1), SLOW, later + SECOND);
        let opened = Some(BreakerChange::Opened(PAUSE_MIN));
        assert_eq!((admission.is_admitted, admission.change), (false, opened));
    }

    #[test]
    fn operations_that_begin_are_no_progress() {
        let (breaker, now) = (Breaker::new(), Instant::now());
        let step = STUCK_MIN / 5;
        let opened = (0..20).find(|nth| breaker.begin(key(1), SLOW, now + *nth * step).change.is_some());
        // The fifth one began after four steps.
        assert_eq!(opened, Some(10));
    }

    #[test]
    fn pause_ends_without_entries_to_read() {
        let (breaker, now) = (Breaker::new(), Instant::now());
        round(&breaker, now, 2 * SLOW);
        assert!(!breaker.storing(key(0), now).is_admitted);
        let later = now + PAUSE_MIN;
        assert!(breaker.storing(key(0), later).is_admitted);
        assert!(!breaker.storing(key(1), later).is_admitted);
    }

    #[test]
    fn pause_is_not_shortened_by_operations_that_began_before() {
        let (breaker, now) = (Breaker::new(), Instant::now());
        for _ in 0..20 {
            breaker.begin(key(1), SLOW, now);
        }
        for _ in 0..20 {
            breaker.ended(Some(DiskOutcome::Failed), SLOW, now);
        }
        assert_eq!((breaker.admitted(), breaker.trips.value()), (0, 1));
        assert!(!breaker.begin(key(0), SLOW, now + PAUSE_MIN - SECOND).is_admitted);
        assert!(breaker.begin(key(0), SLOW, now + PAUSE_MIN).is_admitted);
    }
}
