//! Writing of an entry to a file of its own: a temporary file that grows with the body, or the whole file at once.

use std::ffi::CString;

use tw_cache::Key;
use tw_cache::format::{self, FinishedSums};
use tw_disk::{Account, DiskError, JobClass, JobSource, NewFile};

use super::FileStore;
use super::temp_file::FillFile;
use crate::store::context::StoreContext;
use crate::store::encoding::{StoredFile, add_sums, encode_head, whole_file};
use crate::store::{BodyPieces, CommitOutcome, EntryWriter, NewEntry, WrittenBody};

/// Writer of one file.
pub(crate) struct FileWriter<'a> {
    store: &'a FileStore,
    cx: StoreContext<'a>,
    entry: NewEntry,
    path: CString,
    file: WriterFile,
    /// Length of the body so far.
    len: u64,
}

/// Temporary file of a writer.
enum WriterFile {
    /// Nothing is written.
    Unopened,
    Open(FillFile),
    /// A write has failed.
    Failed,
}

impl<'a> FileWriter<'a> {
    pub(super) fn new(store: &'a FileStore, cx: StoreContext<'a>, entry: NewEntry) -> Self {
        let path = cx.place.path(entry.claim.key());
        Self { store, cx, entry, path, file: WriterFile::Unopened, len: 0 }
    }

    /// Key of the entry.
    pub(crate) fn key(&self) -> Key {
        self.entry.claim.key()
    }

    fn account(&self) -> Account {
        Account::new(JobClass::Fill, JobSource::of(self.path.to_bytes()))
    }

    /// Creates the temporary file with the head.
    async fn create(&self, account: &mut Account) -> Result<FillFile, DiskError> {
        let Self { cx, entry, path, .. } = self;
        let temp = cx.disk.create_beside(account, path, cx.place.dir_len()).await?;
        cx.disk.write(account, temp.file(), 0, encode_head(&entry.meta)).await?;
        Ok(FillFile::new(temp, cx.window))
    }

    /// Writes the rest of the body, its checksums, and the facts of the head that are known now. Returns the checksum of the body.
    async fn finish(
        &self,
        account: &mut Account,
        temp_file: &mut FillFile,
        last: BodyPieces,
        file: &StoredFile,
    ) -> Result<u32, DiskError> {
        let Self { cx, entry: NewEntry { meta, claim, .. }, len, .. } = self;
        let head = u64::from(meta.header_size);
        let needless = needless(head, last.needless);
        let whole_len = len + last.len();
        let sums = std::mem::take(&mut temp_file.sums);
        let end = move || {
            let (mut parts, sums) = add_sums(sums, last.pieces);
            let FinishedSums { sum, table } = sums.finish();
            parts.push(table.into());
            (parts, sum)
        };
        let sum = cx.disk.write_made(account, temp_file.temp.file(), head + len, end).await?;
        let patch = format::patch(meta.key, claim.sequence(), whole_len, sum);
        cx.disk.write(account, temp_file.temp.file(), patch.at, patch.bytes).await?;
        temp_file.finish(cx.disk, account, file.len, needless).await?;
        Ok(sum)
    }
}

impl EntryWriter for FileWriter<'_> {
    fn whole_max(&self) -> Option<u64> {
        None
    }

    async fn write(&mut self, part: BodyPieces) -> Result<(), DiskError> {
        let mut account = self.account();
        let mut temp_file = match std::mem::replace(&mut self.file, WriterFile::Failed) {
            WriterFile::Open(temp_file) => temp_file,
            WriterFile::Unopened => self.create(&mut account).await?,
            WriterFile::Failed => return Err(DiskError::Cancelled),
        };
        let head = u64::from(self.entry.meta.header_size);
        let (at, needless) = (head + self.len, needless(head, part.needless));
        let end = self.len + part.len();
        let (pieces, sums) = (part.pieces, std::mem::take(&mut temp_file.sums));
        let add = move || add_sums(sums, pieces);
        let disk = self.cx.disk;
        temp_file.sums = disk.write_made(&mut account, temp_file.temp.file(), at, add).await?;
        temp_file.advance(disk, &mut account, head + end, needless).await?;
        (self.file, self.len) = (WriterFile::Open(temp_file), end);
        Ok(())
    }

    fn written_body(&self) -> Option<WrittenBody<'_>> {
        let WriterFile::Open(temp_file) = &self.file else { return None };
        let head = u64::from(self.entry.meta.header_size);
        let settled = temp_file.settled().saturating_sub(head);
        Some(WrittenBody { file: temp_file.temp.file(), head, settled })
    }

    async fn commit(mut self, mut last: BodyPieces) -> Result<CommitOutcome, DiskError> {
        let mut account = self.account();
        self.entry.meta.body_len = Some(self.len + last.len());
        let stored_file = StoredFile::of(&self.entry.meta);
        let (temp_file, pieces) = match std::mem::replace(&mut self.file, WriterFile::Failed) {
            WriterFile::Unopened => {
                if self.entry.copied.is_some_and(|copied| copied.is_damaged(&last.pieces)) {
                    return Ok(CommitOutcome::Damaged);
                }
                (None, std::mem::take(&mut last.pieces))
            }
            WriterFile::Open(mut temp_file) => {
                let sum = self.finish(&mut account, &mut temp_file, last, &stored_file).await?;
                if self.entry.copied.is_some_and(|copied| copied.differs_from(sum)) {
                    return Ok(CommitOutcome::Damaged);
                }
                (Some(temp_file), Vec::new())
            }
            WriterFile::Failed => return Err(DiskError::Cancelled),
        };
        let Self { store, cx, entry: NewEntry { meta, claim, copied }, path, .. } = self;
        let _guard = store.waiters.begin();
        let Some(commit) = store.waiters.take(cx, claim, copied.as_ref()).await else {
            return Ok(CommitOutcome::Refused);
        };
        match temp_file {
            Some(FillFile { temp, .. }) => cx.disk.name(&mut account, temp, &path).await?,
            None => {
                let make = Box::new(move || whole_file(meta, pieces));
                let file = NewFile { path, make };
                store.puts.put(cx.disk, &mut account, cx.place.dir_len(), file).await?;
            }
        }
        store.enter_file(cx, commit, &stored_file).await
    }
}

/// Length of a file's beginning that can leave memory, if `len` bytes of its body can: the head shares their pages.
fn needless(head: u64, len: u64) -> u64 {
    if len == 0 { 0 } else { head.saturating_add(len) }
}
