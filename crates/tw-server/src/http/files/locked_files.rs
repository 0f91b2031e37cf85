//! Files that the kernel sends (`sendfile on`): those that are asked for often, locked in memory.
//!
//! The table of what is locked is the one of the process ([`Locks`]); here is what a loop knows of its open files. A file that
//! was sent [`LOCK_USES`] times while it was open is locked by a job. Whoever sends it looks first whether it is still what was
//! locked, once a turn: a change takes pages away although they are locked, and shows in the times of the file before it does.

use std::time::{Duration, Instant};

use tw_disk::{Disk, LOCK_FILE_MIN, LockedFile, Look, Now, Sending};

use super::OpenFile;
use crate::http::request::Request;

/// Responses that are sent from a file before it is locked.
const LOCK_USES: u8 = 4;
/// How long a file is not locked again that could not be locked, or had to make room.
const ABSENCE: Duration = Duration::from_secs(1);

/// Whether an open file is locked.
pub(super) enum Lock {
    /// It was sent so many times, which is not often enough.
    Uses(u8),
    /// It could not be, or had to go, and is not tried before this time.
    Absent(Instant),
    /// It is, or is about to be.
    Held(LockedFile),
    /// It was changed since it was opened.
    Changed,
}

/// Whether files of the location of `r` are sent by the kernel, if they are locked: as they are, so not over TLS.
fn is_wanted(r: &Request) -> bool {
    r.generation().lock_max > 0 && r.plan().core.files.sendfile && r.client().tls.get().is_none()
}

impl OpenFile {
    /// Whether the kernel may come to send it where `r` is: how its contents are sent is decided when they are.
    pub fn is_for_kernel(&self, r: &Request) -> bool {
        self.meta().size >= LOCK_FILE_MIN && is_wanted(r)
    }

    /// Whether it is locked in memory.
    pub(super) fn is_locked(&self) -> bool {
        self.meta().size >= LOCK_FILE_MIN
            && matches!(&*self.lock.borrow(), Lock::Held(locked) if locked.is_locked())
    }

    /// Notes that it is being sent to the client of `r`, and has it locked if that was often enough.
    pub(crate) fn count_use(&self, disk: &Disk, r: &Request) {
        if !self.is_for_kernel(r) {
            return;
        }
        let locks = &r.generation().locks;
        let mut lock = self.lock.borrow_mut();
        match &mut *lock {
            Lock::Uses(uses) => {
                *uses += 1;
                if *uses == 1
                    && let Some(locked) = locks.find(&self.file)
                {
                    // Another loop has it.
                    *lock = Lock::Held(locked);
                    return;
                }
                if *uses < LOCK_USES {
                    return;
                }
            }
            Lock::Absent(until) if tw_rt::clock::now() >= *until => {}
            Lock::Absent(_) | Lock::Held(_) | Lock::Changed => return,
        }
        *lock = match disk.lock_soon(&self.file, locks) {
            Some(locked) => Lock::Held(locked),
            None => Lock::Absent(tw_rt::clock::now() + ABSENCE),
        };
    }

    /// Unlocks it: it ended before its time.
    pub(crate) fn unlock(&self) {
        if let Lock::Held(locked) = self.lock.replace(Lock::Changed) {
            locked.give_up();
        }
    }

    /// Unlocks it if it was changed. For files that perhaps nobody asks for again: one system call if it is locked.
    pub(super) fn unlock_if_changed(&self, disk: &Disk) {
        let is_held = matches!(&*self.lock.borrow(), Lock::Held(_));
        if is_held && disk.look_now(&self.file) == Now::Ready(Ok(Look::Changed)) {
            self.unlock();
        }
    }

    /// It for being sent, if it is locked and was not changed. One system call, in the first request of a turn for it.
    fn sending(&self, disk: &Disk) -> Option<Sending<'_>> {
        let mut lock = self.lock.borrow_mut();
        let Lock::Held(locked) = &*lock else { return None };
        let now = tw_rt::clock::now();
        if locked.is_over() {
            *lock = Lock::Absent(now + ABSENCE);
            return None;
        }
        if !locked.is_locked() {
            return None;
        }
        if self.looked.get() != Some(now) {
            match disk.look_now(&self.file) {
                Now::Ready(Ok(Look::Same)) => self.looked.set(Some(now)),
                Now::Ready(Ok(Look::Changed)) => {
                    locked.give_up();
                    *lock = Lock::Changed;
                    return None;
                }
                Now::Ready(Ok(Look::Due) | Err(_)) | Now::Cold => return None,
            }
        }
        disk.sending(&self.file, locked)
    }
}

/// A file for being sent to the client of `r` by the kernel; `None` if it has to be copied.
pub(crate) fn sending<'a>(r: &Request, disk: &Disk, file: &'a OpenFile) -> Option<Sending<'a>> {
    if is_wanted(r) { file.sending(disk) } else { None }
}
