//! Operations on compact entries whose keys are not known: scans, snapshots, and facts about all entries of a segment.

use std::sync::atomic::Ordering::SeqCst;

use super::compact::{CompactBytes, CompactEntry, page_of};
use super::entry::{Progress, RemovedEntry, ScanCursor};
use super::location::SegmentAddress;
use super::shard::Shard;
use super::{AlignedShard, Index, SHARDS, STEP_ENTRIES};
use crate::Key;
use crate::snapshot::{PAGE_ROWS_MAX, RecordSnapshot};

/// Compact entry reported by [`Index::scan_records`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScannedRecord {
    /// Address of the record, which has the key.
    pub address: SegmentAddress,
    /// No purge up to this number concerns it.
    pub checked: u64,
    shard: usize,
    tag: u64,
}

impl Index {
    /// Adds the compact entries of one page to `scanned_records`, at most some hundreds, in no order. Entries that exist from the first call
    /// to the one that returns [`Progress::Done`] are all reported, some of them twice. During a sweep
    /// ([`Index::sweep`]), what is not compact any more when its turn comes is found by an [`Index::scan`] afterwards.
    pub fn scan_records(
        &self,
        cursor: &mut ScanCursor,
        scanned_records: &mut Vec<ScannedRecord>,
    ) -> Progress {
        let at = cursor.shard;
        self.visit_page(cursor, |shard, page| {
            scanned_records.extend(shard.compact_page(page).iter().map(|bytes| {
                let CompactEntry { tag, address, .. } = CompactEntry::decode(bytes);
                let checked = shard.segments.checked(address.segment);
                ScannedRecord { address, checked, shard: at, tag }
            }));
        })
    }

    /// Visits the next page of compact entries.
    fn visit_page(&self, cursor: &mut ScanCursor, visit: impl FnOnce(&mut Shard, u32)) -> Progress {
        let Some(place) = self.shards.get(cursor.shard) else {
            *cursor = ScanCursor::default();
            return Progress::Done;
        };
        let page = cursor.end.unwrap_or(0);
        let pages = self.change(place, |shard| {
            visit(shard, page);
            shard.compact_pages()
        });
        *cursor = if page + 1 < pages {
            ScanCursor { end: Some(page + 1), ..*cursor }
        } else {
            ScanCursor { shard: cursor.shard + 1, end: None }
        };
        if cursor.shard < SHARDS {
            return Progress::More;
        }
        *cursor = ScanCursor::default();
        Progress::Done
    }

    /// Returns true if the record of an entry that was reported may be that of this key.
    pub fn is_record_of(&self, record: &ScannedRecord, key: Key) -> bool {
        let hash = self.seed.hash(key);
        CompactEntry::tag_of(hash) == record.tag && std::ptr::eq(self.place(hash), self.at(record.shard))
    }

    /// Returns true if an index has no more than one compact entry for both keys.
    pub fn share_record_entry(&self, one: Key, other: Key) -> bool {
        let one = self.seed.hash(one);
        let other = self.seed.hash(other);
        CompactEntry::tag_of(one) == CompactEntry::tag_of(other)
            && std::ptr::eq(self.place(one), self.place(other))
    }

    /// Removes a compact entry that was reported. Its key is not known: that of the result is none.
    pub fn take_record(&self, record: &ScannedRecord) -> Option<RemovedEntry> {
        self.change(self.at(record.shard), |shard| {
            let tag = record.tag;
            shard.compact.get(tag).filter(|entry| entry.address == record.address)?;
            shard.remove_compact(tag)?;
            Some(RemovedEntry::new(Key([0; 16]), 0, record.address.into(), self.leaving.leave()))
        })
    }

    /// Removes a compact entry that was reported and whose record does not exist.
    pub fn forget_record(&self, record: &ScannedRecord) {
        if let Some(removed_entry) = self.take_record(record) {
            removed_entry.deleted();
        }
    }

    /// Removes compact entries of a snapshot whose records no [`Index::load_record`] has seen, out of one page.
    pub fn forget_unseen_records(&self, cursor: &mut ScanCursor) -> Progress {
        self.visit_page(cursor, |shard, page| {
            let tags: Vec<u64> = shard
                .compact_page(page)
                .iter()
                .map(CompactEntry::decode)
                .filter(|entry| entry.is_unseen)
                .map(|entry| entry.tag)
                .collect();
            for tag in tags {
                shard.remove_compact(tag);
            }
        })
    }

    /// The record at `address`, which a lookup of this key has found, is that of another key: from now on the key has an entry
    /// of its own.
    pub fn set_apart(&self, key: Key, address: SegmentAddress, now: u32) {
        let hash = self.seed.hash(key);
        self.change(self.place(hash), |shard| shard.set_apart(hash, key, address, now));
    }

    /// Notes the smallest sequence number of the records of a segment, when all of them are loaded.
    pub fn set_segment_floor(&self, segment: u32, floor: u64) {
        self.segments.set_floor(segment, floor);
    }

    /// Notes that records were written into a segment at this time, the last of them.
    pub fn note_segment_written(&self, segment: u32, now: u32) {
        self.segments.note_written(segment, now);
    }

    /// Time of the last use of an entry of a segment, or of its last record.
    pub fn last_use_of_segment(&self, segment: u32) -> u32 {
        self.segments.times(segment).0
    }

    /// Time of the last record of a segment; zero if it is not known.
    pub fn last_write_of_segment(&self, segment: u32) -> u32 {
        self.segments.times(segment).1
    }

    /// No purge up to `upto` concerns any entry that is in the index. To be called before the purges up to it are
    /// forgotten ([`Purges::forget`](crate::Purges::forget)).
    pub fn confirm_all(&self, upto: u64) {
        self.segments.confirm(upto);
    }

    /// Ends a sweep: entries may become compact again, whatever it has seen.
    pub fn end_sweep(&self) {
        self.is_sweeping.store(false, SeqCst);
    }

    /// Begins the loading of segments: which of two records is younger is known, though one was copied meanwhile. An
    /// [`end_load`](Self::end_load) follows when all are loaded.
    pub fn begin_load(&self) {
        self.is_loading.store(true, SeqCst);
    }

    /// Ends the loading of segments. Calls of [`pack`](Self::pack) make the entries compact whose records were copied.
    pub fn end_load(&self) {
        self.is_loading.store(false, SeqCst);
    }

    /// Makes some entries compact whose turn did not come by themselves, out of 32 (`STEP_ENTRIES`).
    pub fn pack(&self, cursor: &mut ScanCursor) -> Progress {
        let Some(place) = self.shards.get(cursor.shard) else {
            *cursor = ScanCursor::default();
            return Progress::Done;
        };
        let needs = self.pack_needs();
        let begin = self.change(place, |shard| match shard.packed_bytes {
            0 => 0,
            _ => shard.pack_some(cursor.end.unwrap_or(shard.len()), STEP_ENTRIES as u32, needs),
        });
        *cursor = match begin {
            0 => ScanCursor { shard: cursor.shard + 1, end: None },
            _ => ScanCursor { end: Some(begin), ..*cursor },
        };
        if cursor.shard < SHARDS {
            return Progress::More;
        }
        *cursor = ScanCursor::default();
        Progress::Done
    }

    fn at(&self, shard: usize) -> &AlignedShard {
        self.shards.get(shard).expect("scans report shards that exist")
    }

    /// Number of the shard of a key, its tag, and the seed of both, for a snapshot.
    pub(crate) fn record_place(&self, key: Key) -> (usize, u64) {
        let hash = self.seed.hash(key);
        ((hash >> (u64::BITS - super::SHARD_BITS)) as usize, CompactEntry::tag_of(hash))
    }

    /// Random numbers that decide about tags.
    pub(crate) fn seed(&self) -> [u64; 2] {
        self.seed.0
    }

    /// Pages of compact entries in a shard.
    pub(crate) fn record_pages(&self, shard: usize) -> u32 {
        self.shards.get(shard).map_or(0, |place| place.shard.lock().compact_pages())
    }

    /// Entries of a page, in the form of a snapshot.
    pub(crate) fn record_page(&self, shard: usize, page: u32) -> Vec<CompactBytes> {
        let Some(place) = self.shards.get(shard) else { return Vec::new() };
        place.shard.lock().compact_page(page).to_vec()
    }

    /// Adds compact forms of the records of slots to `rows`, out of at most 32 (`STEP_ENTRIES`) of one shard.
    pub(crate) fn record_slots(&self, cursor: &mut ScanCursor, rows: &mut Vec<CompactBytes>) -> Progress {
        let Some(place) = self.shards.get(cursor.shard) else { return Progress::Done };
        let shard = place.shard.lock();
        let end = cursor.end.map_or(shard.len(), |end| end.min(shard.len()));
        let begin = end.saturating_sub(STEP_ENTRIES as u32);
        for slot in (begin..end).filter_map(|at| shard.slot(at)) {
            let Some(address) = slot.file().and_then(super::Location::address) else { continue };
            if CompactEntry::fits(address) {
                let tag = CompactEntry::tag_of(self.seed.hash(slot.key));
                let revision = CompactEntry::revision_of(slot.sequence);
                let entry = CompactEntry {
                    tag,
                    address,
                    revision,
                    is_own: false,
                    lately: slot.lately,
                    is_unseen: false,
                };
                rows.push(entry.encode());
            }
        }
        cursor.end = Some(begin);
        if begin == 0 { Progress::Done } else { Progress::More }
    }

    /// Adds the rows of one block of a snapshot, unless that was done before. Entries in segments that do not exist, as
    /// `has_segment` tells, are left out. Returns the number of entries that were added.
    pub fn restore_records(
        &self,
        snapshot: &RecordSnapshot,
        block: u32,
        rows: &[CompactBytes],
        has_segment: impl Fn(u32) -> bool,
        now: u32,
    ) -> u64 {
        let Some(place) = snapshot.shard_of(block).and_then(|shard| self.shards.get(shard)) else { return 0 };
        self.change(place, |shard| {
            // Under the lock: no task finds the block done before its entries are there.
            if !snapshot.begin(block) {
                return 0;
            }
            let mut added = 0;
            for row in rows.iter().take(PAGE_ROWS_MAX) {
                let entry = CompactEntry { is_own: false, is_unseen: true, ..CompactEntry::decode(row) };
                let segment = entry.address.segment;
                if self.has_too_many_records() || !has_segment(segment) {
                    continue;
                }
                if shard.insert_compact(entry) {
                    shard.segments.note_record(segment, None, now);
                    added += 1;
                }
            }
            added
        })
    }
}

/// Page of an encoded entry, of so many.
pub(crate) fn page_of_row(row: &CompactBytes, pages: u32) -> u32 {
    page_of(CompactEntry::decode(row).tag, pages)
}
