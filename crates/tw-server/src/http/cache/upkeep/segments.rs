//! Work of the manager of a cache for its segments.

use std::sync::atomic::Ordering::Acquire;

use tw_cache::{IndexEntry, Key, Progress, ScanCursor, ScannedEntry};
use tw_disk::{Account, Errno, JobClass, JobSource, LIST_MAX};
use tw_log::{Level, Text};

use super::{CacheMaintenance, StepPacer};
use crate::http::cache::store::context::ZoneIndex;
use crate::http::cache::store::segments::{HEAD_READ, directory, note_path};
use crate::http::cache::store::{EntryRead, ForeignParts, Store, StoredAt};
use crate::http::cache::time::seconds;

impl CacheMaintenance {
    /// Writes what dropped tasks have left in the queue, removes what they could not remove, and frees empty segments.
    pub(crate) async fn tend_segments(&self) {
        let store = &self.cache.zone.store;
        if store.take_direct_refusal() {
            let (name, path) = (Text(&self.cache.name), Text(self.cache.place.dir.to_bytes()));
            let what = format_args!(
                "cache \"{name}\": the file system of \"{path}\" has no direct I/O, segments use the page cache"
            );
            (self.log)(Level::Warn, what);
        }
        for gone in store.flush(self.context()).await {
            self.remove(gone).await;
        }
        // Until all are loaded, nobody knows what is in them.
        if self.cache.zone.is_loaded.load(Acquire)
            && let Err(error) = store.free_empty(self.context()).await
        {
            self.log_failure(&error);
        }
    }

    /// Frees the oldest segment. Returns its size in bytes less what was copied, or 0 if there was none or it could not be removed.
    pub(crate) async fn free_segment(&self) -> u64 {
        match self.cache.zone.store.free_oldest(self.context()).await {
            Ok(Some(freed)) => {
                self.cache.zone.counts.evicted.add(freed.evicted);
                freed.gained
            }
            Ok(None) => 0,
            Err(error) => {
                self.log_failure(&error);
                0
            }
        }
    }

    /// Compares a file that was found with the record that the index has for its key, and removes the older one. Returns true if
    /// the file is left.
    pub(crate) async fn replace_record(&self, held: &ZoneIndex, key: Key, record: &IndexEntry) -> bool {
        let store = &self.cache.zone.store;
        let mut account = Account::new(JobClass::Scan, JobSource::NONE);
        let of_file = match store
            .find(self.context(), &mut account, &StoredAt::file(&self.cache.place, key), HEAD_READ)
            .await
        {
            Ok(EntryRead::Missing) => return false,
            Ok(EntryRead::Entry(found)) => Some(found.meta.sequence),
            Ok(EntryRead::Another(_) | EntryRead::OfNginx | EntryRead::Damaged(_)) => None,
            Err(error) => {
                self.log_failure(&error);
                return false;
            }
        };
        let Some(address) = record.address else { return true };
        let place = StoredAt::of(&self.cache.place, key, Some(address));
        let of_record = match store.find(self.context(), &mut account, &place, HEAD_READ).await {
            Ok(EntryRead::Entry(found)) => held.written(record, found.meta.sequence),
            Ok(_) => {
                held.index.remove_missing_record(key, address);
                return true;
            }
            Err(error) => {
                self.log_failure(&error);
                return false;
            }
        };
        let is_younger = of_file.is_some_and(|of_file| held.purges.sequence().admit(of_file) > of_record);
        if is_younger {
            if let Some(gone) = held.index.remove_if_sequence(key, record.sequence) {
                self.remove(gone).await;
            }
            return true;
        }
        if let Err(error) = store.remove_file(self.context(), &mut account, key, None).await {
            self.log_failure(&error);
        }
        false
    }

    /// Frees segments of which nothing was used for `inactive` seconds.
    pub(crate) async fn free_inactive_segments(&self, inactive: u32) {
        let store = &self.cache.zone.store;
        let before = seconds(tw_rt::clock::unix().secs).saturating_sub(inactive);
        loop {
            match store.free_unused(self.context(), before).await {
                Ok(Some(freed)) => self.cache.zone.counts.inactive.add(freed.evicted),
                Ok(None) => return,
                Err(error) => return self.log_failure(&error),
            }
            tw_rt::yield_now().await;
        }
    }

    /// Removes the records that purges concern whose entries are compact. Returns the oldest purge that may still concern any.
    pub(crate) async fn sweep_records(&self, held: &ZoneIndex, latest: u64) -> u64 {
        let store = &self.cache.zone.store;
        let (mut cursor, mut seen, mut oldest) = (ScanCursor::default(), Vec::new(), latest);
        let mut pace = StepPacer::new(self.cache.place.manager);
        loop {
            let progress = held.index.scan_records(&mut cursor, &mut seen);
            for record in seen.drain(..).filter(|record| record.checked < latest) {
                pace.count().await;
                let mut account = Account::new(JobClass::Scan, JobSource::NONE);
                let place = StoredAt::record(record.address);
                let alive = match store.find(self.context(), &mut account, &place, HEAD_READ).await {
                    Ok(EntryRead::Entry(found)) if held.index.is_record_of(&record, found.key) => {
                        let entry = held.index.peek(found.key);
                        match entry.filter(|entry| entry.address == Some(record.address)) {
                            Some(entry) => {
                                // Fills that go on are found with the entries that are not compact.
                                let seen = ScannedEntry { key: found.key, found: entry, claimed_since: None };
                                self.check_meta(held, &seen, latest, &found.meta).await
                            }
                            None => None,
                        }
                    }
                    Ok(
                        EntryRead::Entry(_) | EntryRead::Missing | EntryRead::Another(_) | EntryRead::OfNginx,
                    ) => {
                        held.index.forget_record(&record);
                        None
                    }
                    // The next request for it handles the damage.
                    Ok(EntryRead::Damaged(_)) => Some(record.checked),
                    Err(error) => {
                        self.log_failure(&error);
                        Some(record.checked)
                    }
                };
                oldest = oldest.min(alive.unwrap_or(oldest));
            }
            if progress == Progress::Done {
                return oldest;
            }
            tw_rt::yield_now().await;
        }
    }

    /// Ends a sweep: entries become compact that had to be found by it.
    pub(crate) async fn end_sweep(&self, held: &ZoneIndex) {
        held.index.end_sweep();
        self.pack(held).await;
    }

    /// Makes entries compact that nothing keeps from it any more.
    pub(super) async fn pack(&self, held: &ZoneIndex) {
        let mut cursor = ScanCursor::default();
        while self.cache.zone.store.has_records() && held.index.pack(&mut cursor) == Progress::More {
            tw_rt::yield_now().await;
        }
    }

    /// Removes the segments that an earlier configuration with another store has left: purges since then do not concern them.
    pub(crate) async fn remove_foreign_segments(&self) {
        let mut account = Account::new(JobClass::Scan, JobSource::NONE);
        match self.cache.zone.store.foreign_parts() {
            ForeignParts::Device => return self.forget_device(&mut account).await,
            // The snapshot of the records is of the device, or has records that are not found there.
            ForeignParts::Segments => {}
            ForeignParts::All => {
                self.forget_device(&mut account).await;
                self.remove_record_snapshot().await;
            }
        }
        let dir = directory(&self.cache.place);
        let listing = match self.disk.list(&mut account, &dir, LIST_MAX).await {
            Ok(listing) => listing,
            Err(error) => {
                if !error.is_absent() {
                    self.log_failure(&error);
                }
                return;
            }
        };
        let mut removed = 0;
        for entry in listing.entries {
            if tw_cache::segment::number_of(entry.name.to_bytes()).is_none() {
                continue;
            }
            let path = [dir.to_bytes(), b"/", entry.name.to_bytes()].concat();
            let Ok(path) = std::ffi::CString::new(path) else { continue };
            match self.disk.unlink(&mut account, &path).await {
                Err(error) if error.errno() != Some(Errno::NOENT) => self.log_failure(&error),
                _ => removed += 1,
            }
        }
        // Not empty if it has something else.
        let _ = self.disk.rmdir(&mut account, &dir).await;
        let name = Text(&self.cache.name);
        (self.log)(
            Level::Warn,
            format_args!("cache \"{name}\": {removed} segments of \"store=log\" are removed"),
        );
    }

    /// Removes the note of a device that an earlier configuration has used: purges since then do not concern it.
    async fn forget_device(&self, account: &mut Account) {
        match self.disk.unlink(account, &note_path(&self.cache.place)).await {
            Err(error) if !error.is_absent() => self.log_failure(&error),
            _ => {}
        }
    }
}
