//! Contents of a cache, which outlive configurations: the index of its entries, the fills in progress, and counters.

pub(crate) mod damage;
mod disk_permit;
mod fill_lead;
mod quota;
mod record_snapshot;
pub(crate) mod stats;

use std::collections::HashMap;
use std::ffi::CString;
use std::fmt;
use std::hash::BuildHasher;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicI64, AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use std::time::Duration;

use foldhash::fast::RandomState;
use tokio::sync::{Notify, OnceCell};
use tw_base::FatalMutex;
use tw_cache::{Index, Key, PURGES_SIZE_MAX, Purge, Purges, RemovedEntry};
use tw_conf::ConfError;
use tw_core::pools::{DiskMode, Disks};
use tw_disk::{Account, Disk, DiskError, Errno, JobClass, JobSource};
use tw_fleet::{Fleet, find_fleet};
use tw_log::Level;
use tw_rt::watch::Subject;

use super::cache_path::{CachePath, RawCachePath, device};
use super::entry::ZoneId;
use super::fill::Fill;
use super::guard::background::BackgroundFetches;
use super::guard::breaker::Breaker;
use super::guard::hedge::Hedges;
use super::guard::quota::Quotas;
use super::members::Members;
use super::members::group::MemberZone;
use super::store::context::{StoreContext, ZoneCounters, ZoneIndex};
use super::store::files::temp_file::WRITE_BACK_SIZE;
use super::store::record_snapshot::OpenRecordSnapshot;
use super::store::{EntryStore, Store};
use super::time::unix_ms;
use crate::event_loop::Loop;
use crate::http::request::Request;
use crate::protocol::Resolve;
use stats::ResponseStats;

pub(crate) use disk_permit::Permission;
pub(crate) use fill_lead::{FillLead, JoinOutcome};

/// Number of locks of the fills of a cache.
const FILL_SHARDS: usize = 32;

/// Number of attempts to read the purges of before a restart, and the rest between two of them: if they cannot be read, all
/// entries are lost.
const READ_TRIES: u32 = 5;
const READ_AGAIN: Duration = Duration::from_millis(200);

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Time for which a request waits after a start until the snapshot of a cache with `store=log` has been read, if an earlier
    /// version wrote it.
    const RESTORE_WAIT: Duration = Duration::from_secs(2), time, "the upstream server is asked";
}

/// Seconds between two log lines about a failing disk of a cache.
const LOG_INTERVAL: i64 = 60;

/// Fills in progress by key.
type Fills = HashMap<Key, Arc<Fill>, RandomState>;

/// Purpose of an access to the contents of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CacheUser {
    /// A request, which can go to the origin server instead.
    Request,
    /// The manager, which tries until the disk answers.
    Manager,
}

/// Cache as one configuration uses it.
pub struct Cache {
    /// Name of the cache (`keys_zone`).
    pub(crate) name: Box<[u8]>,
    /// Directory and limits.
    pub(crate) place: CachePath,
    /// Contents, shared by all configurations.
    pub(crate) zone: Arc<CacheZone>,
    /// Bytes of a growing file that are written back together.
    pub(crate) write_back_size: u64,
    /// Members, if the cache has several directories; they have its contents, and `zone` has none.
    pub(crate) members: Option<Members>,
    /// Fleet that shares its purges.
    pub(crate) fleet: Option<Arc<Fleet>>,
}

/// Contents of a cache.
pub(crate) struct CacheZone {
    pub(crate) id: ZoneId,
    /// Index and purges; loaded at the first access.
    held: OnceCell<ZoneIndex>,
    keys_size: AtomicU64,
    /// Lock for writing the file of the purges.
    pub(crate) saving: tokio::sync::Mutex<()>,
    /// Held by the manager that sweeps.
    pub(crate) sweeping: tokio::sync::Mutex<()>,
    /// Time of the last log line about a failing disk, in seconds.
    last_reported: AtomicI64,
    /// Error of the disk that keeps the contents from being loaded.
    unknown: FatalMutex<Option<DiskError>>,
    fills: Vec<FatalMutex<Fills>>,
    /// Number of bodies that are being written.
    pub(crate) writers: AtomicUsize,
    pub(crate) counts: ZoneCounters,
    /// Statistics by event loop.
    pub(crate) stats: ResponseStats,
    /// True if the index has all entries of the disk.
    pub(crate) is_loaded: AtomicBool,
    /// True if the index has all entries of the snapshot, if there is one, or no responses are in segments; a change is notified.
    is_restored: AtomicBool,
    restored: Notify,
    /// Snapshot of the records of segments, if there is one.
    pub(crate) record_snapshot: std::sync::OnceLock<OpenRecordSnapshot>,
    /// Time of the first use by this process, in milliseconds since 1970.
    pub(crate) since_ms: i64,
    /// Breaker of its disk.
    pub(crate) breaker: Breaker,
    pub(crate) background: Arc<BackgroundFetches>,
    pub(crate) hedges: Hedges,
    /// State as a member of a cache with several directories.
    pub(crate) member: MemberZone,
    /// Time of the last snapshot, or of the start, in seconds since 1970.
    pub(crate) snapshot_at: AtomicI64,
    pub(crate) quotas: Quotas,
    pub(crate) store: EntryStore,
}

impl Cache {
    /// Declares a cache of the configuration; it takes over the contents of a previous one with the same directory.
    ///
    /// # Errors
    /// A thread pool that does not exist.
    pub(crate) fn declare(raw: RawCachePath, cx: &mut Resolve<'_>) -> Result<Arc<Self>, ConfError> {
        if let Some((pool, at)) = raw.pool() {
            cx.pool(pool, at)?;
        }
        let fleet = match raw.fleet() {
            None => None,
            Some((name, at)) => Some(find_fleet(name, at, |name| cx.find(name))?),
        };
        let name: Box<[u8]> = raw.name().into();
        let span = raw.span;
        let device = match raw.device() {
            Some((path, at)) => Some(device::open(cx, path, at)?),
            None => None,
        };
        let mut place = CachePath { device, ..raw.resolve(|path| cx.full_path_c(path)) };
        for member in &mut place.members {
            device::open_of_member(cx, member, span);
        }
        let place = place;
        let previous = cx.previous::<Self>(&name);
        let is_other_store = |before: &Self| {
            before.place.is_where(&place)
                && (!before.zone.store.is_of(place.store)
                    || place.members.is_empty() && before.place.device != place.device)
        };
        if previous.iter().flat_map(|before| before.parts()).any(is_other_store) {
            cx.warn(span, "a change of \"store\" or \"device\" takes effect after a restart of the server");
        }
        // Made at the start, as directories of temporary files are.
        match &*place.members {
            [] => cx.block.cache_directory(place.dir.clone(), span),
            members => {
                members.iter().for_each(|member| cx.block.member_directory(member.dir.clone(), span));
            }
        }
        let is_same_fleet = |known: &Self| match (&known.fleet, &fleet) {
            (Some(known), Some(fleet)) => Arc::ptr_eq(known, fleet),
            (known, fleet) => known.is_none() && fleet.is_none(),
        };
        let fits = |known: &Self| known.place == place && is_same_fleet(known);
        let cache = cx.keep(&name, fits, || {
            let before =
                previous.iter().flat_map(|before| before.parts()).find(|part| part.place.is_where(&place));
            let (members, zone) = match before {
                _ if !place.members.is_empty() => {
                    let members = Members::declare(&name, &place, previous.as_ref());
                    (Some(members), Arc::new(CacheZone::new(&place)))
                }
                Some(before) => {
                    before.zone.resize(&place);
                    (None, before.zone.clone())
                }
                None => (None, Arc::new(CacheZone::new(&place))),
            };
            let (name, place, fleet) = (name.clone(), place.clone(), fleet.clone());
            Self { name, place, zone, write_back_size: WRITE_BACK_SIZE, members, fleet }
        });
        if let Some(group) = cache.group() {
            group.set_members(cache.held_parts().iter().map(Arc::downgrade));
        }
        Ok(cache)
    }

    /// Disk with the thread pool of the cache, if it names one.
    pub(crate) fn own_disk<'d>(&self, disks: &'d Disks) -> Option<&'d Disk> {
        disks.get(disks.pool_index(self.place.pool.as_deref()?)?, DiskMode::Threads)
    }

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
        if let Some(held) = self.zone.held.get() {
            return Ok(held);
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
        self.zone.held.get_or_try_init(|| make).await
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
                Err(error) if tries < READ_TRIES && is_want(&error) => tokio::time::sleep(READ_AGAIN).await,
                Err(error) => return Err(error),
            }
            tries += 1;
        }
    }

    /// The cache as its store sees it, for operations on `disk`.
    pub(crate) fn context<'a>(&'a self, disk: &'a Disk) -> StoreContext<'a> {
        let Self { place, zone, write_back_size, .. } = self;
        StoreContext {
            place,
            disk,
            held: zone.loaded(),
            quotas: &zone.quotas,
            counts: &zone.counts,
            window: *write_back_size,
            since_ms: zone.since_ms,
        }
    }

    /// Returns the index, if it is loaded.
    pub(crate) fn index(&self) -> Option<&Arc<Index>> {
        self.zone.loaded().map(|held| &held.index)
    }

    /// Path of the file of the purges.
    pub(crate) fn purges_path(&self) -> CString {
        self.place.own_file("purges")
    }

    /// Writes the file of the purges; as a member, those of all members.
    pub(crate) async fn save_purges(&self, held: &ZoneIndex, disk: &Disk) -> Result<(), DiskError> {
        if let Some(group) = self.zone.member.group() {
            return group.save_purges(disk).await;
        }
        let _one_at_a_time = self.zone.saving.lock().await;
        let mut account = Account::new(JobClass::Fill, JobSource::NONE);
        disk.replace(&mut account, &self.purges_path(), 0o600, held.purges.encode()).await.map(|_| ())
    }

    /// Name of the zone.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Deletes the file of an entry that has left the index, in the background.
    pub(crate) fn delete(self: &Arc<Self>, event_loop: &Rc<Loop>, disk: &Disk, gone: Option<RemovedEntry>) {
        let Some(gone) = gone else { return };
        let (cache, disk) = (self.clone(), disk.clone());
        let subject = Subject { kind: "cache eviction", id: event_loop.index as u64 };
        event_loop.connections.spawn_counted(subject, async move {
            // If it stays, the next start finds it.
            let _ = cache.zone.store.remove(cache.context(&disk), gone).await;
        });
    }

    /// Deletes the file of such an entry for a request.
    pub(crate) fn remove_evicted(self: &Arc<Self>, r: &Request, gone: Option<RemovedEntry>) {
        if gone.is_some()
            && let Some(disk) = self.disk_of(r)
        {
            self.delete(&r.client().event_loop.clone(), disk, gone);
        }
    }

    /// Disk for the removal of files by a request.
    pub(crate) fn disk_of<'r>(&self, r: &'r Request) -> Option<&'r Disk> {
        self.own_disk(&r.generation().disks).or_else(|| r.disk())
    }

    /// Counts a failure of the disk after which the request goes on, and logs one a minute.
    pub(crate) fn report_disk_failure(
        &self,
        error: &DiskError,
        doing: &str,
        log: impl FnOnce(Level, fmt::Arguments<'_>),
    ) {
        self.zone.counts.failed.add(1);
        let now = tw_rt::clock::unix().secs;
        let last = self.zone.last_reported.load(Relaxed);
        if now - last >= LOG_INTERVAL
            && self.zone.last_reported.compare_exchange(last, now, Relaxed, Relaxed).is_ok()
        {
            let name = tw_log::Text(&self.name);
            log(Level::Crit, format_args!("{error} while {doing}, cache \"{name}\""));
        }
    }
}

impl CacheZone {
    pub(crate) fn new(place: &CachePath) -> Self {
        let store = EntryStore::of(place);
        Self {
            id: ZoneId::new(),
            held: OnceCell::new(),
            keys_size: AtomicU64::new(place.keys_size),
            saving: tokio::sync::Mutex::default(),
            sweeping: tokio::sync::Mutex::default(),
            last_reported: AtomicI64::new(0),
            unknown: FatalMutex::default(),
            fills: (0..FILL_SHARDS).map(|_| FatalMutex::default()).collect(),
            writers: AtomicUsize::new(0),
            counts: ZoneCounters::default(),
            stats: ResponseStats::default(),
            is_loaded: AtomicBool::new(false),
            is_restored: AtomicBool::new(store.finds_all_by_key()),
            restored: Notify::new(),
            record_snapshot: std::sync::OnceLock::new(),
            since_ms: unix_ms(),
            breaker: Breaker::new(),
            background: Arc::default(),
            hedges: Hedges::default(),
            member: MemberZone::new(),
            snapshot_at: AtomicI64::new(tw_rt::clock::unix().secs),
            quotas: Quotas::default(),
            store,
        }
    }

    /// Notes that the snapshot has been read.
    pub(crate) fn set_restored(&self) {
        self.is_restored.store(true, SeqCst);
        self.restored.notify_waiters();
    }

    /// Returns true until the snapshots have been read, if responses may be in segments.
    pub(crate) fn is_restoring(&self) -> bool {
        !self.is_restored.load(SeqCst)
    }

    /// Waits until the snapshot has been read, for [`RESTORE_WAIT`] at most, if responses may be in segments: until then the index
    /// does not have them, and nothing else tells where they are. Returns true if it has waited.
    pub(crate) async fn wait_restored(&self) -> bool {
        if !self.is_restoring() {
            return false;
        }
        let mut restored = pin!(self.restored.notified());
        restored.as_mut().enable();
        if !self.is_restored.load(SeqCst) {
            let _ = tokio::time::timeout(RESTORE_WAIT, restored).await;
        }
        true
    }

    /// Bytes of memory for the index.
    pub(crate) fn keys_size(&self) -> u64 {
        self.keys_size.load(Relaxed)
    }

    /// Changes size and policy; entries stay until their room is needed.
    pub(crate) fn resize(&self, place: &CachePath) {
        self.keys_size.store(place.keys_size, Relaxed);
        self.store.configure(place);
        if let Some(held) = self.held.get() {
            held.index.set_memory_max(place.keys_size);
            held.index.set_policy(place.policy);
        }
    }

    /// Bytes that the cache takes on its disk: of files that have an entry, and of all segments.
    pub(crate) fn bytes_on_disk(&self) -> u64 {
        self.held.get().map_or(0, |held| self.store.bytes_on_disk(&held.index))
    }

    /// Returns index and purges, if they are loaded.
    pub(crate) fn loaded(&self) -> Option<&ZoneIndex> {
        self.held.get()
    }

    fn fills(&self, key: Key) -> &FatalMutex<Fills> {
        &self.fills[usize::from(key.0[0]) % FILL_SHARDS]
    }

    /// Number of fills in progress.
    pub(crate) fn filling(&self) -> usize {
        self.fills.iter().map(|fills| fills.lock().len()).sum()
    }
}

/// Returns true if an operation failed for want of a resource that may be free in a moment.
fn is_want(error: &DiskError) -> bool {
    let wants = [Errno::NOMEM, Errno::MFILE, Errno::NFILE, Errno::AGAIN];
    error.errno().map_or(matches!(error, DiskError::QueueFull { .. }), |errno| wants.contains(&errno))
}

/// A random number.
pub(crate) fn random() -> u64 {
    RandomState::default().hash_one(0_u64)
}

/// Random numbers for an index.
pub(crate) fn seeds() -> [u64; 2] {
    let random = RandomState::default();
    [random.hash_one(0_u64), random.hash_one(1_u64)]
}

/// Caches of a configuration by name.
pub type Caches = HashMap<Box<[u8]>, Arc<Cache>>;

/// Declares the caches of `raw`.
///
/// # Errors
/// Two of one name.
pub(crate) fn declare(raw: Vec<RawCachePath>, cx: &mut Resolve<'_>) -> Result<Caches, ConfError> {
    let mut caches = Caches::new();
    for raw in raw {
        let span = raw.span;
        if caches.contains_key(raw.name()) {
            let name = tw_log::Text(raw.name());
            return Err(ConfError::new(format!("duplicate zone \"{name}\"")).at(span));
        }
        let cache = Cache::declare(raw, cx)?;
        caches.insert(cache.name.clone(), cache);
    }
    Ok(caches)
}
