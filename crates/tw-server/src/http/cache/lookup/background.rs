//! Background fetches of a cache: responses that are requested from the upstream server beside the requests of clients, to
//! update entries (`cache_background_update`, `cache_refresh_ahead`) and to overtake a slow disk (`hedge=`).
//!
//! The fetches of a cache are counted. A fetch beyond `cache_background_max` is not started, and what would have started it goes
//! on with the stored response.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use bytes::Bytes;
use tw_base::Counter;
use tw_conf::{ConfError, Node, units};
use tw_http::Method;

use super::Lookup;
use crate::http::background_subrequest;
use crate::http::cache::entry::open_entries::OpenEntry;
use crate::http::cache::fill::FillLead;
use crate::http::cache::miss_reason::MissReason;
use crate::http::cache::settings::CacheSettings;
use crate::http::cache::zone::CacheZone;
use crate::http::request::Request;

// DIFF(nginx): background updates are limited.
/// Default of `cache_background_max`: at a second for each response, so many updates a second.
pub(crate) const BACKGROUND_MAX: u32 = 256;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Responses that are fetched for one cache beside the requests of clients: updates, and hedges against a slow disk.
    directive "proxy_cache_background_max", "further ones are not started; clients get the stored response";
}

/// Purpose of a background fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FetchPurpose {
    /// Update of a stale entry.
    Update,
    /// Update of an entry that is about to become stale.
    Ahead,
    /// Race against the disk for an entry.
    Hedge,
}

impl FetchPurpose {
    pub(crate) const ALL: [Self; 3] = [Self::Update, Self::Ahead, Self::Hedge];

    /// Value of the label in metrics.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Update => "update",
            Self::Ahead => "refresh-ahead",
            Self::Hedge => "hedge",
        }
    }
}

/// Background fetches of one cache, of all event loops.
#[derive(Debug, Default)]
pub(crate) struct BackgroundFetches {
    running: AtomicU32,
    started: [Counter; FetchPurpose::ALL.len()],
    refused: [Counter; FetchPurpose::ALL.len()],
}

impl BackgroundFetches {
    /// Number of fetches in progress.
    pub(crate) fn running(&self) -> u32 {
        self.running.load(Relaxed)
    }

    /// Number of fetches that were started for this purpose.
    pub(crate) fn started(&self, purpose: FetchPurpose) -> u64 {
        self.started[purpose as usize].value()
    }

    /// Number of fetches for this purpose that were not started, because there were too many.
    pub(crate) fn refused(&self, purpose: FetchPurpose) -> u64 {
        self.refused[purpose as usize].value()
    }

    /// Counts a fetch that is not started.
    pub(crate) fn refuse(&self, purpose: FetchPurpose) {
        self.refused[purpose as usize].add(1);
    }
}

/// Permit for one background fetch, until its response is stored or is known not to be.
#[must_use]
pub(crate) struct FetchPermit(Arc<CacheZone>);

impl FetchPermit {
    /// Returns `None`, and counts that, if `max` fetches are in progress.
    pub(crate) fn take(zone: &Arc<CacheZone>, purpose: FetchPurpose, max: u32) -> Option<Self> {
        let fetches = &zone.background;
        let is_free = |running: u32| (running < max).then_some(running + 1);
        if fetches.running.fetch_update(Relaxed, Relaxed, is_free).is_err() {
            fetches.refuse(purpose);
            return None;
        }
        fetches.started[purpose as usize].add(1);
        Some(Self(zone.clone()))
    }
}

impl Drop for FetchPermit {
    fn drop(&mut self) {
        self.0.background.running.fetch_sub(1, Relaxed);
    }
}

/// Fetch that a background request carries out.
pub(crate) struct BackgroundFetch {
    pub(crate) purpose: FetchPurpose,
    pub(crate) permit: FetchPermit,
    /// Permit to fill the entry; without it, the request looks it up first.
    pub(crate) lead: Option<FillLead>,
    /// Entry that is validated.
    pub(crate) entry: Option<Rc<OpenEntry>>,
    /// `Vary` of the entry with the key, if the fetched response is another variant.
    pub(crate) other: Option<Bytes>,
}

/// Fetch of a background request, until its lookup takes it.
struct PendingFetch(Cell<Option<BackgroundFetch>>);

impl BackgroundFetch {
    /// Starts the fetch in the background of `r`. Returns false if that is not possible.
    pub(crate) fn start(self, r: &Request) -> bool {
        let prepare = |r: &mut Request| {
            r.upstream.cache.is_update = true;
            r.extensions.put(Rc::new(PendingFetch(Cell::new(Some(self)))));
        };
        background_subrequest::run_again(r, prepare).is_ok()
    }

    /// Takes the fetch that `r` carries out.
    pub(crate) fn take(r: &Request) -> Option<Self> {
        if !r.upstream.cache.is_update {
            return None;
        }
        r.extensions.get::<PendingFetch>()?.0.take()
    }
}

impl Lookup {
    /// Starts an update of a stale entry in the background. Returns false if the client's request has to update it. With too many
    /// background fetches the entry is used without an update.
    pub(crate) fn update_in_background(&self, r: &mut Request, settings: &CacheSettings) -> bool {
        let purpose = FetchPurpose::Update;
        let Some(permit) = FetchPermit::take(&self.cache.zone, purpose, settings.background_max) else {
            r.upstream.cache.why = Some(MissReason::BackgroundMax);
            return true;
        };
        BackgroundFetch { purpose, permit, lead: None, entry: None, other: None }.start(r)
    }

    /// Returns true if the response to `r`, fetched in the background, could answer other requests, too.
    pub(crate) fn may_fetch_for_others(&self, r: &mut Request, settings: &CacheSettings) -> bool {
        if !matches!(r.method(), Method::Get | Method::Head) || self.is_range_beyond_max(r, settings) {
            return false;
        }
        let why = r.upstream.cache.why;
        let may = self.permits_storing(r, settings);
        r.upstream.cache.why = why;
        may
    }
}

/// Reads `cache_background_max`; `off` is no limit but that of the event loop.
///
/// # Errors
/// Another value than `off` or a number above zero.
pub fn background_max(node: &Node) -> Result<u32, ConfError> {
    let word = node.arg(0)?;
    if &*word.bytes == b"off" {
        return Ok(u32::MAX);
    }
    let max = units::number(&word.bytes).and_then(|max| u32::try_from(max).ok()).filter(|max| *max > 0);
    max.ok_or_else(|| node.invalid_value(word))
}
