//! Knowledge about each device: the way a loop may read from it, and the time for which it makes jobs wait.
//!
//! The answer of `preadv2(RWF_NOWAIT)` is a property of the file system, so it is asked once per device, by the first job
//! that touches it, and remembered for the life of the process.

use crate::mounts;
use crate::queue::NO_DEVICE;
use crate::read_ahead;
use crate::stats::Sharded;
use rustix::fs::{AtFlags, StatFs, StatxFlags, fstatfs, statx};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use std::cell::{Cell, RefCell};
use std::io::IoSliceMut;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use tw_base::hist::{Histogram, Snapshot};

/// Jobs per epoch of a device, as a power of two: what was not read for 1024 to 2048 jobs is no longer taken for hot. That
/// is 3 to 5 seconds of a hard disk, and 20 milliseconds of a fast solid state disk, where a needless job costs as little.
const EPOCH_BITS: u32 = 10;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Devices with a record of their own.
    pub const DEVICES_MAX: usize = 256, count, "the others share one and its share of a pool, and are read by pools only";
    /// Jobs that read from one device before loops stop to try reads that may start a request.
    ///
    /// Jobs reading from a device from which on a loop no longer starts requests of its own. A job causes some four requests
    /// with what it reads ahead, so that half of the 64 requests of a small device are still free.
    const BUSY_READERS: u32 = 8, count, "loops read only what they lately found in memory; the rest goes to the pool";
}

/// Way in which a loop may read files of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reads {
    /// Not asked yet: by a job.
    Unknown = 0,
    /// Without waiting: `preadv2(RWF_NOWAIT)` tells memory from disk.
    NoWait = 1,
    /// Always: the file system has nothing but memory.
    Memory = 2,
    /// Never: the file system cannot tell.
    Job = 3,
}

impl Reads {
    fn from_u8(value: u8) -> Self {
        match value {
            1 => Reads::NoWait,
            2 => Reads::Memory,
            3 => Reads::Job,
            _ => Reads::Unknown,
        }
    }
}

const PLACE_UNKNOWN: u8 = 0;
const PLACE_LOCAL: u8 = 1;
const PLACE_REMOTE: u8 = 2;

const INLINE: usize = 0;
const MISS: usize = 1;
const ACCESS_TIME: usize = 2;

/// One device.
pub(crate) struct Device {
    dev: Option<u64>,
    /// Path in whose place it is, if that is faulty on purpose.
    faulty_path: Option<Box<[u8]>>,
    /// Number in queues: its position in the table, counted from 1.
    number: u32,
    /// The device of the mount, where files have another: volumes of btrfs, layers of overlayfs.
    home: OnceLock<&'static Device>,
    /// The kernel reads further ahead than a window of ours.
    reads_far_ahead: OnceLock<bool>,
    reads: AtomicU8,
    place: AtomicU8,
    counts: Sharded<3>,
    /// Jobs that read here, queued or running.
    readers: AtomicU32,
    /// Jobs that have read here.
    read_jobs: AtomicU32,
    pub(crate) queue: Histogram,
    pub(crate) service: Histogram,
}

static TABLE: [OnceLock<&'static Device>; DEVICES_MAX] = [const { OnceLock::new() }; DEVICES_MAX];
static OTHERS: OnceLock<&'static Device> = OnceLock::new();

thread_local! {
    /// The device the running job works on, for the histograms.
    static TOUCHED: Cell<Option<&'static Device>> = const { Cell::new(None) };
    /// Steps of the jobs of this thread, if it belongs to a pool.
    static STEPS: RefCell<Option<Arc<AtomicU32>>> = const { RefCell::new(None) };
}

/// Has the steps of this thread counted in `steps`, which others read.
pub(crate) fn count_steps(steps: Arc<AtomicU32>) {
    STEPS.set(Some(steps));
}

/// Notes that the running job got one step further: it does not hang.
pub(crate) fn step() {
    STEPS.with_borrow(|steps| {
        if let Some(steps) = steps {
            steps.fetch_add(1, Relaxed);
        }
    });
}

pub(crate) fn forget_touched() {
    TOUCHED.set(None);
}

pub(crate) fn touched() -> Option<&'static Device> {
    TOUCHED.get()
}

impl Device {
    fn new(
        dev: Option<u64>,
        at: usize,
        reads: Reads,
        place: u8,
        faulty_path: Option<Box<[u8]>>,
    ) -> &'static Device {
        // Leaked on purpose: there are at most DEVICES_MAX of them, and every open file points to one.
        Box::leak(Box::new(Device {
            dev,
            faulty_path,
            number: at as u32 + 1,
            home: OnceLock::new(),
            reads_far_ahead: OnceLock::new(),
            reads: AtomicU8::new(reads as u8),
            place: AtomicU8::new(place),
            counts: Sharded::new(),
            readers: AtomicU32::new(0),
            read_jobs: AtomicU32::new(0),
            queue: Histogram::new(),
            service: Histogram::new(),
        }))
    }

    /// The record of device `dev`. Allocates the first time it is seen.
    pub(crate) fn of(dev: u64) -> &'static Device {
        Self::find(dev, || None)
    }

    /// The record of a path that is faulty on purpose, by a number that no device has.
    pub(crate) fn of_faulty(dev: u64, path: &[u8]) -> &'static Device {
        Self::find(dev, || Some(path.into()))
    }

    fn find(dev: u64, faulty_path: impl Fn() -> Option<Box<[u8]>>) -> &'static Device {
        let home = (dev ^ (dev >> 8)) as usize % DEVICES_MAX;
        for i in 0..DEVICES_MAX {
            let at = (home + i) % DEVICES_MAX;
            let device = TABLE[at].get_or_init(|| match faulty_path() {
                // All reads of a faulty device are jobs, as if nothing of it were in memory.
                Some(path) => Device::new(Some(dev), at, Reads::Job, PLACE_REMOTE, Some(path)),
                None => Device::new(Some(dev), at, Reads::Unknown, PLACE_UNKNOWN, None),
            });
            if device.dev == Some(dev) {
                return device;
            }
        }
        OTHERS.get_or_init(|| Device::new(None, DEVICES_MAX, Reads::Job, PLACE_UNKNOWN, None))
    }

    /// Path in whose place the device is, if it is faulty on purpose.
    pub(crate) fn faulty_path(&self) -> Option<&[u8]> {
        self.faulty_path.as_deref()
    }

    /// Returns true if operations here may be delayed, or fail, on purpose.
    pub(crate) fn is_faulty(&self) -> bool {
        self.faulty_path.is_some()
    }

    /// Device number; `None` for those that found no place in the table.
    pub(crate) fn dev(&self) -> Option<u64> {
        self.dev
    }

    /// The device whose share of a pool jobs here count for.
    pub(crate) fn home(&'static self) -> &'static Device {
        self.home.get().copied().unwrap_or(self)
    }

    /// Finds that out, if no mount has this number. May wait: jobs only.
    pub(crate) fn find_home(&'static self, fd: BorrowedFd<'_>) {
        let Some(dev) = self.dev.filter(|_| self.home.get().is_none()) else { return };
        if mounts::knows(dev) {
            return;
        }
        let Ok(file_stat) = statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID) else { return };
        if let Some(home) = mounts::device_of_mount(file_stat.stx_mnt_id) {
            let _ = self.home.set(home);
        }
    }

    /// Way in which a loop may read.
    pub(crate) fn reads(&self) -> Reads {
        Reads::from_u8(self.reads.load(Relaxed))
    }

    /// Returns true if `open`, `fstat` and `close` of a cached name never wait for another process or machine; false until
    /// a job has looked.
    pub(crate) fn is_local(&self) -> bool {
        self.place.load(Relaxed) == PLACE_LOCAL
    }

    /// Notes that the running job works here, and determines the abilities of the device on first use. May wait: jobs only.
    pub(crate) fn touch(&'static self, fd: BorrowedFd<'_>) {
        self.note();
        if self.reads() == Reads::Unknown {
            self.find_home(fd);
            let reads = self.detect_reads(fd);
            if reads != Reads::Unknown {
                self.reads.store(reads as u8, Relaxed);
            }
        }
    }

    /// Notes that the running job works here, and has got one step further.
    pub(crate) fn note(&'static self) {
        TOUCHED.set(Some(self));
        step();
    }

    fn detect_reads(&self, fd: BorrowedFd<'_>) -> Reads {
        let Ok(fs) = fstatfs(fd) else { return Reads::Unknown };
        let place = if is_local(&fs) { PLACE_LOCAL } else { PLACE_REMOTE };
        if self.place.swap(place, Relaxed) == PLACE_UNKNOWN && place == PLACE_REMOTE {
            // The mount may be newer than the table.
            mounts::refresh();
        }
        if is_memory(&fs) {
            return Reads::Memory;
        }
        if !is_local(&fs) || !kernel_is_sound() {
            return Reads::Job;
        }
        let mut byte = [0];
        match preadv2(fd, &mut [IoSliceMut::new(&mut byte)], 0, ReadWriteFlags::NOWAIT) {
            Ok(_) | Err(Errno::AGAIN) => Reads::NoWait,
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Reads::Job,
            // A directory, or a descriptor not open for reading: the next file may show it.
            Err(_) => Reads::Unknown,
        }
    }

    /// Counts a job that will read here, until the visit is dropped.
    pub(crate) fn begin_read_job(&'static self) -> ReadJobGuard {
        self.readers.fetch_add(1, Relaxed);
        ReadJobGuard(self)
    }

    /// Returns true if so many jobs read here that starting another request may wait (see [`hot`](crate::hot)).
    pub(crate) fn is_busy(&self) -> bool {
        self.readers.load(Relaxed) >= BUSY_READERS
    }

    /// Returns true if the kernel reads further ahead of files here than a window of ours. Asks once, by a job.
    pub(crate) fn reads_far_ahead(&self) -> bool {
        *self.reads_far_ahead.get_or_init(|| self.dev.is_some_and(read_ahead::exceeds_window))
    }

    /// A clock that runs as fast as the device reads: 16 bits of it.
    pub(crate) fn epoch(&self) -> u16 {
        (self.read_jobs.load(Relaxed) >> EPOCH_BITS) as u16
    }

    pub(crate) fn count_inline(&self) {
        self.counts.add(INLINE);
    }

    pub(crate) fn count_miss(&self) {
        self.counts.add(MISS);
    }

    pub(crate) fn count_access_time(&self) {
        self.counts.add(ACCESS_TIME);
    }

    fn stats(&'static self) -> DeviceStats {
        DeviceStats {
            dev: self.dev,
            faulty_path: self.faulty_path(),
            reads: self.reads(),
            inline: self.counts.sum(INLINE),
            misses: self.counts.sum(MISS),
            access_times: self.counts.sum(ACCESS_TIME),
            queue: self.queue.snapshot(),
            service: self.service.snapshot(),
        }
    }
}

/// One job that reads from a device; see [`Device::begin_read_job`].
pub(crate) struct ReadJobGuard(&'static Device);

impl Drop for ReadJobGuard {
    fn drop(&mut self) {
        self.0.readers.fetch_sub(1, Relaxed);
        self.0.read_jobs.fetch_add(1, Relaxed);
    }
}

/// One device at one moment.
#[derive(Clone, Debug)]
pub struct DeviceStats {
    /// Device number (`st_dev`); `None` sums the devices that found no place in the table.
    pub dev: Option<u64>,
    /// Path in whose place it is, if that is faulty on purpose.
    pub faulty_path: Option<&'static [u8]>,
    /// Way in which a loop may read from the device.
    pub reads: Reads,
    /// Operations on open files that ended without a job.
    pub inline: u64,
    /// Reads that were left to a job: what they wanted was not in memory, or might not have been.
    pub misses: u64,
    /// Number of those reads left to a job because they might have written an access time.
    pub access_times: u64,
    /// Time jobs waited for a thread.
    pub queue: Snapshot,
    /// Time jobs took.
    pub service: Snapshot,
}

/// The number in queues of what a job is done on.
pub(crate) fn number_of(device: Option<&'static Device>) -> u32 {
    device.map_or(NO_DEVICE, |device| device.home().number)
}

/// The device of this number.
pub(crate) fn numbered(number: u32) -> Option<&'static Device> {
    let at = number.checked_sub(1)? as usize;
    TABLE.get(at).unwrap_or(&OTHERS).get().copied()
}

/// Every device seen so far.
pub fn devices() -> Vec<DeviceStats> {
    TABLE.iter().chain([&OTHERS]).filter_map(|entry| entry.get()).map(|device| device.stats()).collect()
}

/// File systems whose names, once cached, are opened and closed without asking another process or machine; by `f_type`
/// (linux/magic.h).
const LOCAL: [u32; 12] = [
    0xef53,      // ext2, ext3, ext4
    0x5846_5342, // xfs
    0x9123_683e, // btrfs
    0xf2f5_2010, // f2fs
    0xca45_1a4e, // bcachefs
    0x2fc1_2fc1, // zfs
    0x3153_464a, // jfs
    0x7371_7368, // squashfs
    0xe0f5_e1e2, // erofs
    0x794c_7630, // overlayfs
    TMPFS,
    RAMFS,
];
const TMPFS: u32 = 0x0102_1994;
const RAMFS: u32 = 0x8584_58f6;

fn magic(fs: &StatFs) -> u32 {
    // The type is 32 bits wide; some architectures sign-extend it.
    fs.f_type as u32
}

fn is_local(fs: &StatFs) -> bool {
    LOCAL.contains(&magic(fs))
}

fn is_memory(fs: &StatFs) -> bool {
    matches!(magic(fs), TMPFS | RAMFS)
}

/// Returns true if `RWF_NOWAIT` reads can be trusted: Linux 5.9 and 5.10 may return less than asked, or wait.
fn kernel_is_sound() -> bool {
    static SOUND: OnceLock<bool> = OnceLock::new();
    *SOUND.get_or_init(|| is_sound(rustix::system::uname().release().to_bytes()))
}

fn is_sound(release: &[u8]) -> bool {
    let mut parts = release.split(|&b| !b.is_ascii_digit()).map(|part| {
        part.iter().fold(0_u32, |n, &digit| n.saturating_mul(10).saturating_add(u32::from(digit - b'0')))
    });
    !matches!((parts.next(), parts.next()), (Some(5), Some(9 | 10)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excludes_two_kernels() {
        let cases: [(&[u8], bool); 8] = [
            (b"5.9.0", false),
            (b"5.10.234-generic", false),
            (b"5.11.0", true),
            (b"5.8.18", true),
            (b"5.100.1", true),
            (b"6.18.44-fc-v657", true),
            (b"15.10.1", true),
            (b"odd", true),
        ];
        for (release, expected) in cases {
            assert_eq!(is_sound(release), expected, "{}", String::from_utf8_lossy(release));
        }
    }

    #[test]
    fn one_record_per_device() {
        let a = Device::of(0xffff_0001);
        assert!(std::ptr::eq(a, Device::of(0xffff_0001)));
        assert!(!std::ptr::eq(a, Device::of(0xffff_0002)));
        assert_eq!(a.reads(), Reads::Unknown);
        assert!(!a.is_local());
    }
}
