//! Reading and writing of the snapshot of the records of a cache with `store=log`.

use tw_cache::{RecordSnapshotWriter, SNAPSHOT_BLOCK_SIZE};
use tw_disk::{Account, DiskError, JobClass, JobSource};
use tw_log::{Level, Text};

use super::CacheMaintenance;
use crate::store::context::ZoneIndex;
use crate::store::record_snapshot::OpenRecordSnapshot;

/// Blocks that are read at once when all are read.
const BLOCKS_PER_READ: u32 = 64;

impl CacheMaintenance {
    /// Adds all entries of the snapshot of the records to the index. Returns false if the segments are not known yet: the
    /// directory cannot be read, or another process uses the device.
    pub(crate) async fn restore_records(&self, zone_index: &ZoneIndex) -> bool {
        if let Err(error) = self.cache.zone.store.list_segments(&self.disk).await {
            self.log_failure(&error);
            return false;
        }
        if let Some(open) = self.cache.zone.record_snapshot.get() {
            self.restore_blocks(zone_index, open).await;
        }
        true
    }

    async fn restore_blocks(&self, zone_index: &ZoneIndex, open: &OpenRecordSnapshot) {
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
                match self.cache.restore_block(zone_index, snapshot, block, bytes) {
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
        zone_index: &ZoneIndex,
        mut writer: RecordSnapshotWriter,
    ) -> Result<(), DiskError> {
        self.write_parts(&self.cache.place.record_snapshot_path(), || writer.step(&zone_index.index)).await
    }
}
