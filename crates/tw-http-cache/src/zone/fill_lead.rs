//! Fills in progress of a cache: requests for one key lead one, or follow it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tw_cache::format::Meta;
use tw_cache::{Claim, Key};

use super::{Cache, Fills};
use crate::fill::{Fill, FillHead, FillRefusal};
use crate::guard::background::FetchPermit;
use crate::store::context::ZoneIndex;

/// Role of a request without a usable entry.
pub(crate) enum JoinOutcome {
    /// The request goes to the upstream server and fills the entry.
    Lead(FillLead),
    /// Another request fetches the response already.
    Follow(Arc<Fill>),
}

/// Permit to fill an entry. Dropping it before the response has begun leaves that to the next request.
pub(crate) struct FillLead {
    cache: Arc<Cache>,
    key: Key,
    pub(crate) fill: Arc<Fill>,
    /// Permit of a background fetch.
    pub(crate) permit: Option<FetchPermit>,
}

impl Cache {
    /// Joins a fill or starts one: one request at a time fills an entry. A fill without progress for `age` is not joined.
    pub(crate) fn join(self: &Arc<Self>, key: Key, now: Instant, age: Duration) -> JoinOutcome {
        let mut fills = self.zone.fills(key).lock();
        if let Some(fill) = fills.get(&key)
            && fill.is_followable()
            && !fill.is_stalled(now, age)
        {
            return JoinOutcome::Follow(fill.clone());
        }
        JoinOutcome::Lead(self.insert(&mut fills, key, now))
    }

    /// Starts a fill in any case. Others find a fill in progress until this one has [begun](FillLead::begin).
    pub(crate) fn lead(self: &Arc<Self>, key: Key, now: Instant) -> FillLead {
        let mut fills = self.zone.fills(key).lock();
        if fills.get(&key).is_some_and(|fill| fill.has_begun()) {
            return FillLead { cache: self.clone(), key, fill: Arc::new(Fill::new(now)), permit: None };
        }
        self.insert(&mut fills, key, now)
    }

    fn insert(self: &Arc<Self>, fills: &mut Fills, key: Key, now: Instant) -> FillLead {
        let fill = Arc::new(Fill::new(now));
        fills.insert(key, fill.clone());
        FillLead { cache: self.clone(), key, fill, permit: None }
    }

    /// Returns the fill with this key.
    pub(crate) fn fill(&self, key: Key) -> Option<Arc<Fill>> {
        self.zone.fills(key).lock().get(&key).cloned()
    }

    /// Removes the fill with this key, so that no request joins it. Returns true if it had begun.
    pub(crate) fn remove_fill(&self, key: Key) -> bool {
        let fill = self.zone.fills(key).lock().remove(&key);
        fill.is_some_and(|fill| fill.has_begun())
    }

    /// Removes all fills, so that no request joins them, unless `is_meant` is false for their response.
    pub(crate) fn remove_fills(&self, is_meant: impl Fn(&Meta) -> bool) {
        for fills in &self.zone.fills {
            fills.lock().retain(|_, fill| {
                let is_kept = fill.head().is_some_and(|begun| !is_meant(&begun.meta));
                if is_kept {
                    fill.forget_earlier(&is_meant);
                }
                is_kept
            });
        }
    }
}

impl FillLead {
    /// Begins the response: others find it from now on, unless a purge came after `claim`.
    pub(crate) fn begin(&self, begun: FillHead, claim: &Claim) {
        self.fill.begin(begun);
        let zone = &self.cache.zone;
        // Within the lock: a purge removes fills afterwards.
        let mut fills = zone.fills(self.key).lock();
        let is_current = zone.loaded().is_some_and(|ZoneIndex { index, purges, .. }| {
            let is_key_purged = index.peek(self.key).is_some_and(|entry| claim.sequence() < entry.since);
            !is_key_purged && purges.latest() <= claim.sequence()
        });
        if is_current && let Some(earlier) = fills.insert(self.key, self.fill.clone()) {
            self.fill.set_earlier(earlier);
        }
    }

    /// Gives the fill up: its response is not shared.
    pub(crate) fn give_up(self, over: FillRefusal) {
        self.fill.give_up(over);
    }
}

impl Drop for FillLead {
    fn drop(&mut self) {
        let mut fills = self.cache.zone.fills(self.key).lock();
        if fills.get(&self.key).is_some_and(|fill| Arc::ptr_eq(fill, &self.fill)) {
            match self.fill.earlier() {
                Some(earlier) => fills.insert(self.key, earlier),
                None => fills.remove(&self.key),
            };
        }
        // Within the lock: it is not put back after this.
        self.fill.mark_placed();
        drop(fills);
        self.fill.give_up(FillRefusal::Abandoned);
    }
}
