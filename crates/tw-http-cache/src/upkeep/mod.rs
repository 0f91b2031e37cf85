//! Background work of a cache: loads the index from the disk at the start, then makes room (nginx: the loader and the manager
//! processes).
//!
//! Each cache is managed by one event loop, which only schedules the work: thread pools do it, with a lower priority than
//! requests. The work is divided into steps with a rest between two.

mod load;
mod quota;
mod record_snapshot;
mod segments;
pub(crate) mod snapshot;

use std::cell::RefCell;
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;
use std::time::{Duration, Instant};

use tw_cache::format::Meta;
use tw_cache::{
    EntryState, EvictionTarget, IndexEntry, Progress, Purge, RemovalState, RemovedEntry, ScannedEntry,
    Subject, Tag, Verdict,
};
use tw_disk::{Account, Disk, DiskError, JobClass, JobSource};
use tw_log::Level;
use tw_rt::TaskSet;
use tw_rt::watch::Subject as Task;

use super::cache_path::StepLimits;
use super::store::context::{StoreContext, ZoneIndex};
use super::store::place::StoredAt;
use super::store::{EntryRead, Store, UnfinishedFile};
use super::zone::{Cache, CacheUser};
use crate::time::seconds;
use tw_request::event_loop::Loop;

/// Interval of the checks of free space on its disk.
const DISK_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Interval in which a sweep checks whether files that others delete are gone.
const REMAINS_LOOK: Duration = Duration::from_millis(10);

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Time in which a cache may have more in it than it should.
    const LOOK: Duration = Duration::from_secs(1), time, "then what nobody has asked for longest is removed";
}

/// Runs the managers of this loop's share of the caches. Never ends by itself.
pub async fn run(event_loop: Rc<Loop>) {
    let generation = event_loop.generation();
    let loops = generation.process.main.worker_count().max(1);
    let names: Vec<Box<[u8]>> = generation
        .process
        .shared_objects
        .of_type::<Cache>()
        .into_iter()
        .map(|(name, _)| name.into())
        .collect();
    let mut managers = TaskSet::default();
    let caches = names.iter().filter_map(|name| generation.process.shared_objects.find::<Cache>(name));
    let parts = caches.flat_map(|cache| cache.held_parts().to_vec());
    for (nth, cache) in parts.enumerate().filter(|(nth, _)| nth % loops == event_loop.index) {
        let subject = Task { kind: "cache manager", id: nth as u64 };
        let disk = cache.manager_disk(&generation.disks);
        let log = generation.process.error_log.clone();
        let log = Box::new(move |level, message: fmt::Arguments<'_>| log.write(level, None, message));
        managers.spawn((), subject, manage(CacheMaintenance { cache, disk, log }));
    }
    while let ((), Ok(())) = poll_fn(|cx| managers.poll_ended(cx)).await {}
}

/// Rest before the manager reads the purges again, on a disk that hangs.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Rest before segments that could not be read are read again: nothing else finds their records.
const LOAD_AGAIN: Duration = Duration::from_secs(5);

/// Loader and manager of one cache.
pub(crate) struct CacheMaintenance {
    pub(crate) cache: Arc<Cache>,
    pub(crate) disk: Disk,
    pub(crate) log: Box<dyn Fn(Level, fmt::Arguments<'_>)>,
}

async fn manage(manager: CacheMaintenance) {
    let cache = manager.cache.clone();
    let zone_index = loop {
        let log = |level: Level, message: fmt::Arguments<'_>| (manager.log)(level, message);
        match cache.load_index(CacheUser::Manager, &manager.disk, log).await {
            Ok(zone_index) => break zone_index,
            Err(_) => tw_rt::time::sleep(LOOK_AGAIN).await,
        }
    };
    let unfinished = RefCell::new(Vec::new());
    let zone = &manager.cache.zone;
    let mut are_restored = zone.is_loaded.load(Acquire) || manager.restore(zone_index).await;
    // Lookups do not wait for a device that another process uses.
    zone.set_restored();
    let mut load = pin!(async {
        while !zone.is_loaded.load(Acquire) {
            are_restored = are_restored || manager.restore_records(zone_index).await;
            manager.load(zone_index, &unfinished).await;
            manager.remove_unseen(zone_index).await;
            if manager.cache.zone.store.finds_by_key() {
                // Misses search the disk.
                break;
            }
            tw_rt::time::sleep(LOAD_AGAIN).await;
        }
    });
    // The limits hold while the directory is walked, which may take long.
    let mut maintain = pin!(manager.maintain(zone_index, &unfinished));
    let mut is_over = false;
    poll_fn(|cx| {
        is_over = is_over || load.as_mut().poll(cx).is_ready();
        maintain.as_mut().poll(cx)
    })
    .await;
}

/// Pace of work in steps: a number of files, then a rest.
pub(crate) struct StepPacer {
    steps: StepLimits,
    done: u64,
    began: Instant,
}

impl StepPacer {
    pub(crate) fn new(steps: StepLimits) -> Self {
        Self { steps, done: 0, began: tw_rt::clock::now() }
    }

    /// Counts a file; rests at the end of a step.
    pub(crate) async fn count(&mut self) {
        self.done += 1;
        let took = tw_rt::clock::now().saturating_duration_since(self.began);
        if self.done >= self.steps.files || took >= self.steps.threshold {
            tw_rt::time::sleep(self.steps.sleep).await;
            *self = Self::new(self.steps);
        }
    }
}

impl CacheMaintenance {
    /// The cache as its store sees it.
    pub(crate) fn context(&self) -> StoreContext<'_> {
        self.cache.context(&self.disk)
    }

    /// Makes room, removes what was purged and writes snapshots, for ever.
    async fn maintain(&self, zone_index: &ZoneIndex, unfinished: &RefCell<Vec<UnfinishedFile>>) {
        let (mut checked_at, mut swept, mut snapshot) = (None, 0, None);
        let (mut probed_at, mut quotas_checked_at) = (None, None);
        loop {
            // A disk that is left alone has no work, but one operation at times that shows whether it works.
            if !self.maintain_member(&mut probed_at).await {
                tw_rt::time::sleep(LOOK).await;
                continue;
            }
            self.remove_unfinished(zone_index, unfinished).await;
            self.tend_segments().await;
            self.make_room(zone_index, &mut checked_at).await;
            self.restore_quotas().await;
            self.check_quotas(zone_index, &mut quotas_checked_at).await;
            self.enforce_quotas(zone_index).await;
            if zone_index.sweep_to() > swept && self.cache.zone.is_loaded.load(Acquire) {
                swept = self.sweep(zone_index).await;
            }
            self.snapshot_if_due(zone_index, &mut snapshot).await;
            tw_rt::time::sleep(LOOK).await;
        }
    }

    /// Removes inactive entries, and evicts entries above the limits.
    pub(crate) async fn make_room(&self, zone_index: &ZoneIndex, checked_at: &mut Option<Instant>) {
        let (place, index) = (&self.cache.place, &zone_index.index);
        let counts = &self.cache.zone.counts;
        let mut pace = StepPacer::new(place.manager);
        let inactive = u32::try_from(place.inactive.as_secs()).unwrap_or(u32::MAX);
        let now = || seconds(tw_rt::clock::unix().secs);
        let mut removed_entries = Vec::new();
        loop {
            let progress = index.expire(now(), inactive, &mut removed_entries);
            counts.inactive.add(removed_entries.len() as u64);
            self.delete(&mut removed_entries, &mut pace).await;
            tw_rt::yield_now().await;
            if progress == Progress::Done {
                break;
            }
        }
        self.free_inactive_segments(inactive).await;
        let is_checked = checked_at
            .is_some_and(|at| tw_rt::clock::now().saturating_duration_since(at) < DISK_CHECK_INTERVAL);
        let mut lacking = 0;
        if place.min_free > 0 && !is_checked {
            *checked_at = Some(tw_rt::clock::now());
            lacking = self.missing_space().await;
        }
        // Large responses take no room of a device.
        while self.cache.zone.store.device_excess() > 0 {
            if self.free_segment().await == 0 {
                break;
            }
        }
        loop {
            let entries = index.counts();
            let excess = self.cache.zone.bytes_on_disk().saturating_sub(place.max_size).max(lacking);
            let too_many = index.len().saturating_sub(entries.entries_max);
            let what = match (excess, too_many) {
                (0, 0) => break,
                (0, entries) => EvictionTarget::Entries(entries),
                (bytes, _) => EvictionTarget::Bytes(bytes),
            };
            // Of a file and a segment the one that is older goes first.
            let progress =
                self.cache.zone.store.evict_files(index, what, excess, now(), &mut removed_entries);
            let of_files = self.cache.zone.store.freed_bytes(&removed_entries);
            lacking = lacking.saturating_sub(of_files);
            if of_files == 0 && self.cache.zone.store.frees_segment(index, excess) {
                let freed = self.free_segment().await;
                lacking = lacking.saturating_sub(freed);
                counts.evicted.add(removed_entries.len() as u64);
                self.delete(&mut removed_entries, &mut pace).await;
                if freed == 0 {
                    break;
                }
                continue;
            }
            counts.evicted.add(removed_entries.len() as u64);
            let has_evicted = !removed_entries.is_empty();
            self.delete(&mut removed_entries, &mut pace).await;
            tw_rt::yield_now().await;
            if !has_evicted && progress == Progress::Done {
                break;
            }
        }
    }

    /// Removes purged entries, and forgets purges that concern no other entry. Returns the number of the last purge that was
    /// handled.
    pub(crate) async fn sweep(&self, zone_index: &ZoneIndex) -> u64 {
        // After a reload the manager before may still sweep. Entries become compact when a sweep ends, and another one would miss those.
        let _one_at_a_time = self.cache.zone.sweeping.lock().await;
        let swept = self.sweep_all(zone_index).await;
        self.end_sweep(zone_index).await;
        swept
    }

    async fn sweep_all(&self, zone_index: &ZoneIndex) -> u64 {
        let latest = zone_index.sweep_to();
        let (mut cursor, mut entries) = (zone_index.index.sweep(latest), Vec::new());
        let mut pace = StepPacer::new(self.cache.place.manager);
        let mut oldest = self.sweep_records(zone_index, latest).await;
        loop {
            let progress = zone_index.index.scan(&mut cursor, &mut entries);
            for entry in entries.drain(..) {
                let alive = match entry.state.holds {
                    EntryState::File if entry.state.checked < latest => {
                        pace.count().await;
                        self.check_purged(zone_index, &entry, latest).await
                    }
                    _ => entry.alive_since(),
                };
                oldest = oldest.min(alive.unwrap_or(oldest));
            }
            if progress == Progress::Done {
                break;
            }
        }
        // Entries that have left the index were not scanned, and a restart now would find their files again.
        let departures = zone_index.index.removals();
        while zone_index.index.removal_state(departures) == RemovalState::Files {
            tw_rt::time::sleep(REMAINS_LOOK).await;
        }
        if zone_index.index.removal_state(departures) == RemovalState::Strays {
            return latest;
        }
        if let Err(error) = self.cache.zone.store.sync_removals(&self.disk, None).await {
            // A power cut could bring back removed records.
            self.log_failure(&error);
            return latest;
        }
        // No more than the purges: a floor is none.
        let oldest = oldest.min(zone_index.purges.latest());
        let oldest = match self.cache.zone.member.group() {
            Some(group) => group.swept(self.cache.zone.id, oldest),
            None => Some(oldest),
        };
        let Some(oldest) = oldest else { return latest };
        let before = zone_index.purges.counts();
        // Before: what is found from then on is not taken for one that was purged and forgotten.
        zone_index.index.confirm_all(oldest);
        zone_index.purges.forget(oldest);
        if zone_index.purges.counts() != before
            && let Err(error) = self.cache.save_purges(zone_index, &self.disk).await
        {
            self.log_failure(&error);
        }
        latest
    }

    /// Checks whether an entry was purged. Returns the oldest purge that may still concern it.
    async fn check_purged(&self, zone_index: &ZoneIndex, entry: &ScannedEntry, latest: u64) -> Option<u64> {
        let mut account = Account::new(JobClass::Scan, JobSource::NONE);
        let place = StoredAt::of(&self.cache.place, entry.key, entry.state.address);
        match self.cache.zone.store.find(self.context(), &mut account, &place, place.head_read()).await {
            Ok(EntryRead::Entry(read_entry)) => {
                self.check_meta(zone_index, entry, latest, &read_entry.meta).await
            }
            Ok(EntryRead::Missing | EntryRead::Another(_)) => {
                match entry.state.address {
                    Some(address) => zone_index.index.remove_missing_record(entry.key, address),
                    None => zone_index.index.remove_missing(entry.key, entry.state.sequence),
                }
                entry.claimed_since
            }
            // The next request for it handles the damage.
            Ok(EntryRead::OfNginx | EntryRead::Damaged(_)) => entry.alive_since(),
            Err(error) => {
                self.log_failure(&error);
                entry.alive_since()
            }
        }
    }

    /// Checks whether an entry with this head was purged, as [`check_purged`](Self::check_purged) does.
    pub(crate) async fn check_meta(
        &self,
        zone_index: &ZoneIndex,
        entry: &ScannedEntry,
        latest: u64,
        meta: &Meta,
    ) -> Option<u64> {
        let tags: Vec<_> = meta.tags.iter().map(Tag::of).collect();
        let subject = Subject { key: meta.key, text: &meta.key_text, tags: &tags };
        let sequence = zone_index.response_sequence(&entry.state, meta.sequence);
        let checked = entry.state.checked.max(sequence);
        let verdict = match zone_index.is_below_floor(sequence) {
            true => Verdict::Purged(Purge::Hard),
            false => zone_index.purges.verdict(checked, &subject),
        };
        match verdict {
            // The head before may be purged: other loops have it in memory, and a power cut may bring it back.
            Verdict::Kept(_) if is_head_ahead(zone_index, entry, sequence) => entry.alive_since(),
            Verdict::Kept(upto) => {
                zone_index.index.confirm(entry.key, entry.state.sequence, upto);
                Some(upto.min(entry.claimed_since.unwrap_or(latest)))
            }
            Verdict::Purged(Purge::Soft) => entry.alive_since(),
            Verdict::Purged(Purge::Hard) => {
                let removed_entry = zone_index.index.remove_if_sequence(entry.key, entry.state.sequence);
                self.cache.zone.counts.purged.add(u64::from(removed_entry.is_some()));
                let mut pace = StepPacer::new(self.cache.place.manager);
                self.delete(&mut removed_entry.into_iter().collect(), &mut pace).await;
                entry.claimed_since
            }
        }
    }

    /// Number of bytes that have to be freed on the file system (`min_free`).
    async fn missing_space(&self) -> u64 {
        let mut account = Account::new(JobClass::Scan, JobSource::NONE);
        match self.disk.space(&mut account, &self.cache.place.dir).await {
            Ok(space) => self.cache.place.min_free.saturating_sub(space.available),
            Err(error) => {
                self.log_failure(&error);
                0
            }
        }
    }

    async fn delete(&self, removed_entries: &mut Vec<RemovedEntry>, pace: &mut StepPacer) {
        for removed_entry in removed_entries.drain(..) {
            self.remove(removed_entry).await;
            pace.count().await;
        }
    }

    pub(crate) async fn remove(&self, removed_entry: RemovedEntry) {
        if let Err(error) = self.cache.zone.store.remove(self.context(), removed_entry).await {
            self.log_failure(&error);
        }
    }

    pub(crate) fn log_failure(&self, error: &DiskError) {
        self.cache.report_disk_failure(error, "managing it", |level, message| (self.log)(level, message));
    }
}

/// Returns true if the head that was read, with the number `sequence`, is younger than the one that the index knows, because the entry is
/// being validated or was in the meantime.
fn is_head_ahead(zone_index: &ZoneIndex, entry: &ScannedEntry, sequence: u64) -> bool {
    let is_same = |now: IndexEntry| now.claims == 0 && now.sequence == entry.state.sequence;
    sequence > entry.state.checked && !zone_index.index.peek(entry.key).is_some_and(is_same)
}
