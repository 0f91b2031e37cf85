//! Locking a file, as a job.

use super::{LOCK_FILE_MIN, LOCK_JOBS_MAX, LockState, LockedFile, Locks, Pages, Refusal, Shared, key_of};
use crate::access_time::now_s;
use crate::account::{Account, JobClass, JobSource};
use crate::disk::{Aio, Disk};
use crate::file::{Direct, File, Handle, Inner};
use crate::meta::FileKind;
use crate::notice::Notice;
use crate::op::Op;
use crate::pool::Shared as Pool;
use crate::{device, os};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use tw_sys::memory::MappedFile;

/// A file that was changed in the last so many seconds is not locked: two changes within one tick of the file system's clock
/// would look alike.
const SETTLED_S: i64 = 2;
/// Bytes that are read at once to see whether a file is in memory.
const READ_SIZE: usize = 256 << 10;

impl Disk {
    /// Has a job lock a file that is asked for often, unless that was done or begun; `None` if it is not suited, or enough jobs
    /// do so already. Never waits. A file of which not all is in memory is not locked.
    pub fn lock_soon(&self, file: &File, locks: &Arc<Locks>) -> Option<LockedFile> {
        if self.aio == Aio::Off || !is_suited(file, locks) {
            return None;
        }
        let meta = *file.meta();
        let key = key_of(file.meta());
        let found_shared = locks.state.lock().find(key);
        if let Some(found_shared) = found_shared {
            let locked_file = LockedFile(found_shared);
            if locked_file.0.meta.is_same_version(&meta) {
                return Some(locked_file);
            } else {
                locked_file.give_up()
            }
        }
        let one_more = |jobs| (jobs < LOCK_JOBS_MAX).then_some(jobs + 1);
        locks.jobs.fetch_update(Relaxed, Relaxed, one_more).ok()?;
        let shared = Arc::new(Shared {
            locks: locks.clone(),
            key,
            meta,
            pages: OnceLock::new(),
            life: Arc::new(LockState {
                is_over: AtomicBool::new(false),
                used_s: AtomicU32::new(now_s() as u32),
            }),
        });
        let locked = LockedFile(shared);
        let work = Work { file: file.clone(), locked: locked.clone() };
        let other = locks.state.lock().insert(&locked.0);
        drop(other);
        let pool = self.pool.shared();
        let account = Account::new(JobClass::Fill, JobSource::NONE);
        let of = pool.clone();
        let device = file.inner().device;
        let job = move || {
            work.run(&of);
            Ok::<(), crate::DiskError>(())
        };
        // A pool that has ended returns the job. Dropping the job gives the lock up.
        drop(pool.detach(&account, Op::Lock, Some(device), job));
        Some(locked)
    }
}

/// A job that locks a file, from being queued to its end.
struct Work {
    file: File,
    locked: LockedFile,
}

impl Drop for Work {
    fn drop(&mut self) {
        let Shared { locks, pages, .. } = &*self.locked.0;
        locks.jobs.fetch_sub(1, Relaxed);
        if pages.get().is_none() {
            drop(self.locked.0.take());
        }
    }
}

impl Work {
    fn run(&self, pool: &Arc<Pool>) {
        let shared = &self.locked.0;
        // No caller has a handle any more: the file was closed meanwhile.
        if Arc::strong_count(shared) == 1 {
            return;
        }
        match self.lock(pool) {
            Ok(pages) => {
                let pages = Arc::new(pages);
                let mut state = shared.locks.state.lock();
                if let Some(at) = state.place(shared) {
                    // Both references are set under the mutex, so a lookup that finds the entry also finds its pages.
                    let _ = shared.pages.set(Arc::downgrade(&pages));
                    state.files[at].pages = Some(pages);
                }
            }
            Err(why) => shared.locks.refusals[why as usize].add(1),
        }
    }

    fn lock(&self, pool: &Arc<Pool>) -> Result<Pages, Refusal> {
        let inner = self.file.inner();
        let meta = self.file.meta();
        let Handle::Os(fd) = &inner.handle else { return Err(Refusal::Kernel) };
        inner.device.touch(fd.as_fd());
        let locks = &self.locked.0.locks;
        let mut pages = locks.room_for(meta.size, pool).ok_or(Refusal::Full)?;
        // Read before the mapping: while a lock reads from a disk, other threads cannot get memory.
        read_through(inner, fd, meta.size)?;
        // This read is for the loops, which may send the file only if that writes no access time: it shows whether it
        // ever does.
        let _ = inner.access_time.read_by_job(fd, || os::read(fd, 0, &mut [0; 1]));
        let mapped = MappedFile::new(fd.as_fd(), meta.size as usize).map_err(|_| Refusal::Kernel)?;
        let locked = mapped.lock();
        // The pages that are locked now may be those of another version.
        let is_same = os::fstat_now(fd).is_ok_and(|now| now.is_same_version(meta) && now.nlink > 0);
        match locked {
            _ if !is_same => Err(Refusal::Changed),
            Err(error) => {
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::NOMEM);
                // The bytes of all locks but this one.
                let kept = locks.bytes().saturating_sub(pages.bytes);
                if locks.max.fetch_min(kept, Relaxed) > kept {
                    let limit = getrlimit(Resource::Memlock).current;
                    pool.notify(Notice::LockRefused { errno, kept, limit });
                }
                Err(Refusal::Kernel)
            }
            Ok(()) => {
                pages.mapped = Some(mapped);
                Ok(pages)
            }
        }
    }
}

/// Reads a whole file that is in memory. What it leaves are no marks at which the kernel would begin to read ahead.
fn read_through(inner: &Inner, fd: &OwnedFd, size: u64) -> Result<(), Refusal> {
    let mut buf = vec![0; READ_SIZE.min(size as usize)];
    let mut offset = 0;
    while offset < size {
        device::step();
        let read = match inner.is_memory() {
            // Pages of a file system in memory may have been swapped out; this read waits for them.
            true => os::read(fd, offset, &mut buf),
            false => inner.read_cached(fd, offset, &mut buf),
        };
        match read {
            Ok(0) => return Err(Refusal::Changed),
            Ok(n) => offset += n as u64,
            Err(Errno::AGAIN) => return Err(Refusal::Cold),
            Err(_) => return Err(Refusal::Kernel),
        }
    }
    Ok(())
}

/// Returns true if a file may be locked, as far as is known of it.
fn is_suited(file: &File, locks: &Locks) -> bool {
    let inner = file.inner();
    let meta = file.meta();
    meta.kind == FileKind::File
        && (LOCK_FILE_MIN..=locks.file_max()).contains(&meta.size)
        && matches!(inner.handle, Handle::Os(_))
        && inner.direct() == Direct::No
        && (inner.supports_nowait() || inner.is_memory())
        && now_s().saturating_sub(meta.ctime_sec.max(meta.mtime_sec)) > SETTLED_S
}
