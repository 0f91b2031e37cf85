//! Directories in which the server makes files while it runs: each cache must have its own.

use std::ffi::CString;

use tw_conf::Span;

/// A directory that a configuration names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directory {
    /// Absolute, without a slash at its end.
    pub path: CString,
    /// Purpose of the files in it.
    pub purpose: DirectoryPurpose,
    /// Place of the directive; `None` for a default.
    pub span: Option<Span>,
}

/// Purpose of the files in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirectoryPurpose {
    /// Responses of a cache, which it finds again at the next start by their names.
    Cache,
    /// Responses of a cache that has several directories, and works without this one.
    Member,
    /// Segments of a cache: a block device, or a file in its place.
    Device,
    /// Segments of a member of a cache, which works without it.
    MemberDevice,
    /// Bodies that do not fit into memory, and state that is written by one thread.
    Temporary,
}

impl DirectoryPurpose {
    /// Returns true for devices of caches.
    pub fn is_device(self) -> bool {
        matches!(self, Self::Device | Self::MemberDevice)
    }

    /// Returns true for directories and devices that a cache works without.
    pub fn is_member(self) -> bool {
        matches!(self, Self::Member | Self::MemberDevice)
    }

    /// Returns true for directories and devices of caches.
    pub fn is_cache(self) -> bool {
        matches!(self, Self::Cache | Self::Member | Self::Device | Self::MemberDevice)
    }
}
