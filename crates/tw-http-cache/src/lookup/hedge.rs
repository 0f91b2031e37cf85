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
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use tw_base::Counter;
use tw_cache::{EntryState, Key};
use tw_http::Method;

use super::background::BackgroundFetch;
use crate::fill::{Fill, FillHead};
use crate::guard::background::{FetchPermit, FetchPurpose};
use crate::guard::hedge::HedgeOutcome;
use crate::settings::CacheSettings;
use crate::zone::{Cache, CacheZone, JoinOutcome};
use tw_request::request::Request;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Size of a stored response that is requested again because the disk is slow.
    const HEDGE_SIZE_MAX: u64 = 8 << 20, bytes, "for a larger one, the disk is waited for";
}

/// Fill whose response began before the disk answered.
pub(crate) struct HedgeWinner {
    pub(crate) fill: Arc<Fill>,
    pub(crate) begun: Arc<FillHead>,
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
        let Some(delay) = hedges.delay(&self.place.hedging) else {
            search.await;
            return None;
        };
        let mut search = pin!(search);
        // A search that waited for nothing ends in the turn in which it began.
        let began = tw_rt::clock::now();
        let winner = match tw_rt::time::timeout(delay, &mut search).await {
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
        let entry = self.index()?.peek(hedged.key)?;
        if entry.holds != EntryState::File || entry.size > HEDGE_SIZE_MAX {
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
        let Some(permit) = FetchPermit::take(&zone.background, purpose, hedge.background_max) else {
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
