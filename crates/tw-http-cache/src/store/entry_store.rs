//! Store of a cache, with files and perhaps segments: it answers for both.

use std::ffi::CStr;
use std::time::Duration;

use tw_cache::format::Meta;
use tw_cache::{
    Commit, EvictionTarget, Index, IndexEntry, Key, LoadedEntry, Progress, RecordSnapshot,
    RecordSnapshotWriter, RemovalState, RemovedEntry, SNAPSHOT_BLOCK_SIZE, ScanCursor, SegmentAddress,
};
use tw_disk::{Account, Disk, DiskError, File, JobClass, JobSource, OpenOptions};

use super::commit::CommitWaiters;
use super::context::{StoreContext, ZoneIndex};
use super::files::{FileScan, FileStore};
use super::place::{HEAD_READ, StoredAt, ValidatedFile};
use super::record_snapshot::{FoundRecordSnapshot, OpenRecordSnapshot};
use super::segments::{DeviceContentUse, DeviceNumber, FreedSegment, SegmentScan, SegmentStore};
use super::{
    AdmissionOutcome, CommitOutcome, DiskEntry, DiskFile, EntryRead, HeadWrite, NewEntry, NewHead, ScanPart,
    Store, StoreWriter,
};
use crate::cache_path::{CachePath, CacheStore};

/// Time for which a purge waits for entries that have left the index and are still being removed, and the interval of its looks.
const REMOVALS_WAIT: Duration = Duration::from_secs(1);
const REMOVALS_LOOK: Duration = Duration::from_millis(2);

/// Store of the entries of one cache, for the whole process.
pub(crate) struct EntryStore {
    pub(super) files: FileStore,
    /// Segments, with `store=log`. As the first configuration of the process with this directory has it.
    pub(super) segments: Option<SegmentStore>,
    pub(super) waiters: CommitWaiters,
}

/// Progress of a scan: the segments come first, because of two responses with one key the younger one is known then.
#[derive(Default)]
pub(crate) struct StoreScan {
    segments: SegmentScan,
    are_segments_read: bool,
    files: FileScan,
}

impl EntryStore {
    /// Creates the store of a cache.
    pub(crate) fn of(place: &CachePath) -> Self {
        let waiters = CommitWaiters::default();
        let (files, segments) = (FileStore::new(waiters.clone()), SegmentStore::of(place, waiters.clone()));
        Self { files, segments, waiters }
    }

    /// Number of files that were removed, or are about to be.
    pub(crate) fn removals(&self) -> u64 {
        self.files.removals()
    }

    /// Takes over the settings of a new configuration.
    pub(crate) fn configure(&self, place: &CachePath) {
        if let (Some(segments), CacheStore::Log(size)) = (&self.segments, place.store) {
            segments.configure(size, place.direct);
        }
    }

    /// Bytes on the disk: of files that have an entry, and of all segments.
    pub(crate) fn bytes_on_disk(&self, index: &Index) -> u64 {
        index.bytes_on_disk().saturating_sub(index.packed_bytes()) + self.bytes_of_segments()
    }

    /// Bytes of all segments on the disk.
    pub(crate) fn bytes_of_segments(&self) -> u64 {
        self.segments.as_ref().map_or(0, SegmentStore::bytes_on_disk)
    }

    /// Returns true if others than the cache may remove the entry with this address from the disk. Nobody but the cache removes records.
    pub(crate) fn is_open_to_others(&self, address: Option<SegmentAddress>) -> bool {
        address.is_none()
    }

    /// Returns false if an entry with this address is in a segment that does not exist.
    pub(crate) fn has_place(&self, address: Option<SegmentAddress>) -> bool {
        address.is_none_or(|address| self.has_segment(address.segment))
    }

    /// Bytes that the disk gets back when these entries are removed: those of files. The bytes of records come back with their segment.
    pub(crate) fn freed_bytes(&self, removed_entries: &[RemovedEntry]) -> u64 {
        removed_entries
            .iter()
            .filter(|removed_entry| removed_entry.address.is_none())
            .map(|removed_entry| removed_entry.size)
            .sum()
    }

    /// Returns true if there is a segment with this number.
    pub(crate) fn has_segment(&self, number: u32) -> bool {
        self.segments.as_ref().is_some_and(|segments| segments.has(number))
    }

    /// Returns true if the place of a record may be used again while its entry is open.
    pub(crate) fn is_place_reused(&self, address: Option<SegmentAddress>) -> bool {
        address.is_some() && self.segments.as_ref().is_some_and(SegmentStore::is_on_device)
    }

    /// Returns true if the place of a record is used again.
    pub(crate) fn is_place_lost(&self, address: Option<SegmentAddress>) -> bool {
        self.is_place_reused(address) && address.is_some_and(|address| !self.has_segment(address.segment))
    }

    /// Returns true if there may be records that the index does not know, or has just lost.
    pub(crate) fn has_unknown_records(&self, is_loaded: bool) -> bool {
        self.segments.as_ref().is_some_and(|segments| !is_loaded || segments.is_freeing())
    }

    /// Waits until records that were among the first `removals` entries to leave the index are removed, for [`REMOVALS_WAIT`] at
    /// most. Returns what is left of them.
    pub(crate) async fn wait_for_removals(&self, index: &Index, removals: u64) -> RemovalState {
        if self.finds_by_key() {
            return RemovalState::Nothing;
        }
        let until = tw_rt::clock::now() + REMOVALS_WAIT;
        let mut state = index.removal_state(removals);
        while state == RemovalState::Files && tw_rt::clock::now() < until {
            tw_rt::time::sleep(REMOVALS_LOOK).await;
            state = index.removal_state(removals);
        }
        state
    }

    /// Waits until no power cut can bring back removed records of this key, or of any.
    pub(crate) async fn sync_removals(&self, disk: &Disk, key: Option<Key>) -> Result<(), DiskError> {
        match &self.segments {
            Some(segments) => segments.sync_removals(disk, key).await,
            None => Ok(()),
        }
    }

    /// Waits until no power cut can undo the removal of segments.
    pub(crate) async fn sync_segments(&self, disk: &Disk) -> Result<(), DiskError> {
        match &self.segments {
            Some(segments) => {
                segments.sync_directory(disk, &mut Account::new(JobClass::Hit, JobSource::NONE)).await
            }
            None => Ok(()),
        }
    }

    /// Learns which segments there are, once. Waits for the disk.
    pub(crate) async fn list_segments(&self, disk: &Disk) -> Result<(), DiskError> {
        match &self.segments {
            Some(segments) => segments.list(disk).await,
            None => Ok(()),
        }
    }

    /// Opens the device with the segments, if there is one, as [`SegmentStore::open_device`] does.
    pub(crate) async fn open_device(
        &self,
        disk: &Disk,
        use_of: impl Fn(&[u8]) -> DeviceContentUse,
    ) -> Result<Option<DeviceNumber>, String> {
        match &self.segments {
            Some(segments) => segments.open_device(disk, use_of).await,
            None => Ok(None),
        }
    }

    /// Writes to the device where nothing is, to see whether it works. Does nothing without a device.
    pub(crate) async fn probe_device(&self, disk: &Disk) -> Result<(), DiskError> {
        match &self.segments {
            Some(segments) => segments.probe_device(disk).await,
            None => Ok(()),
        }
    }

    /// Bytes that have to be freed on the device, so that it has room for new segments.
    pub(crate) fn device_excess(&self) -> u64 {
        self.segments.as_ref().map_or(0, SegmentStore::device_excess)
    }

    /// Removes the next entries of files from the index, unless a segment is older than they are. `excess` is the number of bytes
    /// above the limit.
    pub(crate) fn evict_files(
        &self,
        index: &Index,
        target: EvictionTarget,
        excess: u64,
        now: u32,
        removed_entries: &mut Vec<RemovedEntry>,
    ) -> Progress {
        match &self.segments {
            Some(_) if excess == 0 && index.has_too_many_records() => Progress::Done,
            Some(segments) if excess > 0 => {
                let (before, count) = segments.oldest_write(index);
                index.evict_file(before, count, now, removed_entries)
            }
            _ => index.evict(target, now, removed_entries),
        }
    }

    /// Returns true if a segment is freed next, when no file could be evicted.
    pub(crate) fn frees_segment(&self, index: &Index, excess: u64) -> bool {
        self.segments.is_some() && (excess > 0 || index.has_too_many_records())
    }

    /// Frees the oldest segment, as [`SegmentStore::free_oldest`] does.
    pub(crate) async fn free_oldest(&self, cx: StoreContext<'_>) -> Result<Option<FreedSegment>, DiskError> {
        match (&self.segments, cx.append_target()) {
            (Some(segments), Some(target)) => segments.free_oldest(target).await,
            _ => Ok(None),
        }
    }

    /// Frees a segment of which nothing was used after `before`, as [`SegmentStore::free_unused`] does.
    pub(crate) async fn free_unused(
        &self,
        cx: StoreContext<'_>,
        before: u32,
    ) -> Result<Option<FreedSegment>, DiskError> {
        match (&self.segments, cx.append_target()) {
            (Some(segments), Some(target)) => segments.free_unused(target, before).await,
            _ => Ok(None),
        }
    }

    /// Frees the segments that no entry has a record in.
    pub(crate) async fn free_empty(&self, cx: StoreContext<'_>) -> Result<(), DiskError> {
        match (&self.segments, cx.append_target()) {
            (Some(segments), Some(target)) => segments.free_empty(target).await,
            _ => Ok(()),
        }
    }

    /// Writes what a task has left in the queue that was dropped. Returns the entries whose tasks ended before they could remove what
    /// the entries had on the disk.
    pub(crate) async fn flush(&self, cx: StoreContext<'_>) -> Vec<RemovedEntry> {
        let (Some(segments), Some(target)) = (&self.segments, cx.append_target()) else { return Vec::new() };
        segments.flush(target).await;
        segments.take_left()
    }

    /// Returns true, once, if segments cannot be read past the page cache although they are to be.
    pub(crate) fn take_direct_refusal(&self) -> bool {
        self.segments.as_ref().is_some_and(SegmentStore::take_direct_refusal)
    }

    /// Looks for the snapshot of the records at `path`.
    pub(crate) async fn find_record_snapshot(&self, disk: &Disk, path: &CStr) -> FoundRecordSnapshot {
        if self.finds_by_key() {
            return FoundRecordSnapshot::Missing;
        }
        let mut account = Account::new(JobClass::Hit, JobSource::of(path.to_bytes()));
        let opened = disk.open_and_read(&mut account, path, &OpenOptions::READ, SNAPSHOT_BLOCK_SIZE).await;
        match opened {
            Ok((file, first)) => match RecordSnapshot::open(&first) {
                Ok(snapshot) => FoundRecordSnapshot::Open(OpenRecordSnapshot { snapshot, file }),
                Err(why) => FoundRecordSnapshot::Invalid(why),
            },
            Err(error) if error.is_absent() => FoundRecordSnapshot::Missing,
            Err(error) => FoundRecordSnapshot::Unreadable(error),
        }
    }
}

impl EntryStore {
    /// Removes a file that no entry refers to, as [`FileStore::remove_file`] does.
    pub(crate) async fn remove_file(
        &self,
        cx: StoreContext<'_>,
        account: &mut Account,
        key: Key,
        removed_entry: Option<RemovedEntry>,
    ) -> Result<bool, DiskError> {
        self.files.remove_file(cx, account, key, removed_entry).await
    }

    /// Removes what may be on the disk under a purged key; `removed_entry` is the entry that it had. Returns true if there was something.
    pub(crate) async fn remove_purged(
        &self,
        cx: StoreContext<'_>,
        account: &mut Account,
        key: Key,
        removed_entry: Option<RemovedEntry>,
    ) -> Result<bool, DiskError> {
        let was_known = removed_entry.is_some();
        let file = match removed_entry {
            Some(record) if record.address.is_some() => {
                self.remove(cx, record).await?;
                None
            }
            file => file,
        };
        Ok(self.files.remove_file(cx, account, key, file).await? || was_known)
    }

    /// Adds an entry whose file was found at its path when `removals` files had been removed, as [`FileStore::admit_file`] does.
    pub(crate) async fn admit_file(
        &self,
        cx: StoreContext<'_>,
        entry: &LoadedEntry,
        file: &File,
        removals: u64,
    ) -> Result<Option<RemovedEntry>, DiskError> {
        self.files.admit_file(cx, entry, Some(file), removals).await
    }

    /// Makes entries compact that nothing keeps from it any more.
    pub(crate) async fn pack(&self, index: &Index) {
        let mut cursor = ScanCursor::default();
        while self.segments.is_some() && index.pack(&mut cursor) == Progress::More {
            tw_rt::yield_now().await;
        }
    }

    /// Compares a file that was found with the record that the index has for its key, and removes the older one. Returns true if
    /// the file is left.
    async fn replace_record(
        &self,
        cx: StoreContext<'_>,
        zone_index: &ZoneIndex,
        key: Key,
        record: &IndexEntry,
    ) -> Result<bool, DiskError> {
        let mut account = Account::new(JobClass::Scan, JobSource::NONE);
        let file = StoredAt::file(cx.place, key);
        let of_file = match self.find(cx, &mut account, &file, HEAD_READ).await? {
            EntryRead::Missing => return Ok(false),
            EntryRead::Entry(entry) => Some(entry.meta.sequence),
            EntryRead::Another(_) | EntryRead::OfNginx | EntryRead::Damaged(_) => None,
        };
        let Some(address) = record.address else { return Ok(true) };
        let place = StoredAt::of(cx.place, key, Some(address));
        let EntryRead::Entry(entry) = self.find(cx, &mut account, &place, HEAD_READ).await? else {
            zone_index.index.remove_missing_record(key, address);
            return Ok(true);
        };
        let of_record = zone_index.response_sequence(record, entry.meta.sequence);
        if of_file.is_some_and(|of_file| zone_index.purges.sequence().admit(of_file) > of_record) {
            if let Some(removed_entry) = zone_index.index.remove_if_sequence(key, record.sequence) {
                self.remove(cx, removed_entry).await?;
            }
            return Ok(true);
        }
        self.remove_file(cx, &mut account, key, None).await.map(|_| false)
    }
}

impl Store for EntryStore {
    type Place = StoredAt;
    type Writer<'a> = StoreWriter<'a>;
    type Scan = StoreScan;

    fn suits(&self, place: &CachePath) -> bool {
        match &self.segments {
            Some(segments) => segments.suits(place),
            None => self.files.suits(place),
        }
    }

    fn finds_by_key(&self) -> bool {
        self.files.finds_by_key() && self.segments.as_ref().is_none_or(Store::finds_by_key)
    }

    fn begin_snapshot(&self, now: u32, stamp: u32) -> Option<RecordSnapshotWriter> {
        self.segments.as_ref().and_then(|segments| segments.begin_snapshot(now, stamp))
    }

    fn begin<'a>(&'a self, cx: StoreContext<'a>, entry: NewEntry) -> StoreWriter<'a> {
        StoreWriter::new(self, cx, entry)
    }

    async fn find(
        &self,
        cx: StoreContext<'_>,
        account: &mut Account,
        place: &StoredAt,
        max: usize,
    ) -> Result<EntryRead, DiskError> {
        match (place, &self.segments) {
            (StoredAt::File(place), _) => self.files.find(cx, account, place, max).await,
            (StoredAt::Record(place), Some(segments)) => segments.find(cx, account, place, max).await,
            (StoredAt::Record(_), None) => Ok(EntryRead::Missing),
        }
    }

    async fn rewrite_head(
        &self,
        cx: StoreContext<'_>,
        account: &mut Account,
        was: &ValidatedFile<'_>,
        new: NewHead,
    ) -> Result<HeadWrite, DiskError> {
        match (was.address, &self.segments) {
            (Some(_), Some(segments)) => segments.rewrite_head(cx, account, was, new).await,
            _ => self.files.rewrite_head(cx, account, was, new).await,
        }
    }

    async fn enter(
        &self,
        cx: StoreContext<'_>,
        commit: Commit,
        was: &ValidatedFile<'_>,
        meta: &Meta,
    ) -> Result<CommitOutcome, DiskError> {
        match (was.address, &self.segments) {
            (Some(_), Some(segments)) => segments.enter(cx, commit, was, meta).await,
            _ => self.files.enter(cx, commit, was, meta).await,
        }
    }

    async fn remove(&self, cx: StoreContext<'_>, removed_entry: RemovedEntry) -> Result<(), DiskError> {
        match (removed_entry.address, &self.segments) {
            (Some(_), Some(segments)) => segments.remove(cx, removed_entry).await,
            _ => self.files.remove(cx, removed_entry).await,
        }
    }

    async fn scan(&self, cx: StoreContext<'_>, scan: &mut StoreScan) -> Option<Result<ScanPart, DiskError>> {
        if let Some(segments) = self.segments.as_ref().filter(|_| !scan.are_segments_read) {
            if let Some(part) = segments.scan(cx, &mut scan.segments).await {
                return Some(part);
            }
            scan.are_segments_read = true;
        }
        self.files.scan(cx, &mut scan.files).await
    }

    async fn admit(&self, cx: StoreContext<'_>, entry: &DiskEntry) -> Result<AdmissionOutcome, DiskError> {
        match (entry, &self.segments) {
            (DiskEntry::Record(..), Some(segments)) => segments.admit(cx, entry).await,
            (DiskEntry::Record(..), None) => Ok(AdmissionOutcome::Gone),
            (DiskEntry::File(DiskFile { key, .. }), _) => {
                if let Some(zone_index) = cx.zone_index
                    && let Some(record) = zone_index.index.peek(*key).filter(|entry| entry.address.is_some())
                    && !self.replace_record(cx, zone_index, *key, &record).await?
                {
                    return Ok(AdmissionOutcome::Known);
                }
                self.files.admit(cx, entry).await
            }
        }
    }
}
