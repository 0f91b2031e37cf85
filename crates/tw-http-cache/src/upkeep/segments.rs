//! Work of the manager of a cache for its segments.

use std::sync::atomic::Ordering::Acquire;

use tw_cache::{Progress, ScanCursor, ScannedEntry};
use tw_disk::{Account, JobClass, JobSource};
use tw_log::{Level, Text};

use super::{CacheMaintenance, StepPacer};
use crate::store::context::ZoneIndex;
use crate::store::place::StoredAt;
use crate::store::{EntryRead, Store};
use crate::time::seconds;

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
        for removed_entry in store.flush(self.context()).await {
            self.remove(removed_entry).await;
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
    pub(crate) async fn sweep_records(&self, zone_index: &ZoneIndex, latest: u64) -> u64 {
        let store = &self.cache.zone.store;
        let (mut cursor, mut scanned_records, mut oldest) = (ScanCursor::default(), Vec::new(), latest);
        let mut pace = StepPacer::new(self.cache.place.manager);
        loop {
            let progress = zone_index.index.scan_records(&mut cursor, &mut scanned_records);
            for record in scanned_records.drain(..).filter(|record| record.checked < latest) {
                pace.count().await;
                let mut account = Account::new(JobClass::Scan, JobSource::NONE);
                let place = StoredAt::record(record.address);
                let alive = match store.find(self.context(), &mut account, &place, place.head_read()).await {
                    Ok(EntryRead::Entry(read_entry))
                        if zone_index.index.is_record_of(&record, read_entry.key) =>
                    {
                        let entry = zone_index.index.peek(read_entry.key);
                        match entry.filter(|entry| entry.address == Some(record.address)) {
                            Some(entry) => {
                                // Fills that go on are found with the entries that are not compact.
                                let scanned_entry =
                                    ScannedEntry { key: read_entry.key, state: entry, claimed_since: None };
                                self.check_meta(zone_index, &scanned_entry, latest, &read_entry.meta).await
                            }
                            None => None,
                        }
                    }
                    Ok(
                        EntryRead::Entry(_) | EntryRead::Missing | EntryRead::Another(_) | EntryRead::OfNginx,
                    ) => {
                        zone_index.index.forget_record(&record);
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
    pub(crate) async fn end_sweep(&self, zone_index: &ZoneIndex) {
        zone_index.index.end_sweep();
        self.cache.zone.store.pack(&zone_index.index).await;
    }
}
