//! Files that are locked in memory: what a loop may send with `sendfile`, which waits for a page that is not there.
//!
//! A job maps a whole file and locks it (`mlock`), if all of it is in memory already: a page that is locked cannot leave. The
//! table is the one of the process, and holds at most [`Locks::max`] bytes. A file stays locked as long as there is its
//! [`LockedFile`], unless it has to make room: one that was not sent for [`IDLE_S`] seconds goes, in the order of a clock.
//!
//! ```text
//! Disk::lock_soon ─► asked ─ job ─► locked ─ no handle left, changed, or no room ─► over
//!                      └─ refused ────────────────────────────────────────────────────┘
//! ```
//!
//! Locked pages are still lost when the file changes: by truncation, a hole, a write past the page cache.
//! All of them change its times or its size first, so a sender checks those ([`Disk::check_now`]) in the same turn.
//!
//! Suited are only file systems whose `sendfile` takes pages from the page cache without other requests: those that read
//! without waiting (`RWF_NOWAIT`), and those in memory. FUSE drops pages when the file is opened, NFS asks its server.

mod job;
mod sending;

use crate::access_time::now_s;
use crate::account::{Account, JobClass, JobSource};
use crate::file::File;
use crate::meta::FileMeta;
use crate::op::Op;
use crate::pool::{Shared as Pool, is_pool_thread};
use crate::stats::Sharded;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use tw_base::FatalMutex;
use tw_base::count::Counter;
use tw_sys::memory::MappedFile;

pub use sending::{FileCheck, Sending};

/// Smallest file that is locked, bytes: below it a copy costs as little as `sendfile` does.
pub const LOCK_FILE_MIN: u64 = 16 << 10;
/// The part of all locked bytes that one file may take,
const LOCK_SHARE: u64 = 4;
/// or so many, where all are few: a file that is sent pushes nobody out, and large ones gain most.
const LOCK_FILE_ALWAYS: u64 = 4 << 20;
/// A file that was sent in the last so many seconds stays locked, lest files that do not fit together push each other out.
const IDLE_S: u32 = 2;
/// Files that are looked at to make room for one.
const EVICT_SCAN_MAX: usize = 256;
const PAGE_SIZE: u64 = 4096;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Bytes of a file that is locked in memory to be sent by the kernel; at most a quarter of hot_lock_size, or 4 MiB.
    pub const LOCK_FILE_MAX: u64 = 256 << 20, bytes, "larger ones are copied to their clients";
    /// Files that are being locked in memory at one time.
    const LOCK_JOBS_MAX: u32 = 2, count, "others are copied to their clients, and asked for again";
}

/// Why a file was not locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    /// Not all of it was in memory.
    Cold = 0,
    /// Other files take the room, and are in use.
    Full = 1,
    /// File that differs from its state when it was opened.
    Changed = 2,
    /// The kernel refused.
    Kernel = 3,
}

impl Refusal {
    /// Every one, in the order of its number.
    pub const ALL: [Self; 4] = [Self::Cold, Self::Full, Self::Changed, Self::Kernel];

    /// Name of the reason in metrics.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Cold => "cold",
            Self::Full => "full",
            Self::Changed => "changed",
            Self::Kernel => "kernel",
        }
    }
}

/// Of what is counted by threads: bytes sent.
const SENT: usize = 0;

/// The files of the process that are locked in memory.
pub struct Locks {
    max: AtomicU64,
    /// Bytes that are locked, or are about to be.
    bytes: AtomicU64,
    files: AtomicU64,
    jobs: AtomicU32,
    state: FatalMutex<State>,
    sent: Sharded<1>,
    evictions: Counter,
    refusals: [Counter; Refusal::ALL.len()],
}

#[derive(Default)]
struct State {
    files: Vec<Entry>,
    places: HashMap<Key, usize>,
    hand: usize,
}

/// Device and inode.
type Key = (u64, u64);

struct Entry {
    key: Key,
    /// Never upgraded under the lock: the last handle takes it once more.
    file: Weak<Shared>,
    life: Arc<LockState>,
    /// `None` while it is being locked.
    pages: Option<Arc<Pages>>,
}

/// State of a file that the table and the handles share.
struct LockState {
    is_over: AtomicBool,
    /// Time of its last transfer: seconds since 1970, the lower half.
    used_s: AtomicU32,
}

/// A version of a file that is locked in memory, or about to be. Clones are the same; it is unlocked with the last one.
#[derive(Clone)]
pub struct LockedFile(Arc<Shared>);

struct Shared {
    locks: Arc<Locks>,
    key: Key,
    meta: FileMeta,
    pages: OnceLock<Weak<Pages>>,
    life: Arc<LockState>,
}

/// Entry of the table, with its locked pages. A thread of the pool unlocks them, on whichever thread it is dropped.
struct Pages {
    locks: Arc<Locks>,
    bytes: u64,
    mapped: Option<MappedFile>,
    pool: Arc<Pool>,
}

impl Default for Locks {
    fn default() -> Self {
        Self {
            max: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            files: AtomicU64::new(0),
            jobs: AtomicU32::new(0),
            state: FatalMutex::default(),
            sent: Sharded::new(),
            evictions: Counter::default(),
            refusals: Default::default(),
        }
    }
}

impl Locks {
    /// Locks at most `max` bytes from now on; with 0, nothing, also of what is being locked. What is more is unlocked.
    pub fn set_max(&self, max: u64) {
        self.max.store(max, Relaxed);
        if max == 0 {
            let all = self.state.lock().clear();
            drop(all);
            return;
        }
        let mut excess = self.bytes().saturating_sub(max);
        while excess > 0 {
            // The evicted entry is dropped after the mutex was released, because loops take that mutex.
            let Some(evicted) = self.state.lock().evict(|_| true) else { break };
            excess = excess.saturating_sub(evicted.bytes);
        }
    }

    /// The most bytes that may be locked.
    pub fn max(&self) -> u64 {
        self.max.load(Relaxed)
    }

    /// Bytes of files that are locked, in whole pages.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Files that are locked, or about to be.
    pub fn files(&self) -> u64 {
        self.files.load(Relaxed)
    }

    /// Bytes that were sent from locked files by loops.
    pub fn sent(&self) -> u64 {
        self.sent.sum(SENT)
    }

    /// Files that were unlocked to make room.
    pub fn evictions(&self) -> u64 {
        self.evictions.value()
    }

    /// Files that were not locked, by reason.
    pub fn refusals(&self, why: Refusal) -> u64 {
        self.refusals[why as usize].value()
    }

    /// The largest file that may be locked.
    fn file_max(&self) -> u64 {
        let max = self.max();
        LOCK_FILE_MAX.min((max / LOCK_SHARE).max(max.min(LOCK_FILE_ALWAYS)))
    }

    /// The handle of this version of a file, if it is locked or about to be.
    pub fn find(&self, file: &File) -> Option<LockedFile> {
        if self.bytes() == 0 {
            return None;
        }
        let key = key_of(file.meta());
        // A handle may be the last one, which takes the lock again.
        let shared = self.state.lock().find(key);
        shared.filter(|shared| shared.meta.is_same_version(file.meta())).map(LockedFile)
    }

    fn room_for(self: &Arc<Self>, len: u64, pool: &Arc<Pool>) -> Option<Pages> {
        let bytes = len.next_multiple_of(PAGE_SIZE);
        loop {
            let fits = |used: u64| used.checked_add(bytes).filter(|all| *all <= self.max());
            if self.bytes.fetch_update(Relaxed, Relaxed, fits).is_ok() {
                self.files.fetch_add(1, Relaxed);
                return Some(Pages { locks: self.clone(), bytes, mapped: None, pool: pool.clone() });
            }
            let now = now_s() as u32;
            let is_idle = |life: &LockState| now.abs_diff(life.used_s.load(Relaxed)) >= IDLE_S;
            let evicted = self.state.lock().evict(is_idle)?;
            self.evictions.add(1);
            drop(evicted);
        }
    }
}

fn key_of(meta: &FileMeta) -> Key {
    (meta.dev, meta.ino)
}

impl State {
    fn find(&self, key: Key) -> Option<Arc<Shared>> {
        self.files.get(*self.places.get(&key)?)?.file.upgrade()
    }

    /// Puts a file in the place of another version of it, which is returned.
    fn insert(&mut self, file: &Arc<Shared>) -> Option<Entry> {
        let other = self.places.get(&file.key).copied().map(|at| self.remove(at));
        self.places.insert(file.key, self.files.len());
        let life = file.life.clone();
        let key = file.key;
        self.files.push(Entry { key, file: Arc::downgrade(file), life, pages: None });
        other
    }

    /// The place of a file, unless another version of it has taken that.
    fn place(&self, file: &Shared) -> Option<usize> {
        let at = *self.places.get(&file.key)?;
        self.files.get(at).filter(|entry| std::ptr::eq(entry.file.as_ptr(), file)).map(|_| at)
    }

    /// Removes an entry; transfers in progress stop.
    fn remove(&mut self, at: usize) -> Entry {
        let entry = self.files.swap_remove(at);
        entry.life.is_over.store(true, Relaxed);
        self.places.remove(&entry.key);
        if let Some(moved) = self.files.get(at) {
            self.places.insert(moved.key, at);
        }
        entry
    }

    /// Takes out everything, also what is being locked.
    fn clear(&mut self) -> Vec<Entry> {
        self.places.clear();
        self.files.iter().for_each(|entry| entry.life.is_over.store(true, Relaxed));
        std::mem::take(&mut self.files)
    }

    /// Takes out the pages of the next file that is locked and may go, of as many as are looked at.
    fn evict(&mut self, may_go: impl Fn(&LockState) -> bool) -> Option<Arc<Pages>> {
        for _ in 0..self.files.len().min(EVICT_SCAN_MAX) {
            self.hand %= self.files.len();
            let entry = &self.files[self.hand];
            if entry.pages.is_some() && may_go(&entry.life) {
                return self.remove(self.hand).pages;
            }
            self.hand += 1;
        }
        None
    }
}

impl Shared {
    /// Takes it out of the table; what is locked is unlocked when this is dropped.
    fn take(&self) -> Option<Entry> {
        self.life.is_over.store(true, Relaxed);
        let mut state = self.locks.state.lock();
        state.place(self).map(|at| state.remove(at))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        drop(self.take());
    }
}

impl LockedFile {
    /// Returns true if the file is not locked any more, and will not be.
    pub fn is_over(&self) -> bool {
        self.0.life.is_over.load(Relaxed)
    }

    /// Returns true if the file is locked now.
    pub fn is_locked(&self) -> bool {
        !self.is_over() && self.0.pages.get().is_some()
    }

    /// Unlocks the file for all handles, because it was changed.
    pub fn give_up(&self) {
        drop(self.0.take());
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let mapped = self.mapped.take();
        let bytes = self.bytes;
        let locks = self.locks.clone();
        let is_empty = mapped.is_none();
        let unlock = move || {
            drop(mapped);
            locks.bytes.fetch_sub(bytes, Relaxed);
            locks.files.fetch_sub(1, Relaxed);
            Ok::<(), crate::DiskError>(())
        };
        if is_empty || is_pool_thread() {
            let _ = unlock();
            return;
        }
        // Like a close, the job does not wait behind evictions.
        let account = Account::new(JobClass::Fill, JobSource::NONE);
        if let Some(task) = self.pool.detach_or_leave(&account, Op::Close, None, unlock) {
            task.run(&|| ());
        }
    }
}
