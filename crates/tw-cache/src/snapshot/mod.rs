//! Snapshot of an index: a file from which the next process knows the entries without looking at each of their files.
//!
//! ```text
//! block 0    "tw index", version, time, number of entries, first block and length of the table
//! block 1 …  rows of entries, in runs: within a run, the most recently used entry comes first
//! …          table: the first block of each run
//! ```
//! Each block has 4 KiB and a checksum of its own. Of a damaged block only the entries are lost that are in it. All
//! numbers are little-endian.
//!
//! [`SnapshotWriter`] makes the file in steps while requests go on, so a snapshot is not a state of one moment: an
//! entry is in it as it was when its turn came, or twice. [`SnapshotReader`] merges the runs and returns the most
//! recently used entries first, which [`Index::restore`](crate::Index::restore) adds. Neither does any I/O.
//!
//! **Validity.** A snapshot may be older than the files. An entry whose file was removed since is a miss, and is
//! removed by that. One whose file was replaced since is read from that file, whose head has the sequence number of its
//! fetch: a snapshot has no such numbers, and a restored entry no bound for its variants. An entry that was stored since is not in the snapshot. So a snapshot that survived a crash is as good as any other,
//! and a walk over the files afterwards makes the index exact.

mod block;
mod reader;
mod records;
#[cfg(test)]
mod tests;
mod writer;

use std::fmt;

use crate::Key;

pub use block::BLOCK_SIZE;
pub use reader::{SnapshotReader, SnapshotStep};
pub(crate) use records::PAGE_ROWS_MAX;
pub use records::{RecordSnapshot, RecordSnapshotWriter};
pub use writer::{SnapshotPart, SnapshotWriter};

use block::ROWS_PER_BLOCK;

/// Blocks that are read at once.
const READ_BLOCKS_MAX: u32 = 64;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Entries of a snapshot that are sorted together.
    const RUN_ENTRIES: usize = 64 * ROWS_PER_BLOCK, count, "the next ones are another run";
    /// Memory for a snapshot that is being read, or 4 KiB for each 7,400 entries if that is more.
    const READ_AHEAD_SIZE: usize = 8 << 20, bytes, "less is read at once";
}

/// Entry of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotEntry {
    /// Key of the entry.
    pub key: Key,
    /// Bytes of its file, or the address of its record: see [`Location`](crate::Location).
    pub location: u64,
    /// Time at which the response becomes stale.
    pub valid_until: u32,
    /// Seconds between the last use and the snapshot: time in which no server ran does not count.
    pub idle_s: u32,
    /// Counted uses.
    pub uses: u16,
    /// Uses since the entry came into its queue.
    pub(crate) lately: u8,
    /// True if the entry is in the main queue of `s3fifo`.
    pub(crate) is_main: bool,
}

/// Why a file is not a snapshot that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotError {
    /// The first bytes are not those of a snapshot.
    NotOne,
    /// A version of this number wrote it.
    Version(u32),
    /// A checksum does not match.
    Checksum,
    /// The contents are invalid although the checksum matches.
    Invalid,
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotOne => f.write_str("no snapshot"),
            Self::Version(version) => write!(f, "written by version {version}"),
            Self::Checksum => f.write_str("wrong checksum"),
            Self::Invalid => f.write_str("contradictory content"),
        }
    }
}

impl std::error::Error for SnapshotError {}
