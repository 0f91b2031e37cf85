//! Segments of a cache with `store=log`: files into which small responses are packed (`tw_cache::segment`).
//!
//! ```text
//! append   records wait in a queue; one task at a time writes them, many with one job, and adds their entries
//! record_store  what a store does, by records
//! record   reading one record, and marking it as removed
//! free     the oldest segment is removed; responses that were used since they were written are copied before
//! writer   one response on its way into a record
//! open     segments whose files stay open
//! create   new segments, and their removal
//! sync     removals that no power cut can undo
//! load     tables of segments, or scans of their records
//! scan     at a start: the records of all segments are added to the index
//! device   segments in slots of a block device
//! ```
//! A segment is removed whole. Readers that have it open read on, so no response gets bytes of another. Numbers of segments
//! grow, and no process appends to a segment of another one.

pub(crate) mod append;
mod create;
pub(crate) mod device;
pub(crate) mod free;
mod lease;
mod load;
mod marks;
mod open;
mod open_segment;
mod record;
mod record_store;
mod scan;
mod segment_list;
mod sync;
mod writer;

use std::ffi::CString;
use std::hash::RandomState;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

use tokio::sync::OnceCell;
use tw_base::FatalMutex;
use tw_cache::segment::{self, BLOCK_SIZE, RECORD_MAX, SegmentHeader};
use tw_cache::{Index, RemovedEntry};
use tw_disk::{Account, Disk, DiskError, Errno, JobClass, JobSource, LIST_MAX, Op};

use crate::cache_path::{CachePath, CacheStore};
use crate::time::seconds;
use tw_request::local_future::boxed;

use super::commit::CommitWaiters;
use append::AppendQueue;
use device::DevicePlace;
use marks::ScanMarks;
use segment_list::SegmentList;

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
    list: FatalMutex<SegmentList>,
    listed: OnceCell<()>,
    queue: AppendQueue,
    /// Fills that wait; they go on when the permit of a record ends whose task does not do so itself.
    waiters: CommitWaiters,
    marks: ScanMarks,
    /// Number of segments that are being freed.
    freeing: AtomicUsize,
    random: RandomState,
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
            list: FatalMutex::default(),
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
            let mut segments = self.list.lock();
            segments.segments.values_mut().filter(|segment| !segment.is_active).for_each(|s| s.open = None);
        }
    }

    /// Returns true, once, if segments cannot be read past the page cache although they are to be.
    pub(crate) fn take_direct_refusal(&self) -> bool {
        let segments = self.list.lock();
        let mut open = segments.segments.values().filter_map(|segment| segment.open.as_ref());
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
        self.list.lock().segments.values().map(|segment| segment.size).sum()
    }

    /// Returns true if there is a segment with this number.
    pub(crate) fn has(&self, number: u32) -> bool {
        self.list.lock().segments.contains_key(&number)
    }

    /// Time of the last write into the segment that is freed next, and the number of segments.
    pub(crate) fn oldest_write(&self, index: &Index) -> (u32, u64) {
        let segments = self.list.lock();
        let oldest = segments.segments.iter().next();
        let written_at =
            oldest.map(|(number, segment)| index.last_write_of_segment(*number).max(segment.written_at));
        (written_at.unwrap_or(u32::MAX), segments.segments.len() as u64)
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
                let mut segments = self.list.lock();
                // A device does not say when it was written.
                let now = seconds(tw_rt::clock::unix().secs);
                for SegmentHeader { number, .. } in headers {
                    segments.add(number, slot_size, now);
                }
                return Ok(());
            }
            let entries = match disk.list(&mut account, &self.dir, LIST_MAX).await {
                Ok(listing) => listing.entries,
                Err(error) if error.errno() == Some(Errno::NOENT) => Vec::new(),
                Err(error) => return Err(error),
            };
            let mut segments = self.list.lock();
            for entry in entries {
                let Some(number) = segment::number_of(entry.name.to_bytes()) else { continue };
                segments.add(
                    number,
                    entry.meta.size.next_multiple_of(BLOCK_SIZE),
                    seconds(entry.meta.mtime_sec),
                );
            }
            Ok(())
        };
        self.listed.get_or_try_init(|| list).await.map(|_| ())
    }

    /// Numbers of the segments that are not written to, the oldest first.
    pub(crate) fn complete(&self) -> Vec<u32> {
        let segments = self.list.lock();
        segments
            .segments
            .iter()
            .filter(|(_, segment)| !segment.is_active)
            .map(|(number, _)| *number)
            .collect()
    }

    /// Number of the segment that is written to.
    fn active(&self) -> Option<u32> {
        let segments = self.list.lock();
        segments.segments.iter().find(|(_, segment)| segment.is_active).map(|(number, _)| *number)
    }

    /// Takes entries whose tasks ended before they could remove what the entries had on the disk.
    pub(crate) fn take_left(&self) -> Vec<RemovedEntry> {
        self.queue.take_left()
    }
}

/// Directory of the segments of a cache.
pub(crate) fn directory(place: &CachePath) -> CString {
    CString::new([place.dir.to_bytes(), b"/", NAME.as_bytes()].concat()).unwrap_or_default()
}

/// Error of a store that takes no more at the moment.
fn no_room() -> DiskError {
    Op::Write.failed(Errno::NOBUFS)
}
