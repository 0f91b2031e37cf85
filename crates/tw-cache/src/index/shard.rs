//! One part of an index, for who holds its lock: a hash table of chains through slots that also form a list by last use.
//!
//! ```text
//! heads  0 1 2 3 4 …      as many as entries, one more or less at a time (linear hashing, Litwin 1980)
//!        │   └─► slot 7 ─► slot 2
//!        └─► slot 0       `chain`
//! newest ─► 2 ─► 0 ─► 7 ─► oldest      `older`, `newer`
//! ```
//!
//! The slots are dense: where one is taken out, the last one moves. So every operation changes a handful of slots and the
//! chain of one head or two, whatever the size, and memory that is not needed goes back.

use super::chunks::Chunks;
use super::{Gone, Holds};
use crate::Key;

/// No slot.
pub(super) const NONE: u32 = u32::MAX;
/// What [`Shard::oldest_use`] tells if there is no entry.
pub(super) const NEVER: u32 = u32::MAX;
/// Slots in one piece of memory.
const SLOTS_PER_PIECE: usize = 64;
/// Heads in one piece of memory.
const HEADS_PER_PIECE: usize = 256;

/// What is secret about where an entry is, so that nobody can choose keys that are in one chain.
#[derive(Clone, Copy)]
pub(super) struct Seed(pub(super) [u64; 2]);

impl Seed {
    /// The keys are digests: one multiplication with what nobody knows spreads them over 64 bits.
    pub(super) fn hash(self, key: Key) -> u64 {
        let Self([a, b]) = self;
        let key = u128::from_ne_bytes(key.0);
        let product = u128::from(key as u64 ^ a) * u128::from((key >> 64) as u64 ^ b);
        product as u64 ^ (product >> 64) as u64
    }
}

/// An entry: 88 bytes.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) key: Key,
    /// Of the fill that made the file.
    pub(super) sequence: u64,
    /// No purge up to this number concerns it.
    pub(super) checked: u64,
    /// What began before is not stored here, nor used as a variant.
    pub(super) since: u64,
    /// No claim began before, if there are any.
    pub(super) claimed_since: u64,
    /// Bytes on disk; zero without a file.
    pub(super) size: u64,
    pub(super) valid_until: u32,
    pub(super) used: u32,
    /// Fills that go on.
    pub(super) claims: u32,
    pub(super) uses: u16,
    pub(super) holds: Holds,
    /// Whether one of the claims is putting its file in place.
    pub(super) is_committing: bool,
    chain: u32,
    newer: u32,
    older: u32,
}

const _: () = assert!(size_of::<Slot>() == 88, "with a head and what pieces leave empty, 96 bytes");

impl Slot {
    /// An entry without a file, of which nothing is known before `since`.
    pub(super) const fn new(key: Key, since: u64, now: u32) -> Self {
        Self {
            key,
            sequence: 0,
            checked: 0,
            since,
            claimed_since: 0,
            size: 0,
            valid_until: 0,
            used: now,
            claims: 0,
            uses: 0,
            holds: Holds::Count,
            is_committing: false,
            chain: NONE,
            newer: NONE,
            older: NONE,
        }
    }

    /// What is to be deleted if this goes.
    pub(super) fn gone(&self) -> Option<Gone> {
        (self.holds == Holds::File).then_some(Gone {
            key: self.key,
            sequence: self.sequence,
            size: self.size,
        })
    }

    /// From now on it has a file that began to be fetched at `sequence`.
    pub(super) fn put_file(&mut self, sequence: u64, size: u64) {
        self.holds = Holds::File;
        (self.sequence, self.checked, self.size) = (sequence, sequence, size);
    }

    /// Forgets the file.
    pub(super) fn drop_file(&mut self) {
        self.holds = Holds::Count;
        (self.sequence, self.checked, self.size, self.valid_until) = (0, 0, 0, 0);
    }
}

/// What a shard adds to the sums of its index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) entries: u64,
    pub(super) files: u64,
    pub(super) bytes: u64,
    pub(super) memory: u64,
}

/// What came of taking the oldest entry.
pub(super) enum Taken {
    /// There is none.
    Nothing,
    /// Fills of it go on: it is the newest now.
    Claimed,
    /// It is gone, with its file if it had one.
    Gone(Option<Gone>),
}

pub(super) struct Shard {
    seed: Seed,
    slots: Chunks<Slot, SLOTS_PER_PIECE>,
    heads: Chunks<u32, HEADS_PER_PIECE>,
    newest: u32,
    oldest: u32,
    files: u64,
    bytes: u64,
}

impl Shard {
    pub(super) const fn new(seed: Seed) -> Self {
        Self {
            seed,
            slots: Chunks::new(),
            heads: Chunks::new(),
            newest: NONE,
            oldest: NONE,
            files: 0,
            bytes: 0,
        }
    }

    pub(super) fn sums(&self) -> Sums {
        Sums {
            entries: u64::from(self.slots.len()),
            files: self.files,
            bytes: self.bytes,
            memory: (self.slots.memory() + self.heads.memory()) as u64,
        }
    }

    /// When the oldest entry was used; [`NEVER`] without any.
    pub(super) fn oldest_use(&self) -> u32 {
        self.slots.get(self.oldest).map_or(NEVER, |slot| slot.used)
    }

    pub(super) const fn len(&self) -> u32 {
        self.slots.len()
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

    /// Changes what a slot has on disk, and tells what it had.
    pub(super) fn change_file(&mut self, at: u32, change: impl FnOnce(&mut Slot)) -> Option<Gone> {
        let slot = self.slots.get_mut(at)?;
        let before = slot.gone();
        change(slot);
        let after = slot.gone();
        self.count_file(before, after);
        before
    }

    /// Adds an entry whose key is not there; it is the newest. `None` if no number is left.
    pub(super) fn insert(&mut self, hash: u64, slot: Slot) -> Option<u32> {
        let at = self.slots.len();
        if at == NONE {
            return None;
        }
        self.split();
        let head = self.head_of(hash);
        let head = self.heads.get_mut(head)?;
        let chain = std::mem::replace(head, at);
        self.count_file(None, slot.gone());
        self.slots.push(Slot { chain, ..slot });
        self.link(at);
        Some(at)
    }

    /// Holds the entry of this key, which is made if need be, for a fill that began at `sequence`.
    pub(super) fn claim(&mut self, hash: u64, key: Key, sequence: u64, now: u32) {
        let at = self.find(hash, key).or_else(|| self.insert(hash, Slot::new(key, sequence, now)));
        if let Some(slot) = at.and_then(|at| self.slots.get_mut(at)) {
            slot.claimed_since = if slot.claims == 0 { sequence } else { slot.claimed_since.min(sequence) };
            slot.claims += 1;
        }
    }

    /// An entry is used: once a second it becomes the newest, so that one which is used all the time moves no others.
    pub(super) fn touch(&mut self, at: u32, now: u32) {
        if self.slots.get(at).is_some_and(|slot| slot.used != now) {
            self.renew(at, now);
        }
    }

    /// Makes an entry the newest.
    fn renew(&mut self, at: u32, now: u32) {
        if at != self.newest {
            self.unlink(at);
            self.link(at);
        }
        if let Some(slot) = self.slots.get_mut(at) {
            slot.used = now;
        }
    }

    /// Takes an entry out.
    pub(super) fn remove(&mut self, at: u32) -> Option<Gone> {
        let slot = self.slots.get(at)?;
        let (hash, chain, gone) = (self.seed.hash(slot.key), slot.chain, slot.gone());
        self.count_file(gone, None);
        self.rechain(hash, at, chain);
        self.unlink(at);
        self.slots.swap_remove(at);
        self.moved(self.slots.len(), at);
        self.join();
        gone
    }

    /// Takes the file from an entry. An entry without claims that nobody counts the uses of goes as well.
    pub(super) fn remove_file(&mut self, at: u32) -> Option<Gone> {
        let slot = self.slots.get(at)?;
        let is_needed = slot.claims > 0 || slot.uses > 0;
        if is_needed { self.change_file(at, Slot::drop_file) } else { self.remove(at) }
    }

    pub(super) fn take_oldest(&mut self, now: u32) -> Taken {
        let at = self.oldest;
        match self.slots.get(at) {
            None => Taken::Nothing,
            Some(slot) if slot.claims > 0 => {
                self.renew(at, now);
                Taken::Claimed
            }
            Some(_) => Taken::Gone(self.remove(at)),
        }
    }

    fn count_file(&mut self, before: Option<Gone>, after: Option<Gone>) {
        if let Some(before) = before {
            self.files -= 1;
            self.bytes -= before.size;
        }
        if let Some(after) = after {
            self.files += 1;
            self.bytes += after.size;
        }
    }

    /// Makes an entry that is in no list the newest.
    fn link(&mut self, at: u32) {
        let second = std::mem::replace(&mut self.newest, at);
        match self.slots.get_mut(second) {
            Some(second) => second.newer = at,
            None => self.oldest = at,
        }
        if let Some(slot) = self.slots.get_mut(at) {
            (slot.newer, slot.older) = (NONE, second);
        }
    }

    fn unlink(&mut self, at: u32) {
        let Some(slot) = self.slots.get(at) else { return };
        let (newer, older) = (slot.newer, slot.older);
        self.put_older(newer, older);
        self.put_newer(older, newer);
    }

    /// `older` comes behind `at`, or first.
    fn put_older(&mut self, at: u32, older: u32) {
        match self.slots.get_mut(at) {
            Some(slot) => slot.older = older,
            None => self.newest = older,
        }
    }

    /// `newer` comes before `at`, or last.
    fn put_newer(&mut self, at: u32, newer: u32) {
        match self.slots.get_mut(at) {
            Some(slot) => slot.newer = newer,
            None => self.oldest = newer,
        }
    }

    /// The slot that was at `from` is at `to`: who led to it leads there.
    fn moved(&mut self, from: u32, to: u32) {
        let Some(slot) = self.slots.get(to) else { return };
        let (hash, newer, older) = (self.seed.hash(slot.key), slot.newer, slot.older);
        self.rechain(hash, from, to);
        self.put_older(newer, to);
        self.put_newer(older, to);
    }

    /// What leads to `from` in the chain of this hash leads to `to` now.
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

    /// One more head before an entry comes, if there are as many entries as heads: takes its part of the chain that it splits.
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

    /// Two heads less after an entry has gone, if there are more than twice as many: their chains go where they came from.
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
        let mut seen = std::collections::HashSet::new();
        for head in 0..self.heads.len() {
            let mut at = *self.heads.get(head).unwrap();
            while let Some(slot) = self.slots.get(at) {
                assert_eq!(self.head_of(self.seed.hash(slot.key)), head);
                assert!(seen.insert(at));
                at = slot.chain;
            }
            assert_eq!(at, NONE);
        }
        assert_eq!(seen.len(), self.slots.len() as usize);
        let (mut at, mut newer, mut sums) = (self.newest, NONE, (0, 0));
        while let Some(slot) = self.slots.get(at) {
            assert!(seen.remove(&at));
            assert_eq!(slot.newer, newer);
            if let Some(file) = slot.gone() {
                sums = (sums.0 + 1, sums.1 + file.size);
            }
            (newer, at) = (at, slot.older);
        }
        assert_eq!((at, newer, seen.len()), (NONE, self.oldest, 0));
        assert_eq!(sums, (self.files, self.bytes));
        assert!(self.heads.len() <= 2 * self.slots.len() + 1 && self.heads.len() >= self.slots.len());
    }
}
