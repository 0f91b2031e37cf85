//! Members of a cache that are opened, saved and swept together.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::task::Poll;
use std::time::Duration;

use tw_cache::Purges;
use tw_disk::{Disk, DiskError, Errno, Op};

use crate::entry::ZoneId;
use crate::member_group::all;
use crate::member_group::file::{FoundMember, MemberFile, MemberName};
use crate::member_group::group::DirectoryFiles;
use crate::store::segments::DeviceContentUse;
use crate::time::unix_ms;
use crate::zone::{Cache, CacheGroup, random};

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Time for which the first requests after a start wait for the purges of the members of a cache.
    pub(crate) const GATHER_MAX: Duration = Duration::from_secs(2), time, "a member that has not answered is left out, and tried again each second";
    /// Time for which a purge waits for one member of a cache.
    pub(crate) const SAVE_MAX: Duration = Duration::from_secs(2), time, "the purge is saved by the others, and by this one when it answers";
}

impl CacheGroup {
    /// Purges of all members. Waits for their disks the first time, for a limited time.
    pub(crate) async fn purges(&self, disk: &Disk) -> &Arc<Purges> {
        self.purges_since(u64::try_from(unix_ms()).unwrap_or(0), disk).await
    }

    pub(crate) async fn purges_since(&self, now_ms: u64, disk: &Disk) -> &Arc<Purges> {
        let make = || async {
            let members = self.members();
            // A cache with one directory may have become one with several.
            let own = members.iter().find_map(|member| Some((member, member.zone.loaded()?)));
            let own = own.map(|(member, zone_index)| {
                member.zone.member.last.store(zone_index.purges.sequence().last(), SeqCst);
                zone_index.purges.clone()
            });
            let purges = own.unwrap_or_else(|| Arc::new(Purges::new(now_ms)));
            let members: Vec<_> =
                members.into_iter().filter(|member| member.zone.loaded().is_none()).collect();
            self.gather(&members, disk).await;
            for member in &members {
                if let Some(files) = &*member.zone.member.directory_files.lock() {
                    self.unite_found(member, files, &purges);
                }
            }
            self.purges_changed.fetch_add(1, SeqCst);
            purges
        };
        self.purges.get_or_init(make).await
    }

    /// Reads the files of the members, as far as they answer in time.
    async fn gather(&self, members: &[Arc<Cache>], disk: &Disk) {
        let mut directory_files: Vec<Option<Result<DirectoryFiles, DiskError>>> =
            members.iter().map(|_| None).collect();
        {
            let mut reads: Vec<_> =
                members.iter().map(|member| Box::pin(member.read_directory_files(disk))).collect();
            let read = poll_fn(|cx| {
                for (read, directory_files) in reads
                    .iter_mut()
                    .zip(&mut directory_files)
                    .filter(|(_, directory_files)| directory_files.is_none())
                {
                    if let Poll::Ready(files) = read.as_mut().poll(cx) {
                        *directory_files = Some(files);
                    }
                }
                // A member that others remember as left out is not waited for.
                let out = remembered_out(directory_files.iter().flatten());
                let is_waited_for = |member: &Arc<Cache>| !out.contains(member.place.dir.to_bytes());
                let is_done = members
                    .iter()
                    .zip(&directory_files)
                    .all(|(m, directory_files)| directory_files.is_some() || !is_waited_for(m));
                if is_done { Poll::Ready(()) } else { Poll::Pending }
            });
            let _ = tw_rt::time::timeout(GATHER_MAX, read).await;
        }
        let out = remembered_out(directory_files.iter().flatten());
        let mut record = self.record.lock();
        let set = common_set(directory_files.iter().flatten());
        record.set = set;
        for file in directory_files.iter().flatten().filter_map(member_file_of).filter(|file| file.set == set)
        {
            record.members.extend(file.members.iter().cloned());
        }
        drop(record);
        for (member, directory_files) in members.iter().zip(directory_files) {
            let zone = &member.zone.member;
            zone.was_out.store(out.contains(member.place.dir.to_bytes()), Relaxed);
            *zone.directory_files.lock() = directory_files;
        }
    }

    /// Notes that a member has answered, and what it has.
    pub(crate) fn unite_found(
        &self,
        member: &Cache,
        directory_files: &Result<DirectoryFiles, DiskError>,
        purges: &Purges,
    ) {
        if let Ok(files) = directory_files {
            self.unite_purges(files, purges);
        }
        // After its device.
        member.zone.member.has_answered.store(true, SeqCst);
    }

    /// Use of what is on the device with this number, which its member did not have.
    pub(crate) fn use_of_device(&self, number: &[u8]) -> DeviceContentUse {
        // Before the devices: a member notes its own one before it has answered.
        let is_awaited = |member: &Arc<Cache>| {
            let zone = &member.zone;
            zone.loaded().is_none() && !zone.member.has_answered.load(SeqCst)
        };
        let awaited: Vec<_> = self.members().into_iter().filter(is_awaited).collect();
        let record = self.record.lock();
        let is_of_record = |member: &Arc<Cache>| record.members.contains(member.place.dir.to_bytes());
        match record.devices.contains_key(number) {
            true => DeviceContentUse::Keep,
            false if awaited.iter().any(is_of_record) => DeviceContentUse::Undecided,
            false => DeviceContentUse::Remove,
        }
    }

    /// Saves the purges in all members that answer.
    ///
    /// # Errors
    /// No member has saved them.
    pub(crate) async fn save_purges(&self, disk: &Disk) -> Result<(), DiskError> {
        self.purges_changed.fetch_add(1, SeqCst);
        let members = self.members();
        let used = members.iter().filter(|member| member.is_in_use());
        let saves = used.map(|member| -> std::pin::Pin<Box<dyn Future<Output = Result<(), DiskError>>>> {
            let (member, disk) = (member.clone(), disk.clone());
            Box::pin(async move {
                match tw_rt::time::timeout(SAVE_MAX, member.save_member_purges(&disk)).await {
                    Ok(saved) => saved,
                    Err(_) => Err(Op::Write.failed(Errno::TIMEDOUT)),
                }
            })
        });
        let mut failed = Op::Write.failed(Errno::NODEV);
        let mut is_saved = false;
        for saved in all(saves.collect()).await {
            match saved {
                Ok(()) => is_saved = true,
                Err(error) => failed = error,
            }
        }
        if is_saved { Ok(()) } else { Err(failed) }
    }

    /// Takes the result of a sweep of one member: its oldest entry. Returns the oldest one of all members, if it is known and
    /// all of them have saved the purges: one that comes back with a file of before would lose its responses.
    pub(crate) fn swept(&self, zone: ZoneId, oldest: u64) -> Option<u64> {
        let members = self.members();
        let changed = self.purges_changed.load(SeqCst);
        let is_saved = |member: &Arc<Cache>| member.zone.member.purges_saved.load(SeqCst) >= changed;
        let is_saved = members.iter().all(is_saved);
        let mut sweeps = self.sweeps.lock();
        sweeps.insert(zone, oldest);
        sweeps.retain(|zone, _| members.iter().any(|member| member.zone.id == *zone));
        let oldest = members.iter().map(|member| sweeps.get(&member.zone.id).copied());
        oldest.collect::<Option<Vec<_>>>()?.into_iter().min().filter(|_| is_saved)
    }

    /// A member has come that knows of purges forgotten up to `dropped`: others may have come without.
    pub(crate) fn raise_floors(&self, dropped: u64) {
        for member in self.members() {
            if let Some(zone_index) = member.zone.loaded()
                && member.zone.member.last.load(SeqCst) < dropped
            {
                zone_index.floor.fetch_max(dropped, SeqCst);
            }
        }
    }
}

fn member_file_of(files: &Result<DirectoryFiles, DiskError>) -> Option<&MemberFile> {
    match files {
        Ok(DirectoryFiles { member: FoundMember::File(file), .. }) => Some(file),
        _ => None,
    }
}

/// Members that others remember as left out.
fn remembered_out<'a>(
    files: impl Iterator<Item = &'a Result<DirectoryFiles, DiskError>>,
) -> BTreeSet<MemberName> {
    files.filter_map(member_file_of).flat_map(|file| file.out.iter().cloned()).collect()
}

/// Number that most directories have; a new one if none has any.
fn common_set<'a>(files: impl Iterator<Item = &'a Result<DirectoryFiles, DiskError>>) -> u64 {
    let mut counts: Vec<(u64, usize)> = Vec::new();
    for file in files.filter_map(member_file_of) {
        match counts.iter_mut().find(|(set, _)| *set == file.set) {
            Some((_, count)) => *count += 1,
            None => counts.push((file.set, 1)),
        }
    }
    let most = counts.iter().map(|(_, count)| *count).max();
    let common = counts.iter().find(|(_, count)| Some(*count) == most).map(|(set, _)| *set);
    common.unwrap_or_else(random)
}
