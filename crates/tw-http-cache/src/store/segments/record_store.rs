//! A store of segments: what [`Store`] does, by records.

use tw_cache::format::Meta;
use tw_cache::segment::REMOVED_MARK;
use tw_cache::{Commit, RecordSnapshotWriter, RemovedEntry, StoredEntry};
use tw_disk::{Account, DiskError, Durable};

use super::SegmentStore;
use super::scan::SegmentScan;
use super::writer::RecordWriter;
use crate::cache_path::{CachePath, CacheStore};
use crate::store::context::StoreContext;
use crate::store::encoding::valid_until;
use crate::store::place::{RecordPlace, ValidatedFile};
use crate::store::{
    AdmissionOutcome, CommitOutcome, DiskEntry, EntryRead, HeadWrite, NewEntry, NewHead, ScanPart, Store,
};
use crate::time::seconds;

/// Bytes of the mark of a removed record, which an update does not touch.
const MARK: usize = REMOVED_MARK.len();

impl Store for SegmentStore {
    type Place = RecordPlace;
    type Writer<'a> = RecordWriter<'a>;
    type Scan = SegmentScan;

    fn suits(&self, place: &CachePath) -> bool {
        matches!(place.store, CacheStore::Log(_))
    }

    fn finds_by_key(&self) -> bool {
        false
    }

    fn begin_snapshot(&self, now: u32, stamp: u32) -> Option<RecordSnapshotWriter> {
        Some(RecordSnapshotWriter::new(now, stamp))
    }

    fn begin<'a>(&'a self, cx: StoreContext<'a>, entry: NewEntry) -> RecordWriter<'a> {
        RecordWriter::new(self, cx, entry)
    }

    async fn find(
        &self,
        cx: StoreContext<'_>,
        account: &mut Account,
        place: &RecordPlace,
        max: usize,
    ) -> Result<EntryRead, DiskError> {
        self.read(cx.disk, account, place, max).await
    }

    async fn rewrite_head(
        &self,
        cx: StoreContext<'_>,
        account: &mut Account,
        was: &ValidatedFile<'_>,
        new: NewHead,
    ) -> Result<HeadWrite, DiskError> {
        let Some(address) = was.address else { return Ok(HeadWrite::Missing) };
        let opened = self.open_to_write(cx.disk, account, address.segment).await?;
        let Some(open) = opened else { return Ok(HeadWrite::Done) };
        let mut bytes = new.prefix.encode(&open.header, address.block).to_vec();
        bytes.extend(new.head);
        bytes.drain(..MARK);
        open.write(cx.disk, account, address.offset() + MARK as u64, bytes).await?;
        if new.is_durable {
            cx.disk.fsync(account, &open.file, Durable::Data).await?;
        }
        Ok(HeadWrite::Done)
    }

    async fn enter(
        &self,
        cx: StoreContext<'_>,
        commit: Commit,
        was: &ValidatedFile<'_>,
        meta: &Meta,
    ) -> Result<CommitOutcome, DiskError> {
        let (Some(address), Some(index)) = (was.address, cx.index()) else {
            return Ok(CommitOutcome::Refused);
        };
        let (key, now) = (commit.key(), seconds(tw_rt::clock::unix().secs));
        let _purged = match commit.refresh_at(address, valid_until(meta), now) {
            Ok(StoredEntry { pushed_out, replaced }) => {
                // The segment may have been freed meanwhile.
                if !self.has(address.segment) {
                    index.remove_missing_record(key, address);
                }
                return Ok(CommitOutcome::Stored(pushed_out.into_iter().chain(replaced).collect()));
            }
            // The permit is held until the record is marked.
            Err(purged) => purged,
        };
        self.mark_removed(cx.disk, None, key, address).await?;
        Ok(CommitOutcome::Refused)
    }

    async fn remove(&self, cx: StoreContext<'_>, removed_entry: RemovedEntry) -> Result<(), DiskError> {
        let Some(address) = removed_entry.address else { return Ok(()) };
        cx.forget_in_quota(removed_entry.key);
        let index = cx.index().map(|index| &**index);
        self.mark_removed(cx.disk, index, removed_entry.key, address).await?;
        removed_entry.deleted();
        Ok(())
    }

    async fn scan(
        &self,
        cx: StoreContext<'_>,
        scan: &mut SegmentScan,
    ) -> Option<Result<ScanPart, DiskError>> {
        self.scan_segment(cx, scan).await
    }

    async fn admit(&self, cx: StoreContext<'_>, entry: &DiskEntry) -> Result<AdmissionOutcome, DiskError> {
        match (entry, cx.zone_index) {
            (DiskEntry::Record(number, row), Some(zone_index)) => {
                Ok(self.admit_record(zone_index, *number, row))
            }
            _ => Ok(AdmissionOutcome::Gone),
        }
    }
}
