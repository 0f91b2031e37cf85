//! Parts of a cache that its store works with.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use tw_base::Counter;
use tw_cache::{Index, IndexEntry, Key, Purges};
use tw_disk::Disk;

use crate::cache_path::CachePath;
use crate::guard::quota::Quotas;

/// Cache of an operation of the store.
#[derive(Clone, Copy)]
pub(crate) struct StoreContext<'a> {
    /// Directory and limits.
    pub(crate) place: &'a CachePath,
    pub(crate) disk: &'a Disk,
    /// Index and purges, if they are loaded.
    pub(crate) zone_index: Option<&'a ZoneIndex>,
    pub(crate) quotas: &'a Quotas,
    pub(crate) counts: &'a ZoneCounters,
    /// Bytes of a growing file that are written back together.
    pub(crate) window: u64,
    /// Time of the first use by this process, in milliseconds since 1970: what is older was left by another process.
    pub(crate) since_ms: i64,
}

/// Index and disk for appending to segments.
#[derive(Clone, Copy)]
pub(crate) struct AppendTarget<'a> {
    pub(crate) index: &'a Arc<Index>,
    pub(crate) disk: &'a Disk,
    /// Sequence number for a new segment.
    pub(crate) created: u64,
    /// Bytes that are written back together.
    pub(crate) window: u64,
    /// Quotas, which do not count what leaves the index with its segment.
    pub(crate) quotas: &'a Quotas,
}

impl<'a> StoreContext<'a> {
    /// Returns the index, if it is loaded.
    pub(crate) fn index(self) -> Option<&'a Arc<Index>> {
        self.zone_index.map(|zone_index| &zone_index.index)
    }

    /// Index and disk for appending to segments, if the index is loaded.
    pub(crate) fn append_target(self) -> Option<AppendTarget<'a>> {
        let Self { disk, zone_index, quotas, window, .. } = self;
        let zone_index = zone_index?;
        let (index, created) = (&zone_index.index, zone_index.purges.sequence().last());
        Some(AppendTarget { index, disk, created, window, quotas })
    }

    /// Counts a response no more that has left the index, unless another one has its key.
    pub(crate) fn forget_in_quota(self, key: Key) {
        if let Some(index) = self.index() {
            self.quotas.forget(index, key);
        }
    }
}

/// Index and purges of a cache.
pub(crate) struct ZoneIndex {
    pub(crate) index: Arc<Index>,
    pub(crate) purges: Arc<Purges>,
    /// Entries with a smaller number are purged: of a directory that was missing while purges were forgotten.
    pub(crate) floor: AtomicU64,
}

impl ZoneIndex {
    /// Number up to which entries have to be swept.
    pub(crate) fn sweep_to(&self) -> u64 {
        self.purges.latest().max(self.floor.load(SeqCst))
    }

    /// Number of the response of an entry, whose head has `sequence`.
    pub(crate) fn response_sequence(&self, entry: &IndexEntry, sequence: u64) -> u64 {
        let numbers = self.purges.sequence();
        let is_own = entry.is_own && sequence <= numbers.last();
        if is_own { sequence } else { numbers.admit(sequence) }
    }

    /// Returns true if an entry whose file has this number is purged, whatever purges are known.
    pub(crate) fn is_below_floor(&self, sequence: u64) -> bool {
        sequence < self.floor.load(SeqCst)
    }
}

/// Counters of a cache.
#[derive(Default)]
pub(crate) struct ZoneCounters {
    /// Responses by `$upstream_cache_status`, in the order of [`Status::ALL`](tw_request::cache_info::UpstreamCacheStatus::ALL).
    pub(crate) by_status: [Counter; 7],
    /// Requests that were served from the fill of another request.
    pub(crate) collapsed: Counter,
    /// Responses that were stored.
    pub(crate) stored: Counter,
    /// Failed operations of the disk.
    pub(crate) failed: Counter,
    /// Files that were no entries: damaged, truncated, or foreign.
    pub(crate) damaged: Counter,
    /// Entries removed as inactive.
    pub(crate) inactive: Counter,
    /// Entries evicted for want of room.
    pub(crate) evicted: Counter,
    /// Entries removed by purges.
    pub(crate) purged: Counter,
}
