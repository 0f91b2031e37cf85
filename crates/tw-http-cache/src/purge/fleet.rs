//! Caches in a fleet: purges of this node go to the log of the fleet, those of other nodes are applied in batches.

use std::fmt;
use std::sync::Arc;

use tw_cache::{Key, Meta, Purge, Purges, RemovedEntry, Tag};
use tw_disk::{Account, Disk, DiskError, JobClass, JobSource};
use tw_fleet::{Fleet, FleetPurge, FleetPurgeMode, FleetPurgeScope, PublishOutcome};
use tw_log::Level;

use super::PurgeScope;
use crate::zone::{Cache, CacheUser};

impl Cache {
    /// Fleet of the cache.
    pub fn fleet(&self) -> Option<&Arc<Fleet>> {
        self.fleet.as_ref()
    }

    /// Publishes a purge that was applied here. Does nothing without a fleet.
    pub(crate) async fn publish(&self, scope: &PurgeScope, mode: Purge) -> Option<PublishOutcome> {
        let fleet = self.fleet.as_ref()?;
        let scope = match scope {
            PurgeScope::Key(key) => FleetPurgeScope::Key(key.clone()),
            PurgeScope::Prefix(prefix) => FleetPurgeScope::Prefix(prefix.clone()),
            PurgeScope::Tags(tags) => FleetPurgeScope::Tags(tags.clone()),
        };
        let mode = match mode {
            Purge::Hard => FleetPurgeMode::Hard,
            Purge::Soft => FleetPurgeMode::Soft,
        };
        Some(fleet.publish(FleetPurge { cache: self.name.to_vec(), scope, mode }).await)
    }

    /// Applies purges of the fleet in order: all are in force before the first wait, and are saved together. Files are removed
    /// afterwards.
    ///
    /// # Errors
    /// The purges are not in force, because the cache cannot be loaded, or a restart could undo them.
    pub async fn purge_all(
        self: &Arc<Self>,
        disk: &Disk,
        purges: &[FleetPurge],
        log: impl Fn(Level, fmt::Arguments<'_>),
    ) -> Result<(), DiskError> {
        let parts = self.held_parts();
        let mut entries = Vec::new();
        match &self.members {
            None => {
                let zone_index = self.load_index(CacheUser::Manager, disk, log).await?;
                purges.iter().for_each(|purge| mark(&zone_index.purges, parts, purge, &mut entries));
                self.save_purges(zone_index, disk).await?;
            }
            Some(members) => {
                let known_purges = members.group.purges(disk).await.clone();
                for member in parts {
                    // A member that is left out gets them when it comes back.
                    let _ = member.load_index(CacheUser::Request, disk, &log).await;
                }
                purges.iter().for_each(|purge| mark(&known_purges, parts, purge, &mut entries));
                members.group.save_purges(disk).await?;
            }
        }
        let mut account = Account::new(JobClass::Evict, JobSource::NONE);
        for MarkedEntry { cache, key, entry } in entries {
            // They are marked: if one stays, the next sweep removes it.
            let _ = cache.zone.store.remove_purged(cache.context(disk), &mut account, key, entry).await;
        }
        Ok(())
    }
}

/// Purged key of a directory, whose file is to be removed.
struct MarkedEntry {
    cache: Arc<Cache>,
    key: Key,
    entry: Option<RemovedEntry>,
}

/// Purges without a wait, in all directories of a cache. Entries whose files are to be removed go to `entries`.
fn mark(purges: &Purges, parts: &[Arc<Cache>], purge: &FleetPurge, entries: &mut Vec<MarkedEntry>) {
    let mode = match purge.mode {
        FleetPurgeMode::Hard => Purge::Hard,
        FleetPurgeMode::Soft => Purge::Soft,
    };
    match &purge.scope {
        FleetPurgeScope::Key(text) => {
            let key = Key::of(text);
            // Also for files, which may stay until after a restart.
            purges.purge_key(key, mode);
            for cache in parts {
                if mode == Purge::Hard
                    && let Some(index) = cache.index()
                {
                    let entry = index.purge(key).removed_entry;
                    cache.zone.counts.purged.add(u64::from(entry.is_some()));
                    entries.push(MarkedEntry { cache: cache.clone(), key, entry });
                }
                cache.remove_fill(key);
            }
        }
        FleetPurgeScope::Prefix(prefix) => {
            purges.purge_prefix(prefix, mode);
            parts.iter().for_each(|cache| cache.remove_fills(|meta| meta.key_text.starts_with(prefix)));
        }
        FleetPurgeScope::Tags(tags) => {
            for tag in tags {
                purges.purge_tag(Tag::of(tag), mode);
            }
            let is_named = |meta: &Meta| meta.tags.iter().any(|tag| tags.iter().any(|named| **named == *tag));
            parts.iter().for_each(|cache| cache.remove_fills(is_named));
        }
    }
}
