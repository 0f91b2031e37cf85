//! Entries in files of their own.

pub(crate) mod file_head;
pub(crate) mod put_queue;
mod scan;
pub(crate) mod temp_file;
mod writer;

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use bytes::Bytes;
use tw_cache::format::Meta;
use tw_cache::{Commit, Key, LoadOutcome, LoadedEntry, RecordSnapshotWriter, RemovedEntry, StoredEntry};
use tw_disk::{Account, DiskError, Durable, Errno, File, JobClass, JobSource, OpenOptions};

use super::commit::CommitWaiters;
use super::context::StoreContext;
use super::encoding::StoredFile;
use super::place::{FilePlace, ValidatedFile, is_same, on_disk};
use super::{
    AdmissionOutcome, CommitOutcome, DiskEntry, DiskFile, EntryRead, HeadWrite, NewEntry, NewHead, ReadEntry,
    ScanPart, Store,
};
use crate::cache_path::{CachePath, CacheStore};
use crate::time::seconds;
use file_head::NoEntry;
use put_queue::PutQueue;

pub(crate) use scan::FileScan;
pub(crate) use writer::FileWriter;

/// State of the entries that have files of their own.
#[derive(Default)]
pub(crate) struct FileStore {
    /// Number of files that were removed, or are about to be.
    removals: AtomicU64,
    /// Complete files on their way to their paths.
    puts: PutQueue,
    waiters: CommitWaiters,
}

impl FileStore {
    /// Creates the state of a cache.
    pub(super) fn new(waiters: CommitWaiters) -> Self {
        Self { waiters, ..Self::default() }
    }

    /// Number of files that were removed, or are about to be.
    pub(crate) fn removals(&self) -> u64 {
        self.removals.load(SeqCst)
    }

    /// Adds a file at its path to the index. One that was purged meanwhile is removed.
    async fn enter_file(
        &self,
        cx: StoreContext<'_>,
        commit: Commit,
        file: &StoredFile,
    ) -> Result<CommitOutcome, DiskError> {
        let key = commit.key();
        let now = seconds(tw_rt::clock::unix().secs);
        let _purged = match commit.store_at(file.location(), file.valid_until, now) {
            Ok(StoredEntry { pushed_out, replaced }) => {
                return Ok(CommitOutcome::Stored(pushed_out.into_iter().chain(replaced).collect()));
            }
            // The permit is held until the file is removed.
            Err(purged) => purged,
        };
        let path = cx.place.path(key);
        self.removals.fetch_add(1, SeqCst);
        let mut account = Account::new(JobClass::Fill, JobSource::of(path.to_bytes()));
        match cx.disk.unlink(&mut account, &path).await {
            Err(error) if error.errno() != Some(Errno::NOENT) => Err(error),
            _ => Ok(CommitOutcome::Refused),
        }
    }

    /// Adds an entry found on the disk when `removals` files had been removed; `file` is its file, if that was opened. A file
    /// that is gone since leaves no entry, even if another has its path. Returns the evicted entry, whose file the caller
    /// removes.
    pub(super) async fn admit_file(
        &self,
        cx: StoreContext<'_>,
        entry: &LoadedEntry,
        file: Option<&File>,
        removals: u64,
    ) -> Result<Option<RemovedEntry>, DiskError> {
        let Some(index) = cx.index() else { return Ok(None) };
        let now = seconds(tw_rt::clock::unix().secs);
        let LoadOutcome::Added(pushed_out) = index.load(entry, now) else { return Ok(None) };
        if self.removals() != removals {
            let mut account = Account::new(JobClass::Scan, JobSource::NONE);
            let is_there = match cx.disk.stat(&mut account, &cx.place.path(entry.key)).await {
                Ok(now) => file.is_none_or(|file| is_same(&now, file.meta())),
                Err(error) if error.errno() == Some(Errno::NOENT) => false,
                Err(error) => return Err(error),
            };
            if !is_there {
                index.remove_missing(entry.key, entry.sequence);
            }
        }
        Ok(pushed_out)
    }

    /// Removes a file that no entry refers to, which may have been that of `removed_entry`. Returns true if there was one.
    pub(crate) async fn remove_file(
        &self,
        cx: StoreContext<'_>,
        account: &mut Account,
        key: Key,
        mut removed_entry: Option<RemovedEntry>,
    ) -> Result<bool, DiskError> {
        cx.forget_in_quota(key);
        loop {
            // Before the removal: a search that finds the file until then checks whether it is still there.
            self.removals.fetch_add(1, SeqCst);
            let was_there = match cx.disk.unlink(account, &cx.place.path(key)).await {
                Ok(()) => true,
                Err(error) if error.errno() == Some(Errno::NOENT) => false,
                // The file may still be there, and so does `removed_entry` stay.
                Err(error) => return Err(error),
            };
            // And after it: a search that has found it meanwhile checks, too, unless its entry is removed here.
            self.removals.fetch_add(1, SeqCst);
            if let Some(removed_entry) = removed_entry {
                removed_entry.deleted();
            }
            removed_entry = cx.index().and_then(|index| index.unlinked(key));
            if removed_entry.is_none() {
                return Ok(was_there);
            }
        }
    }
}

impl Store for FileStore {
    type Place = FilePlace;
    type Writer<'a> = FileWriter<'a>;
    type Scan = FileScan;

    fn suits(&self, place: &CachePath) -> bool {
        place.store == CacheStore::Files
    }

    fn finds_by_key(&self) -> bool {
        true
    }

    fn begin_snapshot(&self, _now: u32, _stamp: u32) -> Option<RecordSnapshotWriter> {
        None
    }

    fn begin<'a>(&'a self, cx: StoreContext<'a>, entry: NewEntry) -> FileWriter<'a> {
        FileWriter::new(self, cx, entry)
    }

    async fn find(
        &self,
        cx: StoreContext<'_>,
        account: &mut Account,
        place: &FilePlace,
        max: usize,
    ) -> Result<EntryRead, DiskError> {
        let opened = cx.disk.open_and_read(account, &place.path, &OpenOptions::READ, max).await;
        let (file, mut first) = match opened {
            Ok(opened) => opened,
            Err(error) if error.errno() == Some(Errno::NOENT) => return Ok(EntryRead::Missing),
            Err(error) => return Err(error),
        };
        let of_nginx = cx.place.of_nginx;
        let needed = match file_head::needed(of_nginx, &first) {
            Ok(needed) => needed,
            Err(why) => return Ok(why.into()),
        };
        if needed > first.len() {
            first = cx.disk.read(account, &file, 0, vec![0; needed]).await?;
        }
        let (first, len) = (Bytes::from(first), file.meta().size);
        Ok(match file_head::decode(of_nginx, &first, len) {
            Ok(meta) => {
                EntryRead::Entry(Box::new(ReadEntry { key: place.key, meta, file, offset: 0, len, first }))
            }
            Err(why) => why.into(),
        })
    }

    async fn rewrite_head(
        &self,
        cx: StoreContext<'_>,
        account: &mut Account,
        was: &ValidatedFile<'_>,
        new: NewHead,
    ) -> Result<HeadWrite, DiskError> {
        let path = cx.place.path(new.prefix.key);
        let file = match cx.disk.open(account, &path, &OpenOptions::READ_WRITE).await {
            Ok(file) => file,
            // It was evicted meanwhile, or somebody else has removed it.
            Err(error) if error.errno() == Some(Errno::NOENT) => return Ok(HeadWrite::Missing),
            Err(error) => return Err(error),
        };
        if !is_same(file.meta(), was.file.meta()) {
            return Ok(HeadWrite::Replaced);
        }
        cx.disk.write(account, &file, 0, new.head).await?;
        if new.is_durable {
            cx.disk.fsync(account, &file, Durable::Data).await?;
        }
        Ok(HeadWrite::Done)
    }

    async fn enter(
        &self,
        cx: StoreContext<'_>,
        commit: Commit,
        _was: &ValidatedFile<'_>,
        meta: &Meta,
    ) -> Result<CommitOutcome, DiskError> {
        self.enter_file(cx, commit, &StoredFile::of(meta)).await
    }

    async fn remove(&self, cx: StoreContext<'_>, removed_entry: RemovedEntry) -> Result<(), DiskError> {
        let mut account = Account::new(JobClass::Evict, JobSource::NONE);
        self.remove_file(cx, &mut account, removed_entry.key, Some(removed_entry)).await.map(|_| ())
    }

    async fn scan(&self, cx: StoreContext<'_>, scan: &mut FileScan) -> Option<Result<ScanPart, DiskError>> {
        self.scan_directory(cx, scan).await
    }

    /// The head is read when the entry is requested.
    async fn admit(&self, cx: StoreContext<'_>, entry: &DiskEntry) -> Result<AdmissionOutcome, DiskError> {
        let DiskEntry::File(DiskFile { key, size, removals }) = *entry else {
            return Ok(AdmissionOutcome::Gone);
        };
        let loaded_entry = LoadedEntry { key, sequence: 0, since: 0, size: on_disk(size), valid_until: 0 };
        self.admit_file(cx, &loaded_entry, None, removals).await.map(AdmissionOutcome::Added)
    }
}

impl From<NoEntry> for EntryRead {
    fn from(why: NoEntry) -> Self {
        match why {
            NoEntry::OfNginx => Self::OfNginx,
            NoEntry::Damaged(why) => Self::Damaged(why),
        }
    }
}
