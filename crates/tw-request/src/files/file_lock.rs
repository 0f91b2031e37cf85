//! Files that the kernel sends (`sendfile on`): those that are asked for often, locked in memory.
//!
//! The table of locked files is one for the process (`tw_disk::Locks`); this one has the open files of a loop. A file that was sent
//! [`LOCK_USES`] times while it was open is locked by a job. Before it is sent, once a turn, its metadata is compared: a change
//! removes pages although they are locked, and shows in the times of the file before it does.

use std::sync::Arc;
use std::time::Duration;

use tw_disk::{Disk, FileCheck, LOCK_FILE_MIN, Locks, Now, Sending};

use super::open_file::{Lock, OpenFile};

/// Responses that are sent from a file before it is locked.
const LOCK_USES: u8 = 4;
/// Time during which a file is not locked again that could not be locked, or was evicted.
const ABSENCE: Duration = Duration::from_secs(1);

impl OpenFile {
    /// Returns true if the file is locked in memory.
    pub(super) fn is_locked(&self) -> bool {
        self.meta().size >= LOCK_FILE_MIN
            && matches!(&*self.lock.borrow(), Lock::Held(locked) if locked.is_locked())
    }

    /// Notes that it is being sent, and has it locked if that was often enough. A locked file is sent as a whole, so it has to pass its
    /// checks first.
    pub(super) fn note_use(&self, disk: &Disk, locks: &Arc<Locks>) {
        if self.check.as_ref().is_some_and(|check| !check.is_complete()) {
            return;
        }
        let mut lock = self.lock.borrow_mut();
        match &mut *lock {
            Lock::Uses(uses) => {
                *uses += 1;
                if *uses == 1
                    && let Some(locked) = locks.find(&self.file)
                {
                    // Another loop has locked the file already.
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
    pub fn unlock(&self) {
        if let Lock::Held(locked) = self.lock.replace(Lock::Changed) {
            locked.give_up();
        }
    }

    /// Unlocks a changed file that may not be requested again. One system call if it is locked.
    pub(super) fn unlock_if_changed(&self, disk: &Disk) {
        let is_held = matches!(&*self.lock.borrow(), Lock::Held(_));
        if is_held && disk.check_now(&self.file) == Now::Ready(Ok(FileCheck::Changed)) {
            self.unlock();
        }
    }

    /// Returns the file for sending, if it is locked and unchanged. One system call, in the first request for it in a turn.
    pub(super) fn sending(&self, disk: &Disk) -> Option<Sending<'_>> {
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
            match disk.check_now(&self.file) {
                Now::Ready(Ok(FileCheck::Same)) => self.looked.set(Some(now)),
                Now::Ready(Ok(FileCheck::Changed)) => {
                    locked.give_up();
                    *lock = Lock::Changed;
                    return None;
                }
                Now::Ready(Ok(FileCheck::Due) | Err(_)) | Now::Cold => return None,
            }
        }
        disk.sending(&self.file, locked)
    }
}
