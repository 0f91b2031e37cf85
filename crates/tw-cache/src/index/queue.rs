//! Eviction order of entries.
//!
//! ```text
//! lru:     new ─► small                          what was used goes to its beginning, and from its end entries go
//! s3fifo:  new ─► small ─┬─ used twice ─► main ─┬─ used ─► main, from its beginning
//!                        │                ▲     └─ not ──► gone
//!                        └─ not ─► ghost ─┘ comes again
//! ```
//!
//! S3-FIFO (Yang, Zhang, Qiu, Yue, Rashmi: FIFO queues are all you need for cache eviction, SOSP 2023): most
//! responses are asked for once, and go from a small queue without pushing out those that are asked for again. A
//! ghost is an entry that has lost its file: should it come again soon, it was asked for twice. A use only counts,
//! and moves nothing.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::chunks::Chunks;
use super::shard::{NONE, SLOTS_PER_PIECE, Slot};

/// Eviction policy (`policy=`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EvictionPolicy {
    /// The one that was used longest ago.
    #[default]
    Lru,
    /// S3-FIFO: evicts entries that were used only once first.
    S3Fifo,
}

/// Queue of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    /// New; by `lru` all.
    Small,
    /// Used again.
    Main,
    /// Evicted recently.
    Ghost,
}

#[cfg(test)]
impl Queue {
    pub(super) const ALL: [Self; 3] = [Self::Small, Self::Main, Self::Ghost];
}

/// One in so many bytes, or entries, is the share of the small queue.
pub(super) const SMALL_SHARE: u64 = 10;
/// The most uses that are counted of an entry for its place in a queue.
pub(super) const USES_MAX: u8 = 3;

/// The ends of a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    pub(super) newest: u32,
    pub(super) oldest: u32,
    pub(super) len: u32,
    /// Bytes of the files.
    pub(super) bytes: u64,
}

/// The ends of all queues of a shard.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queues {
    pub(super) small: Ends,
    pub(super) main: Ends,
    pub(super) ghost: Ends,
}

impl Queues {
    pub(super) const EMPTY: Self = Self { small: Ends::EMPTY, main: Ends::EMPTY, ghost: Ends::EMPTY };

    pub(super) const fn of(&self, queue: Queue) -> &Ends {
        match queue {
            Queue::Small => &self.small,
            Queue::Main => &self.main,
            Queue::Ghost => &self.ghost,
        }
    }

    pub(super) const fn of_mut(&mut self, queue: Queue) -> &mut Ends {
        match queue {
            Queue::Small => &mut self.small,
            Queue::Main => &mut self.main,
            Queue::Ghost => &mut self.ghost,
        }
    }
}

/// Number of entries and bytes in a queue, for readers without the lock.
#[derive(Debug, Default)]
pub(super) struct QueueLoad {
    bytes: AtomicU64,
    entries: AtomicU64,
}

impl QueueLoad {
    pub(super) fn store(&self, ends: &Ends) {
        self.bytes.store(ends.bytes, Relaxed);
        self.entries.store(ends.len.into(), Relaxed);
    }

    pub(super) fn value(&self, by_bytes: bool) -> u64 {
        if by_bytes { self.bytes.load(Relaxed) } else { self.entries.load(Relaxed) }
    }
}

impl Ends {
    pub(super) const EMPTY: Self = Self { newest: NONE, oldest: NONE, len: 0, bytes: 0 };

    /// Makes a slot that is in no queue the newest.
    pub(super) fn link(&mut self, slots: &mut Chunks<Slot, SLOTS_PER_PIECE>, at: u32) {
        let second = std::mem::replace(&mut self.newest, at);
        match slots.get_mut(second) {
            Some(second) => second.newer = at,
            None => self.oldest = at,
        }
        if let Some(slot) = slots.get_mut(at) {
            (slot.newer, slot.older) = (NONE, second);
            self.len += 1;
            self.bytes += slot.location.size();
        }
    }

    /// Makes a slot that is in no queue the oldest.
    pub(super) fn link_oldest(&mut self, slots: &mut Chunks<Slot, SLOTS_PER_PIECE>, at: u32) {
        let second = std::mem::replace(&mut self.oldest, at);
        match slots.get_mut(second) {
            Some(second) => second.older = at,
            None => self.newest = at,
        }
        if let Some(slot) = slots.get_mut(at) {
            (slot.newer, slot.older) = (second, NONE);
            self.len += 1;
            self.bytes += slot.location.size();
        }
    }

    pub(super) fn unlink(&mut self, slots: &mut Chunks<Slot, SLOTS_PER_PIECE>, at: u32) {
        let Some(slot) = slots.get(at) else { return };
        let newer = slot.newer;
        let older = slot.older;
        self.len -= 1;
        self.bytes -= slot.location.size();
        self.put_older(slots, newer, older);
        self.put_newer(slots, older, newer);
    }

    /// Puts `older` after `at`, or first.
    pub(super) fn put_older(&mut self, slots: &mut Chunks<Slot, SLOTS_PER_PIECE>, at: u32, older: u32) {
        match slots.get_mut(at) {
            Some(slot) => slot.older = older,
            None => self.newest = older,
        }
    }

    /// Puts `newer` before `at`, or last.
    pub(super) fn put_newer(&mut self, slots: &mut Chunks<Slot, SLOTS_PER_PIECE>, at: u32, newer: u32) {
        match slots.get_mut(at) {
            Some(slot) => slot.newer = newer,
            None => self.oldest = newer,
        }
    }
}
