//! What a request knows of the cache it asked: `$upstream_cache_*` and `$cache_why` tell it.

use std::cell::Cell;
use std::sync::Arc;

use bytes::Bytes;
use tw_cache::policy::ForwardReason;
use tw_http::range::ByteRange;

use super::fill::Continuation;
use super::miss_reason::Reason;
use super::times::Hit;
use super::zone::Cache;

/// What a cache had for a request (`$upstream_cache_status`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Nothing.
    Miss,
    /// It was not asked.
    Bypass,
    /// Something that was no longer valid; the upstream server has answered.
    Expired,
    /// The same, and it answered because the upstream server could not.
    Stale,
    /// The same, and it answered while another request fetched it anew.
    Updating,
    /// The same, and the upstream server says that it is still valid.
    Revalidated,
    /// It answered.
    Hit,
}

impl Status {
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

/// What is known of a request's cache.
#[derive(Default)]
pub struct CacheInfo {
    /// What it had.
    pub status: Option<Status>,
    /// Why the response was not kept, or not used.
    pub why: Option<Reason>,
    /// The text of the key.
    pub key: Bytes,
    /// `Last-Modified` of what is no longer valid, as it was sent.
    pub last_modified: Bytes,
    /// Its `ETag`.
    pub etag: Bytes,
    /// The part of the content that the key names, set by whatever names it there: then a 206 with that part is what is kept.
    pub part: Cell<Option<ByteRange>>,
    /// Whether the request is one that fetches a response anew, beside others.
    pub(crate) is_update: bool,
    /// True if the stored response does not answer, but is replaced: it does not belong to the rest of its object.
    pub(crate) is_anew: bool,
    /// The fill that the request is to continue, beside others.
    pub(super) continuation: Option<Continuation>,
    /// How old the response is, in seconds.
    pub age: Option<u32>,
    /// Why the upstream server was asked; `None` if it was not.
    pub(super) forward: Option<ForwardReason>,
    /// Whether another request's answer of the upstream server is this one's, too.
    pub(super) is_collapsed: bool,
    /// Whether the response is one that another request had asked for.
    pub(super) follows: bool,
    /// A hit whose first byte has not gone out.
    pub(super) hit: Option<Hit>,
    /// Whether the response is stored.
    pub(super) is_stored: bool,
    /// Until when the response is valid, in seconds since 1970.
    pub(super) valid_until: Option<i64>,
    /// Which cache it is.
    pub(crate) cache: Option<Arc<Cache>>,
}

impl CacheInfo {
    /// Returns true if the response was stored before it was asked for, and no upstream server was asked.
    #[must_use]
    pub fn is_stored_before(&self) -> bool {
        self.status.is_some() && self.forward.is_none() && !self.follows
    }

    /// Whether the first byte of a hit is waited for.
    pub(crate) fn awaits_first_byte(&self) -> bool {
        self.hit.is_some()
    }

    /// Something else answers in the place of a hit, which has no first byte then.
    pub(crate) fn forget_hit(&mut self) {
        self.hit = None;
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        // Most requests ask no cache. One that was to fetch something anew may have ended before it did.
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
        // Both are set before the cache is asked, and a request may end before it is.
        let mut r = Request::new();
        r.facts.upstream.cache.is_update = true;
        r.unbind();
        assert!(!r.facts.upstream.cache.is_update);
        r.facts.upstream.cache.part.set(Some(ByteRange { start: 0, end: 10 }));
        r.unbind();
        assert!(r.facts.upstream.cache.part.get().is_none());
    }
}
