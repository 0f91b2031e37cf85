//! Removals that no power cut can undo.

use tw_cache::{Key, SegmentAddress};
use tw_disk::{Account, Disk, DiskError, Durable, Errno, JobClass, JobSource};

use super::segment_list::UnsyncedKeys;
use super::{SegmentStore, UNSYNCED_KEYS_MAX};

impl SegmentStore {
    /// Notes that the removal of a record of this key is not safe yet.
    pub(super) fn note_unsynced(&self, address: SegmentAddress, key: Key) {
        if let Some(segment) = self.list.lock().segments.get_mut(&address.segment) {
            let unsynced = &mut segment.unsynced;
            if unsynced.keys.len() < UNSYNCED_KEYS_MAX {
                unsynced.keys.insert(key);
            } else {
                unsynced.are_more = true;
            }
        }
    }

    /// Waits until no power cut can bring back removed records of this key, or of any.
    pub(crate) async fn sync_removals(&self, disk: &Disk, key: Option<Key>) -> Result<(), DiskError> {
        let is_meant = |unsynced: &UnsyncedKeys| match key {
            Some(key) => unsynced.are_more || unsynced.keys.contains(&key),
            None => unsynced.are_more || !unsynced.keys.is_empty(),
        };
        let numbers: Vec<u32> = {
            let segments = self.list.lock();
            segments
                .segments
                .iter()
                .filter(|(_, s)| is_meant(&s.unsynced))
                .map(|(number, _)| *number)
                .collect()
        };
        for number in numbers {
            let mut account = Account::new(JobClass::Hit, JobSource::NONE);
            let Some(open) = self.open_to_write(disk, &mut account, number).await? else { continue };
            // Entries that are removed meanwhile are noted anew.
            let taken = {
                let mut segments = self.list.lock();
                segments.segments.get_mut(&number).map(|segment| std::mem::take(&mut segment.unsynced))
            };
            let Some(taken) = taken else { continue };
            if let Err(error) = disk.fsync(&mut account, &open.file, Durable::Data).await {
                if let Some(segment) = self.list.lock().segments.get_mut(&number) {
                    segment.unsynced.are_more |= taken.are_more;
                    segment.unsynced.keys.extend(taken.keys);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Waits until no power cut can undo the removal of segments.
    pub(crate) async fn sync_directory(&self, disk: &Disk, account: &mut Account) -> Result<(), DiskError> {
        if let Some(device) = &self.device {
            return match device.opened() {
                Some(opened) => disk.fsync(account, &opened.file, Durable::Data).await,
                None => Ok(()),
            };
        }
        match disk.sync_dir(account, &self.dir).await {
            Err(error) if !matches!(error.errno(), Some(Errno::NOENT | Errno::INVAL)) => Err(error),
            _ => Ok(()),
        }
    }
}
