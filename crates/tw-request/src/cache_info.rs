//! State of a request's cache lookup: source of `$upstream_cache_*` and `$cache_why`.

use std::any::Any;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use tw_cache::policy::ForwardReason;
use tw_http::range::ByteRange;

use tw_core::pools::Disks;
use tw_disk::Disk;

use super::miss_reason::MissReason;

/// Outcome of a cache lookup (`$upstream_cache_status`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpstreamCacheStatus {
    /// No entry.
    Miss,
    /// No lookup took place.
    Bypass,
    /// Entry no longer valid; the upstream server has answered.
    Expired,
    /// Entry no longer valid, sent because the upstream server could not answer.
    Stale,
    /// Entry no longer valid, sent while another request fetched it anew.
    Updating,
    /// Entry no longer valid, confirmed by the upstream server.
    Revalidated,
    /// Valid entry.
    Hit,
}

impl UpstreamCacheStatus {
    /// All, in the order in which they are counted.
    pub const ALL: [Self; 7] =
        [Self::Miss, Self::Bypass, Self::Expired, Self::Stale, Self::Updating, Self::Revalidated, Self::Hit];

    /// nginx's word.
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

/// Cache hit whose first byte has not been sent.
#[derive(Debug, Clone, Copy)]
pub struct PendingHit {
    /// Time of the lookup.
    pub began: Instant,
    /// Disk jobs of the request before the lookup.
    pub jobs: u32,
}

/// Cache that a request uses, as far as requests without a cache know it.
pub trait UsedCache: Any + Send + Sync {
    /// Disk of its `aio`; `None` if it has that of the location.
    fn own_disk<'d>(&self, disks: &'d Disks) -> Option<&'d Disk>;

    /// Records the time of a hit on the loop of number `index`, in nanoseconds.
    fn record_hit(&self, index: usize, from: HitFrom, ns: u64);

    /// Counts a response on the loop of number `index`.
    fn count_response(&self, index: usize, response: CountedResponse);
}

/// Source of the first byte of a hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HitFrom {
    /// Memory of the loop or the page cache, without waiting.
    Inline,
    /// Disk, read by a thread of a pool.
    Disk,
}

impl HitFrom {
    /// All, in the order in which they are counted.
    pub const ALL: [Self; 2] = [Self::Inline, Self::Disk];

    /// Value of the label in metrics.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Inline => "inline",
            Self::Disk => "disk",
        }
    }
}

/// Response of a cache, as it is counted.
#[derive(Debug, Clone, Copy)]
pub struct CountedResponse {
    /// Outcome of the lookup.
    pub status: UpstreamCacheStatus,
    /// Bytes of the body that were sent.
    pub bytes: u64,
    /// True if the response was fetched for another request.
    pub is_collapsed: bool,
}

/// Use of a cache by a request.
#[derive(Default)]
pub struct CacheInfo {
    /// Outcome of the lookup, and of what follows it.
    pub report: CacheReport,
    /// Text of the key.
    pub key: Bytes,
    /// Part of the content that the key names; then a 206 with that part is stored.
    pub part: Cell<Option<ByteRange>>,
    /// True for a background request that fetches the response anew.
    pub is_update: bool,
    /// True if the stored response does not answer, but is replaced: it does not belong to the rest of its object.
    pub is_anew: bool,
    /// Cache of the lookup.
    pub cache: Option<Arc<dyn UsedCache>>,
}

/// Outcome of a lookup, which is given to the request when it has ended, and again if the response of the upstream server changes it.
#[derive(Clone, Default)]
pub struct CacheReport {
    /// Status of the response; `None` without a lookup.
    pub status: Option<UpstreamCacheStatus>,
    /// Reason why the response was not stored, or the entry not used.
    pub why: Option<MissReason>,
    /// `Last-Modified` of an entry that is no longer valid, as it was sent.
    pub last_modified: Bytes,
    /// `ETag` of an entry that is no longer valid.
    pub etag: Bytes,
    /// Age of the response in seconds.
    pub age: Option<u32>,
    /// Reason of forwarding to the upstream server; `None` without it.
    pub forward: Option<ForwardReason>,
    /// True if the response to another request's forwarding answers this one, too.
    pub is_collapsed: bool,
    /// True if the response was fetched for another request.
    pub follows: bool,
    /// Hit whose first byte has not been sent.
    pub hit: Option<PendingHit>,
    /// True if the response is stored.
    pub is_stored: bool,
    /// Time until which the response is valid, in seconds since 1970.
    pub valid_until: Option<i64>,
}

/// Facts about a response of a cache.
#[derive(Debug, Clone, Copy)]
pub struct ServedFacts {
    /// Age in seconds.
    pub age: u32,
    /// Time until which it is valid, in seconds since 1970.
    pub valid_until: i64,
    /// True if it was fetched for another request.
    pub follows: bool,
}

impl CacheReport {
    /// Notes that the request is answered with a response of the cache.
    pub fn serve(&mut self, status: UpstreamCacheStatus, served: ServedFacts) {
        let ServedFacts { age, valid_until, follows } = served;
        self.status = Some(status);
        (self.age, self.valid_until) = (Some(age), Some(valid_until));
        (self.follows, self.is_collapsed) = (follows, follows && self.forward.is_some());
    }

    /// Notes that the request is forwarded, or would be.
    pub fn forward(&mut self, status: UpstreamCacheStatus, forward: ForwardReason) {
        (self.status, self.forward) = (Some(status), Some(forward));
    }
}

impl CacheInfo {
    /// Returns true if the response was stored before the request, and no upstream server was involved.
    #[must_use]
    pub fn is_stored_before(&self) -> bool {
        let CacheReport { status, forward, follows, .. } = &self.report;
        status.is_some() && forward.is_none() && !follows
    }

    /// Returns true until the first byte of a hit is sent.
    pub fn awaits_first_byte(&self) -> bool {
        self.report.hit.is_some()
    }

    /// Drops a hit that another response replaces.
    pub fn cancel_hit(&mut self) {
        self.report.hit = None;
    }

    /// Clears all values.
    pub fn clear(&mut self) {
        // Most requests use no cache. A request that was to fetch something anew may have ended before it did.
        let was_forced = self.is_update || self.is_anew;
        if self.cache.is_some() || was_forced || self.part.get().is_some() {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Request;

    #[test]
    fn the_next_request_in_the_same_memory_finds_nothing() {
        // Both flags are set before the cache lookup, and a request may end before that.
        let mut r = Request::new();
        r.upstream.cache.is_update = true;
        r.unbind();
        assert!(!r.upstream.cache.is_update);
        r.upstream.cache.part.set(Some(ByteRange { start: 0, end: 10 }));
        r.unbind();
        assert!(r.upstream.cache.part.get().is_none());
    }
}
