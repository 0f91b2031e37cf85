//! State of the hedged reads of a cache (`hedge=`): the delay after which a lookup also asks the upstream server, and the budget of such
//! requests.
//!
//! The load of the upstream server is bounded: fetches are a share of the lookups in a window, and count as background fetches
//! of the cache. The delay is a fixed time, or the 99.9th percentile of the cache's reads. That is the median of several windows,
//! so that a disk that stalls does not raise it at once.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tw_base::hist::Snapshot;
use tw_base::{Counter, FatalMutex, Histogram};

use crate::cache_path::hedging::{HedgeDelay, Hedging};

/// Bounds of a measured delay: an upstream server answers hardly sooner than the first, and a disk is worse than the second only
/// when something is wrong. Until the first window is complete, the delay is the second.
const DELAY_MIN: Duration = Duration::from_millis(10);
const DELAY_MAX: Duration = Duration::from_secs(1);
/// Reads and time after which a window of measurements is complete. A 99.9th percentile needs a thousand values.
const WINDOW_READS: u32 = 1000;
const WINDOW_TIME: Duration = Duration::from_secs(10);
/// Number of windows whose median is the delay.
const WINDOWS: usize = 9;
tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Share of the lookups of a cache in `BUDGET_TIME` that may request a response because the disk is slow (`hedge=`).
    parameter "proxy_cache_path", "hedge_max=", "5%", "further lookups wait for the disk";
    /// Time over which such requests are compared with lookups.
    const BUDGET_TIME: Duration = Duration::from_secs(10), time, "counting begins anew";
    /// Such requests that are allowed within that time however few lookups there are.
    const BUDGET_MIN: u64 = 8, count, "further lookups wait for the disk";
}

/// Outcome of a lookup that the disk kept waiting for longer than the delay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HedgeOutcome {
    /// The upstream server answered first.
    Origin,
    /// The disk answered first, or the response could not be used.
    Disk,
    /// The budget was used up.
    Refused,
}

impl HedgeOutcome {
    pub(crate) const ALL: [Self; 3] = [Self::Origin, Self::Disk, Self::Refused];

    /// Value of the label in metrics.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Origin => "origin",
            Self::Disk => "disk",
            Self::Refused => "refused",
        }
    }
}

/// Hedged reads of one cache, of all event loops.
#[derive(Default)]
pub(crate) struct Hedges {
    /// Times of reads that had to wait for the disk.
    times: Histogram,
    /// Reads since the current window of measurements began.
    reads: AtomicU32,
    measured: FatalMutex<MeasuredDelay>,
    /// Delay in microseconds; 0 until there is one.
    delay_us: AtomicU64,
    budget: FatalMutex<HedgeBudget>,
    counts: [Counter; HedgeOutcome::ALL.len()],
}

/// Measured times of the last windows.
#[derive(Default)]
struct MeasuredDelay {
    began: Option<Instant>,
    /// All times when the current window began.
    before: Option<Snapshot>,
    /// The 99.9th percentile of each of the last windows, in microseconds, the latest at `next - 1`.
    windows: Vec<u64>,
    next: usize,
}

/// Fetches of a window, and lookups to compare them with.
#[derive(Default)]
struct HedgeBudget {
    began: Option<Instant>,
    /// Lookups before the window.
    before: u64,
    /// Lookups in as much time before the window.
    previous: u64,
    started: u64,
}

impl Hedges {
    /// Time after which the upstream server is asked; `None` without hedging.
    pub(crate) fn delay(&self, hedging: &Hedging) -> Option<Duration> {
        Some(match hedging.delay? {
            HedgeDelay::Auto => self.measured_delay(),
            HedgeDelay::Fixed(delay) => delay,
        })
    }

    /// Number of lookups with this outcome.
    pub(crate) fn count(&self, outcome: HedgeOutcome) -> u64 {
        self.counts[outcome as usize].value()
    }

    fn measured_delay(&self) -> Duration {
        match self.delay_us.load(Relaxed) {
            0 => DELAY_MAX,
            measured => Duration::from_micros(measured).clamp(DELAY_MIN, DELAY_MAX),
        }
    }

    /// Records a read that waited for the disk for `time`, or at least that long if it was given up.
    pub(crate) fn record(&self, time: Duration, now: Instant) {
        self.times.record_ns(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        if self.reads.fetch_add(1, Relaxed) + 1 >= WINDOW_READS {
            self.end_window(now);
        }
    }

    /// Ends a window of measurements, if it has lasted long enough.
    fn end_window(&self, now: Instant) {
        let mut measured = self.measured.lock();
        let began = *measured.began.get_or_insert(now);
        if now.saturating_duration_since(began) < WINDOW_TIME {
            return;
        }
        self.reads.store(0, Relaxed);
        let all = self.times.snapshot();
        let window = measured.before.as_ref().map_or_else(|| all.clone(), |before| all.since(before));
        (measured.began, measured.before) = (Some(now), Some(all));
        let Some(ns) = window.quantile_ns(0.999) else { return };
        let at = measured.next % WINDOWS;
        match measured.windows.get_mut(at) {
            Some(oldest) => *oldest = ns / 1000,
            None => measured.windows.push(ns / 1000),
        }
        measured.next = at + 1;
        let mut sorted = measured.windows.clone();
        sorted.sort_unstable();
        // Of an even number, the smaller one in the middle.
        if let Some(median) = sorted.get((sorted.len() - 1) / 2) {
            self.delay_us.store((*median).max(1), Relaxed);
        }
    }

    /// Returns true, and counts a fetch, if the budget has one left. `lookups` is the number of all lookups until now.
    pub(crate) fn spend(&self, percent: u8, lookups: u64, now: Instant) -> bool {
        let mut budget = self.budget.lock();
        let began = *budget.began.get_or_insert(now);
        let elapsed = now.saturating_duration_since(began);
        if elapsed >= BUDGET_TIME {
            let counted = lookups.saturating_sub(budget.before);
            // As many as in one window, if more time has passed. At most 2^64.
            let share = BUDGET_TIME.as_secs_f64() / elapsed.as_secs_f64();
            *budget = HedgeBudget {
                began: Some(now),
                before: lookups,
                previous: (counted as f64 * share) as u64,
                started: 0,
            };
        }
        let compared = budget.previous.max(lookups.saturating_sub(budget.before));
        let allowed = BUDGET_MIN.max(compared.saturating_mul(percent.into()) / 100);
        let may = budget.started < allowed;
        budget.started += u64::from(may);
        may
    }

    pub(crate) fn add(&self, outcome: HedgeOutcome) {
        self.counts[outcome as usize].add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A window of reads of which the slowest two in a thousand take `slow`.
    fn window(hedges: &Hedges, now: &mut Instant, slow: Duration) {
        for nth in 0..WINDOW_READS {
            hedges.record(if nth % 500 == 0 { slow } else { MS }, *now);
        }
        *now += WINDOW_TIME;
        hedges.record(MS, *now);
    }

    #[test]
    fn delay_is_the_usual_worst_time() {
        let (hedges, mut now) = (Hedges::default(), Instant::now());
        assert_eq!(hedges.measured_delay(), DELAY_MAX);
        window(&hedges, &mut now, 40 * MS);
        let usual = hedges.measured_delay();
        assert!((40 * MS..50 * MS).contains(&usual), "{usual:?}");
        // A disk that stalls in less than half of the windows changes nothing.
        for _ in 0..4 {
            window(&hedges, &mut now, 40 * MS);
            window(&hedges, &mut now, 900 * MS);
        }
        assert_eq!(hedges.measured_delay(), usual);
        for _ in 0..WINDOWS {
            window(&hedges, &mut now, 900 * MS);
        }
        assert!(hedges.measured_delay() >= 900 * MS);
        for _ in 0..WINDOWS {
            window(&hedges, &mut now, MS);
        }
        assert_eq!(hedges.measured_delay(), DELAY_MIN);
    }

    #[test]
    fn budget_is_a_share_of_the_lookups() {
        let (hedges, now) = (Hedges::default(), Instant::now());
        let spend = |lookups, now| (0..1000).filter(|_| hedges.spend(5, lookups, now)).count();
        assert_eq!(spend(0, now), BUDGET_MIN as usize);
        assert_eq!(spend(1000, now), 50 - BUDGET_MIN as usize);
        // The next window may spend as much although it has just begun.
        let next = now + BUDGET_TIME;
        assert_eq!(spend(1000, next), 50);
        assert_eq!(spend(1000, next), 0);
        // Lookups of a long time count as those of one window.
        assert_eq!(spend(11_000, next + 10 * BUDGET_TIME), 50);
    }
}
