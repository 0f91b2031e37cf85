//! State directory of a node, and the right to write there.
//!
//! ```text
//! position   JSON: the position in the log, and the caches that it is about
//! queue      purges that the engine has not got yet
//! secrets    secrets of all nodes, encrypted as in the store
//! lock       held by the process that writes here
//! ```
//! Two processes may serve at once, during a reload or an upgrade. Both read the log and apply it; the one with the lock writes.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tw_base::Errno;

use crate::position::Position;

/// Largest file of a position: it has the names of all caches.
const POSITION_SIZE_MAX: u64 = 1 << 20;
/// Name of the file with the secrets.
const SECRETS: &str = "secrets";
/// Largest file of secrets.
const SECRETS_SIZE_MAX: u64 = 64 << 10;

/// Content of the position file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedPosition {
    pub(crate) position: Option<Position>,
    /// Caches that have everything up to the position.
    pub(crate) caches: Vec<String>,
    /// Nodes that share each rate, with this one.
    #[serde(default)]
    pub(crate) nodes: BTreeMap<String, u32>,
}

/// State directory.
#[derive(Debug, Clone)]
pub(crate) struct StateDirectory(PathBuf);

/// The right to write in the directory, until it is dropped.
#[derive(Debug)]
pub(crate) struct DirectoryLock(
    #[expect(dead_code, reason = "the lock lasts as long as the file is open")] File,
);

/// Error of a file, in words of the log.
pub(crate) fn failed(call: &str, path: &Path, error: &io::Error) -> String {
    format!("{call} \"{}\" failed ({})", path.display(), Errno::from(error))
}

impl StateDirectory {
    pub(crate) fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// Path of a file in it.
    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Takes the lock; `None` if another process has it.
    pub(crate) fn lock(&self) -> Result<Option<DirectoryLock>, String> {
        // After a start with privileges the directory exists already, and belongs to the user of this process.
        match DirBuilder::new().mode(0o700).create(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(failed("mkdir()", &self.0, &error));
            }
            _ => {}
        }
        let path = self.join("lock");
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = file.map_err(|error| failed("open()", &path, &error))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(DirectoryLock(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(failed("flock()", &path, &error)),
        }
    }

    /// Reads the position; nothing is known if there is no file. A file that cannot be understood is an error.
    pub(crate) fn position(&self) -> Result<SavedPosition, String> {
        let path = self.join("position");
        let mut text = Vec::new();
        let read = File::open(&path).and_then(|file| file.take(POSITION_SIZE_MAX).read_to_end(&mut text));
        match read {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(SavedPosition::default()),
            Err(error) => Err(failed("read()", &path, &error)),
            Ok(_) => serde_json::from_slice(&text)
                .map_err(|_| format!("the position \"{}\" is damaged", path.display())),
        }
    }

    /// Writes the position: the old file or the new one is there after a crash.
    pub(crate) fn save_position(&self, saved: &SavedPosition, lock: &DirectoryLock) -> Result<(), String> {
        self.replace("position", &serde_json::to_vec(saved).unwrap_or_default(), lock)
    }

    /// Reads the sealed secrets; `None` without a file.
    pub(crate) fn secrets(&self) -> Result<Option<Vec<u8>>, String> {
        let path = self.join(SECRETS);
        let mut sealed = Vec::new();
        let read = File::open(&path).and_then(|file| file.take(SECRETS_SIZE_MAX).read_to_end(&mut sealed));
        match read {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("read()", &path, &error)),
            Ok(_) => Ok(Some(sealed)),
        }
    }

    /// Writes the sealed secrets, as the position.
    pub(crate) fn save_secrets(&self, sealed: &[u8], lock: &DirectoryLock) -> Result<(), String> {
        self.replace(SECRETS, sealed, lock)
    }

    /// Replaces a file: the old one or the new one is there after a crash.
    fn replace(&self, name: &str, content: &[u8], _lock: &DirectoryLock) -> Result<(), String> {
        let path = self.join(name);
        let temporary = self.join(&format!("{name}.new"));
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary);
        let mut file = file.map_err(|error| failed("open()", &temporary, &error))?;
        file.write_all(content)
            .and_then(|()| file.sync_all())
            .map_err(|error| failed("write()", &temporary, &error))?;
        fs::rename(&temporary, &path).map_err(|error| failed("rename()", &path, &error))?;
        let directory = File::open(&self.0).and_then(|directory| directory.sync_all());
        directory.map_err(|error| failed("fsync()", &self.0, &error))
    }
}

#[cfg(test)]
mod tests {
    use tw_testkit::TempDir;

    use super::*;

    #[test]
    fn position_is_found_again_and_damage_is_noticed() {
        let dir = TempDir::new("fleet-directory").unwrap();
        let state = StateDirectory::new(&dir.join("fleet"));
        assert_eq!(state.position(), Ok(SavedPosition::default()));
        let lock = state.lock().unwrap().unwrap();
        assert!(state.lock().unwrap().is_none(), "another process writes");
        let position = Position { identity: "x".to_owned(), sequence: 7, time_ns: 8 };
        let saved = SavedPosition {
            position: Some(position),
            caches: vec!["site".to_owned()],
            nodes: [("api".to_owned(), 3)].into(),
        };
        state.save_position(&saved, &lock).unwrap();
        assert_eq!(state.position(), Ok(saved.clone()));
        // A file left behind by a crash is overwritten.
        fs::write(state.join("position.new"), "x".repeat(10_000)).unwrap();
        state.save_position(&saved, &lock).unwrap();
        assert_eq!(state.position(), Ok(saved));
        fs::write(state.join("position"), "{\"position\":").unwrap();
        assert!(state.position().unwrap_err().ends_with("is damaged"));
        assert_eq!(state.secrets(), Ok(None));
        state.save_secrets(b"one", &lock).unwrap();
        state.save_secrets(b"two", &lock).unwrap();
        assert_eq!(state.secrets(), Ok(Some(b"two".to_vec())));
        drop(lock);
        assert!(state.lock().unwrap().is_some());
    }

    #[test]
    fn failures_name_call_and_path() {
        let dir = TempDir::new("fleet-directory").unwrap();
        let error = StateDirectory::new(&dir.join("no/such")).lock().unwrap_err();
        assert!(
            error.starts_with("mkdir() \"") && error.ends_with("failed (2: No such file or directory)"),
            "{error}"
        );
    }
}
