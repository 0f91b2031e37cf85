//! Options for opening, creating and writing back files.

use std::ops::Range;

/// Alignment of reads and writes past the page cache: that of the blocks of almost all disks and file systems.
pub(crate) const DIRECT_ALIGN: u32 = 4096;

/// Treatment of symbolic links on the way (`disable_symlinks`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Links {
    /// Follow them.
    #[default]
    Follow,
    /// Fail with `ELOOP` if there is one.
    Refuse {
        /// Length in bytes of the leading part of the path that is not checked (`from=`); 0 checks all of it.
        from: u32,
    },
    /// Fail with `ELOOP` if a link and what it leads to have different owners.
    SameOwner {
        /// As in [`Links::Refuse`].
        from: u32,
    },
}

/// Purpose of the descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Reading.
    #[default]
    Read,
    /// Reading and writing in place.
    ReadWrite,
    /// Writing at the end, also with other writers.
    Append,
    /// Nothing but its metadata: works without read permission, never waits for a device or a pipe.
    Path,
}

/// Options for opening an existing file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenOptions {
    /// Purpose of the descriptor.
    pub access: Access,
    /// Symbolic links on the way.
    pub links: Links,
    /// Files of at least this many bytes are read past the page cache (`directio`); `u64::MAX` is never.
    pub direct_from: u64,
    /// Alignment of such reads in bytes, a power of two (`directio_alignment`).
    pub direct_align: u32,
    /// Bytes to read ahead of a read that missed memory (`read_ahead`); 0 leaves it to the kernel.
    pub read_ahead: u32,
}

impl OpenOptions {
    /// For reading, as nginx opens static files.
    pub const READ: OpenOptions = OpenOptions {
        access: Access::Read,
        links: Links::Follow,
        direct_from: u64::MAX,
        direct_align: 512,
        read_ahead: 0,
    };
    /// For reading and writing in place.
    pub const READ_WRITE: OpenOptions = OpenOptions { access: Access::ReadWrite, ..OpenOptions::READ };
    /// For reading and writing in place, past the page cache if the file system can do that.
    pub const DIRECT: OpenOptions =
        OpenOptions { direct_from: 0, direct_align: DIRECT_ALIGN, ..OpenOptions::READ_WRITE };
    /// For writing at the end.
    pub const APPEND: OpenOptions = OpenOptions { access: Access::Append, ..OpenOptions::READ };
    /// For metadata only.
    pub const PATH: OpenOptions = OpenOptions { access: Access::Path, ..OpenOptions::READ };
}

/// Action when the name to create exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Existing {
    /// Fail with `EEXIST`.
    #[default]
    Fail,
    /// Open it as it is.
    Keep,
    /// Open it and cut it to nothing.
    Truncate,
}

/// Options for creating a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateOptions {
    /// [`Access::ReadWrite`] or [`Access::Append`]; anything else means the former.
    pub access: Access,
    /// Permission bits, before the umask.
    pub mode: u32,
    /// Action when the name exists.
    pub existing: Existing,
    /// Create missing directories below this many leading bytes of the path (hashed levels); `None` creates none.
    pub parents_below: Option<u32>,
    /// Permission bits of created directories, before the umask.
    pub parents_mode: u32,
    /// True if the file is read and written past the page cache, if the file system can do that.
    pub is_direct: bool,
    /// True if the file is not read through this descriptor.
    pub is_only_written: bool,
}

impl CreateOptions {
    /// A new file for this user only.
    pub const NEW: CreateOptions = CreateOptions {
        access: Access::ReadWrite,
        mode: 0o600,
        existing: Existing::Fail,
        parents_below: None,
        parents_mode: 0o700,
        is_direct: false,
        is_only_written: false,
    };
    /// For writing at the end, created if absent: a log.
    pub const LOG: CreateOptions =
        CreateOptions { access: Access::Append, mode: 0o644, existing: Existing::Keep, ..CreateOptions::NEW };
}

/// Write-back of pages of a file that is being written, in bytes of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteBack {
    /// Range that the disk is to begin to write.
    pub begin: Range<u64>,
    /// Range that the disk is to have written when the operation ends: best something that it began to take a while ago.
    pub finish: Range<u64>,
    /// End of the part whose pages are no longer needed in memory; those that the disk has are dropped.
    pub needless_to: u64,
}

/// Options for creating a temporary file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TempOptions {
    /// Permission bits, before the umask.
    pub mode: u32,
    /// Hashed subdirectories, as in `client_body_temp_path DIR 1 2`: digits per level, 0 ends the list.
    pub levels: [u8; 3],
    /// True if the name stays, to be renamed later. Otherwise the file has no name from the start and ends with its last
    /// handle.
    pub is_named: bool,
}

impl TempOptions {
    /// A named file for this user only, without subdirectories.
    pub const NAMED: TempOptions = TempOptions { mode: 0o600, levels: [0; 3], is_named: true };
    /// A nameless file for this user only.
    pub const NAMELESS: TempOptions = TempOptions { mode: 0o600, levels: [0; 3], is_named: false };
}
