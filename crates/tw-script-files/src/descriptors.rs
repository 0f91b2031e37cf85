//! Files that a script keeps open. Dropping them may wait.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use tw_base::FatalMutex;

tw_base::limits! {
    /// Limits of this file.
    pub(crate) const LIMITS;

    /// Files that one call of a script keeps open by `fs.openSync()` and `fs.promises.open()`.
    const DESCRIPTORS_MAX: usize = 64, count, "the function fails with EMFILE";
}

/// First number, so that no script takes one for standard output.
const FIRST: u32 = 3;

/// Open files of one call, by numbers of their own.
#[derive(Debug, Default)]
pub struct Descriptors(FatalMutex<BTreeMap<u32, Arc<OwnedFd>>>);

impl Descriptors {
    /// True if no file is open.
    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// True if one more file may be opened.
    pub(crate) fn has_room(&self) -> bool {
        self.0.lock().len() < DESCRIPTORS_MAX
    }

    /// Keeps a file under the lowest number that is free.
    pub(crate) fn keep(&self, file: OwnedFd) -> Result<u32, Errno> {
        let mut files = self.0.lock();
        if files.len() >= DESCRIPTORS_MAX {
            return Err(Errno::MFILE);
        }
        let number = (FIRST..).find(|number| !files.contains_key(number)).ok_or(Errno::MFILE)?;
        files.insert(number, Arc::new(file));
        Ok(number)
    }

    /// The file with a number.
    pub(crate) fn get(&self, number: u32) -> Result<Arc<OwnedFd>, Errno> {
        self.0.lock().get(&number).cloned().ok_or(Errno::BADF)
    }

    /// Closes a file.
    pub(crate) fn close(&self, number: u32) -> Result<(), Errno> {
        // The lock is given back first: closing may wait.
        let file = self.0.lock().remove(&number);
        file.map(drop).ok_or(Errno::BADF)
    }
}
