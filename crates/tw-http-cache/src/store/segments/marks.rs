//! Marks of removed records during a scan. A record that is marked between the reading of its row and the making of its entry must not come
//! back, so both sides look after they have changed something.
//!
//! ```text
//! scan:    rows are read ─► entry is added ─► was it marked? ─► then the entry is removed
//! removal: entry leaves the index ─► record is marked ─► mark is noted ─► is there an entry again? ─► it is removed
//! ```

use std::collections::HashSet;

use tw_base::FatalMutex;
use tw_cache::{Index, Key, SegmentAddress};

/// Marks in the segment whose records a scan adds; there are not more than records in it.
#[derive(Default)]
pub(super) struct ScanMarks(FatalMutex<Option<ScannedSegment>>);

struct ScannedSegment {
    number: u32,
    /// Blocks of the records that were marked since the scan began with the segment.
    blocks: HashSet<u32>,
}

impl ScanMarks {
    /// Begins with a segment, before its rows are read.
    pub(super) fn begin(&self, number: u32) {
        *self.0.lock() = Some(ScannedSegment { number, blocks: HashSet::new() });
    }

    /// Ends the scan.
    pub(super) fn end(&self) {
        *self.0.lock() = None;
    }

    /// Returns true if this record was marked since the scan began with its segment.
    pub(super) fn has(&self, address: SegmentAddress) -> bool {
        let scanned = self.0.lock();
        scanned.as_ref().is_some_and(|s| s.number == address.segment && s.blocks.contains(&address.block))
    }

    /// Notes that a record is marked as removed. An entry that a scan has made of it in the meantime is removed from `index`.
    pub(super) fn note(&self, index: Option<&Index>, key: Key, address: SegmentAddress) {
        let is_scanned = match &mut *self.0.lock() {
            Some(scanned) if scanned.number == address.segment => scanned.blocks.insert(address.block),
            _ => false,
        };
        if let Some(index) = index.filter(|_| is_scanned) {
            index.remove_missing_record(key, address);
        }
    }
}
