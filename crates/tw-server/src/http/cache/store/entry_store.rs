//! Store of a cache, with files and perhaps segments: it answers for both.

use std::ffi::CStr;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use tw_cache::{
    EvictionTarget, Index, Key, Progress, RecordSnapshot, RemovalState, RemovedEntry, SNAPSHOT_BLOCK_SIZE,
    SegmentAddress,
};
use tw_disk::{Account, Disk, DiskError, JobClass, JobSource, OpenOptions};

use super::commit::ValidatedFile;
use super::context::StoreContext;
use super::files::FileStore;
use super::record_snapshot::{FoundRecordSnapshot, OpenRecordSnapshot};
use super::segments::{DeviceContentUse, DeviceNumber, FreedSegment, SegmentStore, SegmentTable};
use super::{EntryRead, HeadWrite, NewHead, Store, StoredAt};
use crate::http::cache::cache_path::{CachePath, CacheStore};

/// Time for which a purge waits for entries that have left the index and are still being removed, and the interval of its looks.
const REMOVALS_WAIT: Duration = Duration::from_secs(1);
const REMOVALS_LOOK: Duration = Duration::from_millis(2);

/// Store of the entries of one cache, for the whole process.
pub(crate) struct EntryStore {
    pub(super) files: FileStore,
    /// Segments, with `store=log`. As the first configuration of the process with this directory has it.
    pub(super) segments: Option<SegmentStore>,
}

/// Parts of a directory that an earlier configuration with another store may have left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ForeignParts {
    /// The note of a device: segments are files.
    Device,
    /// Segments in files: they are on a device.
    Segments,
    /// The note of a device, segments, and the snapshot of their records: there are none.
    All,
}

impl EntryStore {
    /// Creates the store of a cache.
    pub(crate) fn of(place: &CachePath) -> Self {
        let files = FileStore::default();
        let segments = SegmentStore::of(place, files.placed.clone());
        Self { files, segments }
    }

    /// Number of files that were removed, or are about to be.
    pub(crate) fn removals(&self) -> u64 {
        self.files.removals.load(SeqCst)
    }

    /// Returns true if small responses become records.
    pub(crate) fn has_records(&self) -> bool {
        self.segments.is_some()
    }

    /// Returns true if this is the kind of store that `setting` names.
    pub(crate) fn is_of(&self, setting: CacheStore) -> bool {
        self.has_records() == (setting != CacheStore::Files)
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

    /// Length of the largest body behind a head of this size that has no file before it is complete; `None` if each has one.
    pub(crate) fn body_max_of_record(&self, header_size: u32) -> Option<u64> {
        self.segments.as_ref().map(|segments| segments.entry_max().saturating_sub(header_size.into()))
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
        if !self.has_records() {
            return RemovalState::Nothing;
        }
        let until = tw_rt::clock::now() + REMOVALS_WAIT;
        let mut state = index.removal_state(removals);
        while state == RemovalState::Files && tw_rt::clock::now() < until {
            tokio::time::sleep(REMOVALS_LOOK).await;
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

    /// Numbers of the segments that are not written to, the oldest first.
    pub(crate) fn complete_segments(&self) -> Vec<u32> {
        self.segments.as_ref().map(SegmentStore::complete).unwrap_or_default()
    }

    /// Rows of a segment, and the damage that was found.
    pub(crate) async fn segment_table(
        &self,
        disk: &Disk,
        account: &mut Account,
        number: u32,
    ) -> Result<SegmentTable, DiskError> {
        match &self.segments {
            Some(segments) => segments.table(disk, account, number).await,
            None => Ok(SegmentTable::default()),
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

    /// Parts that an earlier configuration with another store may have left in the directory.
    pub(crate) fn foreign_parts(&self) -> ForeignParts {
        match &self.segments {
            Some(segments) if segments.is_on_device() => ForeignParts::Segments,
            Some(_) => ForeignParts::Device,
            None => ForeignParts::All,
        }
    }

    /// Removes the next entries of files from the index, unless a segment is older than they are. `excess` is the number of bytes
    /// above the limit.
    pub(crate) fn evict_files(
        &self,
        index: &Index,
        target: EvictionTarget,
        excess: u64,
        now: u32,
        gone: &mut Vec<RemovedEntry>,
    ) -> Progress {
        match &self.segments {
            Some(_) if excess == 0 && index.has_too_many_records() => Progress::Done,
            Some(segments) if excess > 0 => {
                let (before, count) = segments.oldest_write(index);
                index.evict_file(before, count, now, gone)
            }
            _ => index.evict(target, now, gone),
        }
    }

    /// Returns true if a segment is freed next, when no file could be evicted.
    pub(crate) fn frees_segment(&self, index: &Index, excess: u64) -> bool {
        self.has_records() && (excess > 0 || index.has_too_many_records())
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
        if !self.has_records() {
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

impl Store for EntryStore {
    type Place = StoredAt;

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

    async fn remove(&self, cx: StoreContext<'_>, gone: RemovedEntry) -> Result<(), DiskError> {
        match (gone.address, &self.segments) {
            (Some(_), Some(segments)) => segments.remove(cx, gone).await,
            _ => self.files.remove(cx, gone).await,
        }
    }
}
