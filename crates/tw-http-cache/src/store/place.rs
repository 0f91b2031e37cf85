//! Places of entries on the disk.

use std::ffi::CString;
use std::fmt;

use tw_cache::segment::BLOCK_SIZE;
use tw_cache::{Key, SegmentAddress, format};
use tw_disk::{File, FileMeta, JobSource};
use tw_log::Text;

use crate::cache_path::CachePath;
use crate::entry::open_entries::OpenEntry;

/// Files take whole blocks of their disk.
const BLOCK: u64 = 4096;
/// Bytes of a record that are read at once for its head: at most the head's blocks are wasted.
pub(crate) const HEAD_READ: usize = 2 * BLOCK_SIZE as usize;

/// Place of an entry of a cache.
pub(crate) enum StoredAt {
    /// A file of its own.
    File(FilePlace),
    Record(RecordPlace),
}

/// Path of the file of an entry.
pub(crate) struct FilePlace {
    pub(crate) key: Key,
    pub(crate) path: CString,
}

/// Address of a record.
pub(crate) struct RecordPlace {
    /// Key of the record; `None` for any.
    pub(crate) key: Option<Key>,
    pub(crate) address: SegmentAddress,
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

    /// Returns true if the entry has a file of its own, which others may remove.
    pub(crate) fn is_file(&self) -> bool {
        matches!(self, Self::File(_))
    }

    /// Address of the record; `None` if the entry has a file of its own.
    pub(crate) fn address(&self) -> Option<SegmentAddress> {
        match self {
            Self::File(_) => None,
            Self::Record(record) => Some(record.address),
        }
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

/// Place of an entry on the disk, for the log.
pub(crate) struct StoredPlace<'a> {
    pub(crate) place: &'a CachePath,
    pub(crate) key: Key,
    /// Address of the record; `None` if it has a file of its own.
    pub(crate) address: Option<SegmentAddress>,
}

impl fmt::Display for StoredPlace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(SegmentAddress { segment, block, .. }) => {
                write!(f, "record {block} of cache segment {segment:08}")
            }
            None => write!(f, "cache file \"{}\"", Text(self.place.path(self.key).to_bytes())),
        }
    }
}

/// File of an entry that was validated.
pub(crate) struct ValidatedFile<'a> {
    pub(crate) file: &'a File,
    /// Sequence number in the index.
    pub(crate) sequence: u64,
    /// Address of the record; `None` if it has a file of its own.
    pub(crate) address: Option<SegmentAddress>,
    /// Offset of the body in the file.
    pub(crate) body_offset: u64,
    /// Length of the body.
    pub(crate) len: u64,
}

impl<'a> ValidatedFile<'a> {
    /// File of an open entry.
    pub(crate) fn of(entry: &'a OpenEntry) -> Self {
        Self {
            file: entry.file.file(),
            sequence: entry.sequence,
            address: entry.address,
            body_offset: entry.body_offset(),
            len: entry.len,
        }
    }
}

/// Returns true if both are the same file. One of them has to be open: until then its inode number is not reused.
pub(crate) fn is_same(one: &FileMeta, other: &FileMeta) -> bool {
    (one.dev, one.ino) == (other.dev, other.ino)
}

/// Bytes that a file takes on the disk.
pub(crate) fn on_disk(size: u64) -> u64 {
    size.next_multiple_of(BLOCK)
}
