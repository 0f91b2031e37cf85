//! Loading at the start: everything that is on the disk is added to the index.

use std::cell::RefCell;
use std::sync::atomic::Ordering::Release;

use tw_cache::Key;
use tw_disk::{Account, Errno, JobClass, JobSource};
use tw_log::{Level, Text};

use super::{CacheMaintenance, StepPacer};
use crate::store::context::ZoneIndex;
use crate::store::{
    AdmissionOutcome, DamagedSegment, DiskEntry, ScanPart, ScanPartKind, Store, UnfinishedFile,
};

/// Records that are added to the index in one turn of an event loop.
const RECORDS_PER_TURN: u64 = 256;

/// Numbers of what was found.
#[derive(Default)]
struct LoadCounts {
    files: u64,
    /// Entries of segments, also those that the index knew already.
    records: u64,
    segments: u64,
}

impl CacheMaintenance {
    /// Loads the index from the disk. If that fails, misses go on to search the disk. Files that another process did not finish
    /// are added to `unfinished`.
    pub(crate) async fn load(&self, zone_index: &ZoneIndex, unfinished: &RefCell<Vec<UnfinishedFile>>) {
        let store = &self.cache.zone.store;
        let name = Text(&self.cache.name);
        if let Some(removed) = store.remove_foreign(self.context(), &|error| self.log_failure(error)).await {
            let what = format_args!("cache \"{name}\": {removed} segments of \"store=log\" are removed");
            (self.log)(Level::Warn, what);
        }
        let mut pace = StepPacer::new(self.cache.place.loader);
        let (mut scan, mut counts, mut is_complete) = (Default::default(), LoadCounts::default(), true);
        while let Some(part) = store.scan(self.context(), &mut scan).await {
            match part {
                Ok(part) => {
                    is_complete &= !part.is_truncated;
                    self.add_part(zone_index, part, &mut counts, &mut pace, unfinished).await;
                }
                Err(error) => {
                    is_complete = false;
                    self.log_failure(&error);
                }
            }
        }
        if is_complete {
            self.cache.zone.is_loaded.store(true, Release);
        }
        let (bytes, files) = (self.cache.zone.bytes_on_disk(), counts.files);
        (self.log)(Level::Notice, format_args!("cache \"{name}\": {files} files, {bytes} bytes"));
    }

    /// Adds what is in one part of the disk.
    async fn add_part(
        &self,
        zone_index: &ZoneIndex,
        part: ScanPart,
        counts: &mut LoadCounts,
        pace: &mut StepPacer,
        unfinished: &RefCell<Vec<UnfinishedFile>>,
    ) {
        if let Some(DamagedSegment { number, why }) = part.damage {
            self.cache.zone.counts.damaged.add(1);
            let (name, found_value) = (Text(&self.cache.name), part.entries.len());
            let what = format_args!(
                "cache \"{name}\": segment {number:08} is damaged ({why}), {found_value} records are found in it"
            );
            (self.log)(Level::Crit, what);
        }
        match part.kind {
            ScanPartKind::Directory => {}
            ScanPartKind::Segment => counts.segments += 1,
            ScanPartKind::EndOfSegments => {
                self.cache.zone.store.pack(&zone_index.index).await;
                let (name, LoadCounts { records, segments, .. }) = (Text(&self.cache.name), &*counts);
                let what = format_args!("cache \"{name}\": {records} records in {segments} segments");
                (self.log)(Level::Notice, what);
            }
        }
        for entry in &part.entries {
            let is_added = self.admit(entry).await;
            match entry {
                DiskEntry::File(_) => {
                    counts.files += 1;
                    pace.count().await;
                }
                DiskEntry::Record(..) => {
                    counts.records += u64::from(is_added);
                    if counts.records.is_multiple_of(RECORDS_PER_TURN) {
                        tw_rt::yield_now().await;
                    }
                }
            }
        }
        for file in part.unfinished {
            unfinished.borrow_mut().push(file);
            pace.count().await;
        }
        tw_rt::yield_now().await;
    }

    /// Adds an entry that was found on the disk to the index, and removes what is older. Returns true if the index has it.
    pub(crate) async fn admit(&self, entry: &DiskEntry) -> bool {
        match self.cache.zone.store.admit(self.context(), entry).await {
            Ok(AdmissionOutcome::Added(pushed_out)) => {
                if let Some(removed_entry) = pushed_out {
                    self.cache.zone.counts.evicted.add(1);
                    self.remove(removed_entry).await;
                }
                true
            }
            Ok(AdmissionOutcome::Known) => true,
            Ok(AdmissionOutcome::Outdated { removed_entry, is_added }) => {
                self.remove(removed_entry).await;
                is_added
            }
            Ok(AdmissionOutcome::Gone) => false,
            Err(error) => {
                self.log_failure(&error);
                false
            }
        }
    }

    /// Removes unfinished files, unless this process is writing them: such files have the name of their key.
    pub(crate) async fn remove_unfinished(
        &self,
        zone_index: &ZoneIndex,
        unfinished: &RefCell<Vec<UnfinishedFile>>,
    ) {
        let is_written = |key: Option<Key>| {
            key.and_then(|key| zone_index.index.peek(key)).is_some_and(|entry| entry.claims > 0)
        };
        let (unfinished_files, over) =
            unfinished.take().into_iter().partition::<Vec<_>, _>(|file| is_written(file.key));
        unfinished.borrow_mut().extend(unfinished_files);
        for UnfinishedFile { path, .. } in over {
            let mut account = Account::new(JobClass::Evict, JobSource::NONE);
            match self.disk.unlink(&mut account, &path).await {
                Err(error) if error.errno() != Some(Errno::NOENT) => self.log_failure(&error),
                _ => {}
            }
        }
    }
}
