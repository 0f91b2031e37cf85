//! List of the segments of a cache.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use tw_cache::Key;

use super::lease::SlotLease;
use super::open_segment::OpenSegment;

#[derive(Default)]
pub(super) struct SegmentList {
    pub(super) segments: BTreeMap<u32, Segment>,
    /// Smallest number that no segment has had.
    pub(super) next: u32,
    /// Number of uses of open files, as a clock.
    pub(super) uses: u64,
}

pub(super) struct Segment {
    /// Bytes on the disk.
    pub(super) size: u64,
    /// The file, if it is open, and the time of its last use.
    pub(super) open: Option<(Arc<OpenSegment>, u64)>,
    pub(super) unsynced: UnsyncedKeys,
    /// True while records are appended.
    pub(super) is_active: bool,
    pub(super) lease: SlotLease,
    /// Time of the last write before this process, in seconds since 1970.
    pub(super) written_at: u32,
}

/// Keys with removed records that may come back after a power cut.
#[derive(Default)]
pub(super) struct UnsyncedKeys {
    pub(super) keys: HashSet<Key>,
    pub(super) are_more: bool,
}

impl Segment {
    /// A segment to which records are appended.
    pub(super) fn active(size: u64, lease: &SlotLease) -> Self {
        let unsynced = UnsyncedKeys::default();
        Self { size, open: None, unsynced, is_active: true, lease: lease.clone(), written_at: 0 }
    }
}

impl SegmentList {
    /// Adds a segment of a process before, with the time of its last write.
    pub(super) fn add(&mut self, number: u32, size: u64, written_at: u32) {
        self.next = self.next.max(number + 1);
        // Removals by that process may not be on the disk.
        let unsynced = UnsyncedKeys { are_more: true, ..UnsyncedKeys::default() };
        let lease = SlotLease::default();
        let segment = Segment { size, open: None, unsynced, is_active: false, lease, written_at };
        self.segments.insert(number, segment);
    }
}
