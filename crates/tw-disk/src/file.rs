//! Open files: shared handles that close themselves where closing may wait.

use crate::access_time::AccessTime;
use crate::account::{Account, JobClass, JobSource};
use crate::device::{Device, Reads};
use crate::meta::{FileKind, FileMeta};
use crate::op::Op;
use crate::open_options::{Access, OpenOptions};
use crate::pool::{Shared, is_pool_thread};
use crate::{hot, os, sim};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};

/// Object that a descriptor refers to: a closed enum, so that reading costs no dynamic call.
pub(crate) enum Handle {
    Os(OwnedFd),
    Sim(sim::Node),
    /// Only while being dropped.
    Closed,
}

/// State of direct I/O: reads that bypass the page cache.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Direct {
    /// Never asked for.
    No = 0,
    /// Asked for; the first job turns it on.
    Wanted = 1,
    /// Turned on.
    On = 2,
    /// Asked for, but the file system has none.
    Refused = 3,
}

/// An open file. Clones are the same descriptor; it is closed with the last one.
///
/// Closing runs inline only if it cannot wait: a file opened for reading, on a local file system, that still has a name.
/// Every other close is a job of the pool.
#[derive(Clone)]
pub struct File(Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) handle: Handle,
    meta: FileMeta,
    pub(crate) device: &'static Device,
    pub(crate) hot: hot::Key,
    pub(crate) access_time: AccessTime,
    pool: Option<Arc<Shared>>,
    /// Closing may write: the file was open for writing.
    is_writable: bool,
    /// Current [`Direct`] state.
    direct: AtomicU8,
    pub(crate) direct_align: u32,
    pub(crate) read_ahead: u32,
    /// The kernel does not read ahead of the file: see [`read_window`](crate::read_window).
    pub(crate) reads_by_window: AtomicBool,
    /// Set when the file refuses `RWF_NOWAIT` on a device that takes it in general.
    refuses_nowait: AtomicBool,
}

impl File {
    /// A file on `device`. `pool` closes the file; `None` closes it wherever the last clone is dropped.
    pub(crate) fn new(
        handle: Handle,
        meta: FileMeta,
        options: &OpenOptions,
        device: &'static Device,
        pool: Option<Arc<Shared>>,
    ) -> Self {
        let direct = if meta.size >= options.direct_from { Direct::Wanted } else { Direct::No };
        let access_time = match &handle {
            Handle::Os(fd)
                if matches!(options.access, Access::Read | Access::ReadWrite)
                    && meta.kind == FileKind::File =>
            {
                AccessTime::of_opened(fd, meta.uid)
            }
            _ => AccessTime::never(),
        };
        Self(Arc::new(Inner {
            handle,
            meta,
            device,
            hot: hot::Key::new(meta.dev, meta.ino, meta.mtime_sec, meta.mtime_nsec),
            access_time,
            pool,
            is_writable: matches!(options.access, Access::ReadWrite | Access::Append),
            direct: AtomicU8::new(direct as u8),
            direct_align: options.direct_align.max(512).next_power_of_two(),
            read_ahead: options.read_ahead,
            reads_by_window: false.into(),
            refuses_nowait: false.into(),
        }))
    }

    /// Metadata as it was when the file was opened.
    pub fn meta(&self) -> &FileMeta {
        &self.0.meta
    }

    /// The descriptor, for system calls that do not wait for the disk; `None` if the file is simulated.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.0.handle {
            Handle::Os(fd) => Some(fd.as_fd()),
            Handle::Sim(_) | Handle::Closed => None,
        }
    }

    /// Returns true if the file was to be read past the page cache, and turned out to have no such reads.
    pub fn refuses_direct(&self) -> bool {
        self.0.direct() == Direct::Refused
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.0
    }
}

impl Inner {
    /// Metadata as it was when the file was opened.
    pub(crate) fn meta(&self) -> &FileMeta {
        &self.meta
    }

    pub(crate) fn direct(&self) -> Direct {
        match self.direct.load(Relaxed) {
            1 => Direct::Wanted,
            2 => Direct::On,
            3 => Direct::Refused,
            _ => Direct::No,
        }
    }

    pub(crate) fn set_direct(&self, direct: Direct) {
        self.direct.store(direct as u8, Relaxed);
    }

    /// Reads what is in memory, and remembers what was and what was not; `EAGAIN` where it would have to wait, `EOPNOTSUPP`
    /// where the file cannot tell. Starts to read ahead on a miss, which may wait if the device is busy.
    pub(crate) fn read_cached(&self, fd: &OwnedFd, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        let read = os::read_now(fd, offset, buf);
        match read {
            Ok(n) => self.hot.note(offset, n, self.device.epoch()),
            Err(Errno::AGAIN) => self.hot.forget(offset),
            Err(Errno::OPNOTSUPP) => self.refuses_nowait.store(true, Relaxed),
            Err(_) => {}
        }
        read
    }

    /// Returns true if a look into memory says anything about this file.
    pub(crate) fn supports_nowait(&self) -> bool {
        self.device.reads() == Reads::NoWait
            && !self.refuses_nowait.load(Relaxed)
            && matches!(self.direct(), Direct::No | Direct::Refused)
    }

    /// Returns true if the file system is only in memory.
    pub(crate) fn is_memory(&self) -> bool {
        self.device.reads() == Reads::Memory && matches!(self.direct(), Direct::No | Direct::Refused)
    }

    /// Returns true if a ring may read the file: a plain read, of a device that is known and has no faults on purpose, which
    /// are applied by threads.
    pub(crate) fn suits_ring(&self) -> bool {
        self.read_ahead == 0
            && !self.device.is_faulty()
            && matches!(self.direct(), Direct::No | Direct::Refused)
            && self.device.reads() != Reads::Unknown
    }

    /// Returns true if the close can neither write, free blocks, nor ask another machine.
    fn closes_at_once(&self, fd: &OwnedFd) -> bool {
        // Between this look and the close the last name may go; the window is a microsecond, and the cost one long close.
        !self.is_writable && self.device.is_local() && matches!(os::fstat_now(fd), Ok(meta) if meta.nlink > 0)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let (Handle::Os(fd), Some(pool)) = (std::mem::replace(&mut self.handle, Handle::Closed), &self.pool)
        else {
            return;
        };
        if is_pool_thread() || self.closes_at_once(&fd) {
            return;
        }
        // The job does not wait behind evictions: descriptors are scarce, and every close makes up for a create of the
        // same class.
        let account = Account::new(JobClass::Fill, JobSource::NONE);
        let device = self.device;
        let close = move || {
            // The device is examined here, too, in case its files are only opened and closed.
            device.touch(fd.as_fd());
            drop(fd);
            Ok::<(), crate::DiskError>(())
        };
        if let Some(task) = pool.detach_or_leave(&account, Op::Close, Some(device), close) {
            // All pools have ended, and so has the service: waiting here delays nothing.
            task.run(&|| ());
        }
    }
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("File").field("fd", &self.fd()).field("meta", &self.0.meta).finish_non_exhaustive()
    }
}

/// Result of an operation that does not wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Now<T> {
    /// Result of the operation.
    Ready(Result<T, Errno>),
    /// Data that is not in memory: the caller submits a job.
    Cold,
}
