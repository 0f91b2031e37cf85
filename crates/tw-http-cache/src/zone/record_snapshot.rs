//! Snapshot of the records of a cache with `store=log`: after a start, a lookup reads the one block of it that has its key, as
//! long as the rest has not been read.

use std::fmt;

use tw_cache::{Key, RecordSnapshot, SNAPSHOT_BLOCK_SIZE};
use tw_disk::{Account, Disk, JobClass, JobSource};
use tw_log::{Level, Text};

use super::{Cache, seeds};
use crate::store::context::ZoneIndex;
use crate::store::record_snapshot::{FoundRecordSnapshot, OpenRecordSnapshot};
use crate::time::seconds;

impl Cache {
    /// Looks for the snapshot of the records.
    pub(crate) async fn find_record_snapshot(&self, disk: &Disk) -> FoundRecordSnapshot {
        self.zone.store.find_record_snapshot(disk, &self.place.record_snapshot_path()).await
    }

    /// Uses this snapshot of the records from now on. Returns the random numbers that the index must have, which is made next.
    pub(crate) fn use_record_snapshot(
        &self,
        record_snapshot: FoundRecordSnapshot,
        log: &dyn Fn(Level, fmt::Arguments<'_>),
    ) -> [u64; 2] {
        match record_snapshot {
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
        let (Some(zone_index), Some(disk)) = (self.zone.loaded(), disk()) else { return false };
        let Some(block) = snapshot.block_of(&zone_index.index, key) else {
            // Another task may have added it since.
            return true;
        };
        if self.zone.store.list_segments(disk).await.is_err() {
            return false;
        }
        let mut account = Account::new(JobClass::Hit, JobSource::of(&key.0));
        let offset = u64::from(block) * SNAPSHOT_BLOCK_SIZE as u64;
        let Ok(bytes) = disk.read(&mut account, file, offset, vec![0; SNAPSHOT_BLOCK_SIZE]).await else {
            return false;
        };
        self.restore_block(zone_index, snapshot, block, &bytes).is_some()
    }

    /// Adds the entries of a block to the index. Returns their number; `None` if the block is damaged: then they are found in the
    /// tables of segments.
    pub(crate) fn restore_block(
        &self,
        zone_index: &ZoneIndex,
        snapshot: &RecordSnapshot,
        block: u32,
        bytes: &[u8],
    ) -> Option<u64> {
        let store = &self.zone.store;
        let rows = snapshot.rows(block, bytes);
        let now = seconds(tw_rt::clock::unix().secs);
        let some = rows.as_deref().unwrap_or_default();
        let added = zone_index.index.restore_records(
            snapshot,
            block,
            some,
            |segment| store.has_segment(segment),
            now,
        );
        rows.map(|_| added)
    }
}
