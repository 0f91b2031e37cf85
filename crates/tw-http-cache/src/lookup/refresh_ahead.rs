//! `cache_refresh_ahead`: a popular entry is updated in the background before it becomes stale.
//!
//! A hit in the last part of an entry's lifetime starts the update. One request fetches the response for all, and the entry is
//! used until it has come. If the upstream server fails, the entry stays as it is.

use std::rc::Rc;

use bytes::Bytes;

use super::background::BackgroundFetch;
use super::permission::may_fetch_for_others;
use super::search::FoundState;
use super::target::LookupTarget;
use crate::entry::open_entries::OpenEntry;
use crate::guard::background::{FetchPermit, FetchPurpose};
use crate::settings::CacheSettings;
use crate::zone::JoinOutcome;
use tw_request::request::Request;

/// Fresh entry that a request is answered with.
#[derive(Clone, Copy)]
pub(crate) struct FreshEntry<'a> {
    pub(crate) entry: &'a Rc<OpenEntry>,
    pub(crate) state: FoundState,
    /// `Vary` of the entry with the key, if this one is a variant.
    pub(crate) other: Option<&'a Bytes>,
}

/// Starts an update of a fresh entry that `r` is answered with at `now`, in seconds since 1970, if one is due.
pub(crate) fn refresh_ahead(
    r: &Request,
    settings: &CacheSettings,
    target: &LookupTarget,
    fresh: FreshEntry<'_>,
    now: i64,
) {
    let Some(ahead) = &settings.refresh_ahead else { return };
    let FreshEntry { entry, state, other } = fresh;
    let hits = state.hits.max(entry.refresh_pace.count_hit());
    let is_due = ahead.is_due(&entry.meta.lifetime, u64::from(hits) + 1, now);
    // A fetch in progress renews the entry.
    if !is_due || state.is_claimed || r.upstream.cache.is_update {
        return;
    }
    let now = tw_rt::clock::now();
    let LookupTarget { cache, key, .. } = target;
    if !entry.refresh_pace.may_begin(now) || !may_fetch_for_others(r, settings, cache, *key) {
        return;
    }
    if cache.fill(*key).is_some() {
        return;
    }
    let purpose = FetchPurpose::Ahead;
    let Some(permit) = FetchPermit::take(&cache.zone.background, purpose, settings.background_max) else {
        return;
    };
    let JoinOutcome::Lead(lead) = cache.join(*key, now, settings.lock_age) else { return };
    let (lead, entry, other) = (Some(lead), Some(entry.clone()), other.cloned());
    // If there are too many background requests, the next hit tries again.
    let _ = BackgroundFetch { purpose, permit, lead, entry, other }.start(r);
}
