//! Results of a request's cache lookup, for `$upstream_cache_*` and `$cache_why`.

use std::cell::Cell;
use std::sync::Arc;

use bytes::Bytes;
use tw_cache::policy::ForwardReason;
use tw_http::range::ByteRange;

use super::fill::Continuation;
use super::miss_reason::MissReason;
use super::stats::PendingHit;
use super::zone::Cache;

/// Cache status of a request (`$upstream_cache_status`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpstreamCacheStatus {
    /// No entry was found.
    Miss,
    /// The cache was bypassed.
    Bypass,
    /// A stale entry was found; the upstream server has responded.
    Expired,
    /// A stale entry was served because the upstream server failed.
    Stale,
    /// A stale entry was served while another request updates it.
    Updating,
    /// A stale entry was validated by the upstream server and served.
    Revalidated,
    /// A fresh entry was served.
    Hit,
}

impl UpstreamCacheStatus {
    /// All statuses, in the order of the counters.
    pub const ALL: [Self; 7] =
        [Self::Miss, Self::Bypass, Self::Expired, Self::Stale, Self::Updating, Self::Revalidated, Self::Hit];

    /// Value of the variable, as in nginx.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Miss => "MISS",
            Self::Bypass => "BYPASS",
            Self::Expired => "EXPIRED",
            Self::Stale => "STALE",
            Self::Updating => "UPDATING",
            Self::Revalidated => "REVALIDATED",
            Self::Hit => "HIT",
        }
    }
}

/// Cache state of a request.
#[derive(Default)]
pub struct CacheInfo {
    /// Cache status.
    pub status: Option<UpstreamCacheStatus>,
    /// Reason why the response was not stored, or no entry was used.
    pub why: Option<MissReason>,
    /// Text of the key.
    pub key: Bytes,
    /// `Last-Modified` of the stale entry, as it was sent.
    pub last_modified: Bytes,
    /// `ETag` of the stale entry.
    pub etag: Bytes,
    /// Range of the content that the key names, set by the module that puts it there (slice). Then a 206 with that range is
    /// stored.
    pub part: Cell<Option<ByteRange>>,
    /// True in a background request that updates an entry.
    pub(crate) is_update: bool,
    /// True if the stored response is not used but replaced: it does not belong to the rest of its object.
    pub(crate) is_anew: bool,
    /// Fill that this background request continues.
    pub(super) continuation: Option<Continuation>,
    /// Age of the response in seconds.
    pub age: Option<u32>,
    /// Reason for forwarding the request; `None` if it was not forwarded.
    pub(super) forward: Option<ForwardReason>,
    /// True if the request was collapsed into a fill of another one.
    pub(super) is_collapsed: bool,
    /// True if the response was requested by another request.
    pub(super) follows: bool,
    /// Hit whose first byte has not been sent yet.
    pub(super) hit: Option<PendingHit>,
    /// True if the response is stored.
    pub(super) is_stored: bool,
    /// End of the response's validity, in seconds since 1970.
    pub(super) valid_until: Option<i64>,
    /// Cache of the request.
    pub(crate) cache: Option<Arc<Cache>>,
}

impl CacheInfo {
    /// Returns true if the response was stored before the request, and no upstream server was asked.
    #[must_use]
    pub fn is_stored_before(&self) -> bool {
        self.status.is_some() && self.forward.is_none() && !self.follows
    }

    /// Returns true if the first byte of a hit has not been sent yet.
    pub(crate) fn awaits_first_byte(&self) -> bool {
        self.hit.is_some()
    }

    /// Cancels the hit: another response replaces it.
    pub(crate) fn cancel_hit(&mut self) {
        self.hit = None;
    }

    /// Resets all values.
    pub(crate) fn clear(&mut self) {
        // Most requests have no cache. A background update may have ended before its lookup.
        let was_told = self.is_update || self.is_anew || self.continuation.is_some();
        if self.cache.is_some() || was_told || self.part.get().is_some() {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::request::Request;

    #[test]
    fn the_next_request_in_the_same_memory_finds_nothing() {
        // Both are set before the lookup, and a request may end before that.
        let mut r = Request::new();
        r.facts.upstream.cache.is_update = true;
        r.unbind();
        assert!(!r.facts.upstream.cache.is_update);
        r.facts.upstream.cache.part.set(Some(ByteRange { start: 0, end: 10 }));
        r.unbind();
        assert!(r.facts.upstream.cache.part.get().is_none());
    }
}
