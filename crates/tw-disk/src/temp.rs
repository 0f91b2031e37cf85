//! Temporary file, which is removed when it is dropped, for whatever reason.
//!
//! The name is removed by a job that no limit of a queue refuses, or at once where waiting is allowed. So a request that is
//! dropped, a loop that leaves and a queue that is full leave nothing behind.

use std::cell::Cell;
use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rustix::io::Errno;

use crate::account::{Account, JobClass, JobSource};
use crate::driver::Driver;
use crate::error::DiskError;
use crate::file::File;
use crate::op::Op;
use crate::open_options::{CreateOptions, TempOptions};
use crate::ops::slices;
use crate::pool::is_pool_thread;

/// Names tried for one temporary file before giving up.
const TEMP_TRIES: u32 = 64;

/// The next number of a temporary file, as nginx numbers them.
static NEXT_TEMP: AtomicU32 = AtomicU32::new(0);

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
    fate: Cell<NameState>,
}

/// Fate of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NameState {
    Removed,
    Kept,
}

impl Driver {
    /// A new temporary file in `dir`. May wait.
    pub(crate) fn create_temp(&self, dir: &CStr, options: &TempOptions) -> Result<TempFile, DiskError> {
        if !options.is_named {
            match self.create_nameless(dir, options.mode) {
                // Some file systems have no files without a name (`O_TMPFILE`), so one is created under a name.
                Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {}
                other => return other.map(TempFile::nameless).map_err(|errno| Op::Create.failed(errno)),
            }
        }
        let below = u32::try_from(dir.to_bytes().len()).unwrap_or(u32::MAX);
        let create = CreateOptions { mode: options.mode, parents_below: Some(below), ..CreateOptions::NEW };
        let mut tries = 0;
        loop {
            let path = temp_path(dir, options.levels, NEXT_TEMP.fetch_add(1, Relaxed));
            match self.create(&path, &create) {
                Err(error) if error.errno() == Some(Errno::EXIST) && tries < TEMP_TRIES => {
                    // Another process creates files in this directory, or did before us: continue at a random number.
                    tries += 1;
                    NEXT_TEMP.fetch_add(scatter(), Relaxed);
                }
                Err(error) => return Err(error),
                Ok(file) if options.is_named => return Ok(TempFile::named(file, path, self.clone())),
                Ok(file) => {
                    self.unlink(&path)?;
                    return Ok(TempFile::nameless(file));
                }
            }
        }
    }
}

impl Driver {
    /// A new file beside `path`, whose name it takes when it is renamed. Directories of `path` behind its first `below` bytes are
    /// made where they are missing. May wait.
    pub(crate) fn create_beside(&self, path: &CStr, below: u32) -> Result<TempFile, DiskError> {
        self.create_named_beside(path, &CreateOptions { parents_below: Some(below), ..CreateOptions::NEW })
    }

    fn create_named_beside(&self, path: &CStr, create: &CreateOptions) -> Result<TempFile, DiskError> {
        let mut tries = 0;
        loop {
            let number = NEXT_TEMP.fetch_add(1, Relaxed);
            let temp_path = [path.to_bytes(), format!(".{number:010}").as_bytes()].concat();
            let temp_path = CString::new(temp_path).unwrap_or_default();
            match self.create(&temp_path, create) {
                Err(error) if error.errno() == Some(Errno::EXIST) && tries < TEMP_TRIES => {
                    tries += 1;
                    NEXT_TEMP.fetch_add(scatter(), Relaxed);
                }
                other => return other.map(|file| TempFile::named(file, temp_path, self.clone())),
            }
        }
    }

    /// Makes `parts`, one behind the other, the file `path`: all of it, or nothing. Does not wait until the disk has it.
    pub(crate) fn put<B: AsRef<[u8]>>(&self, path: &CStr, below: u32, parts: &[B]) -> Result<(), DiskError> {
        let create =
            CreateOptions { parents_below: Some(below), is_only_written: true, ..CreateOptions::NEW };
        let temp = self.create_named_beside(path, &create)?;
        self.write_parts(temp.file().inner(), 0, &mut slices(parts))?;
        self.name(temp, path)
    }

    /// Gives a temporary file its name, in the place of what has it.
    pub(crate) fn name(&self, temp: TempFile, path: &CStr) -> Result<(), DiskError> {
        if let Some(name) = temp.path() {
            self.rename(name, path)?;
        }
        temp.keep();
        Ok(())
    }
}

impl TempFile {
    fn nameless(file: File) -> Self {
        Self { file, name: None }
    }

    fn named(file: File, path: CString, driver: Driver) -> Self {
        Self { file, name: Some(Name { path, driver, fate: Cell::new(NameState::Removed) }) }
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Path of the file; `None` if it has no name.
    pub fn path(&self) -> Option<&CStr> {
        self.name.as_ref().map(|name| name.path.as_c_str())
    }

    /// Leaves the name where it is: the file has another owner now, or was renamed.
    pub fn keep(&self) {
        self.decide(NameState::Kept);
    }

    /// Removes the name in the end, whatever was said before.
    pub fn claim(&self) {
        self.decide(NameState::Removed);
    }

    fn decide(&self, fate: NameState) {
        if let Some(name) = &self.name {
            name.fate.set(fate);
        }
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        if self.fate.get() == NameState::Kept {
            return;
        }
        let path = std::mem::take(&mut self.path);
        let driver = self.driver.clone();
        let device = driver.device_at(&path);
        let remove = move || match driver.unlink(&path) {
            // `ENOENT`: the name is gone already, which is what was wanted.
            Err(error) if error.errno() == Some(Errno::NOENT) => Ok(()),
            other => other,
        };
        let Some(pool) = self.driver.closer.as_ref().filter(|_| !is_pool_thread()) else {
            // The failure cannot be reported any more; the file stays in a directory for temporary files.
            let _ = remove();
            return;
        };
        let account = Account::new(JobClass::Evict, JobSource::NONE);
        if let Some(task) = pool.detach_or_leave(&account, Op::Unlink, device, remove) {
            // All pools have ended, and so has the service: waiting here delays nothing.
            task.run(&|| ());
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

/// `DIR/LEVEL/…/NUMBER`, the levels taken from the end of the number, as nginx names temporary files.
fn temp_path(dir: &CStr, levels: [u8; 3], number: u32) -> CString {
    let name = format!("{number:010}");
    let mut path = dir.to_bytes().to_vec();
    let mut end = name.len();
    for digits in levels.into_iter().map(usize::from).take_while(|&digits| digits > 0) {
        let start = end.saturating_sub(digits);
        path.push(b'/');
        path.extend_from_slice(&name.as_bytes()[start..end]);
        end = start;
    }
    path.push(b'/');
    path.extend_from_slice(name.as_bytes());
    path.retain(|&byte| byte != 0);
    CString::new(path).unwrap_or_default()
}

/// A jump no other process is likely to make.
fn scatter() -> u32 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id()) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temp_paths() {
        let cases: [(&CStr, [u8; 3], u32, &CStr); 3] = [
            (c"/t", [0, 0, 0], 7, c"/t/0000000007"),
            (c"/t", [1, 2, 0], 1_234_567, c"/t/7/56/0001234567"),
            (c"/t", [2, 2, 2], 1_234_567_890, c"/t/90/78/56/1234567890"),
        ];
        for (dir, levels, number, expected) in cases {
            assert_eq!(temp_path(dir, levels, number).as_c_str(), expected);
        }
    }
}
