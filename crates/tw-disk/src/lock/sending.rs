//! Sending of locked files, on a loop.

use super::{LockedFile, Pages, SENT};
use crate::access_time::now_s;
use crate::disk::Disk;
use crate::file::{File, Handle, Inner, Now};
use crate::meta::FileMeta;
use crate::op::Op;
use crate::os;
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A locked file that is being sent: it stays locked until this is dropped.
pub struct Sending<'a> {
    fd: BorrowedFd<'a>,
    inner: &'a Inner,
    pages: Arc<Pages>,
}

/// Result of a look at an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileCheck {
    /// File unchanged since it was opened.
    Same,
    /// File unchanged, but reading it may write its access time.
    Due,
    /// File that was changed.
    Changed,
}

impl Disk {
    /// Looks at an open file whether it is what it was when it was opened, and whether sending it writes nothing: one system
    /// call. [`Now::Cold`] where its file system may have to ask.
    pub fn check_now(&self, file: &File) -> Now<FileCheck> {
        let inner = file.inner();
        let Handle::Os(fd) = &inner.handle else { return Now::Cold };
        if !inner.device.is_local() {
            return Now::Cold;
        }
        self.count_inline(Op::Fstat);
        Now::Ready(rustix::fs::fstat(fd).map(|st| {
            if !FileMeta::from(&st).is_same_version(file.meta()) {
                FileCheck::Changed
            } else if !inner.is_memory() && inner.access_time.may_be_due_for(&st) {
                FileCheck::Due
            } else {
                FileCheck::Same
            }
        }))
    }

    /// Returns a locked file for sending; `None` if it is not locked, or not any more. Call it right after
    /// [`check_now`](Self::check_now).
    pub fn sending<'a>(&self, file: &'a File, locked: &LockedFile) -> Option<Sending<'a>> {
        let shared = &*locked.0;
        let pages = shared.pages.get()?.upgrade()?;
        let Handle::Os(fd) = &file.inner().handle else { return None };
        let now = now_s() as u32;
        // The value is mostly there already, and a cache line that is only read stays in the cache of every processor.
        let used_s = &shared.life.used_s;
        if used_s.load(Relaxed) != now {
            used_s.store(now, Relaxed);
        }
        Some(Sending { fd: fd.as_fd(), inner: file.inner(), pages })
    }

    /// Moves up to `len` bytes at `offset` to a non-blocking socket, from inside the kernel: 0 at the end of the file. Never
    /// waits, because what it moves is in memory.
    ///
    /// # Errors
    /// Errors of `sendfile`; `EAGAIN` when the socket takes nothing.
    pub fn send_now(
        &self,
        sending: &Sending<'_>,
        offset: u64,
        len: usize,
        socket: BorrowedFd<'_>,
    ) -> Result<usize, Errno> {
        let sent = os::sendfile(socket, sending.fd, offset, len)?;
        self.count_inline(Op::Sendfile);
        sending.inner.device.count_inline();
        sending.pages.locks.sent.add_many(SENT, sent as u64);
        Ok(sent)
    }
}
