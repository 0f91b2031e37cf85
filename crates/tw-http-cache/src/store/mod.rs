//! Storage of responses: files of their own (`files`), or records of segments (`segments`) for small ones with `store=log`.
//!
//! ```text
//! begin ─► EntryWriter: write … ─► commit ─► entry in the index        find ─► head and first bytes of an entry
//!                         └─► dropped: nothing is left                 rewrite_head, enter ─► the same entry, validated
//! scan ─► parts of the disk ─► admit ─► entries in the index           remove ─► nothing of an entry is left on the disk
//! ```
//! [`Store`] says what a store does. Both kinds implement it, and so does [`EntryStore`], which has both and chooses between them;
//! only this folder knows which of the two a cache has.

mod commit;
pub(crate) mod context;
mod encoding;
mod entry_store;
mod entry_writer;
pub(crate) mod files;
mod foreign;
pub(crate) mod place;
pub(crate) mod record_snapshot;
mod refresh;
pub(crate) mod segments;

use std::ffi::CString;

use bytes::Bytes;
use tw_cache::format::{BodySums, FormatError, Meta};
use tw_cache::segment::{RecordPrefix, SegmentError, SegmentRow};
use tw_cache::{Claim, Commit, Key, RecordSnapshotWriter, RemovedEntry, SegmentAddress};
use tw_disk::{Account, DiskError, File};

use crate::cache_path::CachePath;
use context::StoreContext;
use place::ValidatedFile;

pub(crate) use encoding::valid_until;
pub(crate) use entry_store::EntryStore;
pub(crate) use entry_writer::StoreWriter;

/// Storage of complete responses.
///
/// Because of the order of the steps, a crash at any of them loses one entry at most: an entry is on the disk before it is in the
/// index, it leaves the index before it is removed from the disk, and a purge is confirmed when no crash can undo it.
pub(crate) trait Store {
    /// Place of an entry.
    type Place;
    /// Response on its way into the store.
    type Writer<'a>: EntryWriter
    where
        Self: 'a;
    /// Progress of a scan.
    type Scan: Default;

    /// Returns true if this is the store that the settings of `place` name.
    fn suits(&self, place: &CachePath) -> bool;

    /// Returns true if each entry can be found on the disk by its key. Otherwise only the index knows where some are: a lookup
    /// waits until a scan or a snapshot has restored it, and a purge waits until what it has removed cannot come back.
    fn finds_by_key(&self) -> bool;

    /// Begins a snapshot of the places that only the index knows; `None` if there are none.
    fn begin_snapshot(&self, now: u32, stamp: u32) -> Option<RecordSnapshotWriter>;

    /// Begins an entry. Nothing is on the disk before the first write or the commit.
    fn begin<'a>(&'a self, cx: StoreContext<'a>, entry: NewEntry) -> Self::Writer<'a>;

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

    /// Adds an entry whose head was rewritten to the index again.
    async fn enter(
        &self,
        cx: StoreContext<'_>,
        commit: Commit,
        was: &ValidatedFile<'_>,
        meta: &Meta,
    ) -> Result<CommitOutcome, DiskError>;

    /// Removes what an entry that has left the index has on the disk.
    async fn remove(&self, cx: StoreContext<'_>, removed_entry: RemovedEntry) -> Result<(), DiskError>;

    /// Reads the next part of what is on the disk: a directory, or a segment. Returns `None` at the end. After an error the scan goes on
    /// with the next part.
    async fn scan(&self, cx: StoreContext<'_>, scan: &mut Self::Scan) -> Option<Result<ScanPart, DiskError>>;

    /// Adds an entry that a scan has found to the index, unless that has a younger one.
    async fn admit(&self, cx: StoreContext<'_>, entry: &DiskEntry) -> Result<AdmissionOutcome, DiskError>;
}

/// Response on its way into a store. Dropped before it is committed, it leaves nothing on the disk.
pub(crate) trait EntryWriter {
    /// Length of the largest body for whose sake nothing needs to be written before the commit; `None` if each body is written as it
    /// comes, or this one has begun to be.
    fn whole_max(&self) -> Option<u64>;

    /// Writes more of the body. After an error nothing else can be written.
    async fn write(&mut self, part: BodyPieces) -> Result<(), DiskError>;

    /// Returns the file that has the body so far, if there is one.
    fn written_body(&self) -> Option<WrittenBody<'_>>;

    /// Writes the rest of the body, puts the entry in its place and adds it to the index. Waits for its turn behind other fills of
    /// the same key.
    async fn commit(self, last: BodyPieces) -> Result<CommitOutcome, DiskError>;
}

/// Response that is to become an entry.
pub(crate) struct NewEntry {
    pub(crate) meta: Box<Meta>,
    /// Permit to store.
    pub(crate) claim: Claim,
    /// Entry whose body this one has, with a new head; it may only replace that.
    pub(crate) copied: Option<CopiedEntry>,
}

/// Entry that is copied because its new head has no room in its place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CopiedEntry {
    /// Sequence number in the index.
    pub(crate) sequence: u64,
    /// Address of the record; `None` if it has a file of its own.
    pub(crate) address: Option<SegmentAddress>,
    /// Checksum that the body must have, so that damage does not get a new one; `None` if there was none.
    pub(crate) body_sum: Option<u32>,
}

impl CopiedEntry {
    /// Returns true if a body with this checksum is not the one that was stored.
    fn differs_from(self, sum: u32) -> bool {
        self.body_sum.is_some_and(|stored| stored != sum)
    }

    /// Returns true if these pieces are not the body that was stored. Reads all bytes.
    fn is_damaged(self, body: &[Bytes]) -> bool {
        let mut sums = BodySums::default();
        body.iter().for_each(|piece| sums.push(piece));
        self.differs_from(sums.finish().sum)
    }
}

/// Next part of a body.
#[derive(Default)]
pub(crate) struct BodyPieces {
    pub(crate) pieces: Vec<Bytes>,
    /// Number of leading bytes of the body that can leave memory once the disk has them.
    pub(crate) needless: u64,
}

impl BodyPieces {
    /// Number of bytes.
    pub(crate) fn len(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.len() as u64).sum()
    }
}

/// Part of a body that a file has.
pub(crate) struct WrittenBody<'a> {
    pub(crate) file: &'a File,
    /// Offset of the body in the file.
    pub(crate) head: u64,
    /// Number of leading bytes of the body that the disk has taken.
    pub(crate) settled: u64,
}

/// Result of committing an entry.
#[derive(Debug)]
pub(crate) enum CommitOutcome {
    /// The entry is in the index. Others have left it for that; the caller removes what they have on the disk.
    Stored(Vec<RemovedEntry>),
    /// Not stored: it was purged meanwhile, or a younger response is there.
    Refused,
    /// Not stored: the body that was copied is damaged.
    Damaged,
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

/// Part of what is on the disk.
#[derive(Default)]
pub(crate) struct ScanPart {
    pub(crate) entries: Vec<DiskEntry>,
    /// Files that a process before did not finish.
    pub(crate) unfinished: Vec<UnfinishedFile>,
    /// Damaged segment that this part is.
    pub(crate) damage: Option<DamagedSegment>,
    pub(crate) kind: ScanPartKind,
    /// True if the directory has more than could be read.
    pub(crate) is_truncated: bool,
}

/// Kind of a part of the disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ScanPartKind {
    #[default]
    Directory,
    Segment,
    /// Nothing: all segments were read.
    EndOfSegments,
}

/// Entry that was found on the disk.
#[derive(Debug, Clone, Copy)]
pub(crate) enum DiskEntry {
    File(DiskFile),
    /// Row of the segment with this number.
    Record(u32, SegmentRow),
}

/// File that was found at the path of an entry; its head was not read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DiskFile {
    pub(crate) key: Key,
    /// Length of the file.
    pub(crate) size: u64,
    /// Number of files that had been removed before it was found.
    pub(crate) removals: u64,
}

/// File that another process did not finish.
pub(crate) struct UnfinishedFile {
    pub(crate) path: CString,
    /// Key of the unfinished entry; `None` for the files of the purges and the snapshot.
    pub(crate) key: Option<Key>,
}

/// Segment with damage; the rows that are found in it are those of records that are whole.
pub(crate) struct DamagedSegment {
    pub(crate) number: u32,
    pub(crate) why: SegmentError,
}

/// Result of admitting an entry that was found on the disk.
#[derive(Debug)]
pub(crate) enum AdmissionOutcome {
    /// The entry is in the index. The caller removes the entry that was evicted for it, if any.
    Added(Option<RemovedEntry>),
    /// The index has this entry, or one that replaces it.
    Known,
    /// The index has a younger response, or had an older one: the caller removes what is returned.
    Outdated {
        removed_entry: RemovedEntry,
        /// True if the entry that was found is in the index now.
        is_added: bool,
    },
    /// The place of the entry does not exist any more.
    Gone,
}
