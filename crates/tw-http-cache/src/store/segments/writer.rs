//! Writing of an entry to a record: its body stays in memory until it is complete.

use tw_cache::Key;
use tw_disk::DiskError;

use super::SegmentStore;
use super::append::Appended;
use crate::store::context::StoreContext;
use crate::store::encoding::{prefix, whole_file};
use crate::store::{BodyPieces, CommitOutcome, EntryWriter, NewEntry, WrittenBody};

/// Writer of one record.
pub(crate) struct RecordWriter<'a> {
    store: &'a SegmentStore,
    cx: StoreContext<'a>,
    entry: NewEntry,
    body: BodyPieces,
}

impl<'a> RecordWriter<'a> {
    pub(super) fn new(store: &'a SegmentStore, cx: StoreContext<'a>, entry: NewEntry) -> Self {
        Self { store, cx, entry, body: BodyPieces::default() }
    }

    /// Key of the entry.
    pub(crate) fn key(&self) -> Key {
        self.entry.claim.key()
    }

    /// Gives the record up before its first write: the entry is written to another place.
    pub(crate) fn into_entry(self) -> NewEntry {
        self.entry
    }
}

impl EntryWriter for RecordWriter<'_> {
    fn whole_max(&self) -> Option<u64> {
        Some(self.store.body_max(self.entry.meta.header_size))
    }

    async fn write(&mut self, part: BodyPieces) -> Result<(), DiskError> {
        self.body.pieces.extend(part.pieces);
        Ok(())
    }

    fn written_body(&self) -> Option<WrittenBody<'_>> {
        None
    }

    async fn commit(self, last: BodyPieces) -> Result<CommitOutcome, DiskError> {
        let Self { store, cx, entry: NewEntry { mut meta, claim, copied }, mut body } = self;
        body.pieces.extend(last.pieces);
        if copied.is_some_and(|copied| copied.is_damaged(&body.pieces)) {
            return Ok(CommitOutcome::Damaged);
        }
        meta.body_len = Some(body.len());
        let _guard = store.waiters.begin();
        let Some(commit) = store.waiters.take(cx, claim, copied.as_ref()).await else {
            return Ok(CommitOutcome::Refused);
        };
        let Some(target) = cx.append_target() else { return Ok(CommitOutcome::Refused) };
        let prefix = prefix(commit.key(), &meta);
        commit.set_varies(!meta.vary.is_empty());
        // A fraction of a millisecond for the checksums: a record has at most RECORD_MAX.
        let pieces = whole_file(meta, body.pieces);
        let Appended { is_stored, removed_entries } = store.store(target, commit, prefix, pieces).await?;
        Ok(if is_stored { CommitOutcome::Stored(removed_entries) } else { CommitOutcome::Refused })
    }
}
