//! Locks of paths, by which a job looks at a file and changes it without another change in between.
//!
//! Only jobs of a pool take them, for the few system calls of one change, and each takes all of its paths at once, so no two wait
//! for each other. A job waits for one that changes the very same path only: a file on a disk that hangs holds up no other.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::sync::Condvar;

use tw_base::{FatalMutex, FatalMutexGuard};

/// Paths that are being changed, each by one job.
static CHANGING: FatalMutex<BTreeSet<CString>> = FatalMutex::new(BTreeSet::new());
/// Notified when a path is changed no more.
static CHANGED: Condvar = Condvar::new();

/// Lock of some paths.
pub(super) struct PathLock(Vec<CString>);

/// Locks these paths. Waits for other changes of them.
pub(super) fn lock(paths: &[&CStr]) -> PathLock {
    let mut changing = CHANGING.lock();
    while paths.iter().any(|path| changing.contains(*path)) {
        changing = FatalMutexGuard::wait(changing, &CHANGED);
    }
    let paths: Vec<CString> = paths.iter().map(|&path| path.to_owned()).collect();
    changing.extend(paths.iter().cloned());
    PathLock(paths)
}

impl Drop for PathLock {
    fn drop(&mut self) {
        let mut changing = CHANGING.lock();
        for path in &self.0 {
            changing.remove(path);
        }
        drop(changing);
        CHANGED.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
    use std::thread;

    use super::*;

    #[test]
    fn path_is_changed_by_one_at_a_time() {
        let inside = AtomicU32::new(0);
        let changes = AtomicU32::new(0);
        let change = |paths: [&CStr; 2]| {
            for _ in 0..500 {
                let _lock = lock(&paths);
                assert_eq!(inside.fetch_add(1, SeqCst), 0);
                changes.fetch_add(1, SeqCst);
                inside.fetch_sub(1, SeqCst);
            }
        };
        thread::scope(|scope| {
            // The paths are locked in both orders, and one path twice.
            for paths in [[c"/lock/a", c"/lock/b"], [c"/lock/b", c"/lock/a"], [c"/lock/a", c"/lock/a"]] {
                let change = &change;
                scope.spawn(move || change(paths));
            }
        });
        assert_eq!(changes.into_inner(), 1500);
        drop(lock(&[c"/lock/b"]));
    }
}
