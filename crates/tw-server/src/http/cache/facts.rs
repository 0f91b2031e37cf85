//! What a request knows of the cache it asked: `$upstream_cache_*` and `$cache_why` tell it.

use std::cell::Cell;
use std::sync::Arc;

use bytes::Bytes;
use tw_cache::policy::Forward;
use tw_http::range::ByteRange;

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
pub struct Facts {
    /// What it had.
    pub status: Option<Status>,
    /// Why the response was not kept, or not used, in a word.
    pub why: Option<&'static str>,
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
    /// How old the response is, in seconds.
    pub age: Option<u32>,
    /// Why the upstream server was asked; `None` if it was not.
    pub(super) forward: Option<Forward>,
    /// Whether another request's answer of the upstream server is this one's, too.
    pub(super) is_collapsed: bool,
    /// Whether the response is stored.
    pub(super) is_stored: bool,
    /// Until when the response is valid, in seconds since 1970.
    pub(super) valid_until: Option<i64>,
    /// Which cache it is.
    pub(super) cache: Option<Arc<Cache>>,
}

impl Facts {
    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        // Most requests ask no cache. One that was to fetch something anew may have ended before it did.
        if self.cache.is_some() || self.is_update || self.part.get().is_some() {
            *self = Self::default();
        }
    }

    /// Counts what the cache had, when the request is over.
    pub(crate) fn count(&self) {
        if let (Some(cache), Some(status)) = (&self.cache, self.status) {
            cache.zone.counts.by_status[status as usize].add(1);
        }
    }
}
