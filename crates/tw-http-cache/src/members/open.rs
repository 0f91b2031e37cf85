//! Opening of one member of a cache: its directory is checked, and its purges are united with those of the others.

use std::ffi::CString;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use tw_cache::{Index, Purges};
use tw_disk::{Account, Disk, DiskError, Errno, JobClass, JobSource, Op};
use tw_log::{Level, Text};

use super::open_group::GATHER_MAX;
use crate::member_group::file::{self, FoundMember, MemberFile};
use crate::member_group::group::DirectoryFiles;
use crate::store::context::ZoneIndex;
use crate::store::record_snapshot::FoundRecordSnapshot;
use crate::store::segments::{DeviceNumber, NOTE_MAX, NUMBER_LEN, note_path};
use crate::zone::{Cache, CacheGroup, CacheUser};
use tw_request::local_future::boxed;

impl Cache {
    /// Returns true if the member is open, and its disk is not left alone.
    pub(crate) fn is_in_use(&self) -> bool {
        self.zone.loaded().is_some() && self.zone.breaker.admitted() > 0
    }

    /// Path of the file that identifies the member.
    fn member_file_path(&self) -> CString {
        self.place.own_file(file::NAME)
    }

    pub(crate) async fn read_directory_files(&self, disk: &Disk) -> Result<DirectoryFiles, DiskError> {
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
            // The member is tried again, and is then as warm as the others.
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
        group: &Arc<CacheGroup>,
        now_ms: u64,
        user: CacheUser,
        disk: &Disk,
        log: &dyn Fn(Level, fmt::Arguments<'_>),
    ) -> Result<ZoneIndex, DiskError> {
        let zone = &self.zone.member;
        let purges = group.purges_since(now_ms, disk).await;
        let directory_files = zone.directory_files.lock().take();
        // Once in a process: every request would have room for it.
        let check = |files| boxed(|| self.check_member(group, purges, files, disk, log));
        let opened = match (directory_files, user) {
            (Some(Ok(files)), CacheUser::Manager) => check(files).await,
            (Some(Ok(files)), CacheUser::Request) => {
                let no_answer = |_| Err("no answer from its disk".to_owned());
                tw_rt::time::timeout(GATHER_MAX, check(files)).await.unwrap_or_else(no_answer)
            }
            (Some(Err(error)), _) => Err(error.to_string()),
            // A request does not wait for it.
            (None, CacheUser::Request) => Err("no answer from its disk".to_owned()),
            (None, CacheUser::Manager) => {
                let directory_files = self.read_directory_files(disk).await;
                group.unite_found(self, &directory_files, purges);
                match directory_files {
                    Ok(files) => check(files).await,
                    Err(error) => Err(error.to_string()),
                }
            }
        };
        let (name, path) = (Text(&self.name), Text(self.place.dir.to_bytes()));
        match opened {
            Ok(zone_index) => {
                let was_missing = zone.is_missing.swap(false, Relaxed);
                if was_missing || zone.was_out.load(Relaxed) {
                    self.zone.breaker.resume(tw_rt::clock::now());
                    log(Level::Notice, format_args!("cache \"{name}\": member \"{path}\" is used again"));
                }
                Ok(zone_index)
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
        group: &Arc<CacheGroup>,
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
        // Records on a device know the purges of the directory that the device was used with.
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
    async fn open_member_device(&self, group: &CacheGroup, disk: &Disk) -> Result<Option<u64>, String> {
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
    pub(crate) async fn save_member_purges(&self, disk: &Disk) -> Result<(), DiskError> {
        let (Some(group), Some(zone_index)) = (self.zone.member.group(), self.zone.loaded()) else {
            return Ok(());
        };
        let _one_at_a_time = self.zone.saving.lock().await;
        let number = group.purges_changed.load(SeqCst);
        if self.zone.member.purges_saved.load(SeqCst) >= number {
            return Ok(());
        }
        let mut account = Account::new(JobClass::Fill, JobSource::NONE);
        disk.replace(&mut account, &self.purges_path(), 0o600, zone_index.purges.encode_shared()).await?;
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
