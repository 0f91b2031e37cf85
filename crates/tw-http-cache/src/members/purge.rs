//! Purges of a cache that has several directories: in all members, whether they answer or not.

use std::sync::atomic::Ordering::Relaxed;

use tw_cache::{Key, Purge};
use tw_disk::{Disk, DiskError};
use tw_log::Level;

use crate::member_group::{MemberFuture, Members, all};
use crate::members::open_group::SAVE_MAX;
use crate::purge::{PurgeOutcome, PurgeScope};
use crate::zone::{Cache, CacheUser};

impl Cache {
    /// Purges the responses of `scope` in all members. It is in force at once. One of the members is enough to save it; a
    /// member that does not answer gets it later.
    pub(crate) async fn purge_members(
        &self,
        members: &Members<Cache>,
        disk: &Disk,
        scope: &PurgeScope,
        mode: Purge,
        log: &dyn Fn(Level, std::fmt::Arguments<'_>),
    ) -> Result<PurgeOutcome, DiskError> {
        let purges = members.group.purges(disk).await.clone();
        for member in &members.list {
            // A member that is left out gets it when it comes back.
            let _ = member.load_index(CacheUser::Request, disk, log).await;
        }
        match scope {
            PurgeScope::Key(text) => {
                return self.purge_key_of_members(members, disk, Key::of(text), mode).await;
            }
            PurgeScope::Prefix(prefix) => {
                purges.purge_prefix(prefix, mode);
                members.list.iter().for_each(|member| {
                    member.remove_fills(|meta| meta.key_text.starts_with(prefix));
                });
            }
            PurgeScope::Tags(tags) => {
                for tag in tags {
                    purges.purge_tag(tw_cache::Tag::of(tag), mode);
                }
                members.list.iter().for_each(|member| {
                    member.remove_fills(|meta| meta.tags.iter().any(|tag| tags.iter().any(|t| **t == *tag)));
                });
            }
        }
        members.group.save_purges(disk).await.map(|()| PurgeOutcome::Done)
    }

    async fn purge_key_of_members(
        &self,
        members: &Members<Cache>,
        disk: &Disk,
        key: Key,
        mode: Purge,
    ) -> Result<PurgeOutcome, DiskError> {
        let purges = members.group.purges(disk).await.clone();
        let is_used = |member: &Cache| member.zone.loaded().is_some() && member.zone.breaker.admits_all();
        let mut is_whole = mode == Purge::Hard && members.list.iter().all(|member| is_used(member));
        if !is_whole {
            purges.purge_key(key, mode);
        }
        let mut was_there = mode == Purge::Soft;
        if mode == Purge::Hard {
            let mut removals: Vec<MemberFuture<'_, bool>> = Vec::new();
            for member in &members.list {
                let Some(zone_index) = member.zone.loaded() else { continue };
                if is_used(member) {
                    removals.push(Box::pin(async move {
                        let removal = member.purge_key(zone_index, disk, key, mode);
                        match tw_rt::time::timeout(SAVE_MAX, removal).await {
                            Ok(Ok(is_found)) => is_found,
                            // In force, but not so that no restart can undo it.
                            Ok(Err(_)) | Err(_) => {
                                member.zone.member.failed_purges.fetch_add(1, Relaxed);
                                true
                            }
                        }
                    }));
                } else {
                    was_there |=
                        zone_index.index.purge(key).removed_entry.is_some() | member.remove_fill(key);
                }
            }
            let failed = |members: &Members<Cache>| -> u64 {
                members.list.iter().map(|member| member.zone.member.failed_purges.load(Relaxed)).sum()
            };
            let before = failed(members);
            was_there |= all(removals).await.into_iter().any(|is_found| is_found);
            if is_whole && failed(members) != before {
                purges.purge_key(key, mode);
                is_whole = false;
            }
        } else {
            members.list.iter().for_each(|member| _ = member.remove_fill(key));
        }
        if !is_whole {
            members.group.save_purges(disk).await?;
        }
        Ok(if was_there { PurgeOutcome::Done } else { PurgeOutcome::Nothing })
    }
}
