//! One stored response: a file of its own, or a record in a segment.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tw_cache::format::{self, FormatError, nginx};
use tw_cache::segment::{PREFIX_SIZE, RecordPrefix, RecordState, SegmentHeader};
use tw_cache::{Key, Meta, SegmentAddress};

use super::pace::pause;
use super::response_file::ResponseFile;

/// Bytes of a head that are read at once.
const FIRST_READ: u64 = 8192;
/// Number of readings of a head before it counts as damaged, and the time between two of them: longer than a validation takes to
/// write it.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(30);

/// Place of a stored response.
#[derive(Clone, Debug)]
pub(super) struct StoredResponse {
    /// Path of the file that has it.
    pub(super) path: PathBuf,
    pub(super) file: Arc<File>,
    /// Key under which it is stored.
    pub(super) key: Key,
    pub(super) place: StoredPlace,
}

/// Place in a file.
#[derive(Clone, Copy, Debug)]
pub(super) enum StoredPlace {
    /// All of it.
    Whole {
        /// Bytes of the file.
        size: u64,
    },
    /// A record.
    Record {
        /// Header of the segment.
        header: SegmentHeader,
        /// Address of the record.
        address: SegmentAddress,
        /// Offset of the segment in the file.
        base: u64,
    },
}

/// Head of a stored response, and the place of the entry that it begins.
#[derive(Debug)]
pub(super) struct StoredHead {
    pub(super) meta: Meta,
    /// Offset of the entry in its file.
    pub(super) offset: u64,
    /// Sequence number of the fetch or the last validation.
    pub(super) sequence: u64,
}

/// Reason why there is no head.
#[derive(Debug)]
pub(super) enum HeadError {
    /// Removed response.
    Gone,
    /// The bytes at this offset are damaged.
    Damaged {
        /// Offset in the file.
        offset: u64,
        /// Word for it.
        why: &'static str,
    },
    /// The disk has failed.
    Io(io::Error),
}

impl From<io::Error> for HeadError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl StoredResponse {
    /// Opens the file of a response; `None` if it is gone.
    pub(super) fn open(response_file: &ResponseFile) -> io::Result<Option<Self>> {
        let file = match File::open(&response_file.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let place = StoredPlace::Whole { size: file.metadata()?.len() };
        Ok(Some(Self {
            path: response_file.path.clone(),
            file: Arc::new(file),
            key: response_file.key,
            place,
        }))
    }

    /// Reads the head. One that is wrong is read again, because the server may be replacing it.
    pub(super) fn head(&self) -> Result<StoredHead, HeadError> {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.read_head() {
                Err(HeadError::Damaged { .. }) if tries < TRIES => pause(PAUSE),
                other => return other,
            }
        }
    }

    fn read_head(&self) -> Result<StoredHead, HeadError> {
        match self.place {
            StoredPlace::Whole { size } => self.head_at(0, size, None),
            StoredPlace::Record { header, address, base } => {
                let offset = base + address.offset();
                let prefix = read_up_to(&self.file, offset, PREFIX_SIZE)?;
                let damaged = |why| HeadError::Damaged { offset, why };
                let (prefix, state) = RecordPrefix::decode(&prefix, &header, address.block)
                    .map_err(|why| damaged(why.word()))?;
                match state {
                    RecordState::Removed => return Err(HeadError::Gone),
                    RecordState::Stored if prefix.key != self.key => return Err(damaged("key")),
                    RecordState::Stored if prefix.blocks() != address.blocks => return Err(damaged("size")),
                    RecordState::Stored => {}
                }
                self.head_at(offset + PREFIX_SIZE, prefix.len, Some(prefix.sequence))
            }
        }
    }

    fn head_at(&self, offset: u64, len: u64, sequence: Option<u64>) -> Result<StoredHead, HeadError> {
        let damaged = |why: FormatError| HeadError::Damaged { offset, why: why.word() };
        let mut first = read_up_to(&self.file, offset, len.min(FIRST_READ))?;
        let is_nginx = nginx::is_nginx(&first);
        let needed = if is_nginx { nginx::needed(&first) } else { format::needed(&first) };
        let needed = needed.map_err(damaged)?;
        if needed > first.len() {
            first = read_up_to(&self.file, offset, (needed as u64).min(len))?;
        }
        let meta =
            if is_nginx { nginx::decode(&first, len) } else { format::decode(&Bytes::from(first), len) };
        let meta = meta.map_err(damaged)?;
        if meta.key != self.key && meta.variant != Some(self.key) {
            return Err(HeadError::Damaged { offset, why: "key" });
        }
        let sequence = sequence.unwrap_or(meta.sequence);
        Ok(StoredHead { meta, offset, sequence })
    }
}

/// Reads so many bytes; fewer at the end of the file.
pub(super) fn read_up_to(file: &File, offset: u64, len: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(len).map_err(io::Error::other)?];
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}
