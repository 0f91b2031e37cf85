//! From the configuration to a cache in use: its declaration, and the reading of its purges before the first use.

mod declare;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tw_cache::{Index, PURGES_SIZE_MAX, Purge, Purges};
use tw_disk::{Account, Disk, DiskError, Errno, JobClass, JobSource};
use tw_log::Level;

use super::store::context::ZoneIndex;
use super::time::unix_ms;
use super::zone::{Cache, CacheUser};

pub(crate) use declare::declare;

/// Number of attempts to read the purges of before a restart, and the rest between two of them: if they cannot be read, all
/// entries are lost.
const READ_TRIES: u32 = 5;
const READ_AGAIN: Duration = Duration::from_millis(200);

impl Cache {
    /// Returns index and purges. Waits for the disk the first time: purges of before a restart are read.
    ///
    /// # Errors
    /// The disk hangs. Requests are last_reported at once until the [manager](CacheUser::Manager) has found that it answers again.
    pub(crate) async fn load_index(
        &self,
        user: CacheUser,
        disk: &Disk,
        log: impl Fn(Level, fmt::Arguments<'_>),
    ) -> Result<&ZoneIndex, DiskError> {
        self.load_index_since(u64::try_from(unix_ms()).unwrap_or(0), user, disk, log).await
    }

    /// Returns index and purges in a process that began at `now_ms`.
    pub(crate) async fn load_index_since(
        &self,
        now_ms: u64,
        user: CacheUser,
        disk: &Disk,
        log: impl Fn(Level, fmt::Arguments<'_>),
    ) -> Result<&ZoneIndex, DiskError> {
        if let Some(zone_index) = self.zone.zone_index.get() {
            return Ok(zone_index);
        }
        let unknown = || match user {
            CacheUser::Request => self.zone.unknown.lock().clone(),
            CacheUser::Manager => None,
        };
        if let Some(error) = unknown() {
            return Err(error);
        }
        let make = async {
            // A task that waited for another one to load it does not try again.
            if let Some(error) = unknown() {
                return Err(error);
            }
            if let Some(group) = self.zone.member.group() {
                let opened = self.open_member(group, now_ms, user, disk, &log).await;
                return opened.inspect_err(|error| *self.zone.unknown.lock() = Some(error.clone()));
            }
            let purges = match self.read_purges(now_ms, disk).await {
                Ok(purges) => purges,
                Err(Some(error)) if error.is_passing() => {
                    *self.zone.unknown.lock() = Some(error.clone());
                    self.report_disk_failure(&error, "reading what was purged", log);
                    return Err(error);
                }
                Err(why) => {
                    let name = tw_log::Text(&self.name);
                    let what = format_args!("the purges of cache \"{name}\"");
                    match why {
                        Some(error) => {
                            log(
                                Level::Crit,
                                format_args!("{error} while reading {what}: all in it is purged"),
                            );
                        }
                        None => log(Level::Crit, format_args!("{what} are damaged: all in it is purged")),
                    }
                    // All earlier entries are purged. A soft purge is not enough: validated entries are used again.
                    let purges = Purges::new(now_ms);
                    purges.purge_prefix(b"", Purge::Hard);
                    purges
                }
            };
            let seeds = self.use_record_snapshot(self.find_record_snapshot(disk).await, &log);
            let index = Index::new(self.zone.keys_size(), seeds, purges.sequence().clone());
            index.set_policy(self.place.policy);
            let (index, purges) = (Arc::new(index), Arc::new(purges));
            Ok(ZoneIndex { index, purges, floor: AtomicU64::new(0) })
        };
        self.zone.zone_index.get_or_try_init(|| make).await
    }

    /// Reads the purges of before this process.
    ///
    /// # Errors
    /// Error of the disk; `None` if the file is damaged.
    async fn read_purges(&self, now_ms: u64, disk: &Disk) -> Result<Purges, Option<DiskError>> {
        match self.read_purge_file(disk).await.map_err(Some)? {
            Some(file) => Purges::decode(&file, now_ms).map_err(|_| None),
            None => Ok(Purges::new(now_ms)),
        }
    }

    /// Reads the file of the purges, if there is one.
    pub(crate) async fn read_purge_file(&self, disk: &Disk) -> Result<Option<Vec<u8>>, DiskError> {
        let mut account = Account::new(JobClass::Hit, JobSource::NONE);
        let mut tries = 1;
        loop {
            match disk.read_whole(&mut account, &self.purges_path(), PURGES_SIZE_MAX).await {
                Ok(file) => return Ok(Some(file)),
                Err(error) if error.errno() == Some(Errno::NOENT) => return Ok(None),
                Err(error) if tries < READ_TRIES && is_want(&error) => tw_rt::time::sleep(READ_AGAIN).await,
                Err(error) => return Err(error),
            }
            tries += 1;
        }
    }

    /// Writes the file of the purges; as a member, those of all members.
    pub(crate) async fn save_purges(&self, zone_index: &ZoneIndex, disk: &Disk) -> Result<(), DiskError> {
        if let Some(group) = self.zone.member.group() {
            return group.save_purges(disk).await;
        }
        let _one_at_a_time = self.zone.saving.lock().await;
        let mut account = Account::new(JobClass::Fill, JobSource::NONE);
        disk.replace(&mut account, &self.purges_path(), 0o600, zone_index.purges.encode()).await.map(|_| ())
    }
}

/// Returns true if an operation failed for want of a resource that may be free in a moment.
fn is_want(error: &DiskError) -> bool {
    let wants = [Errno::NOMEM, Errno::MFILE, Errno::NFILE, Errno::AGAIN];
    error.errno().map_or(matches!(error, DiskError::QueueFull { .. }), |errno| wants.contains(&errno))
}
