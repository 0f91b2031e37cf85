//! Snapshot of the records of a cache with `store=log`: after a start, a lookup reads the one block of it that has its key, as
//! long as the rest has not been read.

use std::ffi::CString;
use std::fmt;

use tw_cache::{Key, RecordSnapshot, RecordSnapshotWriter, SNAPSHOT_BLOCK_SIZE, SnapshotError};
use tw_disk::{Account, Disk, DiskError, Errno, File, JobClass, JobSource, OpenOptions};
use tw_log::{Level, Text};

use super::CacheMaintenance;
use crate::http::cache::seconds;
use crate::http::cache::zone::{Cache, ZoneIndex, seeds};

/// Name of the file in the directory of the cache.
pub(crate) const NAME: &str = "pages";
/// Blocks that are read at once when all are read.
const BLOCKS_PER_READ: u32 = 64;

/// Open snapshot.
pub(crate) struct OpenRecordSnapshot {
    snapshot: RecordSnapshot,
    file: File,
}

/// Snapshot that was found in the directory of a cache.
pub(crate) enum FoundRecordSnapshot {
    Open(OpenRecordSnapshot),
    Missing,
    Invalid(SnapshotError),
    Unreadable(DiskError),
}

impl Cache {
    /// Looks for the snapshot of the records.
    pub(crate) async fn find_record_snapshot(&self, disk: &Disk) -> FoundRecordSnapshot {
        if self.zone.segments.is_none() {
            return FoundRecordSnapshot::Missing;
        }
        let path = self.record_snapshot_path();
        let mut account = Account::new(JobClass::Hit, JobSource::of(path.to_bytes()));
        let opened = disk.open_and_read(&mut account, &path, &OpenOptions::READ, SNAPSHOT_BLOCK_SIZE).await;
        match opened {
            Ok((file, first)) => match RecordSnapshot::open(&first) {
                Ok(snapshot) => FoundRecordSnapshot::Open(OpenRecordSnapshot { snapshot, file }),
                Err(why) => FoundRecordSnapshot::Invalid(why),
            },
            Err(error) if error.is_absent() => FoundRecordSnapshot::Missing,
            Err(error) => FoundRecordSnapshot::Unreadable(error),
        }
    }

    /// Uses this snapshot of the records from now on. Returns the random numbers that the index must have, which is made next.
    pub(crate) fn use_record_snapshot(
        &self,
        found: FoundRecordSnapshot,
        log: &dyn Fn(Level, fmt::Arguments<'_>),
    ) -> [u64; 2] {
        match found {
            FoundRecordSnapshot::Open(open) => {
                let seed = open.snapshot.seed();
                if self.zone.record_snapshot.set(open).is_ok() {
                    return seed;
                }
            }
            FoundRecordSnapshot::Missing => {}
            FoundRecordSnapshot::Unreadable(error) => {
                self.report_disk_failure(&error, "reading its snapshot", log);
            }
            FoundRecordSnapshot::Invalid(why) => {
                let name = Text(&self.name);
                let what = format_args!("cache \"{name}\": the snapshot of its records is not used: {why}");
                log(Level::Warn, what);
            }
        }
        seeds()
    }

    /// Adds the entries of the snapshot to the index that are in one block with this key; without a snapshot of the records, waits
    /// until that of the index has been read. Returns true if there may be an entry now.
    pub(crate) async fn restore_key<'d>(&self, key: Key, disk: &dyn Fn() -> Option<&'d Disk>) -> bool {
        let Some(OpenRecordSnapshot { snapshot, file }) = self.zone.record_snapshot.get() else {
            return self.zone.wait_restored().await;
        };
        let (Some(held), Some(disk), Some(store)) = (self.zone.loaded(), disk(), &self.zone.segments) else {
            return false;
        };
        let Some(block) = snapshot.block_of(&held.index, key) else {
            // Another task may have added it since.
            return true;
        };
        if store.list(disk).await.is_err() {
            return false;
        }
        let mut account = Account::new(JobClass::Hit, JobSource::of(&key.0));
        let offset = u64::from(block) * SNAPSHOT_BLOCK_SIZE as u64;
        let Ok(bytes) = disk.read(&mut account, file, offset, vec![0; SNAPSHOT_BLOCK_SIZE]).await else {
            return false;
        };
        self.restore_block(held, snapshot, block, &bytes).is_some()
    }

    /// Adds the entries of a block to the index. Returns their number; `None` if the block is damaged: then they are found in the
    /// tables of segments.
    fn restore_block(
        &self,
        held: &ZoneIndex,
        snapshot: &RecordSnapshot,
        block: u32,
        bytes: &[u8],
    ) -> Option<u64> {
        let store = self.zone.segments.as_ref()?;
        let rows = snapshot.rows(block, bytes);
        let now = seconds(tw_rt::clock::unix().secs);
        let some = rows.as_deref().unwrap_or_default();
        let added = held.index.restore_records(snapshot, block, some, |segment| store.has(segment), now);
        rows.map(|_| added)
    }

    fn record_snapshot_path(&self) -> CString {
        CString::new([self.place.dir.to_bytes(), b"/", NAME.as_bytes()].concat()).unwrap_or_default()
    }
}

impl CacheMaintenance {
    /// Adds all entries of the snapshot of the records to the index. Returns false if the segments are not known yet: the
    /// directory cannot be read, or another process uses the device.
    pub(crate) async fn restore_records(&self, held: &ZoneIndex) -> bool {
        let Some(store) = &self.cache.zone.segments else { return true };
        if let Err(error) = store.list(&self.disk).await {
            self.log_failure(&error);
            return false;
        }
        if let Some(open) = self.cache.zone.record_snapshot.get() {
            self.restore_blocks(held, open).await;
        }
        true
    }

    async fn restore_blocks(&self, held: &ZoneIndex, open: &OpenRecordSnapshot) {
        let OpenRecordSnapshot { snapshot, file } = open;
        let mut account = Account::new(JobClass::Scan, JobSource::of(self.cache.place.dir.to_bytes()));
        let (mut restored, mut damaged, mut next) = (0, 0_u64, 1);
        while next < snapshot.blocks() {
            let count = BLOCKS_PER_READ.min(snapshot.blocks() - next);
            let (offset, len) = (u64::from(next), count as usize * SNAPSHOT_BLOCK_SIZE);
            let bytes = match self.read(&mut account, file, offset * SNAPSHOT_BLOCK_SIZE as u64, len).await {
                Ok(bytes) => bytes,
                Err(error) => return self.log_failure(&error),
            };
            let mut blocks = bytes.chunks(SNAPSHOT_BLOCK_SIZE);
            for block in next..next + count {
                let bytes = blocks.next().unwrap_or_default();
                if snapshot.is_done(block) {
                    continue;
                }
                match self.cache.restore_block(held, snapshot, block, bytes) {
                    Some(added) => restored += added,
                    None => damaged += 1,
                }
                // A page has some hundreds of entries.
                tw_rt::yield_now().await;
            }
            next += count;
        }
        let (name, of) = (Text(&self.cache.name), snapshot.entries());
        (self.log)(
            Level::Notice,
            format_args!("cache \"{name}\": {restored} of {of} entries from the snapshot of its records"),
        );
        if damaged > 0 {
            let what =
                format_args!("cache \"{name}\": {damaged} blocks of the snapshot of its records are damaged");
            (self.log)(Level::Warn, what);
        }
    }

    /// Writes a snapshot of the records and puts it in the place of the one before.
    pub(crate) async fn write_record_snapshot(
        &self,
        held: &ZoneIndex,
        now: u32,
        stamp: u32,
    ) -> Result<(), DiskError> {
        let mut writer = RecordSnapshotWriter::new(now, stamp);
        self.write_parts(&self.cache.record_snapshot_path(), || writer.step(&held.index)).await
    }

    /// Removes the snapshot of the records if the cache has none any more.
    pub(crate) async fn remove_record_snapshot(&self) {
        let mut account = Account::new(JobClass::Scan, JobSource::NONE);
        match self.disk.unlink(&mut account, &self.cache.record_snapshot_path()).await {
            Err(error) if error.errno() != Some(Errno::NOENT) => self.log_failure(&error),
            _ => {}
        }
    }
}
