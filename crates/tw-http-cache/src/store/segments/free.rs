//! Making room: the oldest segment is removed. Responses in it that were used since they were written are copied to the
//! active one before, as long as half of the segment is gained.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use tw_cache::segment::{PREFIX_SIZE, RecordPrefix, SegmentRow};
use tw_cache::{Progress, RemovedEntry, ScanCursor};
use tw_disk::{Account, DiskError, JobClass, JobSource};

use super::SegmentStore;
use super::append::{Record, RecordPermit};
use super::open_segment::OpenedSegment;
use crate::store::context::AppendTarget;
use crate::time::seconds;

/// Rows of a segment that are compared with the index in one turn of an event loop.
const ROWS_PER_TURN: usize = 256;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// One part in so many of a segment is gained when it is freed, however much of it was used.
    const GAIN_SHARE: u64 = 2, count, "further responses in it are evicted";
    /// Bytes of responses of a segment that are in memory while they are copied to another one.
    const COPY_SIZE: u64 = 1 << 20, bytes, "the others are copied after these";
}

/// Result of freeing a segment.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FreedSegment {
    /// Bytes that were gained: of the segment, less what was copied.
    pub(crate) gained: u64,
    /// Number of responses that were evicted.
    pub(crate) evicted: u64,
    /// Number of responses that were copied.
    pub(crate) copied: u64,
}

/// Counts a segment that is being freed.
struct Freeing<'a>(&'a AtomicUsize);

impl<'a> Freeing<'a> {
    fn begin(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, SeqCst);
        Self(count)
    }
}

impl Drop for Freeing<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl SegmentStore {
    /// Frees the oldest segment; if there is only the active one, that. `None` without any.
    ///
    /// # Errors
    /// The segment could not be removed; its entries may have left the index.
    pub(crate) async fn free_oldest(
        &self,
        target: AppendTarget<'_>,
    ) -> Result<Option<FreedSegment>, DiskError> {
        if self.complete().is_empty() {
            self.close_active(target).await;
        }
        match self.complete().first() {
            Some(number) => self.free(target, *number, GAIN_SHARE).await.map(Some),
            None => Ok(None),
        }
    }

    // DIFF(nginx): responses of a segment are not removed one by one.
    /// Frees a segment of which nothing was used after `before`, with all that is in it. `None` without any.
    ///
    /// # Errors
    /// As [`free_oldest`](Self::free_oldest).
    pub(crate) async fn free_unused(
        &self,
        target: AppendTarget<'_>,
        before: u32,
    ) -> Result<Option<FreedSegment>, DiskError> {
        let is_unused = |number: u32| {
            let used = target.index.last_use_of_segment(number);
            target.index.entries_of_segment(number) > 0 && used > 0 && used <= before
        };
        if self.active().is_some_and(is_unused) {
            self.close_active(target).await;
        }
        match self.complete().into_iter().find(|number| is_unused(*number)) {
            Some(number) => self.free(target, number, 1).await.map(Some),
            None => Ok(None),
        }
    }

    /// Frees the segments that no entry has a record in.
    pub(crate) async fn free_empty(&self, target: AppendTarget<'_>) -> Result<(), DiskError> {
        for number in self.complete() {
            if target.index.entries_of_segment(number) == 0 {
                let _freeing = Freeing::begin(&self.freeing);
                self.unlink(target.disk, number).await?;
            }
        }
        Ok(())
    }

    /// Frees a segment: one part in `gain_share` of it at least.
    async fn free(
        &self,
        target: AppendTarget<'_>,
        number: u32,
        gain_share: u64,
    ) -> Result<FreedSegment, DiskError> {
        // Before the first entry leaves: a purge that finds none is recorded.
        let _freeing = Freeing::begin(&self.freeing);
        let size = self.list.lock().segments.get(&number).map_or(0, |segment| segment.size);
        let mut freed = FreedSegment { gained: size, ..FreedSegment::default() };
        let mut removed_entries = Vec::new();
        let mut account = Account::new(JobClass::Evict, JobSource::NONE);
        if target.index.entries_of_segment(number) > 0
            && let Ok(rows) = self.rows(target.disk, &mut account, number).await
        {
            self.empty(target, (number, gain_share), &rows, &mut freed, &mut removed_entries).await;
        }
        if target.index.entries_of_segment(number) > 0 {
            // The rows could not be read, or do not have all.
            freed.evicted += remove_all(target, number, &mut removed_entries).await;
        }
        target.forget_in_quotas(&removed_entries).await;
        self.unlink(target.disk, number).await?;
        if target.index.entries_of_segment(number) > 0 {
            // A start has loaded some of its records meanwhile.
            let mut late = Vec::new();
            freed.evicted += remove_all(target, number, &mut late).await;
            target.forget_in_quotas(&late).await;
            removed_entries.extend(late);
        }
        removed_entries.into_iter().for_each(RemovedEntry::deleted);
        Ok(freed)
    }

    /// Removes the entries of a segment, or moves them.
    async fn empty(
        &self,
        target: AppendTarget<'_>,
        (number, gain_share): (u32, u64),
        rows: &[SegmentRow],
        freed: &mut FreedSegment,
        removed_entries: &mut Vec<RemovedEntry>,
    ) {
        let size = freed.gained;
        let mut budget = size - size / gain_share;
        for some in rows.chunks(ROWS_PER_TURN) {
            let mut used = Vec::new();
            let mut used_size = 0;
            for row in some {
                let address = row.address(number);
                let Some(uses) = target.index.uses_of_record(row.key, address) else { continue };
                if uses > 0 && address.size() <= budget {
                    budget -= address.size();
                    used_size += address.size();
                    used.push(*row);
                    if used_size >= COPY_SIZE {
                        freed.copied += self.copy(target, number, &used, removed_entries).await;
                        used.clear();
                        used_size = 0;
                    }
                    continue;
                }
                let removed = target.index.remove_if_address(row.key, address);
                freed.evicted += u64::from(removed.is_some());
                removed_entries.extend(removed);
            }
            freed.copied += self.copy(target, number, &used, removed_entries).await;
            tw_rt::yield_now().await;
        }
        freed.gained -= size - size / gain_share - budget;
    }

    /// Copies records to the active segment; what cannot be copied is removed. Returns the number of copies.
    async fn copy(
        &self,
        target: AppendTarget<'_>,
        number: u32,
        rows: &[SegmentRow],
        removed_entries: &mut Vec<RemovedEntry>,
    ) -> u64 {
        let mut account = Account::new(JobClass::Evict, JobSource::NONE);
        let mut tickets = Vec::new();
        let now = seconds(tw_rt::clock::unix().secs);
        for row in rows {
            let address = row.address(number);
            let Ok(OpenedSegment::Open(open)) = self.open(target.disk, &mut account, number).await else {
                break;
            };
            let Some(moving) = target.index.claim_move(row.key, address, now) else { continue };
            let len = usize::try_from(address.size()).unwrap_or(0);
            let Ok(record) = open.read(target.disk, &mut account, address.offset(), len).await else {
                continue;
            };
            let Ok((prefix, _)) = RecordPrefix::decode(&record, &open.header, row.block) else { continue };
            let (from, to) = (PREFIX_SIZE as usize, (PREFIX_SIZE + prefix.len) as usize);
            if prefix.key != row.key || record.len() < to {
                continue;
            }
            let entry = bytes::Bytes::from(record).slice(from..to);
            let record = Record { permit: RecordPermit::Move(moving), prefix, entry: vec![entry] };
            tickets.extend(self.enqueue(record));
        }
        let mut copied = 0;
        for ticket in tickets {
            if let Ok(appended) = self.wait(target, &ticket).await {
                copied += u64::from(appended.is_stored);
                removed_entries.extend(appended.removed_entries);
            }
        }
        // Fills of the same keys have waited until the moves were over.
        self.waiters.notify();
        for row in rows {
            // What could not be copied, because a fill of it goes on or the disk has failed.
            removed_entries.extend(target.index.remove_if_address(row.key, row.address(number)));
        }
        copied
    }
}

/// Removes all entries of a segment, by a look at the whole index. Returns their number.
async fn remove_all(target: AppendTarget<'_>, number: u32, removed_entries: &mut Vec<RemovedEntry>) -> u64 {
    let (mut cursor, mut entries, mut removed) = (ScanCursor::default(), Vec::new(), 0);
    loop {
        let progress = target.index.scan(&mut cursor, &mut entries);
        for scanned_entry in entries.drain(..) {
            let address = scanned_entry.state.address.filter(|address| address.segment == number);
            if let Some(entry) =
                address.and_then(|address| target.index.remove_if_address(scanned_entry.key, address))
            {
                removed += 1;
                removed_entries.push(entry);
            }
        }
        if progress == Progress::Done {
            break;
        }
        tw_rt::yield_now().await;
    }
    let (mut cursor, mut scanned_records) = (ScanCursor::default(), Vec::new());
    loop {
        let progress = target.index.scan_records(&mut cursor, &mut scanned_records);
        for record in scanned_records.drain(..).filter(|record| record.address.segment == number) {
            if let Some(entry) = target.index.take_record(&record) {
                removed += 1;
                removed_entries.push(entry);
            }
        }
        if progress == Progress::Done {
            return removed;
        }
        tw_rt::yield_now().await;
    }
}
