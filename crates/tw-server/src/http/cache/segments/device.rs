//! A block device with the segments of a cache (`tw_cache::segment::Superblock`).
//!
//! The file `device` in the directory of the cache has the number of the device, so that a device that was used elsewhere
//! meanwhile is emptied: purges of that time do not concern it. A process uses the device as long as it has locked this file. A
//! process that is started beside another one, as for an upgrade, waits until that has ended.
//!
//! A slot that was freed rests before it is used again, until responses that are being sent from it have most likely ended, and
//! in any case until the last write to it has.

use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::hash::BuildHasher;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::OnceCell;
use tw_base::{FatalMutex, Limit};
use tw_cache::SEGMENTS_MAX;
use tw_cache::segment::{BLOCK_SIZE, DeviceContent, SIGNATURES_SIZE, SegmentHeader, Superblock};
use tw_disk::{
    Account, CreateOptions, Disk, DiskError, Durable, Errno, Existing, File, JobClass, JobSource, Op,
    OpenOptions,
};

use super::super::cache_path::CachePath;
use super::{OpenSegment, Segment, SegmentStore, no_room, read_up_to};

/// Rest of a slot between two segments.
const SLOT_REST: Duration = if cfg!(test) { Duration::ZERO } else { Duration::from_secs(10) };

pub(super) const LIMITS: &[Limit] = &[Limit::micros(
    "SLOT_REST",
    SLOT_REST.as_micros() as u64,
    "Time for which the place of a segment on a block device is not used again, so that responses from it can be sent",
    "a response that takes longer is aborted if its place is used again",
)];

/// Device as the configuration has it.
pub(super) struct DevicePlace {
    path: CString,
    /// Path of the file with the number of the device.
    note: CString,
    fd: Option<Arc<OwnedFd>>,
    opened: OnceCell<OpenDevice>,
    /// Slots that were freed.
    resting: FatalMutex<HashMap<u32, RestingSlot>>,
}

/// Device that this process uses.
pub(super) struct OpenDevice {
    pub(super) file: File,
    pub(super) superblock: Superblock,
    /// The lock is held as long as this is open.
    _note: File,
}

struct RestingSlot {
    since: Instant,
    lease: SlotLease,
}

/// Lease of a slot: it is not used again as long as somebody else has one. Writes keep theirs until they have ended.
#[derive(Clone, Default)]
pub(super) struct SlotLease(Arc<()>);

/// Bytes of a write, with a lease.
pub(super) struct LeasedBytes<B> {
    bytes: B,
    _lease: SlotLease,
}

impl<B> LeasedBytes<B> {
    pub(super) fn new(bytes: B, lease: &SlotLease) -> Self {
        Self { bytes, _lease: lease.clone() }
    }
}

impl<B: AsRef<[u8]>> AsRef<[u8]> for LeasedBytes<B> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

/// Path of the file with the number of the device.
pub(super) fn note_path(place: &CachePath) -> CString {
    CString::new([place.dir.to_bytes(), b"/device"].concat()).unwrap_or_default()
}

impl DevicePlace {
    /// Returns the device of a cache, if it has one.
    pub(super) fn of(place: &CachePath) -> Option<Self> {
        let device = place.device.as_ref()?;
        Some(Self {
            path: device.path.clone(),
            note: note_path(place),
            fd: device.fd.clone(),
            opened: OnceCell::new(),
            resting: FatalMutex::default(),
        })
    }

    /// Returns the device, if it was opened.
    pub(super) fn opened(&self) -> Option<&OpenDevice> {
        self.opened.get()
    }

    /// Opens the device. Waits for the disk the first time.
    ///
    /// # Errors
    /// `EBUSY` as long as another process uses it, `EMEDIUMTYPE` if it has something else on it.
    pub(super) async fn open(&self, disk: &Disk) -> Result<&OpenDevice, DiskError> {
        let open = async {
            let mut by = Account::new(JobClass::Scan, JobSource::of(self.path.to_bytes()));
            let options = CreateOptions { existing: Existing::Keep, ..CreateOptions::NEW };
            let note = disk.create(&mut by, &self.note, &options).await?;
            if !disk.lock(&mut by, &note).await? {
                return Err(Op::Open.failed(Errno::BUSY));
            }
            let file = disk.adopt(&mut by, self.fd.clone(), &self.path, &OpenOptions::DIRECT).await?;
            let size = disk.size(&mut by, &file).await?;
            let first = read_up_to(disk, &mut by, &file, 0, SIGNATURES_SIZE).await?;
            let DeviceContent::Segments(superblock) = DeviceContent::of(&first, size) else {
                return Err(Op::Open.failed(Errno::MEDIUMTYPE));
            };
            let number: String = superblock.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
            let noted = read_up_to(disk, &mut by, &note, 0, number.len()).await?;
            if noted != number.as_bytes() {
                empty(disk, &mut by, &file, &superblock).await?;
                disk.write(&mut by, &note, 0, number.into_bytes()).await?;
                disk.fsync(&mut by, &note, Durable::Data).await?;
            }
            Ok(OpenDevice { file, superblock, _note: note })
        };
        self.opened.get_or_try_init(|| open).await
    }

    /// Returns true if a slot without a segment may be used.
    pub(super) fn may_use(&self, slot: u32) -> bool {
        let now = tw_rt::clock::now();
        let mut resting = self.resting.lock();
        let may_use = resting.get(&slot).is_none_or(|rest| {
            let is_over = now.saturating_duration_since(rest.since) >= SLOT_REST;
            is_over && Arc::strong_count(&rest.lease.0) == 1
        });
        if may_use {
            resting.remove(&slot);
        }
        may_use
    }

    /// Notes that a slot was freed.
    pub(super) fn rest(&self, slot: u32, lease: SlotLease) {
        self.resting.lock().insert(slot, RestingSlot { since: tw_rt::clock::now(), lease });
    }
}

impl OpenDevice {
    /// Headers of the segments on the device.
    pub(super) async fn headers(&self, disk: &Disk) -> Result<Vec<SegmentHeader>, DiskError> {
        let mut by = Account::new(JobClass::Scan, JobSource::NONE);
        let mut found = Vec::new();
        for slot in 0..self.superblock.slots {
            let at = self.superblock.offset(slot);
            let block = read_up_to(disk, &mut by, &self.file, at, BLOCK_SIZE as usize).await?;
            match SegmentHeader::decode_any(&block) {
                Ok(header) if self.superblock.slot(header.number) == slot => found.push(header),
                Ok(_) | Err(_) => {}
            }
        }
        Ok(found)
    }
}

impl SegmentStore {
    /// Returns a segment of the device.
    pub(super) async fn open_in_slot(
        &self,
        disk: &Disk,
        by: &mut Account,
        number: u32,
    ) -> Result<Option<Arc<OpenSegment>>, DiskError> {
        let Some(OpenDevice { file, superblock, .. }) = self.device.as_ref().and_then(DevicePlace::opened)
        else {
            return Ok(None);
        };
        // Before the header: the slot is not used again meanwhile.
        let lease = self.known.lock().segments.get(&number).map(|segment| segment.lease.clone());
        let Some(lease) = lease else { return Ok(None) };
        let base = superblock.offset(superblock.slot(number));
        let first = read_up_to(disk, by, file, base, BLOCK_SIZE as usize).await?;
        let Ok(header) = SegmentHeader::decode(&first, number) else { return Ok(None) };
        let open = Arc::new(OpenSegment { header, file: file.clone(), is_writable: true, base, lease });
        self.keep_open(number, &open);
        Ok(Some(open))
    }

    /// Bytes of a segment up to the end of its file or slot.
    pub(super) async fn size_of(
        &self,
        disk: &Disk,
        by: &mut Account,
        open: &OpenSegment,
    ) -> Result<u64, DiskError> {
        match self.device.as_ref().and_then(DevicePlace::opened) {
            Some(device) => Ok(device.superblock.slot_size),
            None => Ok(disk.stat_file(by, &open.file).await?.size),
        }
    }

    /// Returns true if segments are in slots of a device.
    pub(in crate::http::cache) fn is_on_device(&self) -> bool {
        self.device.is_some()
    }

    /// Bytes that have to be freed on the device, so that it has room for new segments.
    pub(in crate::http::cache) fn device_excess(&self) -> u64 {
        let Some(OpenDevice { superblock, .. }) = self.device.as_ref().and_then(DevicePlace::opened) else {
            return 0;
        };
        let used = self.known.lock().segments.len() as u64;
        used.saturating_sub(u64::from(superblock.slots - superblock.reserve())) * superblock.slot_size
    }

    /// Makes everything from `from` on no part of a segment.
    pub(super) async fn cut(
        &self,
        disk: &Disk,
        by: &mut Account,
        open: &OpenSegment,
        from: u64,
    ) -> Result<(), DiskError> {
        match self.device.as_ref().and_then(DevicePlace::opened) {
            // A scan ends there.
            Some(device) if from < device.superblock.slot_size => {
                open.write(disk, by, from, vec![0; BLOCK_SIZE as usize]).await
            }
            Some(_) => Ok(()),
            None => disk.truncate(by, &open.file, from).await,
        }
    }

    /// Creates a segment in a slot of the device.
    pub(super) async fn create_in_slot(
        &self,
        disk: &Disk,
        by: &mut Account,
        created: u64,
    ) -> Result<Arc<OpenSegment>, DiskError> {
        let Some((place, OpenDevice { file, superblock, .. })) =
            self.device.as_ref().and_then(|place| Some((place, place.opened()?)))
        else {
            return Err(no_room());
        };
        let lease = SlotLease::default();
        let number = {
            let mut known = self.known.lock();
            let used: HashSet<u32> = known.segments.keys().map(|number| superblock.slot(*number)).collect();
            let next = known.next;
            let mut numbers = (0..superblock.slots).map(|nth| (next + nth) % SEGMENTS_MAX);
            let is_free = |number: &u32| {
                let slot = superblock.slot(*number);
                !used.contains(&slot) && place.may_use(slot)
            };
            // The manager makes room.
            let number = numbers.find(is_free).ok_or_else(no_room)?;
            known.next = (number + 1) % SEGMENTS_MAX;
            known.segments.insert(number, Segment::active(superblock.slot_size, &lease));
            number
        };
        let stamp = self.random.hash_one((created, number));
        let header = SegmentHeader { number, stamp, created, table: None };
        let base = superblock.offset(superblock.slot(number));
        let open = OpenSegment { header, file: file.clone(), is_writable: true, base, lease };
        self.begin(disk, by, open).await
    }
}

/// Removes all segments.
async fn empty(disk: &Disk, by: &mut Account, file: &File, superblock: &Superblock) -> Result<(), DiskError> {
    for slot in 0..superblock.slots {
        disk.write(by, file, superblock.offset(slot), vec![0; BLOCK_SIZE as usize]).await?;
    }
    disk.fsync(by, file, Durable::Data).await
}
