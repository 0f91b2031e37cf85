//! Temporary directory for one test, removed at the end.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// A fresh directory under the system's directory for temporary files, removed with its content on drop.
///
/// The name holds the process id and a counter, so tests that run at the same time never meet. Readable and
/// searchable by everyone: a worker that gave up its privileges must reach the files in it.
#[derive(Debug)]
pub struct TempDir {
    path: PathBuf,
}

static NEXT: AtomicU32 = AtomicU32::new(0);

impl TempDir {
    /// Creates the directory; `label` becomes part of its name, for the reader of a listing.
    ///
    /// # Errors
    /// The error of `mkdir`; a left-over of an earlier process with the same id is skipped.
    pub fn new(label: &str) -> io::Result<Self> {
        let base = std::env::temp_dir();
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = base.join(format!("tailwater-{label}-{}-{number}", std::process::id()));
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Self { path }),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Absolute path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Path inside the directory; creates nothing.
    #[must_use]
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    /// Writes a file inside, with the directories above it.
    ///
    /// # Errors
    /// The error of creating the directories or writing the file.
    pub fn write(&self, name: impl AsRef<Path>, content: impl AsRef<[u8]>) -> io::Result<PathBuf> {
        let path = self.join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&path, content)?;
        Ok(path)
    }

    /// Writes a script for `/bin/sh`, with these permissions. Another process does: a program that is open for
    /// writing cannot be started (`ETXTBSY`), and what one thread has open, a child that another one starts has open
    /// for a moment, too.
    ///
    /// # Errors
    /// The error of starting and asking that process.
    pub fn write_program(&self, name: impl AsRef<Path>, script: &str, mode: u32) -> io::Result<PathBuf> {
        let path = self.join(name);
        let made = Command::new("/bin/sh")
            .args(["-c", "printf '#!/bin/sh\\n%s\\n' \"$1\" > \"$0\" && chmod \"$2\" \"$0\""])
            .args([path.as_os_str(), OsStr::new(script), OsStr::new(&format!("{mode:o}"))])
            .status()?;
        if made.success() {
            Ok(path)
        } else {
            Err(io::Error::other(format!("{} cannot be written: {made}", path.display())))
        }
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // A left-over directory is a nuisance, a panic here would hide why the test failed.
        let _ = fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_distinct_and_removed() {
        let a = TempDir::new("temp").unwrap();
        let b = TempDir::new("temp").unwrap();
        assert_ne!(a.path(), b.path());

        let file = a.write("html/deep/index.html", "hello").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"hello");
        assert!(file.starts_with(a.path()));

        let path = a.path().to_owned();
        drop(a);
        assert!(!path.exists());
        assert!(b.path().is_dir());
    }
}
