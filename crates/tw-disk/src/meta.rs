//! Metadata of files, directories and the file system itself.

use rustix::io::Errno;
use std::ffi::CString;

/// Type of a directory entry's target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link itself (only where links are not followed, or lead nowhere).
    Symlink,
    /// A device, pipe or socket.
    Other,
}

/// Metadata of a file at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileMeta {
    /// Device number.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
    /// Length in bytes.
    pub size: u64,
    /// Modification time: seconds since 1970.
    pub mtime_sec: i64,
    /// Modification time: nanoseconds within the second.
    pub mtime_nsec: u32,
    /// Change time: seconds since 1970.
    pub ctime_sec: i64,
    /// Change time: nanoseconds within the second.
    pub ctime_nsec: u32,
    /// Permission bits (12 bits).
    pub mode: u32,
    /// Type of the file.
    pub kind: FileKind,
    /// Names it has; 0 after it was unlinked.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Space it takes, in units of 512 bytes.
    pub blocks: u64,
}

impl FileMeta {
    /// Returns true if `other` is the same file with the same content, as far as metadata can tell.
    pub fn is_same_version(&self, other: &FileMeta) -> bool {
        self.ino == other.ino
            && self.dev == other.dev
            && self.size == other.size
            && self.mtime_sec == other.mtime_sec
            && self.mtime_nsec == other.mtime_nsec
            && self.ctime_sec == other.ctime_sec
            && self.ctime_nsec == other.ctime_nsec
    }
}

/// One name of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name, without a path.
    pub name: CString,
    /// Metadata of what it leads to; of the link itself when the link leads nowhere.
    pub meta: FileMeta,
}

/// A directory as read by one job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Entries in the file system's order, without `.` and `..`.
    pub entries: Vec<Entry>,
    /// True if the directory has more entries than the limit allowed.
    pub truncated: bool,
    /// Why some entries are not listed: nothing about what they lead to may be known.
    pub hidden_by: Option<Errno>,
}

/// A part of a directory as read by one job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListingPart {
    /// Entries in the file system's order, without `.` and `..`, with the metadata of links themselves.
    pub entries: Vec<Entry>,
    /// Place of the next part; `None` if there was nothing more.
    pub next: Option<u64>,
    /// Why some entries are not listed.
    pub hidden_by: Option<Errno>,
}

/// Room on a file system, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// All of it.
    pub total: u64,
    /// Free, including what is reserved for the superuser.
    pub free: u64,
    /// Free for this process.
    pub available: u64,
    /// Allocation unit.
    pub block_size: u64,
}
