//! Hedged reads (`hedge=`): a lookup that waits for the disk longer than usual also requests the response from the upstream
//! server, and the first answer wins.
//!
//! ```text
//! lookup ─► read of the entry ──────────────────────────────► entry: a hit
//!               │ not done after the delay
//!               └─► fill of the key, joined or begun ─► head ─► the request follows the fill
//! ```
//! One fetch serves all lookups of a key. It is a background request, so a client that leaves takes nothing from others. Its
//! response is stored as usual: in the place of the entry, or beside it if it has `Vary`, because which variant the entry is
//! has not been read. A response that is not storable, and one with a status of 500 and more, does not win: the disk is waited
//! for.
//!
//! The load of the upstream server is bounded: fetches are a share of the lookups in a window, and count as background fetches
//! of the cache. The delay is a fixed time, or the 99.9th percentile of the cache's reads. That is the median of several windows,
//! so that a disk that stalls does not raise it at once.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tw_base::hist::Snapshot;
use tw_base::{Counter, FatalMutex, Histogram};
use tw_cache::policy::{ForwardReason, Rules};
use tw_cache::{EntryState, Key};
use tw_conf::units;
use tw_http::Method;

use crate::http::cache::fill::{Fill, FillHead, JoinOutcome};
use crate::http::cache::lookup::Lookup;
use crate::http::cache::lookup::background::{BackgroundFetch, FetchPermit, FetchPurpose};
use crate::http::cache::lookup::cached_response::CachedResponse;
use crate::http::cache::miss_reason::MissReason;
use crate::http::cache::settings::CacheSettings;
use crate::http::cache::zone::{Cache, CacheZone};
use crate::http::cache_info::UpstreamCacheStatus;
use crate::http::request::Request;

/// Bounds of a measured delay: an upstream server answers hardly sooner than the first, and a disk is worse than the second only
/// when something is wrong. Until the first window is complete, the delay is the second.
const DELAY_MIN: Duration = Duration::from_millis(10);
const DELAY_MAX: Duration = Duration::from_secs(1);
/// Reads and time after which a window of measurements is complete. A 99.9th percentile needs a thousand values.
const WINDOW_READS: u32 = 1000;
const WINDOW_TIME: Duration = Duration::from_secs(10);
/// Number of windows whose median is the delay.
const WINDOWS: usize = 9;
/// Default of `hedge_max=`, in percent.
const PERCENT: u8 = 5;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Share of the lookups of a cache in `BUDGET_TIME` that may request a response because the disk is slow (`hedge=`).
    parameter "proxy_cache_path", "hedge_max=", "5%", "further lookups wait for the disk";
    /// Time over which such requests are compared with lookups.
    const BUDGET_TIME: Duration = Duration::from_secs(10), time, "counting begins anew";
    /// Such requests that are allowed within that time however few lookups there are.
    const BUDGET_MIN: u64 = 8, count, "further lookups wait for the disk";
    /// Size of a stored response that is requested again because the disk is slow.
    const HEDGE_SIZE_MAX: u64 = 8 << 20, bytes, "for a larger one, the disk is waited for";
}

/// Settings of the hedged reads of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hedging {
    /// Delay; `None` without hedging.
    delay: Option<HedgeDelay>,
    /// Fetches for a hundred lookups.
    percent: u8,
}

/// Time after which the upstream server is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HedgeDelay {
    /// Measured.
    Auto,
    Fixed(Duration),
}

impl Hedging {
    /// No hedging.
    pub(crate) const OFF: Self = Self { delay: None, percent: PERCENT };

    /// Reads `hedge=`: `auto`, `off`, or a time.
    pub(crate) fn read_delay(&mut self, value: &[u8]) -> Result<(), ()> {
        self.delay = match value {
            b"off" => None,
            b"auto" => Some(HedgeDelay::Auto),
            _ => {
                let delay = units::msec(value).filter(|delay| !delay.is_zero()).ok_or(())?;
                Some(HedgeDelay::Fixed(delay))
            }
        };
        Ok(())
    }

    /// Reads `hedge_max=`: 1 to 100 percent.
    pub(crate) fn read_max(&mut self, value: &[u8]) -> Result<(), ()> {
        let percent = value.strip_suffix(b"%").and_then(units::number).filter(|p| (1..=100).contains(p));
        self.percent = percent.and_then(|percent| u8::try_from(percent).ok()).ok_or(())?;
        Ok(())
    }

    fn delay(&self, hedges: &Hedges) -> Option<Duration> {
        Some(match self.delay? {
            HedgeDelay::Auto => hedges.measured_delay(),
            HedgeDelay::Fixed(delay) => delay,
        })
    }
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
    fn record(&self, time: Duration, now: Instant) {
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
    fn spend(&self, percent: u8, lookups: u64, now: Instant) -> bool {
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

    fn add(&self, outcome: HedgeOutcome) {
        self.counts[outcome as usize].add(1);
    }
}

/// Fill whose response began before the disk answered.
pub(crate) struct HedgeWinner {
    fill: Arc<Fill>,
    begun: Arc<FillHead>,
}

/// Permission of a lookup to hedge, once.
pub(crate) struct LookupHedge {
    /// Largest number of background fetches of the cache.
    background_max: u32,
    /// Time without progress after which a fill is not joined.
    lock_age: Duration,
    /// False after the first hedge.
    is_open: Cell<bool>,
}

impl LookupHedge {
    pub(crate) fn new(settings: &CacheSettings) -> Self {
        Self {
            background_max: settings.background_max,
            lock_age: settings.lock_age,
            is_open: Cell::new(true),
        }
    }
}

impl Lookup {
    /// Joins the fill that began to answer before the disk did, unless its response is not for this request.
    pub(crate) fn join_hedge(
        &self,
        r: &mut Request,
        rules: &Rules,
        winner: HedgeWinner,
    ) -> Option<CachedResponse> {
        self.set_forwarded(r, UpstreamCacheStatus::Miss, ForwardReason::Miss);
        let ready = self.join(r, rules, &winner.fill, winner.begun)?;
        self.set_status(r, UpstreamCacheStatus::Miss);
        r.upstream.cache.why = Some(MissReason::Hedged);
        Some(ready)
    }
}

/// Keys of an entry that is read.
#[derive(Clone, Copy)]
pub(crate) struct HedgedKey<'a> {
    pub(crate) main: Key,
    /// Key of the entry, which may be a variant.
    pub(crate) key: Key,
    /// `Vary` of the main entry, if `key` is a variant.
    pub(crate) other: Option<&'a Bytes>,
}

impl Cache {
    /// Returns true if lookups are hedged.
    pub(crate) fn hedges(&self) -> bool {
        self.place.hedging.delay.is_some()
    }

    /// Completes `search`, unless a fetch from the upstream server begins to answer before the disk does.
    pub(crate) async fn hedge(
        self: &Arc<Self>,
        r: &Request,
        hedge: &LookupHedge,
        hedged: HedgedKey<'_>,
        search: impl Future<Output = ()>,
    ) -> Option<HedgeWinner> {
        let hedges = &self.zone.hedges;
        let Some(delay) = self.place.hedging.delay(hedges) else {
            search.await;
            return None;
        };
        let mut search = pin!(search);
        // A search that waited for nothing ends in the turn in which it began.
        let began = tw_rt::clock::now();
        let winner = match tokio::time::timeout(delay, &mut search).await {
            Ok(()) => None,
            Err(_) => match self.begin_hedge(r, hedge, hedged) {
                Some(fill) => race(&fill, r.method() == Method::Head, &mut search)
                    .await
                    .map(|begun| HedgeWinner { fill, begun })
                    .inspect(|_| hedges.add(HedgeOutcome::Origin))
                    .or_else(|| {
                        hedges.add(HedgeOutcome::Disk);
                        None
                    }),
                None => {
                    search.await;
                    None
                }
            },
        };
        let now = tw_rt::clock::now();
        if now > began {
            hedges.record(now.saturating_duration_since(began), now);
        }
        winner
    }

    /// Returns the fill of a hedged key, which is begun if there is none.
    fn begin_hedge(
        self: &Arc<Self>,
        r: &Request,
        hedge: &LookupHedge,
        hedged: HedgedKey<'_>,
    ) -> Option<Arc<Fill>> {
        if !hedge.is_open.replace(false) {
            return None;
        }
        let found = self.index()?.peek(hedged.key)?;
        if found.holds != EntryState::File || found.size > HEDGE_SIZE_MAX {
            return None;
        }
        let now = tw_rt::clock::now();
        let (purpose, zone) = (FetchPurpose::Hedge, &self.zone);
        let lead = match self.join(hedged.main, now, hedge.lock_age) {
            // The upstream server is asked anyway.
            JoinOutcome::Follow(fill) => return Some(fill),
            JoinOutcome::Lead(lead) => lead,
        };
        if !zone.hedges.spend(self.place.hedging.percent, zone.lookups(), now) {
            zone.hedges.add(HedgeOutcome::Refused);
            return None;
        }
        let Some(permit) = FetchPermit::take(zone, purpose, hedge.background_max) else {
            zone.hedges.add(HedgeOutcome::Refused);
            return None;
        };
        let (fill, other) = (lead.fill.clone(), hedged.other.cloned());
        let fetch = BackgroundFetch { purpose, permit, lead: Some(lead), entry: None, other };
        fetch.start(r).then_some(fill)
    }
}

impl CacheZone {
    /// Number of lookups that have ended.
    fn lookups(&self) -> u64 {
        self.counts.by_status.iter().map(Counter::value).sum()
    }
}

/// Completes `search`, or returns the head of `fill` if that comes first.
async fn race(
    fill: &Arc<Fill>,
    is_head: bool,
    search: &mut (impl Future<Output = ()> + Unpin),
) -> Option<Arc<FillHead>> {
    let refused = {
        let mut head = pin!(fill.wait_for_head(is_head));
        poll_fn(|cx| {
            if std::pin::Pin::new(&mut *search).poll(cx).is_ready() {
                return Poll::Ready(None);
            }
            head.as_mut().poll(cx).map(Some)
        })
        .await
    };
    match refused {
        None => None,
        Some(Ok(begun)) if begun.meta.status < 500 => Some(begun),
        Some(Ok(_) | Err(_)) => {
            search.await;
            None
        }
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

    #[test]
    fn parameters_are_checked() {
        for (value, expected) in [
            (&b"off"[..], Ok(None)),
            (b"auto", Ok(Some(HedgeDelay::Auto))),
            (b"50ms", Ok(Some(HedgeDelay::Fixed(50 * MS)))),
            (b"0", Err(())),
            (b"", Err(())),
            (b"fast", Err(())),
        ] {
            let mut hedging = Hedging::OFF;
            assert_eq!(hedging.read_delay(value).map(|()| hedging.delay), expected);
        }
        for (value, expected) in
            [(&b"1%"[..], Ok(1)), (b"100%", Ok(100)), (b"5", Err(())), (b"0%", Err(())), (b"101%", Err(()))]
        {
            let mut hedging = Hedging::OFF;
            assert_eq!(hedging.read_max(value).map(|()| hedging.percent), expected);
        }
    }
}
