//! `cache_refresh_ahead`: a popular entry is updated in the background before it becomes stale.
//!
//! A hit in the last part of an entry's lifetime starts the update. One request fetches the response for all, and the entry is
//! used until it has come. If the upstream server fails, the entry stays as it is.

use std::rc::Rc;

use super::Lookup;
use super::background::BackgroundFetch;
use super::search::FoundState;
use crate::http::cache::entry::open_entries::OpenEntry;
use crate::http::cache::guard::background::{FetchPermit, FetchPurpose};
use crate::http::cache::settings::CacheSettings;
use crate::http::cache::zone::JoinOutcome;
use crate::http::request::Request;

impl Lookup {
    /// Starts an update of a fresh entry that `r` is answered with, if one is due.
    pub(crate) fn refresh_ahead(
        &self,
        r: &mut Request,
        settings: &CacheSettings,
        entry: &Rc<OpenEntry>,
        state: FoundState,
        now: i64,
    ) {
        let Some(ahead) = &settings.refresh_ahead else { return };
        let hits = state.hits.max(entry.refresh_pace.count_hit());
        let is_due = ahead.is_due(&entry.meta.lifetime, u64::from(hits) + 1, now);
        // A fetch in progress renews the entry.
        if !is_due || state.is_claimed || r.upstream.cache.is_update {
            return;
        }
        let now = tw_rt::clock::now();
        if !entry.refresh_pace.may_begin(now) || !self.may_fetch_for_others(r, settings) {
            return;
        }
        if self.cache.fill(self.key).is_some() {
            return;
        }
        let purpose = FetchPurpose::Ahead;
        let Some(permit) = FetchPermit::take(&self.cache.zone.background, purpose, settings.background_max)
        else {
            return;
        };
        let JoinOutcome::Lead(lead) = self.cache.join(self.key, now, settings.lock_age) else { return };
        let (lead, entry, other) = (Some(lead), Some(entry.clone()), self.other.clone());
        // If there are too many background requests, the next hit tries again.
        let _ = BackgroundFetch { purpose, permit, lead, entry, other }.start(r);
    }
}
