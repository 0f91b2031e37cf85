//! Contents of a cache, which outlive configurations: the index of its entries, the fills in progress, and counters.

pub(crate) mod damage;
mod disk_permit;
mod fill_lead;
mod quota;
mod record_snapshot;
pub(crate) mod stats;
mod used_cache;

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
use tw_cache::{Index, Key, RemovedEntry};
use tw_core::pools::{DiskMode, Disks};
use tw_disk::{Disk, DiskError};
use tw_fleet::Fleet;
use tw_log::Level;
use tw_rt::watch::Subject;

use super::cache_path::CachePath;
use super::entry::ZoneId;
use super::fill::Fill;
use super::guard::background::BackgroundFetches;
use super::guard::breaker::Breaker;
use super::guard::hedge::Hedges;
use super::guard::quota::Quotas;
use super::member_group::Members;
use super::member_group::group::{MemberGroup, MemberZone};
use super::store::context::{StoreContext, ZoneCounters, ZoneIndex};
use super::store::record_snapshot::OpenRecordSnapshot;
use super::store::{EntryStore, Store};
use super::time::unix_ms;
use stats::ResponseStats;
use tw_request::event_loop::Loop;
use tw_request::request::Request;

pub(crate) use fill_lead::{FillLead, JoinOutcome};

/// Number of locks of the fills of a cache.
const FILL_SHARDS: usize = 32;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Time for which a request waits after a start until the snapshot of a cache with `store=log` has been read, if an earlier
    /// version wrote it.
    const RESTORE_WAIT: Duration = Duration::from_secs(2), time, "the upstream server is asked";
}

/// Seconds between two log lines about a failing disk of a cache.
const LOG_INTERVAL: i64 = 60;

/// Common state of the members of a cache.
pub(crate) type CacheGroup = MemberGroup<Cache>;

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
    pub(crate) members: Option<Members<Self>>,
    /// Fleet that shares its purges.
    pub(crate) fleet: Option<Arc<Fleet>>,
}

/// Contents of a cache.
pub(crate) struct CacheZone {
    pub(crate) id: ZoneId,
    /// Index and purges; loaded at the first access.
    pub(crate) zone_index: OnceCell<ZoneIndex>,
    keys_size: AtomicU64,
    /// Lock for writing the file of the purges.
    pub(crate) saving: tokio::sync::Mutex<()>,
    /// Held by the manager that sweeps.
    pub(crate) sweeping: tokio::sync::Mutex<()>,
    /// Time of the last log line about a failing disk, in seconds.
    last_reported: AtomicI64,
    /// Error of the disk that keeps the contents from being loaded.
    pub(crate) unknown: FatalMutex<Option<DiskError>>,
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
    pub(crate) member: MemberZone<Cache>,
    /// Time of the last snapshot, or of the start, in seconds since 1970.
    pub(crate) snapshot_at: AtomicI64,
    pub(crate) quotas: Quotas,
    pub(crate) store: EntryStore,
}

impl Cache {
    /// Disk with the thread pool of the cache, if it names one.
    pub(crate) fn own_disk<'d>(&self, disks: &'d Disks) -> Option<&'d Disk> {
        disks.get(disks.pool_index(self.place.pool.as_deref()?)?, DiskMode::Threads)
    }

    /// The cache as its store sees it, for operations on `disk`.
    pub(crate) fn context<'a>(&'a self, disk: &'a Disk) -> StoreContext<'a> {
        let Self { place, zone, write_back_size, .. } = self;
        StoreContext {
            place,
            disk,
            zone_index: zone.loaded(),
            quotas: &zone.quotas,
            counts: &zone.counts,
            window: *write_back_size,
            since_ms: zone.since_ms,
        }
    }

    /// Returns the index, if it is loaded.
    pub(crate) fn index(&self) -> Option<&Arc<Index>> {
        self.zone.loaded().map(|zone_index| &zone_index.index)
    }

    /// Path of the file of the purges.
    pub(crate) fn purges_path(&self) -> CString {
        self.place.own_file("purges")
    }

    /// Name of the zone.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Deletes the file of an entry that has left the index, in the background.
    pub(crate) fn delete(
        self: &Arc<Self>,
        event_loop: &Rc<Loop>,
        disk: &Disk,
        removed_entry: Option<RemovedEntry>,
    ) {
        let Some(removed_entry) = removed_entry else { return };
        let (cache, disk) = (self.clone(), disk.clone());
        let subject = Subject { kind: "cache eviction", id: event_loop.index as u64 };
        event_loop.connections.spawn_counted(subject, async move {
            // If it stays, the next start finds it.
            let _ = cache.zone.store.remove(cache.context(&disk), removed_entry).await;
        });
    }

    /// Deletes the file of such an entry for a request.
    pub(crate) fn remove_evicted(self: &Arc<Self>, r: &Request, removed_entry: Option<RemovedEntry>) {
        if removed_entry.is_some()
            && let Some(disk) = self.disk_of(r)
        {
            self.delete(&r.client().event_loop.clone(), disk, removed_entry);
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
            zone_index: OnceCell::new(),
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
            is_restored: AtomicBool::new(store.finds_by_key()),
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
            let _ = tw_rt::time::timeout(RESTORE_WAIT, restored).await;
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
        if let Some(zone_index) = self.zone_index.get() {
            zone_index.index.set_memory_max(place.keys_size);
            zone_index.index.set_policy(place.policy);
        }
    }

    /// Bytes that the cache takes on its disk: of files that have an entry, and of all segments.
    pub(crate) fn bytes_on_disk(&self) -> u64 {
        self.zone_index.get().map_or(0, |zone_index| self.store.bytes_on_disk(&zone_index.index))
    }

    /// Returns index and purges, if they are loaded.
    pub(crate) fn loaded(&self) -> Option<&ZoneIndex> {
        self.zone_index.get()
    }

    fn fills(&self, key: Key) -> &FatalMutex<Fills> {
        &self.fills[usize::from(key.0[0]) % FILL_SHARDS]
    }

    /// Number of fills in progress.
    pub(crate) fn filling(&self) -> usize {
        self.fills.iter().map(|fills| fills.lock().len()).sum()
    }
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
