//! Purges in the index and on the disk: they hold when they are confirmed, and no crash undoes them.

use std::ffi::{CStr, CString};
use std::sync::atomic::Ordering::SeqCst;

use tw_cache::{Key, Purge, PurgeOutcome, RemovalState};
use tw_disk::{Account, Disk, DiskError, Errno, JobClass, JobSource};

use crate::store::context::ZoneIndex;
use crate::zone::Cache;

impl Cache {
    /// Purges the entry with this key, so that no crash restores it. Returns true if there was one.
    pub(crate) async fn purge_key(
        &self,
        zone_index: &ZoneIndex,
        disk: &Disk,
        key: Key,
        purge: Purge,
    ) -> Result<bool, DiskError> {
        if purge == Purge::Soft {
            zone_index.purges.purge_key(key, purge);
            self.remove_fill(key);
            return self.save_purges(zone_index, disk).await.map(|()| true);
        }
        let PurgeOutcome { removed_entry, is_placing, .. } = zone_index.index.purge(key);
        let removals = zone_index.index.removals();
        let was_coming = self.remove_fill(key);
        if is_placing || self.has_unknown_records() {
            // An older file may be put at its path after this, and be removed only then.
            zone_index.purges.purge_key(key, purge);
            self.save_purges(zone_index, disk).await?;
        }
        let mut account = Account::new(JobClass::Hit, JobSource::NONE);
        self.zone.counts.purged.add(u64::from(removed_entry.is_some()));
        let was_there =
            self.zone.store.remove_purged(self.context(disk), &mut account, key, removed_entry).await?
                || was_coming;
        self.sync_records(zone_index, disk, key, removals).await?;
        // A power cut could restore the removed file, also if another task removed it.
        match disk.sync_dir(&mut account, &above(&self.place.path(key))).await {
            // A missing directory has no files, and some file systems cannot sync directories.
            Err(error) if !matches!(error.errno(), Some(Errno::NOENT | Errno::INVAL)) => Err(error),
            _ => Ok(was_there),
        }
    }

    /// Returns true if there may be records that the index does not know, or has just lost.
    fn has_unknown_records(&self) -> bool {
        self.zone.store.has_unknown_records(self.zone.is_loaded.load(SeqCst))
    }

    /// Waits until no power cut can bring back a record of this key that has left the index before; `removals` entries have.
    async fn sync_records(
        &self,
        zone_index: &ZoneIndex,
        disk: &Disk,
        key: Key,
        removals: u64,
    ) -> Result<(), DiskError> {
        let store = &self.zone.store;
        if store.wait_for_removals(&zone_index.index, removals).await != RemovalState::Nothing {
            // One of them may be of this key.
            zone_index.purges.purge_key(key, Purge::Hard);
            self.save_purges(zone_index, disk).await?;
        }
        store.sync_removals(disk, Some(key)).await?;
        store.sync_segments(disk).await
    }

    /// Purges all entries whose keys have this prefix.
    pub(crate) async fn purge_prefix(
        &self,
        zone_index: &ZoneIndex,
        disk: &Disk,
        prefix: &[u8],
        purge: Purge,
    ) -> Result<(), DiskError> {
        zone_index.purges.purge_prefix(prefix, purge);
        self.remove_fills(|meta| meta.key_text.starts_with(prefix));
        self.save_purges(zone_index, disk).await
    }

    /// Purges all entries with one of these tags.
    pub(crate) async fn purge_tags(
        &self,
        zone_index: &ZoneIndex,
        disk: &Disk,
        tags: &[Vec<u8>],
        purge: Purge,
    ) -> Result<(), DiskError> {
        for tag in tags {
            zone_index.purges.purge_tag(tw_cache::Tag::of(tag), purge);
        }
        self.remove_fills(|meta| meta.tags.iter().any(|tag| tags.iter().any(|named| **named == *tag)));
        self.save_purges(zone_index, disk).await
    }
}

/// Directory of a file.
fn above(path: &CStr) -> CString {
    let path = path.to_bytes();
    let slash = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    CString::new(&path[..slash.max(1)]).unwrap_or_default()
}
