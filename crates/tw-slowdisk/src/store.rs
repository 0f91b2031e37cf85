//! Content of a disk, as its FUSE interface asks for it.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::time::SystemTime;

use fuser::{FileAttr, FileType};
use rustix::io::Errno;

/// Inode number of the top directory, by the FUSE protocol.
pub(crate) const ROOT: u64 = 1;

/// User and group of a process that creates something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// Changes of the attributes of a file.
#[derive(Debug, Clone, Default)]
pub struct Change {
    pub(crate) mode: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) size: Option<u64>,
    /// `Some(None)` is the present.
    pub(crate) accessed: Option<Option<SystemTime>>,
    pub(crate) modified: Option<Option<SystemTime>>,
    /// Open file by which it is changed, if any.
    pub(crate) handle: Option<u64>,
}

/// Place of a name that is there or is to be there: its directory, and the name in it.
#[derive(Debug, Clone, Copy)]
pub struct EntryName<'a> {
    pub(crate) parent: u64,
    pub(crate) name: &'a OsStr,
}

/// Name in a directory.
#[derive(Debug, Clone)]
pub struct DirEntry {
    pub(crate) ino: u64,
    pub(crate) kind: FileType,
    pub(crate) name: OsString,
}

/// Room on the disk.
#[derive(Debug, Clone, Copy)]
pub struct FreeSpace {
    pub(crate) block_size: u32,
    /// Blocks in all, free, and free for users who are not root.
    pub(crate) blocks: [u64; 3],
    pub(crate) files: u64,
    pub(crate) free_files: u64,
}

/// Files and directories by inode number. An operation may wait; others go on meanwhile.
///
/// Each reply with attributes of a name that is looked up or made counts as one use of the inode, until
/// [`forget`](Store::forget).
pub trait Store: Send + Sync + 'static {
    /// Last known name of an inode, which faults are matched with; empty for one that is unknown.
    fn name(&self, ino: u64) -> OsString;
    /// Looks a name up.
    fn lookup(&self, parent: u64, name: &OsStr) -> Result<FileAttr, Errno>;
    /// Ends so many uses of an inode.
    fn forget(&self, ino: u64, uses: u64);
    /// Attributes.
    fn attr(&self, ino: u64) -> Result<FileAttr, Errno>;
    /// Changes attributes.
    fn change(&self, ino: u64, change: &Change) -> Result<FileAttr, Errno>;
    /// Target of a symbolic link.
    fn link_target(&self, ino: u64) -> Result<OsString, Errno>;
    /// Opens a file with these flags of `open(2)`; returns a handle.
    fn open(&self, ino: u64, flags: i32) -> Result<u64, Errno>;
    /// Closes a handle.
    fn close(&self, ino: u64, handle: u64);
    /// Reads up to `size` bytes; fewer at the end of the file.
    fn read(&self, ino: u64, handle: u64, offset: u64, size: usize) -> Result<Vec<u8>, Errno>;
    /// Writes all of `data`.
    fn write(&self, ino: u64, handle: u64, offset: u64, data: &[u8]) -> Result<(), Errno>;
    /// Makes what was written durable.
    fn sync(&self, ino: u64, handle: u64, data_only: bool) -> Result<(), Errno>;
    /// Makes the names in a directory durable.
    fn sync_dir(&self, ino: u64) -> Result<(), Errno>;
    /// Creates and opens a file.
    fn create(
        &self,
        at: EntryName<'_>,
        mode: u32,
        flags: i32,
        owner: Owner,
    ) -> Result<(FileAttr, u64), Errno>;
    /// Creates a directory.
    fn make_dir(&self, at: EntryName<'_>, mode: u32, owner: Owner) -> Result<FileAttr, Errno>;
    /// Creates a symbolic link.
    fn make_link(&self, at: EntryName<'_>, target: &Path, owner: Owner) -> Result<FileAttr, Errno>;
    /// Gives a file a second name.
    fn link(&self, ino: u64, at: EntryName<'_>) -> Result<FileAttr, Errno>;
    /// Removes a file.
    fn unlink(&self, at: EntryName<'_>) -> Result<(), Errno>;
    /// Removes an empty directory.
    fn remove_dir(&self, at: EntryName<'_>) -> Result<(), Errno>;
    /// Renames; fails if `replace` is false and the new name exists.
    fn rename(&self, from: EntryName<'_>, to: EntryName<'_>, replace: bool) -> Result<(), Errno>;
    /// Names in a directory, with `.` and `..`.
    fn list(&self, ino: u64) -> Result<Vec<DirEntry>, Errno>;
    /// Room on the disk.
    fn room(&self) -> Result<FreeSpace, Errno>;
    /// Bytes in all files.
    fn used(&self) -> u64;
}
