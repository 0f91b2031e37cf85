//! Number of background fetches of a cache, and the limit of those in progress. A fetch beyond `cache_background_max` is not started, and what
//! would have started it goes on with the stored response.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use tw_base::Counter;

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
pub(crate) struct FetchPermit(Arc<BackgroundFetches>);

impl FetchPermit {
    /// Returns `None`, and counts that, if `max` fetches are in progress.
    pub(crate) fn take(fetches: &Arc<BackgroundFetches>, purpose: FetchPurpose, max: u32) -> Option<Self> {
        let is_free = |running: u32| (running < max).then_some(running + 1);
        if fetches.running.fetch_update(Relaxed, Relaxed, is_free).is_err() {
            fetches.refuse(purpose);
            return None;
        }
        fetches.started[purpose as usize].add(1);
        Some(Self(fetches.clone()))
    }
}

impl Drop for FetchPermit {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Relaxed);
    }
}
