//! Entries that outlive a process: copied into a snapshot, added from it, and compared with the disk.
//!
//! The most recently used entries come first, and each is added as the oldest of its queue. So entries that requests
//! have added meanwhile are younger, as they should be, and an index with less room gets the entries that matter most.

use super::Index;
use super::entry::{EntryState, Progress, ScanCursor};
use super::location::{Location, SegmentAddress};
use super::queue::{EvictionPolicy, Queue, USES_MAX};
use super::shard::{Placement, Shard, Slot, Traits, UNKNOWN};
use crate::Key;
use crate::snapshot::SnapshotEntry;

/// Result of adding an entry of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoreOutcome {
    /// Added to the index.
    Added,
    /// There is one that is younger, or is about to be.
    Known,
    /// There is no room for more entries.
    Full,
}

/// Entry of a snapshot whose file has not been seen on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnseenEntry {
    /// Key of the entry.
    pub key: Key,
    /// Sequence number in the index.
    pub sequence: u64,
    /// Address of its record; `None` for a file of its own.
    pub address: Option<SegmentAddress>,
}

impl Index {
    /// Copies some entries that have a file of their own, at most 32 (`STEP_ENTRIES`), as [`Index::scan`] reports them. `now` is
    /// the time of the snapshot.
    pub(crate) fn copy(
        &self,
        cursor: &mut ScanCursor,
        now: u32,
        entries: &mut Vec<SnapshotEntry>,
    ) -> Progress {
        self.visit(cursor, |policy, slot| {
            // Records are in another snapshot.
            if slot.file().is_some_and(|location| location.address().is_none()) {
                entries.push(copy_of(policy, slot, now));
            }
        })
    }

    /// Adds an entry of a snapshot as the oldest of its queue. `now` is the same for all entries of a snapshot. The
    /// file may not exist: [`Index::load`] tells that it was seen, and [`Index::unseen`] reports those that were not.
    pub fn restore(&self, entry: &SnapshotEntry, now: u32) -> RestoreOutcome {
        let has_room = self.slots() < self.slots_max() && self.live() < self.live_max();
        self.with(entry.key, |shard, hash| match shard.find(hash, entry.key) {
            Some(at) => add_file(shard, at, entry),
            None if !has_room => RestoreOutcome::Full,
            None => {
                let is_main = entry.is_main && shard.policy() == EvictionPolicy::S3Fifo;
                let mut slot = Slot::new(entry.key, UNKNOWN, now.saturating_sub(entry.idle_s));
                slot.put_file(UNKNOWN, Location::from_bits(entry.location));
                slot.traits.set(Traits::RESTORED, true);
                (slot.valid_until, slot.uses) = (entry.valid_until, entry.uses);
                slot.lately = entry.lately.min(USES_MAX);
                slot.queue = if is_main { Queue::Main } else { Queue::Small };
                if let Some(address) = slot.location.address() {
                    shard.segments.note_record(address.segment, None, now);
                }
                shard.insert_oldest(hash, slot);
                RestoreOutcome::Added
            }
        })
    }

    /// Adds some entries of a snapshot to `unseen` whose files no [`Index::load`] has seen, out of at most 32
    /// (`STEP_ENTRIES`).
    pub fn unseen(&self, cursor: &mut ScanCursor, unseen: &mut Vec<UnseenEntry>) -> Progress {
        self.visit(cursor, |_, slot| {
            if slot.traits.has(Traits::RESTORED) {
                unseen.push(UnseenEntry {
                    key: slot.key,
                    sequence: slot.identity(),
                    address: slot.location.address(),
                });
            }
        })
    }
}

/// Adds the file to an entry that has none: one that was counted since the start, and so is younger than all that are
/// restored.
fn add_file(shard: &mut Shard, at: u32, entry: &SnapshotEntry) -> RestoreOutcome {
    let is_free =
        shard.slot(at).is_some_and(|slot| slot.holds == EntryState::Count && slot.placing == Placement::Idle);
    if !is_free || shard.slot(at).is_some_and(|slot| slot.queue == Queue::Ghost) {
        return RestoreOutcome::Known;
    }
    shard.change_file(at, |slot| {
        slot.put_file(UNKNOWN, Location::from_bits(entry.location));
        slot.valid_until = entry.valid_until;
        slot.traits.set(Traits::RESTORED, true);
    });
    RestoreOutcome::Added
}

fn copy_of(policy: EvictionPolicy, slot: &Slot, now: u32) -> SnapshotEntry {
    SnapshotEntry {
        key: slot.key,
        location: slot.location.to_bits(),
        valid_until: slot.valid_until,
        idle_s: now.saturating_sub(slot.used),
        uses: slot.uses,
        lately: slot.lately,
        is_main: policy == EvictionPolicy::S3Fifo && slot.queue == Queue::Main,
    }
}
