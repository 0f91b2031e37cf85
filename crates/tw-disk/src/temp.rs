//! A temporary file: whoever drops it removes it, however that comes about.
//!
//! The name is removed by a job that no limit of a queue refuses, or at once where waiting is allowed. So a request that is
//! dropped, a loop that leaves and a queue that is full leave nothing behind.

use std::cell::Cell;
use std::ffi::{CStr, CString};

use crate::account::{Account, Class, Source};
use crate::driver::Driver;
use crate::file::File;
use crate::op::Op;
use crate::pool::is_pool_thread;

/// A temporary file, which ends with its owner.
#[derive(Debug)]
pub struct TempFile {
    file: File,
    name: Option<Name>,
}

/// The name of a file, removed when this is dropped.
struct Name {
    path: CString,
    driver: Driver,
    fate: Cell<Fate>,
}

/// What becomes of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Removed,
    Kept,
}

impl TempFile {
    pub(crate) fn nameless(file: File) -> Self {
        Self { file, name: None }
    }

    pub(crate) fn named(file: File, path: CString, driver: Driver) -> Self {
        Self { file, name: Some(Name { path, driver, fate: Cell::new(Fate::Removed) }) }
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Its name, if it has one.
    pub fn path(&self) -> Option<&CStr> {
        self.name.as_ref().map(|name| name.path.as_c_str())
    }

    /// Leaves the name where it is: the file is somebody else's now, or was renamed.
    pub fn keep(&self) {
        self.decide(Fate::Kept);
    }

    /// Removes the name in the end, whatever was said before.
    pub fn claim(&self) {
        self.decide(Fate::Removed);
    }

    fn decide(&self, fate: Fate) {
        if let Some(name) = &self.name {
            name.fate.set(fate);
        }
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        if self.fate.get() == Fate::Kept {
            return;
        }
        let (path, driver) = (std::mem::take(&mut self.path), self.driver.clone());
        let remove = move || match driver.unlink(&path) {
            // One that is gone already is what is wanted.
            Err(error) if error.errno() == Some(rustix::io::Errno::NOENT) => Ok(()),
            other => other,
        };
        let Some(pool) = self.driver.closer.as_ref().filter(|_| !is_pool_thread()) else {
            // Nobody is left to be told of a failure; what stays is a file in a directory for such files.
            let _ = remove();
            return;
        };
        let by = Account::new(Class::Evict, Source::NONE);
        if let Some(left) = pool.detach_or_leave(&by, Op::Unlink, remove) {
            // All pools have ended: so has the service, and waiting here stops nobody.
            left.run(&|| ());
        }
    }
}

impl std::fmt::Debug for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Name")
            .field("path", &self.path)
            .field("fate", &self.fate.get())
            .finish_non_exhaustive()
    }
}
