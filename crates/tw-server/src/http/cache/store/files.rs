//! Entries in files of their own.

pub(crate) mod file_head;
pub(crate) mod put_queue;
pub(crate) mod temp_file;

use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use bytes::Bytes;
use tokio::sync::Notify;
use tw_cache::{Key, RemovedEntry};
use tw_disk::{Account, DiskError, Durable, Errno, FileMeta, JobClass, JobSource, OpenOptions};

use super::commit::ValidatedFile;
use super::context::StoreContext;
use super::{EntryRead, HeadWrite, NewHead, ReadEntry, Store};
use file_head::NoEntry;
use put_queue::PutQueue;

/// Files take whole blocks of their disk.
const BLOCK: u64 = 4096;

/// State of the entries that have files of their own.
#[derive(Default)]
pub(crate) struct FileStore {
    /// Number of files that were removed, or are about to be.
    pub(super) removals: AtomicU64,
    /// Complete files on their way to their paths.
    pub(super) puts: PutQueue,
    /// Notified when a file is at its path or a record has its entry, or will not get there: another one of the same key may.
    pub(super) placed: Arc<Notify>,
}

/// Path of the file of an entry.
pub(crate) struct FilePlace {
    pub(crate) key: Key,
    pub(crate) path: CString,
}

impl FileStore {
    /// Removes a file that no entry refers to, which may have been that of `gone`. Returns true if there was one.
    pub(crate) async fn remove_file(
        &self,
        cx: StoreContext<'_>,
        account: &mut Account,
        key: Key,
        mut gone: Option<RemovedEntry>,
    ) -> Result<bool, DiskError> {
        cx.forget_in_quota(key);
        loop {
            // Before the removal: a search that finds the file until then checks whether it is still there.
            self.removals.fetch_add(1, SeqCst);
            let was_there = match cx.disk.unlink(account, &cx.place.path(key)).await {
                Ok(()) => true,
                Err(error) if error.errno() == Some(Errno::NOENT) => false,
                // The file may still be there, and so does `gone` stay.
                Err(error) => return Err(error),
            };
            // And after it: a search that has found it meanwhile checks, too, unless its entry is removed here.
            self.removals.fetch_add(1, SeqCst);
            if let Some(gone) = gone {
                gone.deleted();
            }
            gone = cx.index().and_then(|index| index.unlinked(key));
            if gone.is_none() {
                return Ok(was_there);
            }
        }
    }
}

impl Store for FileStore {
    type Place = FilePlace;

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

    async fn remove(&self, cx: StoreContext<'_>, gone: RemovedEntry) -> Result<(), DiskError> {
        let mut account = Account::new(JobClass::Evict, JobSource::NONE);
        self.remove_file(cx, &mut account, gone.key, Some(gone)).await.map(|_| ())
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

/// Returns true if both are the same file. One of them has to be open: until then its inode number is not reused.
pub(crate) fn is_same(one: &FileMeta, other: &FileMeta) -> bool {
    (one.dev, one.ino) == (other.dev, other.ino)
}

/// Bytes that a file takes on the disk.
pub(crate) fn on_disk(size: u64) -> u64 {
    size.next_multiple_of(BLOCK)
}
