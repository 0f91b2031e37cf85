//! Snapshot of the records of a cache with `store=log`: after a start, a lookup reads the one block of it that has its key, as
//! long as the rest has not been read.

use std::ffi::CString;

use tw_cache::{Key, RecordSnapshot, RecordSnapshotWriter, SNAPSHOT_BLOCK_SIZE};
use tw_disk::{Account, Disk, DiskError, Errno, File, JobClass, JobSource, OpenOptions};
use tw_log::{Level, Text};

use super::manager::CacheMaintenance;
use super::zone::{Cache, ZoneIndex};

/// Name of the file in the directory of the cache.
pub(super) const NAME: &str = "pages";
/// Blocks that are read at once when all are read.
const BLOCKS_PER_READ: u32 = 64;

/// Open snapshot.
pub(super) struct OpenRecordSnapshot {
    snapshot: RecordSnapshot,
    file: File,
}

impl Cache {
    /// Opens the snapshot of the records, once. Returns the random numbers that an index must have to use it.
    pub(super) async fn open_record_snapshot(
        &self,
        disk: &Disk,
        log: &impl Fn(Level, std::fmt::Arguments<'_>),
    ) -> Option<[u64; 2]> {
        self.zone.segments.as_ref()?;
        let mut by = Account::new(JobClass::Hit, JobSource::NONE);
        let path = self.record_snapshot_path();
        let opened = disk.open_and_read(&mut by, &path, &OpenOptions::READ, SNAPSHOT_BLOCK_SIZE).await;
        let (file, first) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                if !error.is_absent() {
                    self.report_disk_failure(&error, "reading its snapshot", log);
                }
                return None;
            }
        };
        match RecordSnapshot::open(&first) {
            Ok(snapshot) => {
                let seed = snapshot.seed();
                let _ = self.zone.record_snapshot.set(OpenRecordSnapshot { snapshot, file });
                Some(seed)
            }
            Err(why) => {
                let name = Text(&self.name);
                log(
                    Level::Warn,
                    format_args!("cache \"{name}\": the snapshot of its records is not used: {why}"),
                );
                None
            }
        }
    }

    /// Adds the entries of the snapshot to the index that are in one block with this key; without a snapshot of the records, waits
    /// until that of the index has been read. Returns true if there may be an entry now.
    pub(super) async fn restore_key<'d>(&self, key: Key, disk: &dyn Fn() -> Option<&'d Disk>) -> bool {
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
        let mut by = Account::new(JobClass::Hit, JobSource::of(&key.0));
        let offset = u64::from(block) * SNAPSHOT_BLOCK_SIZE as u64;
        let Ok(bytes) = disk.read(&mut by, file, offset, vec![0; SNAPSHOT_BLOCK_SIZE]).await else {
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
        let now = super::seconds(tw_rt::clock::unix().secs);
        let some = rows.as_deref().unwrap_or_default();
        let added = held.index.restore_records(snapshot, block, some, |segment| store.has(segment), now);
        rows.map(|_| added)
    }

    fn record_snapshot_path(&self) -> CString {
        CString::new([self.place.dir.to_bytes(), b"/", NAME.as_bytes()].concat()).unwrap_or_default()
    }
}

impl CacheMaintenance {
    /// Adds all entries of the snapshot of the records to the index.
    pub(super) async fn restore_records(&self, held: &ZoneIndex) {
        let Some(OpenRecordSnapshot { snapshot, file }) = self.cache.zone.record_snapshot.get() else {
            return;
        };
        let mut by = Account::new(JobClass::Scan, JobSource::of(self.cache.place.dir.to_bytes()));
        let (mut restored, mut damaged, mut next) = (0, 0_u64, 1);
        while next < snapshot.blocks() {
            let count = BLOCKS_PER_READ.min(snapshot.blocks() - next);
            let (offset, len) = (u64::from(next), count as usize * SNAPSHOT_BLOCK_SIZE);
            let bytes = match self.read(&mut by, file, offset * SNAPSHOT_BLOCK_SIZE as u64, len).await {
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
    pub(super) async fn write_record_snapshot(
        &self,
        held: &ZoneIndex,
        now: u32,
        stamp: u32,
    ) -> Result<(), DiskError> {
        let mut writer = RecordSnapshotWriter::new(now, stamp);
        self.write_parts(&self.cache.record_snapshot_path(), || writer.step(&held.index)).await
    }

    /// Removes the snapshot of the records if the cache has none any more.
    pub(super) async fn remove_record_snapshot(&self) {
        let mut by = Account::new(JobClass::Scan, JobSource::NONE);
        match self.disk.unlink(&mut by, &self.cache.record_snapshot_path()).await {
            Err(error) if error.errno() != Some(Errno::NOENT) => self.log_failure(&error),
            _ => {}
        }
    }
}
