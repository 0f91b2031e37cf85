//! A path below a directory: every system call on it begins at the descriptor of that directory.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;

use crate::error::Failure;

/// Flags of every open: no descriptor survives `exec`, no pipe makes the job wait, no terminal becomes that of the server.
const BASE: OFlags = OFlags::CLOEXEC.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);
/// Reason of a path that leads out of its directory.
const ESCAPES: &str = "it leads out of the directory of \"js_fs_path\"";

/// Start of a path.
#[derive(Debug)]
enum Root {
    /// The current directory; nothing is confined.
    Current,
    /// A directory that the path does not leave.
    Directory(OwnedFd),
}

/// A path and its start.
#[derive(Debug)]
pub(crate) struct Place {
    root: Root,
    path: CString,
}

/// Parent of a place, and the name in it.
pub(crate) struct NameInDirectory {
    pub(crate) directory: OwnedFd,
    pub(crate) name: CString,
}

impl Place {
    /// A path that nothing confines.
    pub(crate) fn anywhere(path: &[u8]) -> Result<Self, Failure> {
        if path.is_empty() {
            return Err(Errno::NOENT.into());
        }
        let path = CString::new(path).map_err(|_| Errno::INVAL)?;
        Ok(Self { root: Root::Current, path })
    }

    /// The names `rest` below the directory `root`.
    pub(crate) fn beneath(root: &CStr, rest: &[&[u8]]) -> Result<Self, Failure> {
        let directory = openat(CWD, root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let path = if rest.is_empty() { b".".to_vec() } else { rest.join(&b'/') };
        let path = CString::new(path).map_err(|_| Errno::INVAL)?;
        Ok(Self { root: Root::Directory(directory), path })
    }

    fn start(&self) -> (BorrowedFd<'_>, ResolveFlags) {
        match &self.root {
            Root::Current => (CWD, ResolveFlags::empty()),
            Root::Directory(directory) => {
                (directory.as_fd(), ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS)
            }
        }
    }

    fn open_path(&self, path: &CStr, flags: OFlags, mode: Mode) -> Result<OwnedFd, Failure> {
        let (start, resolve) = self.start();
        // The kernel asks for another try if a directory was renamed while `..` was resolved.
        let opened = loop {
            match openat2(start, path, flags, mode, resolve) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                opened => break opened,
            }
        };
        opened.map_err(|errno| match (errno, &self.root) {
            (Errno::XDEV, Root::Directory(_)) => Failure::denied(ESCAPES),
            (errno, _) => errno.into(),
        })
    }

    /// Opens the file.
    pub(crate) fn open(&self, flags: OFlags, mode: u32) -> Result<OwnedFd, Failure> {
        // The kernel refuses rights where no file is made.
        let mode =
            if flags.contains(OFlags::CREATE) { Mode::from_raw_mode(mode & 0o7777) } else { Mode::empty() };
        self.open_path(&self.path, flags | BASE, mode)
    }

    /// A descriptor that only stands for the file, or for a symbolic link itself.
    pub(crate) fn point_at(&self, follows_links: bool) -> Result<OwnedFd, Failure> {
        let last = if follows_links { OFlags::empty() } else { OFlags::NOFOLLOW };
        self.open_path(&self.path, OFlags::PATH | OFlags::CLOEXEC | last, Mode::empty())
    }

    /// Parent and name of a file that is made, renamed or removed. The parent cannot be exchanged afterwards.
    pub(crate) fn parent(&self) -> Result<NameInDirectory, Failure> {
        let bytes = self.path.to_bytes();
        let end = bytes.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        let bytes = bytes.get(..end).unwrap_or_default();
        let (directory, name) = match bytes.iter().rposition(|byte| *byte == b'/') {
            Some(0) => (&b"/"[..], bytes.get(1..).unwrap_or_default()),
            Some(slash) => bytes.split_at(slash),
            None => (&b"."[..], bytes),
        };
        let name = name.strip_prefix(b"/").unwrap_or(name);
        if matches!(name, b"" | b"." | b"..") {
            return Err(Errno::BUSY.into());
        }
        let to_c = |bytes: &[u8]| CString::new(bytes).map_err(|_| Errno::INVAL);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(NameInDirectory {
            directory: self.open_path(&to_c(directory)?, flags, Mode::empty())?,
            name: to_c(name)?,
        })
    }

    /// Place of the first `count` names of the path.
    pub(crate) fn first_names(&self, count: usize) -> Result<Self, Failure> {
        let bytes = self.path.to_bytes();
        let mut names = 0;
        let end = (0..=bytes.len()).find(|at| {
            let ends = bytes.get(*at).is_none_or(|byte| *byte == b'/')
                && at.checked_sub(1).and_then(|before| bytes.get(before)).is_some_and(|byte| *byte != b'/');
            names += usize::from(ends);
            names == count && ends
        });
        let path = bytes.get(..end.unwrap_or(bytes.len())).unwrap_or_default();
        let root = match &self.root {
            Root::Current => Root::Current,
            Root::Directory(directory) => Root::Directory(directory.try_clone().map_err(|_| Errno::MFILE)?),
        };
        Ok(Self { root, path: CString::new(path).map_err(|_| Errno::INVAL)? })
    }

    /// Number of names in the path.
    pub(crate) fn name_count(&self) -> usize {
        self.path.to_bytes().split(|byte| *byte == b'/').filter(|name| !name.is_empty()).count()
    }

    /// True if the place is confined to a directory.
    pub(crate) fn is_confined(&self) -> bool {
        matches!(self.root, Root::Directory(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_paths() {
        for (path, count, first, second) in
            [("a/b/c", 3, "a", "a/b"), ("/a//b", 2, "/a", "/a//b"), ("a", 1, "a", "a"), ("a/", 1, "a", "a/")]
        {
            let place = Place::anywhere(path.as_bytes()).unwrap();
            assert_eq!(place.name_count(), count, "{path}");
            let names = |count| place.first_names(count).unwrap().path.into_string().unwrap();
            assert_eq!((&*names(1), &*names(2)), (first, second), "{path}");
        }
    }

    #[test]
    fn parent_of_a_path_has_its_name() {
        for (path, name) in [("/dev/null", "null"), ("/dev/shm//", "shm"), ("/dev", "dev"), ("x", "x")] {
            let parent = Place::anywhere(path.as_bytes()).unwrap().parent().unwrap();
            assert_eq!(parent.name.to_str().unwrap(), name, "{path}");
        }
        for path in ["/", ".", "..", "/dev/.."] {
            assert!(Place::anywhere(path.as_bytes()).unwrap().parent().is_err(), "{path}");
        }
    }
}
