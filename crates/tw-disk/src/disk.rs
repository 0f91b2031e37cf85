//! The handle: a pool, a mode, and the answers that do not wait.

use crate::device::Device;
use crate::driver::{Driver, DriverKind};
use crate::file::{File, Handle, Now};
use crate::meta::FileMeta;
use crate::op::Op;
use crate::open_options::OpenOptions;
use crate::pool::Pool;
use crate::sim::Sim;
use crate::{access_time, mounts, os};
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Execution of operations that miss memory (`aio`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Aio {
    /// On the calling thread, which then waits for the disk: nginx's default, for comparison and for file systems that
    /// are memory.
    Off,
    /// By the threads of the pool.
    #[default]
    Threads,
    /// Reads by io_uring, everything else by the threads of the pool.
    Uring,
}

/// The door: a cheap handle to a pool, cloned freely.
///
/// Names ending in `_now` never wait and never allocate more than the file they open. The others are futures that first
/// try that, and otherwise wait for a job; they may be dropped at any time. With [`Aio::Off`] all of them wait inline.
#[derive(Clone)]
pub struct Disk {
    pub(crate) pool: Pool,
    pub(crate) aio: Aio,
    pub(crate) driver: Driver,
}

impl Disk {
    /// A door to the real file system. Reads the mount table, and may start a ring: not for a loop.
    ///
    /// Without io_uring in the kernel, [`Aio::Uring`] reads by threads, and the pool's listener hears why (see
    /// [`Pool::on_notice`]).
    pub fn new(pool: Pool, aio: Aio) -> Self {
        mounts::refresh();
        mounts::follow();
        access_time::settle();
        if aio == Aio::Uring {
            pool.start_lane();
        }
        Self::over(pool, aio, DriverKind::Os)
    }

    /// Another door to the same files by the same pool. Reads no mount table; may start a ring.
    #[must_use]
    pub fn with_aio(&self, aio: Aio) -> Self {
        if aio == Aio::Uring {
            self.pool.start_lane();
        }
        Self::over(self.pool.clone(), aio, self.driver.kind.clone())
    }

    /// A door to a simulated file system; jobs run on the threads of `pool` all the same.
    pub fn simulated(pool: Pool, aio: Aio, sim: Arc<Sim>) -> Self {
        Self::over(pool, aio, DriverKind::Sim(sim))
    }

    fn over(pool: Pool, aio: Aio, kind: DriverKind) -> Self {
        let closer = (aio != Aio::Off).then(|| pool.shared().clone());
        Self { pool, aio, driver: Driver { kind, closer } }
    }

    /// Thread pool that runs the operations.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Execution of operations that miss memory.
    pub fn aio(&self) -> Aio {
        self.aio
    }

    /// Opens a file whose path is in memory. Only for reading or [`Access::Path`](crate::Access::Path): other access is always [`Now::Cold`].
    ///
    /// Two or three system calls; allocates the handle.
    pub fn open_now(&self, path: &CStr, options: &OpenOptions) -> Now<File> {
        let opened = if self.aio == Aio::Off {
            Some(self.driver.open(path, options).map_err(|error| error.errno().unwrap_or(Errno::IO)))
        } else {
            match &self.driver.kind {
                DriverKind::Os => os::open_now(path, options)
                    .map(|opened| opened.map(|(fd, meta)| self.opened(Handle::Os(fd), meta, options))),
                DriverKind::Sim(sim) => sim
                    .open_now(path, options)
                    .map(|opened| opened.map(|(node, meta)| self.opened(Handle::Sim(node), meta, options))),
            }
        };
        self.answer(Op::Open, opened)
    }

    fn opened(&self, handle: Handle, meta: FileMeta, options: &OpenOptions) -> File {
        let file = File::new(handle, meta, options, Device::of(meta.dev), self.driver.closer.clone());
        file.inner().device.count_inline();
        file
    }

    /// Looks at what a path in memory leads to: is it still the same version? Follows links.
    ///
    /// Three system calls, 2.1 µs for a path of seven names (ext4, Linux 6.18, two-core VM). `statx` would take 1.3 µs, but
    /// waits for the directory when the name is not in memory, and after an `unlink` it is not, even while the file is open.
    /// A loop that has the file open saves most of this with [`Disk::stat_now`] (0.3 µs), and needs a probe only now and
    /// then, for changes of the directories and links above.
    pub fn probe_now(&self, path: &CStr) -> Now<FileMeta> {
        let meta = if self.aio == Aio::Off {
            Some(self.driver.stat(path, true).map_err(|error| error.errno().unwrap_or(Errno::IO)))
        } else {
            match &self.driver.kind {
                DriverKind::Os => os::probe_now(path),
                DriverKind::Sim(sim) => sim.probe_now(path),
            }
        };
        self.answer(Op::Stat, meta)
    }

    /// Looks whether `path` still leads to what `file` was opened from, with one system call instead of three where that is
    /// safe: the open file pins every name on its path, so a look-up finds them in memory.
    ///
    /// `statx(AT_STATX_DONT_SYNC)` costs half of `openat2(O_PATH | RESOLVE_CACHED)`, `fstat` and `close` (0.88 against
    /// 1.71 µs measured). What it does not promise: the one look-up after a pinned name was removed may ask the
    /// directory, whose block was written a moment ago and so is in memory.
    pub fn recheck_now(&self, path: &CStr, file: &File) -> Now<FileMeta> {
        let is_pinned = matches!(self.driver.kind, DriverKind::Os) && file.inner().device.is_local();
        if self.aio == Aio::Off || !is_pinned {
            return self.probe_now(path);
        }
        self.answer(Op::Stat, Some(os::stat_pinned(path)))
    }

    /// Metadata of an open file as it is now, if its file system answers from memory: one system call.
    ///
    /// Shows every change of the file, and that its name was taken from it: a file that was renamed over or unlinked has
    /// another `nlink` and change time. Does not show that a directory or link above it leads elsewhere now.
    pub fn stat_now(&self, file: &File) -> Now<FileMeta> {
        let inner = file.inner();
        let meta = match (&inner.handle, &self.driver.kind) {
            (Handle::Os(fd), _) if self.aio == Aio::Off || inner.device.is_local() => Some(os::fstat_now(fd)),
            (Handle::Sim(node), DriverKind::Sim(sim)) => Some(sim.fstat_now(node)),
            _ => None,
        };
        self.answer(Op::Fstat, meta)
    }

    /// Reads what is in memory at `offset`: 0 bytes at the end of the file, fewer than asked where memory ends, and
    /// [`Now::Cold`] if the first byte is not there (the kernel may then begin to read ahead), or if the device is busy and
    /// nobody knows whether it is, or if the read might write an access time. Then: [`Disk::read_cold`].
    ///
    /// One system call, or two where an access time decides; allocates nothing.
    pub fn read_now(&self, file: &File, offset: u64, buf: &mut [u8]) -> Now<usize> {
        if self.aio == Aio::Off {
            let read = self.driver.read(file.inner(), offset, buf);
            return self.answer(Op::Read, Some(read.map_err(|error| error.errno().unwrap_or(Errno::IO))));
        }
        let inner = file.inner();
        let read = match (&inner.handle, &self.driver.kind) {
            (Handle::Os(fd), _) if inner.supports_nowait() && inner.access_time.may_be_due(fd) => {
                inner.device.count_access_time();
                None
            }
            (Handle::Os(fd), _) if inner.supports_nowait() => {
                let len = if inner.device.is_busy() {
                    inner.hot.hot_len(offset, buf.len(), inner.device.epoch())
                } else {
                    buf.len()
                };
                // Only bytes that are known to be in memory are tried on a busy device. An empty read is always tried.
                (len > 0 || buf.is_empty()).then(|| inner.read_cached(fd, offset, &mut buf[..len]))
            }
            (Handle::Os(fd), _) if inner.is_memory() => Some(os::read_memory(fd, offset, buf)),
            (Handle::Sim(node), DriverKind::Sim(sim)) => sim.read_now(node, offset, buf),
            (Handle::Os(_), _) => None,
            _ => Some(Err(Errno::BADF)),
        };
        let read = read.filter(|read| !matches!(read, Err(Errno::AGAIN | Errno::INTR | Errno::OPNOTSUPP)));
        match read {
            Some(_) => inner.device.count_inline(),
            None => inner.device.count_miss(),
        }
        self.answer(Op::Read, read)
    }

    fn answer<T>(&self, op: Op, result: Option<Result<T, Errno>>) -> Now<T> {
        match result {
            Some(result) => {
                self.count_inline(op);
                Now::Ready(result)
            }
            None => Now::Cold,
        }
    }

    pub(crate) fn count_inline(&self, op: Op) {
        self.pool.shared().counters.inline.add(op.index());
    }
}

impl std::fmt::Debug for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Disk").field("pool", &self.pool).field("aio", &self.aio).finish_non_exhaustive()
    }
}

/// A non-blocking socket that a job may write to while its connection lives on.
pub type SocketFd = Arc<OwnedFd>;
