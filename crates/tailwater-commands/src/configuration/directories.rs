//! Directories of caches: each belongs to one cache of a configuration, and to one process.
//!
//! A cache takes every file with the name of an entry for its own, so two caches in one directory would serve each
//! other's responses. Within a configuration that is a mistake; between processes it is prevented by an advisory lock
//! (`flock`) on the directory itself, which the master holds as long as it serves and hands on to a new binary.

use std::fs::{File, metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{FlockOperation, OFlags, flock, fstat};
use tw_app::Config;
use tw_app::{Directory, DirectoryPurpose};
use tw_base::Errno;
use tw_conf::{ConfError, Sources};
use tw_log::Level;

use crate::configuration::bytes_path::path;
use crate::configuration::member_directories;
use crate::output::console::{Console, Fault};

/// Device and inode of a directory.
type Identity = (u64, u64);

/// Looks for a directory of a cache that something else uses, too. Asks the file system, so that links and other spellings do
/// not hide it.
// DIFF(nginx): nginx refuses only two uses of one path as it is written.
pub fn check(directories: &[Directory], sources: &Sources) -> Result<(), ConfError> {
    let known_values: Vec<_> =
        directories.iter().map(|directory| (directory, Location::of(directory))).collect();
    for (at, (cache, place)) in known_values.iter().enumerate() {
        if !cache.purpose.is_cache() {
            continue;
        }
        // Every pair once; of two caches the one that is written later is wrong.
        for (nth, (other, other_place)) in known_values.iter().enumerate() {
            let is_seen = other.purpose.is_cache() && nth <= at;
            if !is_seen && place.meets(other_place) {
                return Err(conflict(cache, other, sources));
            }
        }
    }
    Ok(())
}

fn conflict(cache: &Directory, other: &Directory, sources: &Sources) -> ConfError {
    let name = |directory: &Directory| path(directory.path.to_bytes()).display().to_string();
    let place = |directory: &Directory| directory.span.map(|span| sources.tail(span)).unwrap_or_default();
    let uses = match other.purpose {
        DirectoryPurpose::Cache | DirectoryPurpose::Member => "cache",
        DirectoryPurpose::Device | DirectoryPurpose::MemberDevice => "device of a cache",
        DirectoryPurpose::Temporary => "directory of temporary files",
    };
    let cache_name = name(cache);
    let other_name = name(other);
    let error = match other.span {
        Some(span) => ConfError::new(format!(
            "{uses} \"{other_name}\" shares files with the cache in \"{cache_name}\"{}",
            place(cache)
        ))
        .at(span),
        None => {
            let error = ConfError::new(format!(
                "cache in \"{cache_name}\" shares files with the {uses} \"{other_name}\""
            ));
            cache.span.into_iter().fold(error, ConfError::at)
        }
    };
    error.hint("a cache needs a directory that nothing else uses, neither itself nor one above or below it")
}

/// Location of a directory in the file system, whether it is there or not.
struct Location {
    /// Without links, `.` and `..`.
    path: PathBuf,
    /// `None` if it is not there.
    identity: Option<Identity>,
}

impl Location {
    fn of(directory: &Directory) -> Self {
        let written_path = path(directory.path.to_bytes());
        if directory.purpose.is_member() && !member_directories::answers_in_time(written_path) {
            return Self { path: written_path.to_owned(), identity: None };
        }
        Self::of_path(written_path)
    }

    fn of_path(path: &Path) -> Self {
        let identity = metadata(path).ok().map(|found_metadata| (found_metadata.dev(), found_metadata.ino()));
        Self { path: resolve(path), identity }
    }

    /// Returns true if one is the other, or below it.
    fn meets(&self, other: &Self) -> bool {
        self.path.starts_with(&other.path)
            || other.path.starts_with(&self.path)
            || self.identity.is_some() && self.identity == other.identity
    }
}

/// The path without links, as far as it exists, and without `.` and `..` behind that.
fn resolve(path: &Path) -> PathBuf {
    let mut missing = Vec::new();
    let mut existing = path;
    let mut resolved = loop {
        if let Ok(resolved) = existing.canonicalize() {
            break resolved;
        }
        missing.extend(existing.components().next_back());
        match existing.parent() {
            Some(parent) => existing = parent,
            None => break PathBuf::from("/"),
        }
    };
    for component in missing.into_iter().rev() {
        match component {
            Component::Normal(name) => resolved.push(name),
            Component::ParentDir => _ = resolved.pop(),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    resolved
}

/// Locked directories of the caches of one configuration. Dropping them lets other processes have those that no later
/// configuration took over.
#[derive(Debug, Default, Clone)]
pub struct DirectoryLocks(Vec<Rc<DirectoryLock>>);

#[derive(Debug)]
struct DirectoryLock {
    directory: OwnedFd,
    identity: Identity,
}

impl DirectoryLocks {
    /// Locks that the old binary has handed over. They hold as long as one of the two processes has them.
    pub fn inherited(descriptors: impl IntoIterator<Item = OwnedFd>) -> Self {
        let lock = |directory: OwnedFd| {
            let identity = identity_of(directory.as_fd()).ok()?;
            Some(Rc::new(DirectoryLock { directory, identity }))
        };
        Self(descriptors.into_iter().filter_map(lock).collect())
    }

    /// Locks the directories of the caches of `config`, those in `directory_locks` without asking again.
    ///
    /// # Errors
    /// Another process has one. A directory that cannot be locked, on a network perhaps, is used without, with a warning.
    pub fn take(config: &Config, directory_locks: &Self, console: &Console) -> Result<Self, Fault> {
        let mut locks = Vec::new();
        for directory in config.directories().iter().filter(|one| one.purpose.is_cache()) {
            let path = path(directory.path.to_bytes());
            let opened = match directory.purpose {
                purpose if purpose.is_member() && !member_directories::answers_in_time(path) => continue,
                DirectoryPurpose::Member => match open(path) {
                    // The cache reports this error.
                    Err(_) => continue,
                    opened => opened,
                },
                DirectoryPurpose::Device => match directory_locks.device(path) {
                    Some(lock) => {
                        locks.push(lock);
                        continue;
                    }
                    None => open_device(path, Access::Write),
                },
                DirectoryPurpose::MemberDevice => match directory_locks.device(path) {
                    Some(lock) => {
                        locks.push(lock);
                        continue;
                    }
                    None => {
                        let opened =
                            open_device(path, Access::Write).or_else(|_| open_device(path, Access::Read));
                        match opened {
                            // Another program uses the device.
                            Err(error)
                                if error.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error()) =>
                            {
                                Err(error)
                            }
                            // The cache reports this error.
                            Err(_) => continue,
                            opened => opened,
                        }
                    }
                },
                _ => open(path),
            };
            match opened.map_err(Refusal::Failed).and_then(|directory| lock(directory, &directory_locks.0)) {
                Ok(lock) => locks.push(lock),
                Err(Refusal::Taken(identity)) => {
                    let owner = owner(identity).map(|pid| format!(" (pid {pid})")).unwrap_or_default();
                    let message = format!("another process{owner} has its cache in \"{}\"", path.display());
                    return Err(Fault::emerg(message).hint("each server needs a cache directory of its own"));
                }
                Err(Refusal::Failed(error)) if directory.purpose.is_device() => {
                    let path = path.display();
                    let errno = Errno::from(&error);
                    let fault = Fault::emerg(format!("open() \"{path}\" failed ({errno})"));
                    return Err(
                        fault.hint("a device of a cache is mounted nowhere, and nothing else uses it")
                    );
                }
                // The directory is created when it is first needed.
                Err(Refusal::Failed(error)) if error.kind() == io::ErrorKind::NotFound => {}
                Err(Refusal::Failed(error)) => {
                    let path = path.display();
                    let errno = Errno::from(&error);
                    console.report(
                        Level::Warn,
                        format_args!(
                            "flock() \"{path}\" failed ({errno}), another process may use the same cache directory"
                        ),
                    );
                }
            }
        }
        Ok(Self(locks))
    }

    /// Lock of a device that is held already: it can be opened exclusively only once.
    fn device(&self, path: &Path) -> Option<Rc<DirectoryLock>> {
        let entry = metadata(path).ok().map(|found_metadata| (found_metadata.dev(), found_metadata.ino()))?;
        self.0.iter().find(|lock| lock.identity == entry).cloned()
    }

    /// The descriptors, for a new binary.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().map(|lock| lock.directory.as_fd())
    }

    /// Their numbers, as a new binary reads them.
    pub fn numbers(&self) -> String {
        self.descriptors().map(|lock| format!("{};", lock.as_raw_fd())).collect()
    }
}

/// Reason that a directory is not locked.
enum Refusal {
    /// Another process has locked it.
    Taken(Identity),
    Failed(io::Error),
}

impl<E: Into<io::Error>> From<E> for Refusal {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

fn open(path: &Path) -> io::Result<OwnedFd> {
    let flags = i32::from_ne_bytes(OFlags::DIRECTORY.bits().to_ne_bytes());
    Ok(File::options().read(true).custom_flags(flags).open(path)?.into())
}

/// Way in which a device is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

/// Opens a device of a cache. A block device is opened exclusively: nobody can mount it as long as it is open.
fn open_device(path: &Path, access: Access) -> io::Result<OwnedFd> {
    let is_block = metadata(path)?.file_type().is_block_device();
    let flags = if is_block { OFlags::EXCL } else { OFlags::empty() };
    let flags = i32::from_ne_bytes(flags.bits().to_ne_bytes());
    let is_writable = access == Access::Write;
    Ok(File::options().read(true).write(is_writable).custom_flags(flags).open(path)?.into())
}

fn lock(directory: OwnedFd, directory_locks: &[Rc<DirectoryLock>]) -> Result<Rc<DirectoryLock>, Refusal> {
    let identity = identity_of(directory.as_fd())?;
    if let Some(lock) = directory_locks.iter().find(|lock| lock.identity == identity) {
        return Ok(lock.clone());
    }
    match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Rc::new(DirectoryLock { directory, identity })),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(Refusal::Taken(identity)),
        Err(error) => Err(error.into()),
    }
}

fn identity_of(directory: BorrowedFd<'_>) -> rustix::io::Result<Identity> {
    fstat(directory).map(|file_stat| (file_stat.st_dev, file_stat.st_ino))
}

/// The process that has locked the directory, as far as the kernel tells: `1: FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF`.
fn owner((_, inode): Identity) -> Option<RawFd> {
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    locks.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let is_flock = words.next() == Some("FLOCK");
        let pid = words.nth(2)?;
        let is_same = words.next()?.rsplit(':').next()?.parse() == Ok(inode);
        pid.parse().ok().filter(|pid| is_flock && is_same && *pid > 0)
    })
}

#[cfg(test)]
mod tests {
    use std::fs::create_dir_all;
    use std::os::unix::fs::symlink;

    use tw_testkit::TempDir;

    use super::*;

    fn directory(path: &Path, purpose: DirectoryPurpose) -> Directory {
        let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
        Directory { path, purpose, span: None }
    }

    #[test]
    fn cache_directory_under_several_names_is_recognized() {
        let dir = TempDir::new("directories").unwrap();
        create_dir_all(dir.join("real/below")).unwrap();
        symlink(dir.join("real"), dir.join("link")).unwrap();
        for (cache, other, expected) in [
            ("real", "real", true),
            ("real", "link", true),
            ("link", "real/below", true),
            ("real/below", "link/../real", true),
            ("missing", "missing/below", true),
            ("link/missing/deep", "real/./missing", true),
            ("real/a", "real/b", false),
            ("real/a", "real/ab", false),
            ("missing", "real", false),
        ] {
            for purpose in [DirectoryPurpose::Cache, DirectoryPurpose::Temporary] {
                let directories = [
                    directory(&dir.join(cache), DirectoryPurpose::Cache),
                    directory(&dir.join(other), purpose),
                ];
                let is_found = check(&directories, &Sources::default()).is_err();
                assert_eq!(is_found, expected, "{cache} {other} {purpose:?}");
            }
        }
        let temporary = ["real", "link"].map(|name| directory(&dir.join(name), DirectoryPurpose::Temporary));
        assert!(check(&temporary, &Sources::default()).is_ok());
    }

    #[test]
    fn directory_is_locked_once_and_freed_with_its_last_lock() {
        let dir = TempDir::new("locks").unwrap();
        let take = |directory_locks: &[Rc<DirectoryLock>]| lock(open(dir.path()).unwrap(), directory_locks);
        let first = take(&[]).ok().unwrap();
        assert!(matches!(take(&[]), Err(Refusal::Taken(identity)) if identity == first.identity));
        assert_eq!(owner(first.identity), Some(rustix::process::getpid().as_raw_pid()));
        let again = take(std::slice::from_ref(&first)).ok().unwrap();
        drop(first);
        assert!(matches!(take(&[]), Err(Refusal::Taken(_))));
        drop(again);
        assert!(take(&[]).is_ok());
    }
}
