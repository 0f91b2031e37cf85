//! A block device with the segments of a cache (`tw_cache::segment::Superblock`).
//!
//! The file `device` in the directory of the cache has the number of the device, and in a second line its path, so that a device that was used elsewhere
//! meanwhile is emptied: purges of that time do not concern it. A process uses the device as long as it has locked this file. A
//! process that is started beside another one, as for an upgrade, waits until that has ended.
//!
//! The device of a member may be that of another one of the same cache, because disks have other names after a start: purges
//! concern all members, so its responses are used.
//!
//! A slot that was freed rests before it is used again, until responses that are being sent from it have most likely ended, and
//! in any case until the last write to it has.

use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::sync::OnceCell;
use tw_base::FatalMutex;
use tw_cache::SEGMENTS_MAX;
use tw_cache::segment::{BLOCK_SIZE, DeviceContent, SIGNATURES_SIZE, SegmentHeader, Superblock};
use tw_disk::{
    Account, CreateOptions, Disk, DiskError, Durable, Errno, Existing, File, JobClass, JobSource, Op,
    OpenOptions,
};
use tw_log::Text;

use super::lease::SlotLease;
use super::open_segment::{OpenSegment, OpenedSegment, read_up_to};
use super::segment_list::Segment;
use super::{SegmentStore, no_room};
use crate::cache_path::CachePath;
use crate::cache_path::device_format::objection;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Time for which the place of a segment on a block device is not used again, so that responses from it can be sent.
    const SLOT_REST: Duration = if cfg!(test) { Duration::ZERO } else { Duration::from_secs(10) }, time,
        "a response that takes longer is aborted if its place is used again";
}

/// Place on a device that nothing reads: behind the superblock, before the first slot.
const PROBE_AT: u64 = 512 << 10;

/// Device as the configuration has it.
pub(super) struct DevicePlace {
    path: CString,
    /// Path of the file with the number of the device.
    note: CString,
    fd: Option<Arc<OwnedFd>>,
    /// Reason that it cannot be used, as words behind its name.
    refusal: FatalMutex<Option<Arc<str>>>,
    /// True if the configuration has found that it cannot be opened.
    is_refused: bool,
    /// Number that the note had when it was first read, empty without one: an attempt that was given up may have written it.
    first_noted: OnceLock<DeviceNumber>,
    opened: OnceCell<OpenDevice>,
    /// Slots that were freed.
    resting: FatalMutex<HashMap<u32, RestingSlot>>,
}

/// Device that this process uses.
pub(super) struct OpenDevice {
    pub(super) file: File,
    pub(super) superblock: Superblock,
    /// False if the device can only be read.
    is_writable: bool,
    /// True if the note had another number at first.
    is_other: bool,
    /// The lock is held as long as this is open.
    _note: File,
}

/// Use of what is on a device with another number than that of the note.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeviceContentUse {
    /// The segments are used: the purges that concern them are known.
    Keep,
    /// The segments are removed.
    Remove,
    /// The members that may know the purges have not all answered yet.
    Undecided,
}

/// Number of a device in hexadecimal digits, as a note has it.
pub(crate) type DeviceNumber = Box<[u8]>;
/// Length of such a number.
pub(crate) const NUMBER_LEN: usize = 32;
/// Bytes that are read of a note.
pub(crate) const NOTE_MAX: usize = 4096 + NUMBER_LEN + 2;

struct RestingSlot {
    since: Instant,
    lease: SlotLease,
}

/// Path of the file with the number of the device.
pub(crate) fn note_path(place: &CachePath) -> CString {
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
            refusal: FatalMutex::new(device.refusal.clone()),
            is_refused: device.refusal.is_some(),
            first_noted: OnceLock::new(),
            opened: OnceCell::new(),
            resting: FatalMutex::default(),
        })
    }

    /// Returns the device, if it was opened.
    pub(super) fn opened(&self) -> Option<&OpenDevice> {
        self.opened.get()
    }

    /// Opens the device. Waits for the disk the first time. If its number is not that of the note, `use_of` says whether its
    /// segments are used or removed.
    ///
    /// # Errors
    /// `EBUSY` as long as another process uses it, `EMEDIUMTYPE` if it has something else on it, `ENODEV` if it could not be
    /// opened when the configuration was loaded, `EAGAIN` while `use_of` is undecided.
    pub(super) async fn open(
        &self,
        disk: &Disk,
        use_of: impl Fn(&[u8]) -> DeviceContentUse,
    ) -> Result<&OpenDevice, DiskError> {
        let open = async {
            if self.is_refused {
                return Err(Op::Open.failed(Errno::NODEV));
            }
            let mut account = Account::new(JobClass::Scan, JobSource::of(self.path.to_bytes()));
            let options = CreateOptions { existing: Existing::Keep, ..CreateOptions::NEW };
            let note = disk.create(&mut account, &self.note, &options).await?;
            if !disk.lock(&mut account, &note).await? {
                return Err(Op::Open.failed(Errno::BUSY));
            }
            let file = disk.adopt(&mut account, self.fd.clone(), &self.path, &OpenOptions::DIRECT).await?;
            let size = disk.size(&mut account, &file).await?;
            let first = read_up_to(disk, &mut account, &file, 0, SIGNATURES_SIZE).await?;
            let content = DeviceContent::of(&first, size);
            *self.refusal.lock() = objection(&content).map(Arc::from);
            let DeviceContent::Segments(mut superblock) = content else {
                return Err(Op::Open.failed(Errno::MEDIUMTYPE));
            };
            let is_writable = match probe(disk, &mut account, &file).await {
                Ok(()) => true,
                Err(error) if error.errno().is_some_and(is_unwritable) => false,
                Err(error) => return Err(error),
            };
            let noted = read_up_to(disk, &mut account, &note, 0, NOTE_MAX).await?;
            let number = || noted.get(..NUMBER_LEN).map(DeviceNumber::from).unwrap_or_default();
            let is_other = *self.first_noted.get_or_init(number) != number_of(&superblock);
            let content_use = if is_other { use_of(&number_of(&superblock)) } else { DeviceContentUse::Keep };
            if content_use == DeviceContentUse::Undecided {
                return Err(Op::Open.failed(Errno::AGAIN));
            }
            if content_use == DeviceContentUse::Remove {
                empty(disk, &mut account, &file, &superblock).await?;
                // Another directory that had it does not know it any more.
                superblock.uuid = random();
                disk.write(&mut account, &file, 0, superblock.encode()).await?;
                disk.fsync(&mut account, &file, Durable::Data).await?;
            }
            // With the path, for those who look into the directory.
            let content = [&*number_of(&superblock), b"\n", self.path.to_bytes(), b"\n"].concat();
            if !noted.starts_with(&content) {
                disk.write(&mut account, &note, 0, content).await?;
                disk.fsync(&mut account, &note, Durable::Data).await?;
            }
            Ok(OpenDevice { file, superblock, is_writable, is_other, _note: note })
        };
        self.opened.get_or_try_init(|| open).await
    }

    /// Reason that the device cannot be used, after such an error.
    pub(super) fn objection(&self, error: &DiskError) -> String {
        let path = Text(self.path.to_bytes());
        match &*self.refusal.lock() {
            Some(why) => format!("its device \"{path}\" {why}"),
            None if error.errno() == Some(Errno::BUSY) => {
                format!("its device \"{path}\" is used by another process, or by an earlier configuration")
            }
            None if error.errno() == Some(Errno::AGAIN) => {
                format!("its device \"{path}\" may be that of a member that has not answered yet")
            }
            None => format!("its device \"{path}\" cannot be used ({error})"),
        }
    }

    /// Returns true if a slot without a segment may be used.
    pub(super) fn may_use(&self, slot: u32) -> bool {
        let now = tw_rt::clock::now();
        let mut resting = self.resting.lock();
        let may_use = resting.get(&slot).is_none_or(|rest| {
            let is_over = now.saturating_duration_since(rest.since) >= SLOT_REST;
            is_over && rest.lease.is_last()
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
        let mut account = Account::new(JobClass::Scan, JobSource::NONE);
        let mut segment_headers = Vec::new();
        for slot in 0..self.superblock.slots {
            let at = self.superblock.offset(slot);
            let block = read_up_to(disk, &mut account, &self.file, at, BLOCK_SIZE as usize).await?;
            match SegmentHeader::decode_any(&block) {
                Ok(header) if self.superblock.slot(header.number) == slot => segment_headers.push(header),
                Ok(_) | Err(_) => {}
            }
        }
        Ok(segment_headers)
    }
}

impl SegmentStore {
    /// Returns a segment of the device.
    pub(super) async fn open_in_slot(
        &self,
        disk: &Disk,
        account: &mut Account,
        number: u32,
    ) -> Result<OpenedSegment, DiskError> {
        let Some(OpenDevice { file, superblock, is_writable, .. }) =
            self.device.as_ref().and_then(DevicePlace::opened)
        else {
            return Ok(OpenedSegment::Nothing);
        };
        let is_writable = *is_writable;
        // Before the header: the slot is not used again meanwhile.
        let lease = self.list.lock().segments.get(&number).map(|segment| segment.lease.clone());
        let Some(lease) = lease else { return Ok(OpenedSegment::Nothing) };
        let base = superblock.offset(superblock.slot(number));
        let first = read_up_to(disk, account, file, base, BLOCK_SIZE as usize).await?;
        let header = match SegmentHeader::decode(&first, number) {
            Ok(header) => header,
            Err(why) => return Ok(OpenedSegment::Damaged(why)),
        };
        let open = Arc::new(OpenSegment { header, file: file.clone(), is_writable, base, lease });
        self.keep_open(number, &open);
        Ok(OpenedSegment::Open(open))
    }

    /// Bytes of a segment up to the end of its file or slot.
    pub(super) async fn size_of(
        &self,
        disk: &Disk,
        account: &mut Account,
        open: &OpenSegment,
    ) -> Result<u64, DiskError> {
        match self.device.as_ref().and_then(DevicePlace::opened) {
            Some(device) => Ok(device.superblock.slot_size),
            None => Ok(disk.stat_file(account, &open.file).await?.size),
        }
    }

    /// Opens the device, if segments are on one. Returns its number if the note had another one: `use_of` says by its number
    /// whether its segments are used. The error is a message.
    pub(crate) async fn open_device(
        &self,
        disk: &Disk,
        use_of: impl Fn(&[u8]) -> DeviceContentUse,
    ) -> Result<Option<DeviceNumber>, String> {
        let Some(device) = &self.device else { return Ok(None) };
        let opened = device.open(disk, use_of).await.map_err(|error| device.objection(&error))?;
        Ok(opened.is_other.then(|| number_of(&opened.superblock)))
    }

    /// Writes to the device where nothing is, to see whether it works. Does nothing without a device.
    pub(crate) async fn probe_device(&self, disk: &Disk) -> Result<(), DiskError> {
        let Some(OpenDevice { file, .. }) = self.device.as_ref().and_then(DevicePlace::opened) else {
            return Ok(());
        };
        self.check_device_writable()?;
        probe(disk, &mut Account::new(JobClass::Fill, JobSource::NONE), file).await
    }

    /// Checks that the device, if there is one, was opened for writing.
    pub(super) fn check_device_writable(&self) -> Result<(), DiskError> {
        match self.device.as_ref().and_then(DevicePlace::opened) {
            Some(OpenDevice { is_writable: false, .. }) => Err(Op::Write.failed(Errno::ROFS)),
            _ => Ok(()),
        }
    }

    /// Returns true if segments are in slots of a device.
    pub(crate) fn is_on_device(&self) -> bool {
        self.device.is_some()
    }

    /// Bytes that have to be freed on the device, so that it has room for new segments.
    pub(crate) fn device_excess(&self) -> u64 {
        let Some(OpenDevice { superblock, .. }) = self.device.as_ref().and_then(DevicePlace::opened) else {
            return 0;
        };
        let used = self.list.lock().segments.len() as u64;
        used.saturating_sub(u64::from(superblock.slots - superblock.reserve())) * superblock.slot_size
    }

    /// Makes everything from `from` on no part of a segment.
    pub(super) async fn cut(
        &self,
        disk: &Disk,
        account: &mut Account,
        open: &OpenSegment,
        from: u64,
    ) -> Result<(), DiskError> {
        match self.device.as_ref().and_then(DevicePlace::opened) {
            // A scan ends there.
            Some(device) if from < device.superblock.slot_size => {
                open.write(disk, account, from, vec![0; BLOCK_SIZE as usize]).await
            }
            Some(_) => Ok(()),
            None => disk.truncate(account, &open.file, from).await,
        }
    }

    /// Creates a segment in a slot of the device.
    pub(super) async fn create_in_slot(
        &self,
        disk: &Disk,
        account: &mut Account,
        created: u64,
    ) -> Result<Arc<OpenSegment>, DiskError> {
        let Some((place, OpenDevice { file, superblock, .. })) =
            self.device.as_ref().and_then(|place| Some((place, place.opened()?)))
        else {
            return Err(no_room());
        };
        self.check_device_writable()?;
        let lease = SlotLease::default();
        let number = {
            let mut segments = self.list.lock();
            let used: HashSet<u32> =
                segments.segments.keys().map(|number| superblock.slot(*number)).collect();
            let next = segments.next;
            let mut numbers = (0..superblock.slots).map(|nth| (next + nth) % SEGMENTS_MAX);
            let is_free = |number: &u32| {
                let slot = superblock.slot(*number);
                !used.contains(&slot) && place.may_use(slot)
            };
            // The manager makes room.
            let number = numbers.find(is_free).ok_or_else(no_room)?;
            segments.next = (number + 1) % SEGMENTS_MAX;
            segments.segments.insert(number, Segment::active(superblock.slot_size, &lease));
            number
        };
        let stamp = self.random.hash_one((created, number));
        let header = SegmentHeader { number, stamp, created, table: None };
        let base = superblock.offset(superblock.slot(number));
        let open = OpenSegment { header, file: file.clone(), is_writable: true, base, lease };
        self.begin(disk, account, open).await
    }
}

fn number_of(superblock: &Superblock) -> DeviceNumber {
    superblock.uuid.iter().flat_map(|byte| format!("{byte:02x}").into_bytes()).collect()
}

/// A random number for a device.
fn random() -> [u8; 16] {
    let random = RandomState::new();
    let [low, high] = [0_u8, 1].map(|half| u128::from(random.hash_one(half)));
    (low | high << 64).to_le_bytes()
}

/// Writes zeros where nothing is.
async fn probe(disk: &Disk, account: &mut Account, file: &File) -> Result<(), DiskError> {
    disk.write(account, file, PROBE_AT, vec![0; BLOCK_SIZE as usize]).await.map(|_| ())
}

/// Returns true for errors of a device that can only be read.
fn is_unwritable(errno: Errno) -> bool {
    matches!(errno, Errno::BADF | Errno::ROFS | Errno::ACCESS | Errno::PERM)
}

/// Removes all segments.
async fn empty(
    disk: &Disk,
    account: &mut Account,
    file: &File,
    superblock: &Superblock,
) -> Result<(), DiskError> {
    for slot in 0..superblock.slots {
        disk.write(account, file, superblock.offset(slot), vec![0; BLOCK_SIZE as usize]).await?;
    }
    disk.fsync(account, file, Durable::Data).await
}
