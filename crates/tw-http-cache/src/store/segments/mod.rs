//! Segments of a cache with `store=log`: files into which small responses are packed (`tw_cache::segment`).
//!
//! ```text
//! append   records wait in a queue; one task at a time writes them, many with one job, and adds their entries
//! record_store  what a store does, by records
//! record   reading one record, and marking it as removed
//! free     the oldest segment is removed; responses that were used since they were written are copied before
//! writer   one response on its way into a record
//! load     tables of segments, or scans of their records
//! scan     at a start: the records of all segments are added to the index
//! device   segments in slots of a block device
//! ```
//! A segment is removed whole. Readers that have it open read on, so no response gets bytes of another. Numbers of segments
//! grow, and no process appends to a segment of another one.

pub(crate) mod append;
pub(crate) mod device;
pub(crate) mod free;
mod lease;
mod load;
mod marks;
mod record;
mod record_store;
mod scan;
mod writer;

use std::collections::{BTreeMap, HashSet};
use std::ffi::CString;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

use tokio::sync::OnceCell;
use tw_base::FatalMutex;
use tw_cache::segment::{self, BLOCK_SIZE, RECORD_MAX, SegmentError, SegmentHeader};
use tw_cache::{Index, Key, RemovedEntry, SEGMENTS_MAX, SegmentAddress};
use tw_disk::{
    Access, Account, CreateOptions, Disk, DiskError, Durable, Errno, File, JobClass, JobSource, LIST_MAX, Op,
    OpenOptions,
};

use crate::cache_path::{CachePath, CacheStore};
use crate::time::seconds;
use tw_request::local_future::boxed;

use super::commit::CommitWaiters;
use append::AppendQueue;
use device::DevicePlace;
use lease::{LeasedBytes, SlotLease};
use marks::ScanMarks;

pub(crate) use device::{DeviceContentUse, DeviceNumber, NOTE_MAX, NUMBER_LEN, note_path};

pub(crate) use free::FreedSegment;
pub(crate) use record::is_body_whole;
pub(crate) use scan::SegmentScan;
pub(crate) use writer::RecordWriter;

/// Name of the directory below that of the cache.
pub(crate) const NAME: &str = "segments";

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Segments that a cache with `store=log` has open.
    const OPEN_SEGMENTS_MAX: usize = 1024, count, "the one that was not read for longest is closed";
    /// Keys that are remembered for each segment whose records were removed and may come back after a power cut.
    const UNSYNCED_KEYS_MAX: usize = 1024, count, "a purge of any key waits until the disk has the whole segment";
}

/// Segments of one cache.
pub(crate) struct SegmentStore {
    dir: CString,
    /// Length of the path of the cache's directory, which is not created while requests are served.
    dir_len: u32,
    /// Device with the segments; without one they are files.
    device: Option<DevicePlace>,
    /// Size of new segments in bytes.
    size: AtomicU64,
    /// True if segments are read and written past the page cache.
    is_direct: AtomicBool,
    /// True if a file system has no such reads, and this was reported.
    direct_refused: AtomicBool,
    known: FatalMutex<KnownSegments>,
    listed: OnceCell<()>,
    queue: AppendQueue,
    /// Fills that wait; they go on when the permit of a record ends whose task does not do so itself.
    waiters: CommitWaiters,
    marks: ScanMarks,
    /// Number of segments that are being freed.
    freeing: AtomicUsize,
    random: RandomState,
}

#[derive(Default)]
struct KnownSegments {
    segments: BTreeMap<u32, Segment>,
    /// Smallest number that no segment has had.
    next: u32,
    /// Number of uses of open files, as a clock.
    uses: u64,
}

struct Segment {
    /// Bytes on the disk.
    size: u64,
    /// The file, if it is open, and the time of its last use.
    open: Option<(Arc<OpenSegment>, u64)>,
    unsynced: UnsyncedKeys,
    /// True while records are appended.
    is_active: bool,
    lease: SlotLease,
    /// Time of the last write before this process, in seconds since 1970.
    written: u32,
}

/// Keys with removed records that may come back after a power cut.
#[derive(Default)]
struct UnsyncedKeys {
    keys: HashSet<Key>,
    are_more: bool,
}

/// Result of opening a segment.
pub(crate) enum OpenedSegment {
    Open(Arc<OpenSegment>),
    /// Freed, or an empty file: its process was killed before it wrote the header.
    Nothing,
    Damaged(SegmentError),
}

impl OpenedSegment {
    /// The segment, if it has records.
    pub(crate) fn segment(self) -> Option<Arc<OpenSegment>> {
        match self {
            Self::Open(segment) => Some(segment),
            Self::Nothing | Self::Damaged(_) => None,
        }
    }
}

/// Open segment.
pub(crate) struct OpenSegment {
    pub(crate) header: SegmentHeader,
    pub(crate) file: File,
    /// False if the file can only be read: the file system is read-only, or the sandbox does not know the directory.
    is_writable: bool,
    /// Offset of the segment in the file.
    base: u64,
    lease: SlotLease,
}

impl OpenSegment {
    /// The segment with a new header.
    fn with_header(&self, header: SegmentHeader) -> Self {
        let Self { file, is_writable, base, lease, .. } = self;
        Self { header, file: file.clone(), is_writable: *is_writable, base: *base, lease: lease.clone() }
    }

    /// Reads up to `len` bytes at an offset in the segment.
    async fn read(
        &self,
        disk: &Disk,
        account: &mut Account,
        offset: u64,
        len: usize,
    ) -> Result<Vec<u8>, DiskError> {
        read_up_to(disk, account, &self.file, self.base + offset, len).await
    }

    /// Writes at an offset in the segment.
    async fn write<B>(
        &self,
        disk: &Disk,
        account: &mut Account,
        offset: u64,
        bytes: B,
    ) -> Result<(), DiskError>
    where
        B: AsRef<[u8]> + Send + 'static,
    {
        let bytes = LeasedBytes::new(bytes, &self.lease);
        disk.write(account, &self.file, self.base + offset, bytes).await.map(|_| ())
    }
}

impl SegmentStore {
    /// Creates the store of a cache; `None` if the cache has none.
    pub(super) fn of(place: &CachePath, waiters: CommitWaiters) -> Option<Self> {
        let size = match place.store {
            CacheStore::Files => return None,
            CacheStore::Log(size) => size,
        };
        Some(Self {
            dir: directory(place),
            dir_len: place.dir_len(),
            // Until the device is open, its size is not known.
            size: AtomicU64::new(if place.device.is_some() { segment::SEGMENT_SIZE_MIN } else { size }),
            device: DevicePlace::of(place),
            is_direct: AtomicBool::new(place.direct),
            direct_refused: AtomicBool::new(false),
            known: FatalMutex::default(),
            listed: OnceCell::new(),
            queue: AppendQueue::default(),
            waiters,
            marks: ScanMarks::default(),
            freeing: AtomicUsize::new(0),
            random: RandomState::new(),
        })
    }

    /// Sets the size of new segments, and the way in which segments are opened from now on.
    pub(crate) fn configure(&self, size: u64, is_direct: bool) {
        if self.device.is_some() {
            return;
        }
        self.size.store(size, Relaxed);
        if self.is_direct.swap(is_direct, Relaxed) != is_direct {
            let mut known = self.known.lock();
            known.segments.values_mut().filter(|segment| !segment.is_active).for_each(|s| s.open = None);
        }
    }

    /// Returns true, once, if segments cannot be read past the page cache although they are to be.
    pub(crate) fn take_direct_refusal(&self) -> bool {
        let known = self.known.lock();
        let mut open = known.segments.values().filter_map(|segment| segment.open.as_ref());
        (self.is_direct.load(Relaxed) || self.device.is_some())
            && open.any(|(open, _)| open.file.refuses_direct())
            && !self.direct_refused.swap(true, Relaxed)
    }

    /// Largest entry that becomes a record, in bytes of head and body.
    pub(crate) fn entry_max(&self) -> u64 {
        RECORD_MAX.min(self.size.load(Relaxed) / 4) - segment::PREFIX_SIZE
    }

    /// Largest body behind a head of this size that becomes a record.
    pub(crate) fn body_max(&self, header_size: u32) -> u64 {
        self.entry_max().saturating_sub(header_size.into())
    }

    /// Bytes of all segments on the disk.
    pub(crate) fn bytes_on_disk(&self) -> u64 {
        self.known.lock().segments.values().map(|segment| segment.size).sum()
    }

    /// Returns true if there is a segment with this number.
    pub(crate) fn has(&self, number: u32) -> bool {
        self.known.lock().segments.contains_key(&number)
    }

    /// Time of the last write into the segment that is freed next, and the number of segments.
    pub(crate) fn oldest_write(&self, index: &Index) -> (u32, u64) {
        let known = self.known.lock();
        let oldest = known.segments.iter().next();
        let written =
            oldest.map(|(number, segment)| index.last_write_of_segment(*number).max(segment.written));
        (written.unwrap_or(u32::MAX), known.segments.len() as u64)
    }

    /// Returns true if a segment is being freed: its records have no entries, and are still on the disk.
    pub(crate) fn is_freeing(&self) -> bool {
        self.freeing.load(SeqCst) > 0
    }

    fn path(&self, number: u32) -> CString {
        let name = format!("/{number:08}");
        CString::new([self.dir.to_bytes(), name.as_bytes()].concat()).unwrap_or_default()
    }

    /// Learns which segments there are, once. Waits for the disk.
    pub(crate) async fn list(&self, disk: &Disk) -> Result<(), DiskError> {
        if self.listed.initialized() {
            return Ok(());
        }
        // Once in a process: every fill would have room for it.
        boxed(|| self.list_once(disk)).await
    }

    async fn list_once(&self, disk: &Disk) -> Result<(), DiskError> {
        let list = async {
            let mut account = Account::new(JobClass::Hit, JobSource::NONE);
            if let Some(device) = &self.device {
                let opened = device.open(disk, |_| DeviceContentUse::Remove).await?;
                let slot_size = opened.superblock.slot_size;
                let headers = opened.headers(disk).await?;
                self.size.store(slot_size, Relaxed);
                let mut known = self.known.lock();
                // A device does not say when it was written.
                let now = seconds(tw_rt::clock::unix().secs);
                for SegmentHeader { number, .. } in headers {
                    known.add(number, slot_size, now);
                }
                return Ok(());
            }
            let found = match disk.list(&mut account, &self.dir, LIST_MAX).await {
                Ok(listing) => listing.entries,
                Err(error) if error.errno() == Some(Errno::NOENT) => Vec::new(),
                Err(error) => return Err(error),
            };
            let mut known = self.known.lock();
            for entry in found {
                let Some(number) = segment::number_of(entry.name.to_bytes()) else { continue };
                known.add(
                    number,
                    entry.meta.size.next_multiple_of(BLOCK_SIZE),
                    seconds(entry.meta.mtime_sec),
                );
            }
            Ok(())
        };
        self.listed.get_or_try_init(|| list).await.map(|_| ())
    }

    /// Returns a segment with its file; opens it if need be.
    pub(crate) async fn open(
        &self,
        disk: &Disk,
        account: &mut Account,
        number: u32,
    ) -> Result<OpenedSegment, DiskError> {
        {
            let mut known = self.known.lock();
            known.uses += 1;
            let now = known.uses;
            match known.segments.get_mut(&number) {
                None => return Ok(OpenedSegment::Nothing),
                Some(Segment { open: Some((open, used)), .. }) => {
                    *used = now;
                    return Ok(OpenedSegment::Open(open.clone()));
                }
                Some(_) => {}
            }
        }
        if self.device.is_some() {
            return self.open_in_slot(disk, account, number).await;
        }
        let path = self.path(number);
        let mut is_writable = true;
        let options = match self.is_direct.load(Relaxed) {
            true => OpenOptions::DIRECT,
            false => OpenOptions::READ_WRITE,
        };
        let mut opened = disk.open(account, &path, &options).await;
        if opened.as_ref().is_err_and(|error| error.errno().is_some_and(is_read_only)) {
            is_writable = false;
            opened = disk.open(account, &path, &OpenOptions { access: Access::Read, ..options }).await;
        }
        let file = match opened {
            Ok(file) => file,
            Err(error) if error.errno() == Some(Errno::NOENT) => return Ok(OpenedSegment::Nothing),
            Err(error) => return Err(error),
        };
        let first = read_up_to(disk, account, &file, 0, BLOCK_SIZE as usize).await?;
        if first.is_empty() {
            return Ok(OpenedSegment::Nothing);
        }
        let header = match SegmentHeader::decode(&first, number) {
            Ok(header) => header,
            Err(why) => return Ok(OpenedSegment::Damaged(why)),
        };
        let lease = SlotLease::default();
        let open = Arc::new(OpenSegment { header, file, is_writable, base: 0, lease });
        self.keep_open(number, &open);
        Ok(OpenedSegment::Open(open))
    }

    /// Returns a segment that can be written. `None` if there is none, or its header is damaged.
    ///
    /// # Errors
    /// As those of [`open`](Self::open), and `EROFS` of a read-only file system.
    async fn open_to_write(
        &self,
        disk: &Disk,
        account: &mut Account,
        number: u32,
    ) -> Result<Option<Arc<OpenSegment>>, DiskError> {
        let Some(mut open) = self.open(disk, account, number).await?.segment() else { return Ok(None) };
        if !open.is_writable {
            // The file system may be writable again.
            self.close(number);
            let Some(again) = self.open(disk, account, number).await?.segment() else { return Ok(None) };
            open = again;
        }
        if open.is_writable { Ok(Some(open)) } else { Err(Op::Write.failed(Errno::ROFS)) }
    }

    fn close(&self, number: u32) {
        if let Some(segment) = self.known.lock().segments.get_mut(&number) {
            segment.open = None;
        }
    }

    fn keep_open(&self, number: u32, open: &Arc<OpenSegment>) {
        let mut known = self.known.lock();
        known.uses += 1;
        let now = known.uses;
        if let Some(segment) = known.segments.get_mut(&number) {
            segment.open = Some((open.clone(), now));
        }
        let opened = known.segments.values().filter(|segment| segment.open.is_some()).count();
        if opened > OPEN_SEGMENTS_MAX {
            let is_idle = |segment: &&mut Segment| !segment.is_active && segment.open.is_some();
            let used = |segment: &&mut Segment| segment.open.as_ref().map(|(_, used)| *used);
            if let Some(oldest) = known.segments.values_mut().filter(is_idle).min_by_key(used) {
                oldest.open = None;
            }
        }
    }

    /// Creates a segment, to which records are appended from now on.
    async fn create(
        &self,
        disk: &Disk,
        account: &mut Account,
        created: u64,
    ) -> Result<Arc<OpenSegment>, DiskError> {
        self.list(disk).await?;
        if self.device.is_some() {
            return self.create_in_slot(disk, account, created).await;
        }
        let options = CreateOptions {
            parents_below: Some(self.dir_len),
            is_direct: self.is_direct.load(Relaxed),
            ..CreateOptions::NEW
        };
        loop {
            let number = {
                let mut known = self.known.lock();
                let number = known.next;
                known.next = (number + 1) % SEGMENTS_MAX;
                if known.segments.contains_key(&number) {
                    continue;
                }
                number
            };
            let file = match disk.create(account, &self.path(number), &options).await {
                Ok(file) => file,
                // Another process appends to it.
                Err(error) if error.errno() == Some(Errno::EXIST) => continue,
                Err(error) => return Err(error),
            };
            let stamp = self.random.hash_one((created, number));
            let header = SegmentHeader { number, stamp, created, table: None };
            let lease = SlotLease::default();
            self.known.lock().segments.insert(number, Segment::active(BLOCK_SIZE, &lease));
            let open = OpenSegment { header, file, is_writable: true, base: 0, lease };
            return self.begin(disk, account, open).await;
        }
    }

    /// Writes the header of a new segment.
    async fn begin(
        &self,
        disk: &Disk,
        account: &mut Account,
        open: OpenSegment,
    ) -> Result<Arc<OpenSegment>, DiskError> {
        let (number, open) = (open.header.number, Arc::new(open));
        if let Err(error) = open.write(disk, account, 0, open.header.encode()).await {
            self.set_inactive(number);
            return Err(error);
        }
        self.keep_open(number, &open);
        Ok(open)
    }

    fn set_inactive(&self, number: u32) {
        if let Some(segment) = self.known.lock().segments.get_mut(&number) {
            segment.is_active = false;
        }
    }

    fn set_bytes(&self, number: u32, size: u64) {
        if self.device.is_some() {
            // A slot is taken as a whole.
            return;
        }
        if let Some(segment) = self.known.lock().segments.get_mut(&number) {
            segment.size = size;
        }
    }

    /// Numbers of the segments that are not written to, the oldest first.
    pub(crate) fn complete(&self) -> Vec<u32> {
        let known = self.known.lock();
        known.segments.iter().filter(|(_, segment)| !segment.is_active).map(|(number, _)| *number).collect()
    }

    /// Number of the segment that is written to.
    fn active(&self) -> Option<u32> {
        let known = self.known.lock();
        known.segments.iter().find(|(_, segment)| segment.is_active).map(|(number, _)| *number)
    }

    /// Notes that the removal of a record of this key is not safe yet.
    fn note_unsynced(&self, address: SegmentAddress, key: Key) {
        if let Some(segment) = self.known.lock().segments.get_mut(&address.segment) {
            let unsynced = &mut segment.unsynced;
            if unsynced.keys.len() < UNSYNCED_KEYS_MAX {
                unsynced.keys.insert(key);
            } else {
                unsynced.are_more = true;
            }
        }
    }

    /// Waits until no power cut can bring back removed records of this key, or of any.
    pub(crate) async fn sync_removals(&self, disk: &Disk, key: Option<Key>) -> Result<(), DiskError> {
        let is_meant = |unsynced: &UnsyncedKeys| match key {
            Some(key) => unsynced.are_more || unsynced.keys.contains(&key),
            None => unsynced.are_more || !unsynced.keys.is_empty(),
        };
        let numbers: Vec<u32> = {
            let known = self.known.lock();
            known.segments.iter().filter(|(_, s)| is_meant(&s.unsynced)).map(|(number, _)| *number).collect()
        };
        for number in numbers {
            let mut account = Account::new(JobClass::Hit, JobSource::NONE);
            let Some(open) = self.open_to_write(disk, &mut account, number).await? else { continue };
            // What is removed meanwhile is noted anew.
            let taken = {
                let mut known = self.known.lock();
                known.segments.get_mut(&number).map(|segment| std::mem::take(&mut segment.unsynced))
            };
            let Some(taken) = taken else { continue };
            if let Err(error) = disk.fsync(&mut account, &open.file, Durable::Data).await {
                if let Some(segment) = self.known.lock().segments.get_mut(&number) {
                    segment.unsynced.are_more |= taken.are_more;
                    segment.unsynced.keys.extend(taken.keys);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Removes the file of a segment, or frees its slot.
    async fn unlink(&self, disk: &Disk, number: u32) -> Result<(), DiskError> {
        let mut account = Account::new(JobClass::Evict, JobSource::NONE);
        if let Some((place, opened)) = self.device.as_ref().and_then(|place| Some((place, place.opened()?))) {
            let lease = self.known.lock().segments.get(&number).map(|segment| segment.lease.clone());
            let Some(lease) = lease else { return Ok(()) };
            self.check_device_writable()?;
            let slot = opened.superblock.slot(number);
            // Not an array: it would be part of the future of every fill, several times.
            let nothing = LeasedBytes::new(vec![0; BLOCK_SIZE as usize], &lease);
            disk.write(&mut account, &opened.file, opened.superblock.offset(slot), nothing).await?;
            place.rest(slot, lease);
            self.known.lock().segments.remove(&number);
            return Ok(());
        }
        match disk.unlink(&mut account, &self.path(number)).await {
            Err(error) if error.errno() != Some(Errno::NOENT) => Err(error),
            _ => {
                self.known.lock().segments.remove(&number);
                Ok(())
            }
        }
    }

    /// Takes entries whose tasks ended before they could remove what the entries had on the disk.
    pub(crate) fn take_left(&self) -> Vec<RemovedEntry> {
        self.queue.take_left()
    }

    /// Waits until no power cut can undo the removal of segments.
    pub(crate) async fn sync_directory(&self, disk: &Disk, account: &mut Account) -> Result<(), DiskError> {
        if let Some(device) = &self.device {
            return match device.opened() {
                Some(opened) => disk.fsync(account, &opened.file, Durable::Data).await,
                None => Ok(()),
            };
        }
        match disk.sync_dir(account, &self.dir).await {
            Err(error) if !matches!(error.errno(), Some(Errno::NOENT | Errno::INVAL)) => Err(error),
            _ => Ok(()),
        }
    }
}

impl Segment {
    /// A segment to which records are appended.
    fn active(size: u64, lease: &SlotLease) -> Self {
        let unsynced = UnsyncedKeys::default();
        Self { size, open: None, unsynced, is_active: true, lease: lease.clone(), written: 0 }
    }
}

impl KnownSegments {
    /// Adds a segment of a process before, with the time of its last write.
    fn add(&mut self, number: u32, size: u64, written: u32) {
        self.next = self.next.max(number + 1);
        // What that process has removed may not be on the disk.
        let unsynced = UnsyncedKeys { are_more: true, ..UnsyncedKeys::default() };
        let lease = SlotLease::default();
        let segment = Segment { size, open: None, unsynced, is_active: false, lease, written };
        self.segments.insert(number, segment);
    }
}

/// Directory of the segments of a cache.
pub(crate) fn directory(place: &CachePath) -> CString {
    CString::new([place.dir.to_bytes(), b"/", NAME.as_bytes()].concat()).unwrap_or_default()
}

/// Reads `len` bytes; fewer at the end of the file.
async fn read_up_to(
    disk: &Disk,
    account: &mut Account,
    file: &File,
    offset: u64,
    len: usize,
) -> Result<Vec<u8>, DiskError> {
    let mut bytes = disk.read(account, file, offset, vec![0; len]).await?;
    while bytes.len() < len {
        let piece = disk.read(account, file, offset + bytes.len() as u64, vec![0; len - bytes.len()]).await?;
        if piece.is_empty() {
            break;
        }
        bytes.extend(piece);
    }
    Ok(bytes)
}

/// Returns true for errors of a file that may still be read.
fn is_read_only(errno: Errno) -> bool {
    matches!(errno, Errno::ROFS | Errno::ACCESS | Errno::PERM)
}

/// Error of a store that takes no more at the moment.
fn no_room() -> DiskError {
    Op::Write.failed(Errno::NOBUFS)
}
