//! One shard of an index, behind its lock: a hash table with chains through slots, which are also linked by last use.
//!
//! ```text
//! heads  0 1 2 3 4 …      as many as entries, one more or less at a time (linear hashing, Litwin 1980)
//!        │   └─► slot 7 ─► slot 2
//!        └─► slot 0       `chain`
//! newest ─► 2 ─► 0 ─► 7 ─► oldest      `older`, `newer`: each slot is in one queue, by `lru` all in the same
//! ```
//!
//! The slots are dense: where one is taken out, the last one moves. So every operation changes a handful of slots and
//! the chain of one head or two, whatever the size, and memory that is not needed goes back.

use std::sync::Arc;

use super::chunks::Chunks;
use super::compact::CompactTable;
use super::leaving::Removals;
use super::location::{Location, SegmentUse};
use super::queue::{EvictionPolicy, Queue, Queues, USES_MAX};
pub(super) use super::slot::{Placement, Slot, Traits};
use super::{EntryState, RemovedEntry};
use crate::Key;

/// No slot.
pub(super) const NONE: u32 = u32::MAX;
/// Value of [`Shard::oldest_use`] if there is no entry.
pub(super) const NEVER: u32 = u32::MAX;
/// Sequence number of a fetch that is not known, and so no bound.
pub(super) const UNKNOWN: u64 = 0;
/// Slots in one piece of memory.
pub(super) const SLOTS_PER_PIECE: usize = 64;
/// Heads in one piece of memory.
const HEADS_PER_PIECE: usize = 256;

/// Secret hash seed, so that no client can choose keys that collide.
#[derive(Clone, Copy)]
pub(super) struct Seed(pub(super) [u64; 2]);

impl Seed {
    /// Spreads a key over 64 bits. Keys are digests, so one multiplication with a secret is enough.
    pub(super) fn hash(self, key: Key) -> u64 {
        let Self([a, b]) = self;
        let key = u128::from_ne_bytes(key.0);
        let product = u128::from(key as u64 ^ a) * u128::from((key >> 64) as u64 ^ b);
        product as u64 ^ (product >> 64) as u64
    }
}

/// Contribution of one shard to the sums of the index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) entries: u64,
    pub(super) files: u64,
    pub(super) bytes: u64,
    pub(super) packed_bytes: u64,
    pub(super) ghosts: u64,
    pub(super) compact: u64,
    pub(super) memory: u64,
}

/// Result of evicting the oldest entry.
pub(super) enum Evicted {
    /// There is none.
    Nothing,
    /// Fills of it go on: it is the newest now.
    Claimed,
    /// Kept for now, because it was used.
    Kept,
    /// Evicted; its file, if it had one, is to be deleted.
    Gone(Option<RemovedEntry>),
}

pub(super) struct Shard {
    pub(super) seed: Seed,
    leaving: Arc<Removals>,
    pub(super) segments: Arc<SegmentUse>,
    slots: Chunks<Slot, SLOTS_PER_PIECE>,
    heads: Chunks<u32, HEADS_PER_PIECE>,
    policy: EvictionPolicy,
    pub(super) queues: Queues,
    /// Lower bound of the last use, with `s3fifo`.
    used_since: u32,
    /// Progress of a search for unused entries, and the oldest use seen so far.
    looked: Option<(u32, u32)>,
    files: u64,
    bytes: u64,
    /// Bytes of records in segments.
    pub(super) packed_bytes: u64,
    /// Entries of plain records.
    pub(super) compact: CompactTable,
    /// Time of the last operation that has told it.
    pub(super) now: u32,
}

impl Shard {
    pub(super) const fn new(seed: Seed, leaving: Arc<Removals>, segments: Arc<SegmentUse>) -> Self {
        Self {
            seed,
            leaving,
            segments,
            slots: Chunks::new(),
            heads: Chunks::new(),
            policy: EvictionPolicy::Lru,
            queues: Queues::EMPTY,
            used_since: NEVER,
            looked: None,
            files: 0,
            bytes: 0,
            packed_bytes: 0,
            compact: CompactTable::new(),
            now: 0,
        }
    }

    pub(super) fn sums(&self) -> Sums {
        Sums {
            entries: u64::from(self.slots.len()) + self.compact.len(),
            files: self.files,
            bytes: self.bytes,
            packed_bytes: self.packed_bytes,
            ghosts: u64::from(self.queues.ghost.len),
            compact: self.compact.len(),
            memory: (self.slots.memory() + self.heads.memory()) as u64 + self.compact.memory(),
        }
    }

    /// Time of use of the oldest entry; [`NEVER`] without any. With `s3fifo` the real one may be younger.
    pub(super) fn oldest_use(&self) -> u32 {
        match self.policy {
            EvictionPolicy::Lru => self.slots.get(self.queues.small.oldest).map_or(NEVER, |s| s.used),
            EvictionPolicy::S3Fifo if self.slots.len() == 0 => NEVER,
            EvictionPolicy::S3Fifo => self.used_since,
        }
    }

    /// Sets another policy, and puts all entries in order.
    pub(super) fn set_policy(&mut self, policy: EvictionPolicy) {
        if policy == self.policy {
            return;
        }
        (self.policy, self.looked, self.used_since) = (policy, None, 0);
        while let Some(ghost) = self.oldest_of(Queue::Ghost) {
            self.remove(ghost);
        }
        if policy == EvictionPolicy::S3Fifo {
            // All slots are in one queue, the oldest at its end.
            self.slots_mut(|slot| slot.lately = 0);
            return;
        }
        let mut order: Vec<(u32, u32)> =
            (0..self.slots.len()).filter_map(|at| Some((self.slots.get(at)?.used, at))).collect();
        order.sort_unstable();
        self.queues = Queues::EMPTY;
        self.slots_mut(|slot| slot.queue = Queue::Small);
        for (_, at) in order {
            self.link(at);
        }
    }

    fn slots_mut(&mut self, change: impl Fn(&mut Slot)) {
        for at in 0..self.slots.len() {
            if let Some(slot) = self.slots.get_mut(at) {
                change(slot);
            }
        }
    }

    fn oldest_of(&self, queue: Queue) -> Option<u32> {
        let at = self.queues.of(queue).oldest;
        (at != NONE).then_some(at)
    }

    pub(super) const fn len(&self) -> u32 {
        self.slots.len()
    }

    pub(super) const fn policy(&self) -> EvictionPolicy {
        self.policy
    }

    pub(super) fn find(&self, hash: u64, key: Key) -> Option<u32> {
        let mut at = *self.heads.get(self.head_of(hash))?;
        while let Some(slot) = self.slots.get(at) {
            if slot.key == key {
                return Some(at);
            }
            at = slot.chain;
        }
        None
    }

    pub(super) fn slot(&self, at: u32) -> Option<&Slot> {
        self.slots.get(at)
    }

    /// The slot, to change what [`change_file`](Self::change_file) does not.
    pub(super) fn slot_mut(&mut self, at: u32) -> Option<&mut Slot> {
        self.slots.get_mut(at)
    }

    pub(super) fn found_mut(&mut self, hash: u64, key: Key) -> Option<&mut Slot> {
        self.find(hash, key).and_then(|at| self.slots.get_mut(at))
    }

    /// Changes what a slot has on disk.
    pub(super) fn change_file(&mut self, at: u32, change: impl FnOnce(&mut Slot)) {
        let Some(slot) = self.slots.get_mut(at) else { return };
        let before = slot.file();
        change(slot);
        let after = slot.file();
        let queue = slot.queue;
        let bytes = &mut self.queues.of_mut(queue).bytes;
        *bytes = *bytes - before.map_or(0, Location::size) + after.map_or(0, Location::size);
        self.count_file(before, after);
    }

    /// Takes the file from a slot, which stays.
    fn drop_file(&mut self, at: u32) -> Option<RemovedEntry> {
        let removed_entry = self.slots.get(at)?.removed_entry(&self.leaving);
        self.change_file(at, Slot::drop_file);
        removed_entry
    }

    /// Adds an entry whose key is not there; it is the newest. `None` if no number is left.
    pub(super) fn insert(&mut self, hash: u64, slot: Slot) -> Option<u32> {
        let at = self.add(hash, slot)?;
        self.link(at);
        Some(at)
    }

    /// Adds an entry whose key is not there as the oldest of its queue.
    pub(super) fn insert_oldest(&mut self, hash: u64, slot: Slot) {
        let queue = slot.queue;
        if let Some(at) = self.add(hash, slot) {
            self.queues.of_mut(queue).link_oldest(&mut self.slots, at);
        }
    }

    /// Adds an entry that is in no queue.
    fn add(&mut self, hash: u64, slot: Slot) -> Option<u32> {
        let at = self.slots.len();
        if at == NONE {
            return None;
        }
        self.split();
        let head = self.head_of(hash);
        let head = self.heads.get_mut(head)?;
        let chain = std::mem::replace(head, at);
        self.count_file(None, slot.file());
        self.used_since = if at == 0 { slot.used } else { self.used_since.min(slot.used) };
        self.slots.push(Slot { chain, ..slot });
        Some(at)
    }

    /// Slot of this key's entry, made if it is missing. A ghost returns as an entry that was used again.
    pub(super) fn found_or_new(&mut self, hash: u64, key: Key, since: u64, now: u32) -> Option<u32> {
        self.now = self.now.max(now);
        let at = self.find(hash, key).or_else(|| self.insert(hash, Slot::new(key, since, now)))?;
        if self.slots.get(at)?.queue == Queue::Ghost {
            self.move_to(at, Queue::Main);
        }
        Some(at)
    }

    /// Holds the entry of this key, which is made if need be, for a fill that began at `sequence`.
    pub(super) fn claim(&mut self, hash: u64, key: Key, sequence: u64, now: u32) {
        let at = self.found_or_new(hash, key, sequence, now);
        if let Some(slot) = at.and_then(|at| self.slots.get_mut(at)) {
            slot.claimed_since = if slot.claims == 0 { sequence } else { slot.claimed_since.min(sequence) };
            slot.claims += 1;
        }
    }

    /// An entry is used: once a second it becomes the newest, so that one which is used all the time moves no others.
    pub(super) fn touch(&mut self, at: u32, now: u32) {
        self.now = self.now.max(now);
        match self.policy {
            EvictionPolicy::Lru if self.slots.get(at).is_some_and(|slot| slot.used != now) => {
                self.renew(at, now)
            }
            EvictionPolicy::Lru => {}
            EvictionPolicy::S3Fifo => {
                if let Some(slot) = self.slots.get_mut(at) {
                    slot.used = now;
                }
            }
        }
    }

    /// Records a use of an entry's file.
    pub(super) fn record_use(&mut self, at: u32, now: u32) {
        self.touch(at, now);
        if let Some(slot) = self.slots.get_mut(at)
            && slot.holds == EntryState::File
        {
            slot.lately = USES_MAX.min(slot.lately + 1);
            slot.hits = slot.hits.saturating_add(1);
            if let Some(address) = slot.location.address() {
                self.segments.touch(address.segment, now);
            }
        }
    }

    /// Makes an entry the newest.
    fn renew(&mut self, at: u32, now: u32) {
        self.requeue(at);
        if let Some(slot) = self.slots.get_mut(at) {
            slot.used = now;
        }
    }

    /// Makes an entry the newest of its queue.
    fn requeue(&mut self, at: u32) {
        let queue = self.slots.get(at).map_or(Queue::Small, |slot| slot.queue);
        if at != self.queues.of(queue).newest {
            self.unlink(at);
            self.link(at);
        }
    }

    /// Puts an entry at the beginning of another queue.
    pub(super) fn move_to(&mut self, at: u32, queue: Queue) {
        self.unlink(at);
        if let Some(slot) = self.slots.get_mut(at) {
            (slot.queue, slot.lately) = (queue, 0);
        }
        self.link(at);
    }

    /// Takes an entry out.
    pub(super) fn remove(&mut self, at: u32) -> Option<RemovedEntry> {
        let removed_entry = self.slots.get(at)?.removed_entry(&self.leaving);
        self.take_out(at);
        removed_entry
    }

    /// Takes a slot out. What it has on the disk stays.
    pub(super) fn take_out(&mut self, at: u32) {
        let Some(slot) = self.slots.get(at) else { return };
        let hash = self.seed.hash(slot.key);
        let chain = slot.chain;
        let file = slot.file();
        self.count_file(file, None);
        self.rechain(hash, at, chain);
        self.unlink(at);
        self.slots.swap_remove(at);
        self.moved(self.slots.len(), at);
        self.join();
    }

    /// Takes the file from an entry. An entry without claims and without a use count is removed.
    pub(super) fn remove_file(&mut self, at: u32) -> Option<RemovedEntry> {
        let slot = self.slots.get(at)?;
        let is_needed = slot.claims > 0 || slot.uses > 0;
        if is_needed { self.drop_file(at) } else { self.remove(at) }
    }

    pub(super) fn take_oldest(&mut self, now: u32) -> Evicted {
        let at = self.queues.small.oldest;
        match self.slots.get(at) {
            None => Evicted::Nothing,
            Some(slot) if slot.claims > 0 => {
                self.renew(at, now);
                Evicted::Claimed
            }
            Some(_) => Evicted::Gone(self.remove(at)),
        }
    }

    /// By `s3fifo`: one step towards less in this queue.
    pub(super) fn take_next(&mut self, queue: Queue) -> Evicted {
        let Some(at) = self.oldest_of(queue) else { return Evicted::Nothing };
        let Some(slot) = self.slots.get_mut(at) else { return Evicted::Nothing };
        if slot.claims > 0 {
            self.requeue(at);
            return Evicted::Claimed;
        }
        match (queue, slot.lately) {
            (Queue::Small, 2..) => {
                self.move_to(at, Queue::Main);
                Evicted::Kept
            }
            (Queue::Small, _) if slot.holds == EntryState::File => {
                let removed_entry = self.drop_file(at);
                self.move_to(at, Queue::Ghost);
                self.bound_ghosts();
                Evicted::Gone(removed_entry)
            }
            (Queue::Main, 1..) => {
                slot.lately -= 1;
                self.requeue(at);
                Evicted::Kept
            }
            _ => {
                let removed_entry = self.remove(at);
                self.bound_ghosts();
                Evicted::Gone(removed_entry)
            }
        }
    }

    /// There are no more ghosts than others.
    fn bound_ghosts(&mut self) {
        loop {
            let Queues { small, main, ghost } = &self.queues;
            let live = u64::from(small.len) + u64::from(main.len);
            if u64::from(ghost.len) <= live || !self.take_ghost() {
                return;
            }
        }
    }

    /// Forgets the oldest ghost: whether there was one.
    pub(super) fn take_ghost(&mut self) -> bool {
        let ghost = self.oldest_of(Queue::Ghost);
        ghost.map(|at| self.remove(at)).is_some()
    }

    /// By `s3fifo`: looks at `count` more entries for those that were not used since `before`. Whether it is done.
    pub(super) fn take_unused(
        &mut self,
        before: u32,
        count: u32,
        removed_entries: &mut Vec<RemovedEntry>,
    ) -> bool {
        // Backwards, because a removal elsewhere moves entries towards the beginning.
        let (end, mut oldest) = self.looked.unwrap_or((self.slots.len(), NEVER));
        let end = end.min(self.slots.len());
        let begin = end.saturating_sub(count);
        for at in (begin..end).rev() {
            let Some(slot) = self.slots.get(at) else { continue };
            if slot.used <= before && slot.claims == 0 {
                removed_entries.extend(self.remove(at));
            } else {
                oldest = oldest.min(slot.used);
            }
        }
        self.looked = (begin > 0).then_some((begin, oldest));
        if begin == 0 {
            self.used_since = oldest;
        }
        begin == 0
    }

    pub(super) fn count_file(&mut self, before: Option<Location>, after: Option<Location>) {
        if let Some(before) = before {
            self.files -= 1;
            self.bytes -= before.size();
            self.packed_bytes -= before.packed_size();
        }
        if let Some(after) = after {
            self.files += 1;
            self.bytes += after.size();
            self.packed_bytes += after.packed_size();
        }
        self.segments.change(before, after);
    }

    /// Makes an entry that is in no queue the newest of its own.
    fn link(&mut self, at: u32) {
        let queue = self.slots.get(at).map_or(Queue::Small, |slot| slot.queue);
        self.queues.of_mut(queue).link(&mut self.slots, at);
    }

    fn unlink(&mut self, at: u32) {
        let queue = self.slots.get(at).map_or(Queue::Small, |slot| slot.queue);
        self.queues.of_mut(queue).unlink(&mut self.slots, at);
    }

    /// Updates every link to the slot that moved from `from` to `to`.
    fn moved(&mut self, from: u32, to: u32) {
        let Some(slot) = self.slots.get(to) else { return };
        let hash = self.seed.hash(slot.key);
        let newer = slot.newer;
        let older = slot.older;
        let ends = self.queues.of_mut(slot.queue);
        ends.put_older(&mut self.slots, newer, to);
        ends.put_newer(&mut self.slots, older, to);
        self.rechain(hash, from, to);
    }

    /// Updates the link to `from` in the hash chain to `to`.
    fn rechain(&mut self, hash: u64, from: u32, to: u32) {
        let head = self.head_of(hash);
        let Some(link) = self.heads.get_mut(head) else { return };
        if *link == from {
            *link = to;
            return;
        }
        let mut at = *link;
        while let Some(slot) = self.slots.get_mut(at) {
            if slot.chain == from {
                slot.chain = to;
                return;
            }
            at = slot.chain;
        }
    }

    /// The chain of this hash: that many bits of it as there are heads, one less for chains that are not split yet.
    fn head_of(&self, hash: u64) -> u32 {
        let mask = self.heads.len().next_power_of_two().wrapping_sub(1);
        let head = hash as u32 & mask;
        if head < self.heads.len() { head } else { head & (mask >> 1) }
    }

    /// Adds a head before an entry is added, if there are as many entries as heads, and moves its part of the split
    /// chain.
    fn split(&mut self) {
        if self.heads.len() > self.slots.len() {
            return;
        }
        let new = self.heads.len();
        self.heads.push(NONE);
        let low = (new + 1).next_power_of_two() / 2;
        let Some(old) = new.checked_sub(low) else { return };
        let Some(head) = self.heads.get_mut(old) else { return };
        let mut at = std::mem::replace(head, NONE);
        while let Some(chain) = self.slots.get(at).map(|slot| slot.chain) {
            self.prepend(at);
            at = chain;
        }
    }

    /// Removes two heads after an entry was removed, if there are more than twice as many, and joins their chains.
    fn join(&mut self) {
        for _ in 0..2 {
            if self.heads.len() / 2 > self.slots.len() {
                self.join_last();
            }
        }
    }

    fn join_last(&mut self) {
        let Some(mut at) = self.heads.pop() else { return };
        while let Some(chain) = self.slots.get(at).map(|slot| slot.chain) {
            self.prepend(at);
            at = chain;
        }
    }

    /// Puts a slot that is in no chain before the others of its own.
    fn prepend(&mut self, at: u32) {
        let Some(slot) = self.slots.get(at) else { return };
        let head = self.head_of(self.seed.hash(slot.key));
        let Some(head) = self.heads.get_mut(head) else { return };
        let chain = std::mem::replace(head, at);
        if let Some(slot) = self.slots.get_mut(at) {
            slot.chain = chain;
        }
    }

    #[cfg(test)]
    pub(super) fn assert_whole(&self) {
        let mut seen_values = std::collections::HashSet::new();
        for head in 0..self.heads.len() {
            let mut at = *self.heads.get(head).unwrap();
            while let Some(slot) = self.slots.get(at) {
                assert_eq!(self.head_of(self.seed.hash(slot.key)), head);
                assert!(seen_values.insert(at));
                at = slot.chain;
            }
            assert_eq!(at, NONE);
        }
        assert_eq!(seen_values.len(), self.slots.len() as usize);
        let mut sums = (0, 0);
        for queue in Queue::ALL {
            let ends = *self.queues.of(queue);
            let mut at = ends.newest;
            let mut newer = NONE;
            let mut own = (0, 0);
            while let Some(slot) = self.slots.get(at) {
                assert!(seen_values.remove(&at));
                assert_eq!((slot.newer, slot.queue), (newer, queue));
                assert!(queue != Queue::Ghost || (slot.holds == EntryState::Count && slot.claims == 0));
                own = (own.0 + 1, own.1 + slot.location.size());
                sums.0 += u64::from(slot.file().is_some());
                (newer, at) = (at, slot.older);
            }
            assert_eq!((at, newer), (NONE, ends.oldest));
            assert_eq!(own, (ends.len, ends.bytes));
            sums.1 += own.1;
        }
        assert!(seen_values.is_empty());
        for entry in self.compact.assert_whole() {
            sums = (sums.0 + 1, sums.1 + entry.address.size());
        }
        assert_eq!(sums, (self.files, self.bytes));
        assert!(self.heads.len() <= 2 * self.slots.len() + 1 && self.heads.len() >= self.slots.len());
    }
}
