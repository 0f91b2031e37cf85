//! What is kept in a cache: for each key what is on disk, when it was used and how often. Shared by all loops.
//!
//! ```text
//!                count_use ──► Count ── claim, commit, store ──► File ── claim, commit, store ─┐
//!                                ▲                                │  ▲                         │
//!                                └── remove, purge (uses counted) ┘  └─────────────────────────┘
//! both: expire, evict and the limit of entries take the least recently used, unless fills of it go on
//! ```
//!
//! With another [`Policy`] other entries go than the least recently used ones (`queue.rs`).
//!
//! 64 shards, each behind a lock that is held while a handful of slots change; an operation on many entries gives it back after
//! at most 32 of them (`STEP_ENTRIES`). Nobody looks at a shard that a panic has left half changed ([`FatalMutex`]). The order of
//! last use is exact to the second, over all shards. No clock: `now` is in seconds of the clock on the wall, and so are all
//! times.
//!
//! **Memory.** At most 96 bytes per entry, without an allocation for each. The size of the zone is a soft limit: a new entry
//! beyond it pushes out the least recently used one, and whoever brings it is told which file is to be deleted; what fills hold
//! stays. It may change at any time ([`Index::set_memory_max`]): fewer entries come to be as [`Index::evict`] takes them.
//!
//! **Files and entries.** An entry is made after its file is in place, and goes before its file does. So a file that an entry
//! leads to may be missing, which is a miss ([`Index::missing`]); what is on disk without an entry is what is about
//! to be deleted ([`Gone`]), or what a crash has left for the scan of the next start ([`Index::load`]). A file has the name of
//! its key, so who deletes one may take its successor with it, and says so ([`Index::unlinked`]).
//!
//! **What stands beside it later.** An index that outlives the process is what [`Index::scan`] tells, written in pieces while
//! all goes on: a slot holds only numbers. [`Index::load`] takes them back before anybody asks, the least recently used first,
//! each with its last use for `now`. A store that keeps many responses in one large file needs a place for each: the eight
//! bytes of `size` then hold both (40 bits for the block where it begins, 24 for how many there are), and [`Gone`] tells them.
//! Nothing here knows how an entry becomes a file.

mod chunks;
mod claim;
mod entry;
mod leaving;
mod queue;
mod shard;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};

use tw_base::{FatalMutex, Limit};

use crate::Key;
use crate::purge::Sequence;
use leaving::Leaving;
use queue::{Load, Queue, SMALL_SHARE};
use shard::{NEVER, Placing, Seed, Shard, Slot, Sums, Taken};

pub use claim::{Claim, Commit, NotCommitted, Refused};
pub use entry::{
    Counted, Cursor, Excess, Found, Gone, Holds, IndexCounts, Known, Loaded, Progress, Purged, Seen,
};
pub use leaving::Remains;
pub use queue::Policy;

/// Parts of an index that are locked one by one: a few for each loop of a large machine.
const SHARDS: usize = 1 << SHARD_BITS;
const SHARD_BITS: u32 = 6;
/// Bytes for an entry, with its part of the hash table and of what is allocated and empty.
const ENTRY_SIZE: u64 = 96;
/// Entries that are looked at or taken before a lock is given back.
const STEP_ENTRIES: usize = 32;
/// Entries that one call looks at or takes.
const BATCH_ENTRIES: usize = 256;

pub(crate) const LIMITS: &[Limit] = &[
    Limit::parameter(
        "proxy_cache_path",
        "keys_zone=",
        "a size that must be given",
        "Entries of a cache, 96 bytes each",
        "the least recently used one that is not being filled makes room",
    ),
    Limit::count(
        "STEP_ENTRIES",
        STEP_ENTRIES as u64,
        "Entries taken while one shard is locked",
        "the lock is given back first",
    ),
    Limit::count(
        "BATCH_ENTRIES",
        BATCH_ENTRIES as u64,
        "Entries that one call expires, evicts or tells",
        "the caller goes on with the next call",
    ),
];

/// What is kept in one cache (`keys_zone`).
pub struct Index {
    seed: Seed,
    sequence: Arc<Sequence>,
    entries_max: AtomicU64,
    shards: Box<[Place; SHARDS]>,
    /// The sums of all shards, each changed under the lock of the shard.
    entries: AtomicU64,
    files: AtomicU64,
    bytes: AtomicU64,
    ghosts: AtomicU64,
    memory: AtomicU64,
    /// Whether it is by `s3fifo` that entries go.
    is_fifo: AtomicBool,
    /// The last purge before the last sweep began.
    swept: AtomicU64,
    leaving: Arc<Leaving>,
    /// Where the search for the oldest begins, so that the first shards do not go first.
    hand: AtomicUsize,
}

/// A shard, on cache lines of its own.
#[repr(align(128))]
struct Place {
    /// When its oldest entry was used, for who looks without the lock.
    oldest_use: AtomicU32,
    small: Load,
    main: Load,
    shard: FatalMutex<Shard>,
}

impl Index {
    /// An empty index with a limit of `memory_max` bytes. `seed` is random and secret, one for each process; `sequence` is
    /// that of the [`Purges`](crate::Purges) of the same cache.
    #[must_use]
    pub fn new(memory_max: u64, seed: [u64; 2], sequence: Arc<Sequence>) -> Self {
        let (seed, leaving) = (Seed(seed), Arc::new(Leaving::default()));
        let place = |_| Place {
            oldest_use: AtomicU32::new(NEVER),
            small: Load::default(),
            main: Load::default(),
            shard: FatalMutex::new(Shard::new(seed, leaving.clone())),
        };
        let index = Self {
            seed,
            sequence,
            entries_max: AtomicU64::new(0),
            shards: Box::new(std::array::from_fn(place)),
            entries: AtomicU64::new(0),
            files: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            ghosts: AtomicU64::new(0),
            memory: AtomicU64::new(0),
            is_fifo: AtomicBool::new(false),
            swept: AtomicU64::new(0),
            leaving: leaving.clone(),
            hand: AtomicUsize::new(0),
        };
        index.set_memory_max(memory_max);
        index
    }

    /// Another limit, in bytes: for the next generation of a configuration. Nothing is dropped by this.
    pub fn set_memory_max(&self, memory_max: u64) {
        self.entries_max.store((memory_max / ENTRY_SIZE).max(1), Relaxed);
    }

    /// Which entry goes from now on when there is no room. Puts all entries in order if it is another one than before: not for
    /// a loop.
    pub fn set_policy(&self, policy: Policy) {
        self.is_fifo.store(policy == Policy::S3Fifo, SeqCst);
        for place in self.shards.iter() {
            self.change(place, |shard| shard.set_policy(policy));
        }
    }

    /// What is known of this key, which is used now.
    pub fn look(&self, key: Key, now: u32) -> Option<Found> {
        self.with(key, |shard, hash| {
            let at = shard.find(hash, key)?;
            let found = shard.slot(at).map(Found::of);
            shard.ask(at, now);
            found
        })
    }

    /// What is known of this key, without using it.
    pub fn peek(&self, key: Key) -> Option<Found> {
        self.with(key, |shard, hash| shard.found_mut(hash, key).map(|slot| Found::of(slot)))
    }

    /// Counts a use of this key, for `min_uses`. It becomes known by that.
    pub fn count_use(&self, key: Key, now: u32) -> Counted {
        let uses = self.with(key, |shard, hash| {
            let at = shard.found_or_new(hash, key, self.sequence.last(), now)?;
            shard.touch(at, now);
            let slot = shard.slot_mut(at)?;
            slot.uses = slot.uses.saturating_add(1);
            Some(slot.uses)
        });
        // A shard that has no number left for another entry has four billion.
        Counted { uses: uses.unwrap_or(1), pushed_out: self.make_room(now) }
    }

    /// Takes an entry out, whatever it has.
    pub fn remove(&self, key: Key) -> Option<Gone> {
        self.remove_if(key, |_| true)
    }

    /// Takes an entry out if it still has the file that was found: one that was broken or purged.
    pub fn remove_if_sequence(&self, key: Key, sequence: u64) -> Option<Gone> {
        self.remove_if(key, |slot| slot.holds == Holds::File && slot.sequence == sequence)
    }

    /// The same for one whose file is not there.
    pub fn missing(&self, key: Key, sequence: u64) {
        if let Some(gone) = self.remove_if_sequence(key, sequence) {
            gone.deleted();
        }
    }

    fn remove_if(&self, key: Key, is_it: impl FnOnce(&Slot) -> bool) -> Option<Gone> {
        self.with(key, |shard, hash| {
            let at = shard.find(hash, key)?;
            if is_it(shard.slot(at)?) { shard.remove_file(at) } else { None }
        })
    }

    /// Purges one key, hard, and its variants ([`Found::since`]): nothing that began to be fetched before this is used or
    /// stored from now on. As long as files may be on disk that no scan has found yet, the caller deletes the file of the key
    /// whether it is known or not.
    pub fn purge(&self, key: Key) -> Purged {
        self.with(key, |shard, hash| {
            // In the lock, as claims are numbered: each fill of this key comes wholly before or wholly after.
            let sequence = self.sequence.next();
            let Some(at) = shard.find(hash, key) else {
                return Purged { sequence, gone: None, is_placing: false };
            };
            let mut is_placing = false;
            if let Some(slot) = shard.slot_mut(at) {
                slot.since = sequence;
                is_placing = slot.placing != Placing::Idle;
            }
            Purged { sequence, gone: shard.remove_file(at), is_placing }
        })
    }

    /// The file of this key was removed, and no entry led to it. One that came into its place meanwhile may have gone with it:
    /// it is taken out, or will not be stored. What it had then, the caller has to remove once more.
    #[must_use]
    pub fn unlinked(&self, key: Key) -> Option<Gone> {
        self.with(key, |shard, hash| {
            let at = shard.find(hash, key)?;
            if let Some(slot) = shard.slot_mut(at)
                && slot.placing != Placing::Idle
            {
                slot.placing = Placing::Spoiled;
            }
            shard.remove_file(at)
        })
    }

    /// What may be on disk under this key, though no entry says so: a file that no scan has found yet, which began to be fetched
    /// before `sequence`.
    pub fn unknown(&self, key: Key, sequence: u64) -> Gone {
        Gone { key, sequence, size: 0, departure: self.leaving.leave() }
    }

    /// How many files have left.
    pub fn departures(&self) -> u64 {
        self.leaving.count()
    }

    /// What remains of the first `departures` of them.
    pub fn remains(&self, departures: u64) -> Remains {
        self.leaving.remains(departures)
    }

    /// No purge up to `checked` concerns the entry that has this file
    /// ([`Verdict::Kept`](crate::Verdict::Kept)).
    pub fn confirm(&self, key: Key, sequence: u64, checked: u64) {
        self.with(key, |shard, hash| {
            if let Some(slot) = shard.found_mut(hash, key)
                && slot.holds == Holds::File
                && slot.sequence == sequence
            {
                slot.checked = slot.checked.max(checked);
            }
        });
    }

    /// Adds what was found on disk, as if used now, unless there is a file already. Who counted its uses before it was found
    /// may have made the entry: variants that are older than that are not used then.
    pub fn load(&self, known: &Known, now: u32) -> Loaded {
        let key = known.key;
        let is_added = self.with(key, |shard, hash| {
            let Some(at) = shard.found_or_new(hash, key, known.since, now) else { return false };
            let is_free = shard
                .slot(at)
                .is_some_and(|slot| slot.holds == Holds::Count && slot.placing == Placing::Idle);
            if is_free {
                shard.change_file(at, |slot| {
                    slot.put_file(known.sequence, known.size);
                    slot.valid_until = known.valid_until;
                });
            }
            is_free
        });
        if is_added { Loaded::Added(self.make_room(now)) } else { Loaded::Known }
    }

    /// Takes entries that were not used for `inactive` seconds, the oldest first, and adds their files to `gone`. At most
    /// 256 (`BATCH_ENTRIES`) in one call. By `s3fifo` in any order, and up to a sixteenth of the time later.
    pub fn expire(&self, now: u32, inactive: u32, gone: &mut Vec<Gone>) -> Progress {
        if self.is_fifo.load(SeqCst) {
            return self.expire_in_any_order(now, inactive, gone);
        }
        let is_over = |used: u32| now.saturating_sub(used) >= inactive;
        self.take_oldest(now, BATCH_ENTRIES, is_over, |_| Progress::More, gone)
    }

    fn expire_in_any_order(&self, now: u32, inactive: u32, gone: &mut Vec<Gone>) -> Progress {
        // Looking at all of a shard is work: it is done a few times in that span, and not for each entry.
        let late = inactive.saturating_add(inactive / 16);
        let is_due = |place: &&Place| now.saturating_sub(place.oldest_use.load(Relaxed)) >= late;
        let mut work = BATCH_ENTRIES;
        for place in self.shards.iter().filter(is_due) {
            loop {
                let count = STEP_ENTRIES.min(work);
                let before = now.saturating_sub(inactive);
                let is_done = self.change(place, |shard| shard.take_unused(before, count as u32, gone));
                work -= count;
                match (is_done, work) {
                    (_, 0) => return Progress::More,
                    (true, _) => break,
                    (false, _) => {}
                }
            }
        }
        Progress::Done
    }

    /// Takes the least recently used entries until so much is free (or those that the [`Policy`] says), and adds their files to `gone`. At most 256 (`BATCH_ENTRIES`) in one
    /// call: what is missing then is for the next.
    pub fn evict(&self, excess: Excess, now: u32, gone: &mut Vec<Gone>) -> Progress {
        let mut left = match excess {
            Excess::Bytes(count) | Excess::Entries(count) => count,
        };
        if left == 0 {
            return Progress::Done;
        }
        let count = |taken: Option<&Gone>| {
            left = left.saturating_sub(match excess {
                Excess::Bytes(_) => taken.map_or(0, |gone| gone.size),
                Excess::Entries(_) => 1,
            });
            if left == 0 { Progress::Done } else { Progress::More }
        };
        if self.is_fifo.load(SeqCst) {
            return self.take_next(matches!(excess, Excess::Bytes(_)), BATCH_ENTRIES, count, gone);
        }
        self.take_oldest(now, BATCH_ENTRIES, |_| true, count, gone)
    }

    /// By `s3fifo`: takes entries as long as `next` wants more, at most `work` steps. What is too much goes from where most is.
    fn take_next(
        &self,
        by_bytes: bool,
        mut work: usize,
        mut next: impl FnMut(Option<&Gone>) -> Progress,
        gone: &mut Vec<Gone>,
    ) -> Progress {
        let mut progress = Progress::Done;
        while work > 0 {
            work -= 1;
            // Ghosts are entries, too; they go when no others are too many.
            let is_ghost = !by_bytes && self.live() <= self.live_max() && self.ghosts.load(Relaxed) > 0;
            if is_ghost && self.take_ghost() {
                progress = Progress::More;
                if next(None) == Progress::Done {
                    return Progress::Done;
                }
                continue;
            }
            let sum = |load: fn(&Place) -> &Load| -> u64 {
                self.shards.iter().map(|place| load(place).value(by_bytes)).sum()
            };
            let (small, main) = (sum(|place| &place.small), sum(|place| &place.main));
            let is_small = main == 0 || (small > 0 && small * SMALL_SHARE >= small + main);
            let queue = if is_small { Queue::Small } else { Queue::Main };
            let of = |place: &&Place| if is_small { &place.small } else { &place.main }.value(by_bytes);
            let Some(place) = self.shards.iter().max_by_key(of).filter(|place| of(place) > 0) else {
                return progress;
            };
            match self.change(place, |shard| shard.take_next(queue)) {
                // Others were faster.
                Taken::Nothing => {}
                Taken::Claimed => {}
                Taken::Kept => progress = Progress::More,
                Taken::Gone(taken) => {
                    progress = Progress::More;
                    // It may have become a ghost, and there may be no room for one.
                    while self.len() > self.entries_max.load(Relaxed) && self.take_ghost() {}
                    let said = next(taken.as_ref());
                    gone.extend(taken);
                    if said == Progress::Done {
                        return Progress::Done;
                    }
                }
            }
        }
        progress
    }

    fn take_ghost(&self) -> bool {
        let hand = self.hand.fetch_add(1, Relaxed) % SHARDS;
        let Some((before, from)) = self.shards.split_at_checked(hand) else { return false };
        from.iter().chain(before).any(|place| self.change(place, Shard::take_ghost))
    }

    /// Entries that are no ghosts.
    fn live(&self) -> u64 {
        self.len().saturating_sub(self.ghosts.load(Relaxed))
    }

    /// By `s3fifo` a ninth of the room is for ghosts.
    fn live_max(&self) -> u64 {
        let max = self.entries_max.load(Relaxed);
        if self.is_fifo.load(SeqCst) { max - max / 9 } else { max }
    }

    /// Where the scan of a sweep begins that is to find all that purges up to `latest` concern: also fills that go on. What
    /// could come behind it is refused from now on ([`Refused::Swept`]).
    pub fn sweep(&self, latest: u64) -> Cursor {
        self.swept.fetch_max(latest, SeqCst);
        Cursor::default()
    }

    /// Adds some entries to `seen`, at most 32 (`STEP_ENTRIES`), in no order. Those that are there from the first call to the one that
    /// says [`Progress::Done`] are told, some of them twice.
    pub fn scan(&self, cursor: &mut Cursor, seen: &mut Vec<Seen>) -> Progress {
        let Some(place) = self.shards.get(cursor.shard) else {
            *cursor = Cursor::default();
            return Progress::Done;
        };
        // From the end: what moves when another one is taken out moves towards the beginning.
        let shard = place.shard.lock();
        let end = cursor.end.map_or(shard.len(), |end| end.min(shard.len()));
        let begin = end.saturating_sub(STEP_ENTRIES as u32);
        seen.extend((begin..end).filter_map(|at| shard.slot(at)).map(Seen::of));
        drop(shard);
        *cursor = if begin == 0 {
            Cursor { shard: cursor.shard + 1, end: None }
        } else {
            Cursor { end: Some(begin), ..*cursor }
        };
        if cursor.shard < SHARDS {
            return Progress::More;
        }
        *cursor = Cursor::default();
        Progress::Done
    }

    /// How many entries there are, with those that have no file.
    pub fn len(&self) -> u64 {
        self.entries.load(Relaxed)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of all files that are in the index.
    pub fn bytes_on_disk(&self) -> u64 {
        self.bytes.load(Relaxed)
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
            entries_max: self.entries_max.load(Relaxed),
        }
    }

    /// The oldest entry goes if there are too many.
    fn make_room(&self, now: u32) -> Option<Gone> {
        if self.len() <= self.entries_max.load(Relaxed) && self.live() <= self.live_max() {
            return None;
        }
        let (mut taken, one) = (Vec::new(), |_: Option<&Gone>| Progress::Done);
        if self.is_fifo.load(SeqCst) {
            self.take_next(false, STEP_ENTRIES, one, &mut taken);
        } else {
            self.take_oldest(now, STEP_ENTRIES, |_| true, one, &mut taken);
        }
        taken.pop()
    }

    /// Takes the oldest entries of all shards as long as `is_due` says so of the time of their last use and `next` wants more.
    /// Looks at no more than `work`. If all that it saw is held by fills, there is nothing to do for now.
    fn take_oldest(
        &self,
        now: u32,
        mut work: usize,
        is_due: impl Fn(u32) -> bool,
        mut next: impl FnMut(Option<&Gone>) -> Progress,
        gone: &mut Vec<Gone>,
    ) -> Progress {
        let mut progress = Progress::Done;
        while work > 0 {
            let Some((place, second)) = self.oldest() else { return Progress::Done };
            if !is_due(place.oldest_use.load(Relaxed)) {
                return Progress::Done;
            }
            // Another one may have been here meanwhile: that costs work, too, so that this ends.
            work -= 1;
            let is_done = self.change(place, |shard| {
                for _ in 0..STEP_ENTRIES.min(work + 1) {
                    let used = shard.oldest_use();
                    if used == NEVER || used > second || !is_due(used) {
                        break;
                    }
                    work = work.saturating_sub(1);
                    if let Taken::Gone(taken) = shard.take_oldest(now) {
                        progress = Progress::More;
                        let said = next(taken.as_ref());
                        gone.extend(taken);
                        if said == Progress::Done {
                            return true;
                        }
                    }
                }
                false
            });
            if is_done {
                return Progress::Done;
            }
        }
        progress
    }

    /// The shard with the oldest entry, and when the oldest one of the others was used. Takes no lock.
    fn oldest(&self) -> Option<(&Place, u32)> {
        let hand = self.hand.fetch_add(1, Relaxed) % SHARDS;
        let (before, from) = self.shards.split_at_checked(hand)?;
        let (mut first, mut second) = (None, NEVER);
        for place in from.iter().chain(before) {
            let used = place.oldest_use.load(Relaxed);
            match first {
                Some((_, oldest)) if used >= oldest => second = second.min(used),
                _ if used == NEVER => {}
                _ => {
                    second = first.map_or(NEVER, |(_, oldest)| oldest);
                    first = Some((place, used));
                }
            }
        }
        first.map(|(place, _)| (place, second))
    }

    fn with<R>(&self, key: Key, work: impl FnOnce(&mut Shard, u64) -> R) -> R {
        let hash = self.seed.hash(key);
        let place = self.shards.get((hash >> (u64::BITS - SHARD_BITS)) as usize);
        self.change(place.expect("there are as many as the bits can tell"), |shard| work(shard, hash))
    }

    /// Works on a shard, and brings the sums up to date.
    fn change<R>(&self, place: &Place, work: impl FnOnce(&mut Shard) -> R) -> R {
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
        add(&self.ghosts, before.ghosts, after.ghosts);
        add(&self.memory, before.memory, after.memory);
    }
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the seed.
        f.debug_struct("Index").field("counts", &self.counts()).finish_non_exhaustive()
    }
}
