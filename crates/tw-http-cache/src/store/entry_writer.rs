//! Writer of a store that has files and perhaps segments: what is complete before anything of it had to be written, and is small,
//! becomes a record.

use tw_disk::DiskError;

use super::context::StoreContext;
use super::files::FileWriter;
use super::segments::RecordWriter;
use super::{BodyPieces, CommitOutcome, EntryStore, EntryWriter, NewEntry, Store, WrittenBody};
use tw_request::local_future::boxed;

/// Writer of one entry.
pub(crate) struct StoreWriter<'a> {
    store: &'a EntryStore,
    cx: StoreContext<'a>,
    place: WriterPlace<'a>,
    /// True if the entry replaces itself, and is no further response.
    is_copy: bool,
}

/// Place that is being written.
enum WriterPlace<'a> {
    /// The first write makes it a file, a commit without one a record.
    Undecided(RecordWriter<'a>),
    File(FileWriter<'a>),
    /// A write has failed.
    Failed,
}

impl<'a> StoreWriter<'a> {
    pub(super) fn new(store: &'a EntryStore, cx: StoreContext<'a>, entry: NewEntry) -> Self {
        let is_copy = entry.copied.is_some();
        // A file is copied to a file.
        let is_of_file = entry.copied.is_some_and(|copied| copied.address.is_none());
        let place = match &store.segments {
            Some(segments) if !is_of_file => WriterPlace::Undecided(segments.begin(cx, entry)),
            _ => WriterPlace::File(store.files.begin(cx, entry)),
        };
        Self { store, cx, place, is_copy }
    }
}

impl EntryWriter for StoreWriter<'_> {
    fn whole_max(&self) -> Option<u64> {
        match &self.place {
            WriterPlace::Undecided(record) => record.whole_max(),
            WriterPlace::File(file) => file.whole_max(),
            WriterPlace::Failed => None,
        }
    }

    async fn write(&mut self, part: BodyPieces) -> Result<(), DiskError> {
        let mut file = match std::mem::replace(&mut self.place, WriterPlace::Failed) {
            WriterPlace::File(file) => file,
            WriterPlace::Undecided(record) => self.store.files.begin(self.cx, record.into_entry()),
            WriterPlace::Failed => return Err(DiskError::Cancelled),
        };
        let result = file.write(part).await;
        self.place = WriterPlace::File(file);
        result
    }

    fn written_body(&self) -> Option<WrittenBody<'_>> {
        match &self.place {
            WriterPlace::File(file) => file.written_body(),
            WriterPlace::Undecided(_) | WriterPlace::Failed => None,
        }
    }

    async fn commit(self, last: BodyPieces) -> Result<CommitOutcome, DiskError> {
        let Self { store, cx, place, is_copy } = self;
        let (key, outcome) = match place {
            WriterPlace::Undecided(record) if record.whole_max().is_some_and(|max| last.len() <= max) => {
                // A file is stored without the room for it.
                (record.key(), boxed(|| record.commit(last)).await?)
            }
            WriterPlace::Undecided(record) => {
                let file = store.files.begin(cx, record.into_entry());
                (file.key(), file.commit(last).await?)
            }
            WriterPlace::File(file) => (file.key(), file.commit(last).await?),
            WriterPlace::Failed => return Err(DiskError::Cancelled),
        };
        let CommitOutcome::Stored(removed_entries) = outcome else { return Ok(outcome) };
        cx.counts.stored.add(u64::from(!is_copy));
        let mut pushed_out = Vec::new();
        for removed_entry in removed_entries {
            match removed_entry.key == key {
                // The response that was replaced.
                true => store.remove(cx, removed_entry).await?,
                false => pushed_out.push(removed_entry),
            }
        }
        Ok(CommitOutcome::Stored(pushed_out))
    }
}
