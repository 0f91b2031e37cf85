//! Storage of responses: files of their own (`files`), or records of segments (`segments`) for small ones with `store=log`.
//!
//! Only this folder knows which of the two a cache has: everywhere else, [`EntryStore`] answers for both, and for a cache
//! without segments it says that there is nothing in any.

pub(crate) mod commit;
pub(crate) mod context;
mod entry_store;
pub(crate) mod files;
pub(crate) mod record_snapshot;
pub(crate) mod segments;

use bytes::Bytes;
use tw_cache::format::{self, FormatError, Meta};
use tw_cache::segment::RecordPrefix;
use tw_cache::{Key, RemovedEntry, SegmentAddress};
use tw_disk::{Account, DiskError, File, JobSource};

use super::cache_path::CachePath;
use commit::ValidatedFile;
use context::StoreContext;
use files::FilePlace;
use segments::{HEAD_READ, RecordPlace};

pub(crate) use entry_store::{EntryStore, ForeignParts};

/// Storage of complete responses.
pub(crate) trait Store {
    /// Place of an entry.
    type Place;

    /// Reads an entry: its whole head, and its first `max` bytes at once.
    async fn find(
        &self,
        cx: StoreContext<'_>,
        account: &mut Account,
        place: &Self::Place,
        max: usize,
    ) -> Result<EntryRead, DiskError>;

    /// Writes a new head over that of an entry that was validated.
    ///
    /// # Errors
    /// The head of the entry is undefined.
    async fn rewrite_head(
        &self,
        cx: StoreContext<'_>,
        account: &mut Account,
        was: &ValidatedFile<'_>,
        new: NewHead,
    ) -> Result<HeadWrite, DiskError>;

    /// Removes what an entry that has left the index has on the disk.
    async fn remove(&self, cx: StoreContext<'_>, gone: RemovedEntry) -> Result<(), DiskError>;
}

/// Place of an entry of a cache.
pub(crate) enum StoredAt {
    /// A file of its own.
    File(FilePlace),
    Record(RecordPlace),
}

impl StoredAt {
    /// Place of the entry with this key in the directory of `place`; `address` is what the index has.
    pub(crate) fn of(place: &CachePath, key: Key, address: Option<SegmentAddress>) -> Self {
        match address {
            None => Self::file(place, key),
            Some(address) => Self::Record(RecordPlace { key: Some(key), address }),
        }
    }

    /// The file of the entry with this key.
    pub(crate) fn file(place: &CachePath, key: Key) -> Self {
        Self::File(FilePlace { key, path: place.path(key) })
    }

    /// The record at this address, of any key.
    pub(crate) fn record(address: SegmentAddress) -> Self {
        Self::Record(RecordPlace { key: None, address })
    }

    /// Source of the disk operations on it.
    pub(crate) fn source(&self) -> JobSource {
        match self {
            Self::File(FilePlace { path, .. }) => JobSource::of(path.to_bytes()),
            Self::Record(RecordPlace { key, .. }) => key.map_or(JobSource::NONE, |key| JobSource::of(&key.0)),
        }
    }

    /// Number of bytes that are read at once for the head.
    pub(crate) fn head_read(&self) -> usize {
        match self {
            Self::File(_) => format::HEADER_MAX as usize,
            Self::Record(_) => HEAD_READ,
        }
    }
}

/// Result of reading an entry.
pub(crate) enum EntryRead {
    Entry(Box<ReadEntry>),
    /// There is no such entry, or it was removed.
    Missing,
    /// The entry is that of this key.
    Another(Key),
    /// The file was written by nginx and is left as it is.
    OfNginx,
    Damaged(FormatError),
}

/// Entry that was read.
pub(crate) struct ReadEntry {
    pub(crate) key: Key,
    pub(crate) meta: Meta,
    pub(crate) file: File,
    /// Offset of the entry in the file.
    pub(crate) offset: u64,
    /// Length of head and body.
    pub(crate) len: u64,
    /// Begin of the entry, as far as it was read.
    pub(crate) first: Bytes,
}

/// New head of an entry after a validation.
pub(crate) struct NewHead {
    pub(crate) prefix: RecordPrefix,
    pub(crate) head: Vec<u8>,
    /// True if the disk has to have it before it counts.
    pub(crate) is_durable: bool,
}

/// Result of writing a new head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeadWrite {
    Done,
    /// The entry is gone.
    Missing,
    /// Another file has been put there.
    Replaced,
}
