//! Index of a cache: for each key the file on disk, the time of its last use and the number of uses. Shared by all
//! loops.
//!
//! ```text
//!                count_use ──► Count ── claim, commit, store ──► File ── claim, commit, store ─┐
//!                                ▲                                │  ▲                         │
//!                                └── remove, purge (uses counted) ┘  └─────────────────────────┘
//! both: expire, evict and the limit of entries take the least recently used, unless fills of it go on
//! ```
//!
//! With another [`EvictionPolicy`] the order of eviction differs (`queue.rs`).
//!
//! There are 64 shards, each behind a lock that is held while a handful of slots change; an operation on many entries
//! releases it after at most 32 of them (`STEP_ENTRIES`). A shard that a panic has left half changed is not entered
//! again ([`FatalMutex`]). The order of last use is exact to the second, over all shards. No clock: `now` and all other
//! times are wall-clock seconds.
//!
//! **Memory.** At most 96 bytes per entry, without an allocation for each; 16 if it has a plain record in a segment
//! (`compact.rs`). The size of the zone is a soft limit: a new entry beyond it evicts the least recently used one, and the
//! caller gets the file to delete; entries with fills in progress stay, and those of plain records until their segment is
//! removed. The limit may change at any time ([`Index::set_memory_max`]); [`Index::evict`] then removes the
//! excess.
//!
//! **Files and entries.** An entry is made after its file is in place, and removed before the file is. So the file of an
//! entry may be missing, which is a miss ([`Index::remove_missing`]). A file without an entry is about to be deleted
//! ([`RemovedEntry`]), or was left by a crash for the scan of the next start ([`Index::load`]). A file has the name
//! of its key, so deleting one may hit its successor, and is reported ([`Index::unlinked`]).
//!
//! **Restarts.** [`SnapshotWriter`](crate::SnapshotWriter) copies the entries into a file, and [`Index::restore`] adds
//! them to the index of the next process, in the order of their last use (`restore.rs`).
//!
//! **Segments.** A store that packs many responses into one large file has an address for each ([`Location`]), in the
//! eight bytes that are otherwise the size of a file. [`RemovedEntry`] returns it. `packed.rs` has what only such a
//! store does: records are added at a start, and moved from one segment to another. An entry to which nothing else happens is
//! compact (`forms.rs`): it has no key, so [`Index::scan`] does not report it, but [`Index::scan_records`] does.

mod chunks;
mod claim;
mod compact;
mod entry;
mod evict;
mod forms;
mod leaving;
mod location;
mod packed;
mod queue;
mod records;
mod restore;
mod shard;
mod slot;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};

use tw_base::FatalMutex;

use crate::Key;
use crate::purge::Sequence;
use compact::CompactEntry;
use leaving::Removals;
use location::SegmentUse;
use queue::QueueLoad;
use shard::{NEVER, Placement, Seed, Shard, Slot, Sums, Traits};
use slot::PackNeeds;

pub(crate) use compact::{COMPACT_SIZE, CompactBytes, page_of};
pub(crate) use records::page_of_row;

pub use claim::{Claim, ClaimRefused, Commit, CommitRefused, StoredEntry};
pub use entry::{
    EntryState, EvictionTarget, IndexCounts, IndexEntry, LoadOutcome, LoadedEntry, Progress, PurgeOutcome,
    RemovedEntry, ScanCursor, ScannedEntry, UseCount,
};
pub use leaving::RemovalState;
pub use location::{Location, SEGMENTS_MAX, SegmentAddress};
pub use packed::{LoadedRecord, Move, RecordOutcome};
pub use queue::EvictionPolicy;
pub use records::ScannedRecord;
pub use restore::{RestoreOutcome, UnseenEntry};

/// Parts of an index that are locked one by one: a few for each loop of a large machine.
pub(crate) const SHARDS: usize = 1 << SHARD_BITS;
const SHARD_BITS: u32 = 6;
/// Bytes for an entry, including its part of the hash table and of unused capacity.
const ENTRY_SIZE: u64 = 96;
/// Bytes for the entry of a plain record, as measured, with all that it needs.
const RECORD_ENTRY_SIZE: u64 = 16;
/// One part in so many of the memory is for entries that are not compact, however many compact ones there are.
const SLOTS_SHARE: u64 = 16;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Entries of a cache, 96 bytes each; 16 for a plain response in a segment (`store=log`).
    parameter "proxy_cache_path", "keys_zone=", "a size that must be given",
        "the least recently used one that is not being filled makes room";
    /// Entries taken while one shard is locked.
    const STEP_ENTRIES: usize = 32, count, "the lock is given back first";
    /// Entries that one call expires, evicts or tells.
    const BATCH_ENTRIES: usize = 256, count, "the caller goes on with the next call";
}

/// Index of one cache (`keys_zone`).
pub struct Index {
    seed: Seed,
    sequence: Arc<Sequence>,
    memory_max: AtomicU64,
    shards: Box<[AlignedShard; SHARDS]>,
    /// The sums of all shards, each changed under the lock of the shard.
    entries: AtomicU64,
    files: AtomicU64,
    bytes: AtomicU64,
    packed_bytes: AtomicU64,
    ghosts: AtomicU64,
    compact: AtomicU64,
    memory: AtomicU64,
    /// True if entries are evicted by `s3fifo`.
    is_fifo: AtomicBool,
    /// The last purge before the last sweep began.
    swept: AtomicU64,
    /// True while a sweep goes on.
    is_sweeping: AtomicBool,
    /// True while segments are loaded.
    is_loading: AtomicBool,
    leaving: Arc<Removals>,
    segments: Arc<SegmentUse>,
    /// Shard at which the search for the oldest entry begins; it moves, so that the first shards are not preferred.
    hand: AtomicUsize,
}

/// A shard, on cache lines of its own.
#[repr(align(128))]
struct AlignedShard {
    /// Time of use of the oldest entry, for readers without the lock.
    oldest_use: AtomicU32,
    small: QueueLoad,
    main: QueueLoad,
    shard: FatalMutex<Shard>,
}

impl Index {
    /// An empty index with a limit of `memory_max` bytes. `seed` is random and secret, one for each process;
    /// `sequence` is that of the [`Purges`](crate::Purges) of the same cache.
    #[must_use]
    pub fn new(memory_max: u64, seed: [u64; 2], sequence: Arc<Sequence>) -> Self {
        let seed = Seed(seed);
        let leaving = Arc::new(Removals::default());
        let segments = Arc::new(SegmentUse::default());
        let place = |_| AlignedShard {
            oldest_use: AtomicU32::new(NEVER),
            small: QueueLoad::default(),
            main: QueueLoad::default(),
            shard: FatalMutex::new(Shard::new(seed, leaving.clone(), segments.clone())),
        };
        Self {
            seed,
            sequence,
            memory_max: AtomicU64::new(memory_max),
            shards: Box::new(std::array::from_fn(place)),
            entries: AtomicU64::new(0),
            files: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            packed_bytes: AtomicU64::new(0),
            ghosts: AtomicU64::new(0),
            compact: AtomicU64::new(0),
            memory: AtomicU64::new(0),
            is_fifo: AtomicBool::new(false),
            swept: AtomicU64::new(0),
            is_sweeping: AtomicBool::new(false),
            is_loading: AtomicBool::new(false),
            leaving: leaving.clone(),
            segments: segments.clone(),
            hand: AtomicUsize::new(0),
        }
    }

    /// Sets another limit, in bytes, for the next generation of a configuration. Removes nothing.
    pub fn set_memory_max(&self, memory_max: u64) {
        self.memory_max.store(memory_max, Relaxed);
    }

    /// Number of entries that are not compact.
    fn slots(&self) -> u64 {
        self.len().saturating_sub(self.compact.load(Relaxed))
    }

    /// Largest number of entries that are not compact.
    fn slots_max(&self) -> u64 {
        let memory = self.memory_max.load(Relaxed);
        let remaining = memory.saturating_sub(self.compact.load(Relaxed) * RECORD_ENTRY_SIZE);
        (remaining.max(memory / SLOTS_SHARE) / ENTRY_SIZE).max(1)
    }

    /// Number of entries that there is room for, if those that are added have plain records, or none has.
    fn entries_max(&self) -> u64 {
        let memory = self.memory_max.load(Relaxed);
        let compact = self.compact.load(Relaxed);
        if compact == 0 {
            return self.slots_max();
        }
        let slots = self.slots();
        slots + memory.saturating_sub(slots * ENTRY_SIZE).max(memory / SLOTS_SHARE) / RECORD_ENTRY_SIZE
    }

    /// Returns true if compact entries take more memory than they may: a segment has to be removed.
    pub fn has_too_many_records(&self) -> bool {
        let memory = self.memory_max.load(Relaxed);
        self.compact.load(Relaxed) * RECORD_ENTRY_SIZE > memory - memory / SLOTS_SHARE
    }

    /// Sets the eviction policy. If it changes, all entries are put in order, which takes too long for an event loop.
    pub fn set_policy(&self, policy: EvictionPolicy) {
        self.is_fifo.store(policy == EvictionPolicy::S3Fifo, SeqCst);
        for place in self.shards.iter() {
            self.change(place, |shard| shard.set_policy(policy));
        }
    }

    /// Looks up a key and records its use at `now`.
    pub fn lookup(&self, key: Key, now: u32) -> Option<IndexEntry> {
        self.with_plain(
            key,
            |shard, entry| {
                shard.use_compact(entry, now);
                Some(shard.describe(entry))
            },
            |shard, hash| {
                let at = shard.find(hash, key)?;
                let index_entry = shard.slot(at).map(|slot| self.describe(slot));
                shard.record_use(at, now);
                index_entry
            },
        )
    }

    /// Looks up a key without recording a use.
    pub fn peek(&self, key: Key) -> Option<IndexEntry> {
        self.with_plain(
            key,
            |shard, entry| Some(shard.describe(entry)),
            |shard, hash| shard.found_mut(hash, key).map(|slot| self.describe(slot)),
        )
    }

    fn describe(&self, slot: &Slot) -> IndexEntry {
        IndexEntry::of(slot, self.segments.confirmed())
    }

    /// Counts a use of this key, for `min_uses`. It becomes known by that.
    pub fn count_use(&self, key: Key, now: u32) -> UseCount {
        let uses = self.with(key, |shard, hash| {
            let at = shard.found_or_new(hash, key, self.sequence.last(), now)?;
            shard.touch(at, now);
            let slot = shard.slot_mut(at)?;
            slot.uses = slot.uses.saturating_add(1);
            Some(slot.uses)
        });
        // A shard that has no number left for another entry has four billion.
        UseCount { uses: uses.unwrap_or(1), pushed_out: self.make_room(now) }
    }

    /// Removes an entry, with or without a file.
    pub fn remove(&self, key: Key) -> Option<RemovedEntry> {
        self.remove_if(key, |_| true)
    }

    /// Takes an entry out if it still has the file that was found: one that was broken or purged.
    pub fn remove_if_sequence(&self, key: Key, sequence: u64) -> Option<RemovedEntry> {
        self.remove_if(key, |slot| slot.holds == EntryState::File && slot.identity() == sequence)
    }

    /// Removes an entry whose file does not exist.
    pub fn remove_missing(&self, key: Key, sequence: u64) {
        if let Some(removed_entry) = self.remove_if_sequence(key, sequence) {
            removed_entry.deleted();
        }
    }

    fn remove_if(&self, key: Key, is_it: impl FnOnce(&Slot) -> bool) -> Option<RemovedEntry> {
        self.with(key, |shard, hash| {
            let at = shard.find(hash, key)?;
            if is_it(shard.slot(at)?) { shard.remove_file(at) } else { None }
        })
    }

    /// Purges one key, hard, and its variants ([`IndexEntry::since`]): no response whose fetch began before is used
    /// or stored from now on. While there may be files on disk that no scan has found, the caller deletes the file of
    /// the key even if it has no entry.
    pub fn purge(&self, key: Key) -> PurgeOutcome {
        self.with(key, |shard, hash| {
            // The number is taken under the lock, as for claims: each fill of this key is wholly before or wholly after
            // the purge.
            let sequence = self.sequence.next();
            let Some(at) = shard.find(hash, key) else {
                return PurgeOutcome { sequence, removed_entry: None, is_placing: false };
            };
            let mut is_placing = false;
            if let Some(slot) = shard.slot_mut(at) {
                slot.since = sequence;
                is_placing = slot.placing != Placement::Idle;
            }
            PurgeOutcome { sequence, removed_entry: shard.remove_file(at), is_placing }
        })
    }

    /// Handles the removal of a file without an entry. A successor put in place meanwhile may have been removed with
    /// it: its entry is removed, or will not be stored. The caller has to delete the file of the returned entry once
    /// more.
    #[must_use]
    pub fn unlinked(&self, key: Key) -> Option<RemovedEntry> {
        self.with(key, |shard, hash| {
            let at = shard.find(hash, key)?;
            let slot = shard.slot_mut(at)?;
            if slot.placing != Placement::Idle {
                slot.placing = Placement::Spoiled;
            }
            // A record in a segment has no file of that name.
            if slot.location.address().is_some() { None } else { shard.remove_file(at) }
        })
    }

    /// File that may be on disk under this key without an entry: one that no scan has found yet, fetched before
    /// `sequence`.
    pub fn remove_unknown(&self, key: Key, sequence: u64) -> RemovedEntry {
        RemovedEntry::new(key, sequence, Location::NOWHERE, self.leaving.leave())
    }

    /// Number of entries that have left the index.
    pub fn removals(&self) -> u64 {
        self.leaving.count()
    }

    /// State of the first `departures` entries that left.
    pub fn removal_state(&self, departures: u64) -> RemovalState {
        self.leaving.removal_state(departures)
    }

    /// No purge up to `checked` concerns the entry that has this file
    /// ([`Verdict::Kept`](crate::Verdict::Kept)).
    pub fn confirm(&self, key: Key, sequence: u64, checked: u64) {
        // A compact entry has no room for the number: [`confirm_all`](Self::confirm_all) confirms all of them.
        let ignore = |_: &mut Shard, _| {};
        self.with_plain(key, ignore, |shard, hash| {
            if let Some(slot) = shard.found_mut(hash, key)
                && slot.holds == EntryState::File
                && slot.identity() == sequence
            {
                slot.checked = slot.checked.max(checked);
            }
        });
    }

    /// Adds an entry found on disk, as if used now, unless it has a file already. Counting of uses may have made the
    /// entry before; variants that are older than that are not used. A file that is known from a snapshot counts as
    /// seen, and has the size that was found.
    pub fn load(&self, entry: &LoadedEntry, now: u32) -> LoadOutcome {
        let key = entry.key;
        let is_added = self.with(key, |shard, hash| {
            let Some(at) = shard.found_or_new(hash, key, entry.since, now) else { return false };
            let Some(slot) = shard.slot(at) else { return false };
            if slot.traits.has(Traits::RESTORED) && slot.location.address().is_none() {
                shard.change_file(at, |slot| {
                    slot.traits.set(Traits::RESTORED, false);
                    slot.location = entry.size.into();
                });
                return false;
            }
            let is_free = slot.holds == EntryState::Count && slot.placing == Placement::Idle;
            if is_free {
                shard.change_file(at, |slot| {
                    slot.put_file(entry.sequence, entry.size.into());
                    slot.valid_until = entry.valid_until;
                });
            }
            is_free
        });
        if is_added { LoadOutcome::Added(self.make_room(now)) } else { LoadOutcome::Known }
    }

    /// Starts the scan of a sweep that has to find everything that purges up to `latest` concern, including fills in
    /// progress. A claim that such a scan could miss is refused from now on ([`ClaimRefused::Swept`]).
    pub fn sweep(&self, latest: u64) -> ScanCursor {
        self.swept.fetch_max(latest, SeqCst);
        self.is_sweeping.store(true, SeqCst);
        ScanCursor::default()
    }

    /// Needs of the sweep and of the loading that go on.
    fn pack_needs(&self) -> PackNeeds {
        let swept = self.is_sweeping.load(SeqCst).then(|| self.swept.load(SeqCst));
        PackNeeds { swept, is_loading: self.is_loading.load(SeqCst) }
    }

    /// Adds some entries to `entries` that are not compact, at most 32 (`STEP_ENTRIES`), in no order. Entries that exist from the first call
    /// to the one that returns [`Progress::Done`] are all reported, some of them twice.
    pub fn scan(&self, cursor: &mut ScanCursor, entries: &mut Vec<ScannedEntry>) -> Progress {
        let confirmed = self.segments.confirmed();
        self.visit(cursor, |_, slot| entries.push(ScannedEntry::of(slot, confirmed)))
    }

    /// Visits some entries, at most 32 (`STEP_ENTRIES`), under the lock of their shard.
    fn visit(&self, cursor: &mut ScanCursor, mut visit: impl FnMut(EvictionPolicy, &Slot)) -> Progress {
        let Some(place) = self.shards.get(cursor.shard) else {
            *cursor = ScanCursor::default();
            return Progress::Done;
        };
        // Backwards, because a removal elsewhere moves entries towards the beginning.
        let shard = place.shard.lock();
        let end = cursor.end.map_or(shard.len(), |end| end.min(shard.len()));
        let begin = end.saturating_sub(STEP_ENTRIES as u32);
        (begin..end).filter_map(|at| shard.slot(at)).for_each(|slot| visit(shard.policy(), slot));
        drop(shard);
        *cursor = if begin == 0 {
            ScanCursor { shard: cursor.shard + 1, end: None }
        } else {
            ScanCursor { end: Some(begin), ..*cursor }
        };
        if cursor.shard < SHARDS {
            return Progress::More;
        }
        *cursor = ScanCursor::default();
        Progress::Done
    }

    /// Number of entries, including those without a file.
    pub fn len(&self) -> u64 {
        self.entries.load(Relaxed)
    }

    /// Returns `true` if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of all files that are in the index.
    pub fn bytes_on_disk(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Bytes of the records in segments that are in the index: a part of [`bytes_on_disk`](Self::bytes_on_disk).
    pub fn packed_bytes(&self) -> u64 {
        self.packed_bytes.load(Relaxed)
    }

    /// Number of entries with a record in this segment.
    pub fn entries_of_segment(&self, segment: u32) -> u32 {
        self.segments.entries(segment)
    }

    /// Bytes that are allocated for entries.
    pub fn memory(&self) -> u64 {
        self.memory.load(Relaxed)
    }

    /// All sums, for metrics; takes no lock.
    pub fn counts(&self) -> IndexCounts {
        IndexCounts {
            entries: self.len(),
            files: self.files.load(Relaxed),
            bytes: self.bytes_on_disk(),
            memory: self.memory(),
            entries_max: self.entries_max(),
        }
    }

    /// Works on the shard of a key. Its compact entry is a slot meanwhile.
    fn with<R>(&self, key: Key, work: impl FnOnce(&mut Shard, u64) -> R) -> R {
        let hash = self.seed.hash(key);
        self.change(self.place(hash), |shard| self.unpacked(shard, hash, key, work))
    }

    /// Works on the compact entry of a key by `plain`; if it has none, or a slot beside it, on the shard as [`with`](Self::with)
    /// does.
    fn with_plain<R>(
        &self,
        key: Key,
        plain: impl FnOnce(&mut Shard, CompactEntry) -> R,
        work: impl FnOnce(&mut Shard, u64) -> R,
    ) -> R {
        let hash = self.seed.hash(key);
        self.change(self.place(hash), |shard| match shard.plain_entry(hash, key) {
            Some(entry) => plain(shard, entry),
            None => self.unpacked(shard, hash, key, work),
        })
    }

    fn unpacked<R>(
        &self,
        shard: &mut Shard,
        hash: u64,
        key: Key,
        work: impl FnOnce(&mut Shard, u64) -> R,
    ) -> R {
        shard.unpack(hash, key, self.sequence.last());
        let result = work(shard, hash);
        if shard.packed_bytes > 0 {
            shard.pack(hash, key, self.pack_needs());
        }
        result
    }

    fn place(&self, hash: u64) -> &AlignedShard {
        let place = self.shards.get((hash >> (u64::BITS - SHARD_BITS)) as usize);
        place.expect("there are as many as the bits can tell")
    }

    /// Works on a shard, and brings the sums up to date.
    fn change<R>(&self, place: &AlignedShard, work: impl FnOnce(&mut Shard) -> R) -> R {
        let mut shard = place.shard.lock();
        let before = shard.sums();
        let result = work(&mut shard);
        let after = shard.sums();
        place.oldest_use.store(shard.oldest_use(), Relaxed);
        place.small.store(&shard.queues.small);
        place.main.store(&shard.queues.main);
        if before != after {
            self.add(before, after);
        }
        result
    }

    fn add(&self, before: Sums, after: Sums) {
        // Wraps where it becomes less: the sums are right all the same.
        let add = |sum: &AtomicU64, before: u64, after: u64| {
            if before != after {
                sum.fetch_add(after.wrapping_sub(before), Relaxed);
            }
        };
        add(&self.entries, before.entries, after.entries);
        add(&self.files, before.files, after.files);
        add(&self.bytes, before.bytes, after.bytes);
        add(&self.packed_bytes, before.packed_bytes, after.packed_bytes);
        add(&self.ghosts, before.ghosts, after.ghosts);
        add(&self.compact, before.compact, after.compact);
        add(&self.memory, before.memory, after.memory);
    }
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The seed is secret.
        f.debug_struct("Index").field("counts", &self.counts()).finish_non_exhaustive()
    }
}
