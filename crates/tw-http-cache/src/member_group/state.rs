//! State of the members of a cache, for metrics, the API and the status page.

/// Snapshot of one directory of a cache that has several.
#[derive(Debug, Clone, PartialEq)]
pub struct MemberSnapshot {
    /// Path of the directory.
    pub path: String,
    /// Path of the device with its segments, if it has one.
    pub device: Option<String>,
    /// State of the directory.
    pub state: MemberState,
    /// Number of stored responses.
    pub entries: u64,
    /// Size of the stored responses on the disk, in bytes.
    pub size: u64,
    /// Limit of that size, if there is one.
    pub max_size: Option<u64>,
    /// Share of the keys that it stores, from 0 to 1.
    pub share: f64,
}

/// State of one directory of a cache that has several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberState {
    /// In use.
    Up,
    /// Used, and without new responses.
    Draining,
    /// In use for reading: it cannot store responses.
    ReadOnly,
    /// Used in part: the disk was slow or failed, and is tried with a part of the keys.
    Probing,
    /// Left out, because the disk is slow or fails.
    Failing,
    /// Left out, because the directory cannot be opened, or is another one than before.
    Missing,
    /// Nothing has used it yet.
    Unused,
}

impl MemberState {
    /// Word of the state.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Draining => "draining",
            Self::ReadOnly => "read-only",
            Self::Probing => "probing",
            Self::Failing => "failing",
            Self::Missing => "missing",
            Self::Unused => "unused",
        }
    }
}
