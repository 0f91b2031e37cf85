//! Snapshot of a cache's index on its disk: the next process knows the entries, and the order of their last use, at once.
//!
//! The manager writes it at times. After a start it is read first, then the directory is walked: that finds what was stored since the
//! snapshot, and shows which files of it are gone. A snapshot that is missing, damaged or old costs time only.

use std::ffi::{CStr, CString};
use std::sync::atomic::Ordering::Relaxed;

use tw_cache::{
    Location, Progress, RestoreOutcome, SNAPSHOT_BLOCK_SIZE, ScanCursor, SnapshotEntry, SnapshotPart,
    SnapshotReader, SnapshotStep, SnapshotWriter,
};
use tw_disk::{Account, DiskError, Durable, Errno, File, JobClass, JobSource, OpenOptions};
use tw_log::{Level, Text};

use super::CacheMaintenance;
use crate::store::context::ZoneIndex;
use crate::store::files::temp_file::FillFile;
use crate::store::{DiskEntry, DiskFile, Store};
use crate::time::seconds;

/// Name of the file in the directory of the cache.
pub(crate) const NAME: &str = "snapshot";
const STEPS_PER_TURN: u32 = 8;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Entries of a snapshot that are added to an index in one turn of an event loop.
    const RESTORED_PER_TURN: u64 = 256, count, "the others follow in later turns";
}

/// State of a cache at its last snapshot: one that has not changed since needs no other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SnapshotState {
    sequence: u64,
    entries: u64,
    responses: u64,
}

impl CacheMaintenance {
    /// Adds the entries of the snapshots to the index, those of files the last used ones first. Returns false if the segments are
    /// not known yet: then those of records are left to [`restore_records`](Self::restore_records).
    pub(crate) async fn restore(&self, zone_index: &ZoneIndex) -> bool {
        let are_restored = self.restore_records(zone_index).await;
        self.restore_files(zone_index).await;
        are_restored
    }

    async fn restore_files(&self, zone_index: &ZoneIndex) {
        let path = self.snapshot_path();
        let mut account = Account::new(JobClass::Scan, JobSource::of(path.to_bytes()));
        let opened =
            self.disk.open_and_read(&mut account, &path, &OpenOptions::READ, SNAPSHOT_BLOCK_SIZE).await;
        let (file, first) = match opened {
            Ok(opened) => opened,
            Err(error) if error.errno() == Some(Errno::NOENT) => return,
            Err(error) => return self.log_failure(&error),
        };
        let name = Text(&self.cache.name);
        let mut reader = match SnapshotReader::open(&first) {
            Ok(reader) => reader,
            Err(why) => {
                let what = format_args!("cache \"{name}\": the snapshot of its index is not used: {why}");
                return (self.log)(Level::Warn, what);
            }
        };
        let now = seconds(tw_rt::clock::unix().secs);
        let mut restored = 0;
        loop {
            match reader.step() {
                SnapshotStep::Read { offset, len } => match self.read(&mut account, &file, offset, len).await
                {
                    Ok(bytes) => reader.supply(&bytes),
                    Err(error) => {
                        self.log_failure(&error);
                        break;
                    }
                },
                SnapshotStep::Entry(entry) if !self.has_place_of(&entry) => {}
                SnapshotStep::Entry(entry) => match zone_index.index.restore(&entry, now) {
                    RestoreOutcome::Full => break,
                    RestoreOutcome::Known => {}
                    RestoreOutcome::Added => {
                        restored += 1;
                        if restored % RESTORED_PER_TURN == 0 {
                            tw_rt::yield_now().await;
                        }
                    }
                },
                SnapshotStep::Done => break,
            }
        }
        let of = reader.entries();
        (self.log)(
            Level::Notice,
            format_args!("cache \"{name}\": {restored} of {of} entries from the snapshot"),
        );
        if reader.damaged_blocks() > 0 {
            let blocks = reader.damaged_blocks();
            let what = format_args!("cache \"{name}\": {blocks} blocks of the snapshot are damaged");
            (self.log)(Level::Warn, what);
        }
    }

    /// Returns false if an entry is in a segment that does not exist.
    fn has_place_of(&self, entry: &SnapshotEntry) -> bool {
        self.cache.zone.store.has_place(Location::from_bits(entry.location).address())
    }

    /// Reads up to `len` bytes; fewer at the end of the file.
    pub(crate) async fn read(
        &self,
        account: &mut Account,
        file: &File,
        offset: u64,
        len: usize,
    ) -> Result<Vec<u8>, DiskError> {
        let mut bytes = Vec::new();
        while bytes.len() < len {
            let at = offset + bytes.len() as u64;
            let piece = self.disk.read(account, file, at, vec![0; len - bytes.len()]).await?;
            if piece.is_empty() {
                break;
            }
            match bytes.is_empty() {
                true => bytes = piece,
                false => bytes.extend(piece),
            }
        }
        Ok(bytes)
    }

    /// Removes restored entries that the walk over the directory did not find, if their files do not exist.
    pub(crate) async fn remove_unseen(&self, zone_index: &ZoneIndex) {
        let (mut cursor, mut unseen) = (ScanCursor::default(), Vec::new());
        loop {
            let progress = zone_index.index.unseen(&mut cursor, &mut unseen);
            let store = &self.cache.zone.store;
            for entry in unseen.drain(..).filter(|entry| store.is_open_to_others(entry.address)) {
                let removals = store.removals();
                let path = self.cache.place.path(entry.key);
                let mut account = Account::new(JobClass::Scan, JobSource::NONE);
                match self.disk.stat(&mut account, &path).await {
                    Ok(meta) => {
                        let file = DiskFile { key: entry.key, size: meta.size, removals };
                        self.admit(&DiskEntry::File(file)).await;
                    }
                    Err(error) if error.errno() == Some(Errno::NOENT) => {
                        zone_index.index.remove_missing(entry.key, entry.sequence);
                    }
                    Err(error) => self.log_failure(&error),
                }
            }
            if progress == Progress::Done {
                return;
            }
            tw_rt::yield_now().await;
        }
    }

    /// Writes a snapshot if one is due and the cache has changed since `last`.
    pub(crate) async fn snapshot_if_due(&self, zone_index: &ZoneIndex, last: &mut Option<SnapshotState>) {
        let zone = &self.cache.zone;
        let Some(interval) = self.cache.place.snapshot else { return };
        let now = tw_rt::clock::unix().secs;
        let since = now.saturating_sub(zone.snapshot_at.load(Relaxed)).unsigned_abs();
        if since < interval.as_secs() {
            return;
        }
        zone.snapshot_at.store(now, Relaxed);
        let state = SnapshotState {
            sequence: zone_index.purges.sequence().last(),
            entries: zone_index.index.len(),
            responses: zone.counts.by_status.iter().map(tw_base::Counter::value).sum(),
        };
        if *last == Some(state) {
            return;
        }
        match self.write_snapshot(zone_index).await {
            Ok(()) => *last = Some(state),
            Err(error) => {
                self.cache
                    .report_disk_failure(&error, "writing a snapshot", |level, what| (self.log)(level, what));
            }
        }
    }

    /// Writes a snapshot and puts it in the place of the one before.
    pub(crate) async fn write_snapshot(&self, zone_index: &ZoneIndex) -> Result<(), DiskError> {
        let clock = tw_rt::clock::unix();
        // Two snapshots are not made in the same millisecond.
        let stamp = (clock.secs as u32).wrapping_mul(1000).wrapping_add(u32::from(clock.msec));
        let now = seconds(clock.secs);
        if let Some(records) = self.cache.zone.store.begin_snapshot(now, stamp) {
            self.write_record_snapshot(zone_index, records).await?;
        }
        let mut writer = SnapshotWriter::new(now, stamp);
        self.write_parts(&self.snapshot_path(), || writer.step(&zone_index.index)).await?;
        self.write_quotas().await
    }

    /// Writes a file part by part, as `step` makes them, and puts it in its place.
    pub(crate) async fn write_parts(
        &self,
        path: &CStr,
        mut step: impl FnMut() -> SnapshotPart,
    ) -> Result<(), DiskError> {
        let place = &self.cache.place;
        let mut account = Account::new(JobClass::Scan, JobSource::of(path.to_bytes()));
        let temp = self.disk.create_beside(&mut account, path, place.dir_len()).await?;
        let mut file = FillFile::new(temp, self.cache.write_back_size);
        let (mut written_len, mut steps) = (0, 0);
        loop {
            match step() {
                SnapshotPart::More => {
                    steps += 1;
                    if steps % STEPS_PER_TURN == 0 {
                        tw_rt::yield_now().await;
                    }
                }
                SnapshotPart::Write { offset, bytes } => {
                    written_len = written_len.max(offset + bytes.len() as u64);
                    self.disk.write(&mut account, file.temp.file(), offset, bytes).await?;
                    file.advance(&self.disk, &mut account, written_len, written_len).await?;
                }
                SnapshotPart::Done => break,
            }
        }
        file.finish(&self.disk, &mut account, written_len, written_len).await?;
        // A power cut must not replace a snapshot that can be read by one that cannot.
        self.disk.fsync(&mut account, file.temp.file(), Durable::Data).await?;
        self.disk.name(&mut account, file.temp, path).await
    }

    fn snapshot_path(&self) -> CString {
        self.cache.place.own_file(NAME)
    }
}
