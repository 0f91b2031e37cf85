//! Common state of the members of a cache: the purges, and the record of which directories there are.
//!
//! Each member has a copy of both on its disk (`purges`, `member`). At the start all copies are read, and what any of them has
//! counts. A member that does not answer is left out, and its manager tries again; before any of its responses is used, its
//! purges are united with those of the others. A member that was missing while purges were forgotten has all its older
//! responses purged.

use std::collections::{BTreeSet, HashMap};
use std::ffi::CString;
use std::fmt;
use std::future::poll_fn;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, OnceLock, Weak};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::OnceCell;
use tw_base::FatalMutex;
use tw_cache::{Index, Key, Purge, Purges};
use tw_disk::{Account, Disk, DiskError, Errno, JobClass, JobSource, Op};
use tw_log::{Level, Text};

use super::all;
use super::file::{self, FoundMember, MemberFile, MemberName};
use crate::http::cache::entry::ZoneId;
use crate::http::cache::guard::breaker::Breaker;
use crate::http::cache::store::context::ZoneIndex;
use crate::http::cache::store::record_snapshot::FoundRecordSnapshot;
use crate::http::cache::store::segments::{DeviceContentUse, DeviceNumber, NOTE_MAX, NUMBER_LEN, note_path};
use crate::http::cache::time::unix_ms;
use crate::http::cache::zone::{Cache, CacheUser};
use crate::http::local_future::boxed;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Time for which the first requests after a start wait for the purges of the members of a cache.
    const GATHER_MAX: Duration = Duration::from_secs(2), time, "a member that has not answered is left out, and tried again each second";
    /// Time for which a purge waits for one member of a cache.
    pub(crate) const SAVE_MAX: Duration = Duration::from_secs(2), time, "the purge is saved by the others, and by this one when it answers";
}

/// Common state of the members of a cache.
#[derive(Default)]
pub(crate) struct MemberGroup {
    purges: OnceCell<Arc<Purges>>,
    /// Members by the newest configuration.
    members: FatalMutex<Vec<Weak<Cache>>>,
    record: FatalMutex<GroupRecord>,
    /// Numbers of the newest purges and of the newest record: members have to save them.
    purges_changed: AtomicU64,
    record_changed: AtomicU64,
    /// For each member the oldest number of an entry that the last sweep has found.
    sweeps: FatalMutex<HashMap<ZoneId, u64>>,
}

#[derive(Default)]
struct GroupRecord {
    set: u64,
    members: BTreeSet<MemberName>,
    out: BTreeSet<MemberName>,
    /// Numbers of the devices that members had at the start, with the last number of the purges beside each.
    devices: HashMap<DeviceNumber, u64>,
}

/// State of one member.
pub(crate) struct MemberZone {
    group: OnceLock<Arc<MemberGroup>>,
    /// Files that were found at the start.
    found: FatalMutex<Option<Result<DirectoryFiles, DiskError>>>,
    purges_saved: AtomicU64,
    record_saved: AtomicU64,
    /// Last number of its purge file when it came.
    last: AtomicU64,
    /// True if its files were read, or could not be: its device is noted by then.
    has_answered: AtomicBool,
    /// True if it was left out when it could not be opened, and this was logged.
    is_missing: AtomicBool,
    /// True if another member remembers from before the start that it was left out.
    was_out: AtomicBool,
    /// Breaker of storing: a full or read-only disk can still be read.
    pub(crate) store_breaker: Breaker,
    /// Number of purges of a key that its disk did not finish.
    pub(crate) failed_purges: AtomicU64,
}

/// Files of a directory that are read before it is used.
struct DirectoryFiles {
    member: FoundMember,
    purges: Option<Vec<u8>>,
    /// Number of the device that it had.
    device: Option<DeviceNumber>,
    records: FoundRecordSnapshot,
}

impl MemberZone {
    pub(crate) fn new() -> Self {
        Self {
            group: OnceLock::new(),
            found: FatalMutex::default(),
            purges_saved: AtomicU64::new(0),
            record_saved: AtomicU64::new(0),
            last: AtomicU64::new(0),
            has_answered: AtomicBool::new(false),
            is_missing: AtomicBool::new(false),
            was_out: AtomicBool::new(false),
            store_breaker: Breaker::new(),
            failed_purges: AtomicU64::new(0),
        }
    }

    /// Makes it a member of a group, for ever.
    pub(crate) fn join(&self, group: &Arc<MemberGroup>) {
        // It has one already if it was a member before.
        let _ = self.group.set(group.clone());
    }

    pub(crate) fn group(&self) -> Option<&Arc<MemberGroup>> {
        self.group.get()
    }

    /// Purges a key in a directory that is not open; not saved.
    pub(crate) fn purge_later(&self, key: Key) {
        if let Some(purges) = self.group().and_then(|group| group.purges.get()) {
            purges.purge_key(key, Purge::Hard);
        }
    }

    /// Returns true if the directory could not be opened, or is not the one that it was.
    pub(crate) fn is_missing(&self) -> bool {
        self.is_missing.load(Relaxed)
    }
}

impl MemberGroup {
    /// Sets the members of the newest configuration.
    pub(crate) fn set_members(&self, members: impl Iterator<Item = Weak<Cache>>) {
        *self.members.lock() = members.collect();
        self.record_changed.fetch_add(1, SeqCst);
    }

    /// Members of the newest configuration.
    pub(crate) fn members(&self) -> Vec<Arc<Cache>> {
        self.members.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Purges of all members. Waits for their disks the first time, for a limited time.
    pub(crate) async fn purges(&self, disk: &Disk) -> &Arc<Purges> {
        self.purges_since(u64::try_from(unix_ms()).unwrap_or(0), disk).await
    }

    async fn purges_since(&self, now_ms: u64, disk: &Disk) -> &Arc<Purges> {
        let make = || async {
            let members = self.members();
            // A cache with one directory may have become one with several.
            let own = members.iter().find_map(|member| Some((member, member.zone.loaded()?)));
            let own = own.map(|(member, held)| {
                member.zone.member.last.store(held.purges.sequence().last(), SeqCst);
                held.purges.clone()
            });
            let purges = own.unwrap_or_else(|| Arc::new(Purges::new(now_ms)));
            let members: Vec<_> =
                members.into_iter().filter(|member| member.zone.loaded().is_none()).collect();
            self.gather(&members, disk).await;
            for member in &members {
                if let Some(found) = &*member.zone.member.found.lock() {
                    self.unite_found(member, found, &purges);
                }
            }
            self.purges_changed.fetch_add(1, SeqCst);
            purges
        };
        self.purges.get_or_init(make).await
    }

    /// Reads the files of the members, as far as they answer in time.
    async fn gather(&self, members: &[Arc<Cache>], disk: &Disk) {
        let mut found: Vec<Option<Result<DirectoryFiles, DiskError>>> =
            members.iter().map(|_| None).collect();
        {
            let mut reads: Vec<_> =
                members.iter().map(|member| Box::pin(member.read_directory_files(disk))).collect();
            let read = poll_fn(|cx| {
                for (read, found) in reads.iter_mut().zip(&mut found).filter(|(_, found)| found.is_none()) {
                    if let Poll::Ready(files) = read.as_mut().poll(cx) {
                        *found = Some(files);
                    }
                }
                // A member that others remember as left out is not waited for.
                let out = remembered_out(found.iter().flatten());
                let is_waited_for = |member: &Arc<Cache>| !out.contains(member.place.dir.to_bytes());
                let is_done =
                    members.iter().zip(&found).all(|(m, found)| found.is_some() || !is_waited_for(m));
                if is_done { Poll::Ready(()) } else { Poll::Pending }
            });
            let _ = tokio::time::timeout(GATHER_MAX, read).await;
        }
        let out = remembered_out(found.iter().flatten());
        let mut record = self.record.lock();
        let set = common_set(found.iter().flatten());
        record.set = set;
        for file in found.iter().flatten().filter_map(member_file_of).filter(|file| file.set == set) {
            record.members.extend(file.members.iter().cloned());
        }
        drop(record);
        for (member, found) in members.iter().zip(found) {
            let zone = &member.zone.member;
            zone.was_out.store(out.contains(member.place.dir.to_bytes()), Relaxed);
            *zone.found.lock() = found;
        }
    }

    /// Notes whether a member is left out, for the next start.
    pub(crate) fn set_out(&self, path: &[u8], is_out: bool) {
        let mut record = self.record.lock();
        let is_changed = if is_out { record.out.insert(path.into()) } else { record.out.remove(path) };
        if is_changed {
            self.record_changed.fetch_add(1, SeqCst);
        }
    }

    /// Notes that a member has answered, and what it has.
    fn unite_found(&self, member: &Cache, found: &Result<DirectoryFiles, DiskError>, purges: &Purges) {
        if let Ok(files) = found {
            self.unite_purges(files, purges);
        }
        // After its device.
        member.zone.member.has_answered.store(true, SeqCst);
    }

    /// Use of what is on the device with this number, which its member did not have.
    fn use_of_device(&self, number: &[u8]) -> DeviceContentUse {
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

    /// Unites the purges of a directory with the others, and notes the device that it had, if it is of a member whose purges are
    /// known: the responses on that device need no others.
    fn unite_purges(&self, files: &DirectoryFiles, purges: &Purges) {
        let Some(file) = &files.purges else { return };
        // Its member has to handle an error.
        let Ok(facts) = purges.absorb(file) else { return };
        let (FoundMember::File(member), Some(number)) = (&files.member, &files.device) else { return };
        let mut record = self.record.lock();
        if member.set == record.set {
            // A member that is tried again may have the note of a device that was another's.
            let last = record.devices.entry(number.clone()).or_insert(facts.last);
            *last = facts.last.min(*last);
        }
    }

    fn file_of(&self, path: &[u8]) -> MemberFile {
        let record = self.record.lock();
        let (members, out) = (record.members.clone(), record.out.clone());
        MemberFile { set: record.set, path: path.into(), members, out }
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
                match tokio::time::timeout(SAVE_MAX, member.save_member_purges(&disk)).await {
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
}

fn member_file_of(found: &Result<DirectoryFiles, DiskError>) -> Option<&MemberFile> {
    match found {
        Ok(DirectoryFiles { member: FoundMember::File(file), .. }) => Some(file),
        _ => None,
    }
}

/// Members that others remember as left out.
fn remembered_out<'a>(
    found: impl Iterator<Item = &'a Result<DirectoryFiles, DiskError>>,
) -> BTreeSet<MemberName> {
    found.filter_map(member_file_of).flat_map(|file| file.out.iter().cloned()).collect()
}

/// Number that most directories have; a new one if none has any.
fn common_set<'a>(found: impl Iterator<Item = &'a Result<DirectoryFiles, DiskError>>) -> u64 {
    let mut counts: Vec<(u64, usize)> = Vec::new();
    for file in found.filter_map(member_file_of) {
        match counts.iter_mut().find(|(set, _)| *set == file.set) {
            Some((_, count)) => *count += 1,
            None => counts.push((file.set, 1)),
        }
    }
    let most = counts.iter().map(|(_, count)| *count).max();
    let common = counts.iter().find(|(_, count)| Some(*count) == most).map(|(set, _)| *set);
    common.unwrap_or_else(crate::http::cache::zone::random)
}

impl Cache {
    /// Returns true if the member is open, and its disk is not left alone.
    pub(crate) fn is_in_use(&self) -> bool {
        self.zone.loaded().is_some() && self.zone.breaker.admitted() > 0
    }

    /// Path of the file that identifies the member.
    fn member_file_path(&self) -> CString {
        self.place.own_file(file::NAME)
    }

    async fn read_directory_files(&self, disk: &Disk) -> Result<DirectoryFiles, DiskError> {
        let path = self.member_file_path();
        let mut account = Account::new(JobClass::Hit, JobSource::of(path.to_bytes()));
        let member = match disk.read_whole(&mut account, &path, file::SIZE_MAX).await {
            Ok(file) => MemberFile::decode(&file),
            Err(error) if error.errno() == Some(Errno::NOENT) => FoundMember::None,
            Err(error) => return Err(error),
        };
        let purges = self.read_purge_file(disk).await?;
        let device = match disk.read_whole(&mut account, &note_path(&self.place), NOTE_MAX).await {
            Ok(note) => note.get(..NUMBER_LEN).map(DeviceNumber::from),
            Err(error) if error.errno() == Some(Errno::NOENT) => None,
            Err(error) => return Err(error),
        };
        match self.find_record_snapshot(disk).await {
            // It is tried again, and is as warm then as the others.
            FoundRecordSnapshot::Unreadable(error) if error.is_passing() => Err(error),
            records => Ok(DirectoryFiles { member, purges, device, records }),
        }
    }

    /// Opens the directory of a member of `group`.
    ///
    /// # Errors
    /// The directory cannot be used, which is logged once. The manager tries again.
    pub(crate) async fn open_member(
        &self,
        group: &Arc<MemberGroup>,
        now_ms: u64,
        user: CacheUser,
        disk: &Disk,
        log: &dyn Fn(Level, fmt::Arguments<'_>),
    ) -> Result<ZoneIndex, DiskError> {
        let zone = &self.zone.member;
        let purges = group.purges_since(now_ms, disk).await;
        let found = zone.found.lock().take();
        // Once in a process: every request would have room for it.
        let check = |files| boxed(|| self.check_member(group, purges, files, disk, log));
        let opened = match (found, user) {
            (Some(Ok(files)), CacheUser::Manager) => check(files).await,
            (Some(Ok(files)), CacheUser::Request) => {
                let no_answer = |_| Err("no answer from its disk".to_owned());
                tokio::time::timeout(GATHER_MAX, check(files)).await.unwrap_or_else(no_answer)
            }
            (Some(Err(error)), _) => Err(error.to_string()),
            // A request does not wait for it.
            (None, CacheUser::Request) => Err("no answer from its disk".to_owned()),
            (None, CacheUser::Manager) => {
                let found = self.read_directory_files(disk).await;
                group.unite_found(self, &found, purges);
                match found {
                    Ok(files) => check(files).await,
                    Err(error) => Err(error.to_string()),
                }
            }
        };
        let (name, path) = (Text(&self.name), Text(self.place.dir.to_bytes()));
        match opened {
            Ok(held) => {
                let was_missing = zone.is_missing.swap(false, Relaxed);
                if was_missing || zone.was_out.load(Relaxed) {
                    self.zone.breaker.resume(tw_rt::clock::now());
                    log(Level::Notice, format_args!("cache \"{name}\": member \"{path}\" is used again"));
                }
                Ok(held)
            }
            Err(why) => {
                group.set_out(self.place.dir.to_bytes(), true);
                if !zone.is_missing.swap(true, Relaxed) {
                    let what = format_args!("cache \"{name}\": member \"{path}\" is left out: {why}");
                    log(Level::Error, what);
                }
                Err(Op::Open.failed(Errno::NODEV))
            }
        }
    }

    /// Checks that the directory is the member, and unites its purges with the others.
    async fn check_member(
        &self,
        group: &Arc<MemberGroup>,
        purges: &Arc<Purges>,
        files: DirectoryFiles,
        disk: &Disk,
        log: &dyn Fn(Level, fmt::Arguments<'_>),
    ) -> Result<ZoneIndex, String> {
        let path = self.place.dir.to_bytes();
        let (set, is_known) = {
            let record = group.record.lock();
            (record.set, record.members.contains(path))
        };
        let is_foreign = match &files.member {
            FoundMember::None if is_known => {
                return Err(format!(
                    "it has no file \"{}\", which it had: its disk is not mounted, or is a new one (then make an empty file of that name in it)",
                    file::NAME
                ));
            }
            FoundMember::File(file) => file.set != set,
            FoundMember::None | FoundMember::Accepted => false,
        };
        group.record.lock().members.insert(path.into());
        let expected = group.file_of(path);
        let is_written =
            matches!(&files.member, FoundMember::File(file) if file.set == set && *file.path == *path);
        if !is_written {
            // Before anything is stored: an empty mount point must not be filled.
            self.write_member_file(&expected, disk).await.map_err(|error| error.to_string())?;
        }
        group.record_changed.fetch_add(1, SeqCst);
        let (name, shown) = (Text(&self.name), Text(path));
        let facts = match &files.purges {
            None => Ok(None),
            Some(file) => purges.absorb(file).map(Some),
        };
        let device = self.open_member_device(group, disk).await?;
        let all_purged = purges.sequence().last();
        let last = match facts {
            _ if is_foreign => {
                let what = "was a member of another cache";
                log(Level::Warn, format_args!("cache \"{name}\": \"{shown}\" {what}: all in it is purged"));
                0
            }
            Ok(facts) => {
                if let Some(facts) = facts {
                    group.raise_floors(facts.dropped);
                }
                facts.map_or(0, |facts| facts.last)
            }
            Err(why) => {
                let what = format_args!("the purges of cache \"{name}\" in \"{shown}\" are damaged ({why})");
                log(Level::Crit, format_args!("{what}: all in it is purged"));
                0
            }
        };
        // What is on a device knows the purges of the directory that it was used with.
        let last = device.map_or(last, |device| device.min(last));
        self.zone.member.last.store(last, SeqCst);
        let floor = match facts {
            Ok(_) if !is_foreign => {
                if last < purges.dropped() {
                    purges.dropped()
                } else {
                    0
                }
            }
            _ => all_purged,
        };
        let seeds = self.use_record_snapshot(files.records, log);
        let index = Arc::new(Index::new(self.zone.keys_size(), seeds, purges.sequence().clone()));
        index.set_policy(self.place.policy);
        Ok(ZoneIndex { index, purges: purges.clone(), floor: AtomicU64::new(floor) })
    }

    /// Opens the device of a member, if it has one. Returns the last number of the purges that its content knows, if it was the
    /// device of another member.
    async fn open_member_device(&self, group: &MemberGroup, disk: &Disk) -> Result<Option<u64>, String> {
        let last_of = |number: &[u8]| group.record.lock().devices.get(number).copied();
        let other = self.zone.store.open_device(disk, |number| group.use_of_device(number)).await?;
        // An empty device knows of none, and needs none.
        Ok(other.and_then(|number| last_of(&number)))
    }

    async fn write_member_file(&self, file: &MemberFile, disk: &Disk) -> Result<(), DiskError> {
        let path = self.member_file_path();
        let mut account = Account::new(JobClass::Fill, JobSource::of(path.to_bytes()));
        disk.replace(&mut account, &path, 0o600, file.encode()).await.map(|_| ())
    }

    /// Saves the purges of all members in this one.
    async fn save_member_purges(&self, disk: &Disk) -> Result<(), DiskError> {
        let (Some(group), Some(held)) = (self.zone.member.group(), self.zone.loaded()) else { return Ok(()) };
        let _one_at_a_time = self.zone.saving.lock().await;
        let number = group.purges_changed.load(SeqCst);
        if self.zone.member.purges_saved.load(SeqCst) >= number {
            return Ok(());
        }
        let mut account = Account::new(JobClass::Fill, JobSource::NONE);
        disk.replace(&mut account, &self.purges_path(), 0o600, held.purges.encode_shared()).await?;
        self.zone.member.purges_saved.fetch_max(number, SeqCst);
        Ok(())
    }

    /// Saves what the member does not have yet: the purges, and the record of the members. Writes the latter in any case if
    /// `is_probe`, to see whether the disk works.
    pub(crate) async fn settle_member(&self, disk: &Disk, is_probe: bool) -> Result<(), DiskError> {
        let Some(group) = self.zone.member.group() else { return Ok(()) };
        self.save_member_purges(disk).await?;
        let number = group.record_changed.load(SeqCst);
        let saved = self.zone.member.record_saved.load(SeqCst);
        if saved < number || is_probe {
            self.write_member_file(&group.file_of(self.place.dir.to_bytes()), disk).await?;
            if is_probe {
                self.zone.store.probe_device(disk).await?;
            }
            self.zone.member.record_saved.fetch_max(number, SeqCst);
        }
        Ok(())
    }
}

impl MemberGroup {
    /// A member has come that knows of purges forgotten up to `dropped`: others may have come without.
    fn raise_floors(&self, dropped: u64) {
        for member in self.members() {
            if let Some(held) = member.zone.loaded()
                && member.zone.member.last.load(SeqCst) < dropped
            {
                held.floor.fetch_max(dropped, SeqCst);
            }
        }
    }
}
