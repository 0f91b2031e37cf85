//! Commands of the module `fs` and their results.

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::bounded;

/// Command of `fs`. Paths are as the script wrote them; descriptors are numbers of the host, valid for one call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileCommand {
    /// `access`.
    Access {
        /// Path.
        path: ByteBuf,
        /// `F_OK`, `R_OK`, `W_OK`, `X_OK`.
        mode: u32,
    },
    /// `readFile`: [`FileValue::Bytes`].
    Read {
        /// Path.
        path: ByteBuf,
        /// Flag of `open`, such as `r`.
        flag: String,
    },
    /// `writeFile` (flag `w`) and `appendFile` (flag `a`).
    Write {
        /// Path.
        path: ByteBuf,
        /// Content.
        data: ByteBuf,
        /// Rights of a new file.
        mode: u32,
        /// Flag of `open`.
        flag: String,
    },
    /// `stat`, `lstat`: [`FileValue::Status`].
    Status {
        /// Path.
        path: ByteBuf,
        /// Set for `stat`.
        follows_links: bool,
    },
    /// `mkdir`.
    CreateDirectory {
        /// Path.
        path: ByteBuf,
        /// Rights.
        mode: u32,
        /// With its parents.
        is_recursive: bool,
    },
    /// `rmdir`.
    RemoveDirectory {
        /// Path.
        path: ByteBuf,
        /// With its content.
        is_recursive: bool,
    },
    /// `readdir`: [`FileValue::Entries`].
    ReadDirectory {
        /// Path.
        path: ByteBuf,
    },
    /// `realpath`: [`FileValue::Bytes`].
    RealPath {
        /// Path.
        path: ByteBuf,
    },
    /// `rename`.
    Rename {
        /// Old path.
        from: ByteBuf,
        /// New path.
        to: ByteBuf,
    },
    /// `symlink`.
    Symlink {
        /// Content of the link.
        target: ByteBuf,
        /// Path of the link.
        path: ByteBuf,
    },
    /// `unlink`.
    Remove {
        /// Path.
        path: ByteBuf,
    },
    /// `open`: [`FileValue::Number`], the descriptor.
    Open {
        /// Path.
        path: ByteBuf,
        /// Flag.
        flag: String,
        /// Rights of a new file.
        mode: u32,
    },
    /// `close`.
    Close {
        /// Descriptor.
        descriptor: u32,
    },
    /// `fstat`: [`FileValue::Status`].
    StatusOf {
        /// Descriptor.
        descriptor: u32,
    },
    /// `read`: [`FileValue::Bytes`].
    ReadAt {
        /// Descriptor.
        descriptor: u32,
        /// Most bytes.
        size: u32,
        /// Offset in the file; the current one if it is absent.
        position: Option<u64>,
    },
    /// `write`: [`FileValue::Number`], bytes that were written.
    WriteAt {
        /// Descriptor.
        descriptor: u32,
        /// Bytes.
        data: ByteBuf,
        /// Offset in the file; the current one if it is absent.
        position: Option<u64>,
    },
    /// `readlink`: [`FileValue::Bytes`].
    ReadLink {
        /// Path.
        path: ByteBuf,
    },
}

impl FileCommand {
    /// True if the command changes files, or opens one for that.
    pub fn is_change(&self) -> bool {
        match self {
            Self::Read { flag, .. } | Self::Open { flag, .. } => flag != "r",
            Self::Write { .. }
            | Self::CreateDirectory { .. }
            | Self::RemoveDirectory { .. }
            | Self::Rename { .. }
            | Self::Symlink { .. }
            | Self::Remove { .. }
            | Self::WriteAt { .. } => true,
            Self::Access { .. }
            | Self::Status { .. }
            | Self::ReadDirectory { .. }
            | Self::RealPath { .. }
            | Self::ReadLink { .. }
            | Self::Close { .. }
            | Self::StatusOf { .. }
            | Self::ReadAt { .. } => false,
        }
    }
}

/// Result of a [`FileCommand`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum FileValue {
    /// Nothing but success.
    None,
    /// Bytes.
    Bytes(ByteBuf),
    /// Number.
    Number(u64),
    /// Status of a file.
    Status(Box<FileStatus>),
    /// Content of a directory.
    Entries(#[serde(deserialize_with = "bounded::list")] Vec<FileEntry>),
}

/// Failed file operation; its fields are those of the exception.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileError {
    /// Number of the system's error (`errno`).
    pub errno: i32,
    /// Name of the error, such as `ENOENT` (`code`).
    pub code: String,
    /// Text of the error, such as `No such file or directory`.
    pub message: String,
    /// System call (`syscall`), such as `open`.
    pub syscall: String,
    /// Path (`path`).
    pub path: ByteBuf,
}

/// Kind of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileKind {
    /// Regular file.
    File,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Block device.
    BlockDevice,
    /// Character device.
    CharacterDevice,
    /// Pipe.
    Fifo,
    /// Socket.
    Socket,
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Name.
    pub name: ByteBuf,
    /// Kind.
    pub kind: FileKind,
}

/// Status of a file. Times are milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "fields of struct stat")]
pub struct FileStatus {
    pub kind: FileKind,
    pub dev: u64,
    pub ino: u64,
    pub mode: u32,
    pub nlink: u64,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u64,
    pub size: u64,
    pub blksize: u64,
    pub blocks: u64,
    pub atime_ms: f64,
    pub mtime_ms: f64,
    pub ctime_ms: f64,
    pub birthtime_ms: f64,
}
