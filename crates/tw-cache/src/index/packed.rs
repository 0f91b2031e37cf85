//! Entries whose responses are records in segments: added at a start, moved to another segment, and removed with theirs.
//!
//! The same response may be on the disk twice: as a record that was replaced, or that was copied to another segment
//! before its own was removed. An entry has the younger one, which is behind the other in the log; the other is returned to the
//! caller, who marks it as removed, so that no start finds it again.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use super::claim::{Claim, Commit};
use super::compact::CompactEntry;
use super::location::{Location, SegmentAddress};
use super::shard::{Placement, Shard, Slot, Traits};
use super::{EntryState, Index, RemovedEntry};
use crate::Key;

/// Record found in a segment at a start.
#[derive(Clone, Copy, Debug)]
pub struct LoadedRecord {
    /// Key of the entry.
    pub key: Key,
    /// Sequence number of its fetch, as [`Sequence::admit`](crate::Sequence::admit) returns it.
    pub sequence: u64,
    /// Address of the record.
    pub address: SegmentAddress,
    /// Time at which the response becomes stale.
    pub valid_until: u32,
}

/// Result of adding a record.
#[derive(Debug)]
pub enum RecordOutcome {
    /// Added to the index. The caller removes the entry that was evicted, if any.
    Added(Option<RemovedEntry>),
    /// The index had it already.
    Known,
    /// The index has a younger response, or this one was older: the caller removes what is returned.
    Outdated(RemovedEntry),
}

/// Permit to move a record. As long as it lives, no other response is put in the place of the entry, and a purge of its key
/// is told so ([`PurgeOutcome::is_placing`](super::PurgeOutcome::is_placing)).
#[must_use = "dropping it leaves the record where it is"]
#[derive(Debug)]
pub struct Move {
    commit: Commit,
    from: SegmentAddress,
}

impl Index {
    /// Adds a record found in a segment, unless the entry has a younger response. An entry of a snapshot gets the place and
    /// the number of the record, and stays where it is in the order of eviction.
    pub fn load_record(&self, record: &LoadedRecord, now: u32) -> RecordOutcome {
        let LoadedRecord { key, sequence, address, valid_until } = *record;
        let outdated =
            |location: Location, sequence| RemovedEntry::new(key, sequence, location, self.leaving.leave());
        let load_compact = |shard: &mut Shard, hash| {
            if !CompactEntry::fits(address) || shard.find(hash, key).is_some() {
                return None;
            }
            let tag = CompactEntry::tag_of(hash);
            let revision = CompactEntry::revision_of(sequence);
            let lately = 0;
            let entry = CompactEntry { tag, address, revision, is_own: false, lately, is_unseen: false };
            shard.segments.note_record(address.segment, Some(sequence), now);
            let Some(before) = shard.compact_entry(hash) else {
                shard.insert_compact(entry);
                return Some(RecordOutcome::Added(None));
            };
            let is_same = before.address == address;
            if is_same || before.is_unseen {
                // The address that a snapshot had for this entry is outdated, or its record is loaded on its own. A
                // record that was validated meanwhile has another revision than its row in the snapshot.
                let is_own = is_same && before.is_own;
                let revision = if is_own { before.revision } else { revision };
                let lately = before.lately;
                shard.replace_compact(CompactEntry { revision, is_own, lately, ..entry });
                return Some(RecordOutcome::Known);
            }
            // The larger address is the newer record, because the log grows.
            if address < before.address {
                return Some(RecordOutcome::Outdated(outdated(address.into(), sequence)));
            }
            shard.replace_compact(entry);
            Some(RecordOutcome::Outdated(outdated(before.address.into(), 0)))
        };
        let hash = self.seed.hash(key);
        if let Some(outcome) = self.change(self.place(hash), |shard| load_compact(shard, hash)) {
            return match outcome {
                RecordOutcome::Added(_) => RecordOutcome::Added(self.make_room(now)),
                other => other,
            };
        }
        let outcome = self.with(key, |shard, hash| {
            let Some(at) = shard.found_or_new(hash, key, sequence, now) else { return RecordOutcome::Known };
            let Some(slot) = shard.slot(at) else { return RecordOutcome::Known };
            let before = slot.file();
            let is_seen = !slot.traits.has(Traits::RESTORED);
            let segment_address = before.and_then(Location::address);
            let is_same = segment_address == Some(address);
            let is_behind = match segment_address {
                Some(segment_address) if slot.traits.has(Traits::ESTIMATED) => address < segment_address,
                _ => sequence <= slot.sequence,
            };
            let is_older =
                slot.placing != Placement::Idle || before.is_some() && is_seen && !is_same && is_behind;
            if is_same && is_seen {
                return RecordOutcome::Known;
            }
            if is_older {
                return RecordOutcome::Outdated(outdated(address.into(), sequence));
            }
            let previous = slot.sequence;
            shard.change_file(at, |slot| {
                slot.put_file(sequence, address.into());
                slot.valid_until = valid_until;
            });
            shard.segments.note_record(address.segment, Some(sequence), now);
            match before {
                None => RecordOutcome::Added(None),
                // The address that a snapshot had for this entry is outdated, or its record is loaded on its own.
                Some(_) if !is_seen => RecordOutcome::Known,
                Some(before) => RecordOutcome::Outdated(outdated(before, previous)),
            }
        });
        match outcome {
            RecordOutcome::Added(_) => RecordOutcome::Added(self.make_room(now)),
            other => other,
        }
    }

    /// Permits to move the record of this entry, if it is at `address` and no fill of it goes on.
    pub fn claim_move(self: &Arc<Self>, key: Key, address: SegmentAddress, now: u32) -> Option<Move> {
        // Checked first, so that no compact entry is unpacked for a record that is gone.
        self.uses_of_record(key, address)?;
        let sequence = self.with(key, |shard, hash| {
            let slot = shard.found_mut(hash, key).filter(|slot| is_at(slot, address))?;
            if slot.claims > 0 || slot.placing != Placement::Idle {
                return None;
            }
            slot.placing = Placement::Busy;
            let sequence = slot.checked;
            // A sweep in the meantime forgets no purge that concerns the copy.
            shard.claim(hash, key, sequence, now);
            Some(sequence)
        })?;
        Some(Move { commit: Commit(Claim { index: Arc::clone(self), key, sequence }), from: address })
    }

    /// Takes an entry out if its record is at `address`.
    pub fn remove_if_address(&self, key: Key, address: SegmentAddress) -> Option<RemovedEntry> {
        self.remove_if(key, |slot| is_at(slot, address))
    }

    /// Removes the entry that has this record, which does not exist.
    pub fn remove_missing_record(&self, key: Key, address: SegmentAddress) {
        if let Some(removed_entry) = self.remove_if_address(key, address) {
            removed_entry.deleted();
        }
    }

    /// Number of uses of the record at `address` since it was written or moved, at most 3; `None` if no entry has it.
    pub fn uses_of_record(&self, key: Key, address: SegmentAddress) -> Option<u8> {
        self.with_plain(
            key,
            |_, entry| (entry.address == address).then_some(entry.lately),
            |shard, hash| {
                shard.found_mut(hash, key).filter(|slot| is_at(slot, address)).map(|slot| slot.lately)
            },
        )
    }
}

impl Move {
    /// Key of the entry.
    pub fn key(&self) -> Key {
        self.commit.0.key()
    }

    /// Records that the copy is in place, and counts half of the uses on. `sequence` is the number in the record, which the entry
    /// has from now on, as one that was seen on the disk. Returns the entry with the place of before, which the caller removes.
    ///
    /// # Errors
    /// The entry was removed meanwhile. The caller removes the copy and then drops this permit.
    pub fn finish(self, to: SegmentAddress, sequence: u64) -> Result<RemovedEntry, Self> {
        let Claim { index, key, .. } = &self.commit.0;
        let moved = index.with(*key, |shard, hash| {
            let at = shard.find(hash, *key)?;
            let slot = shard.slot(at).filter(|slot| is_at(slot, self.from))?;
            let departure = index.leaving.leave();
            let removed_entry = RemovedEntry::new(*key, slot.sequence, self.from.into(), departure);
            let checked = shard.slot(at).map_or(0, |slot| slot.checked);
            shard.change_file(at, |slot| {
                (slot.location, slot.lately) = (to.into(), slot.lately / 2);
                // Otherwise the copy would count as lost, because no segment that was there at the start has it.
                slot.traits.set(Traits::RESTORED, false);
                let is_own = slot.traits.has(Traits::OWN);
                slot.sequence = if is_own { sequence } else { index.sequence.admit(sequence) };
                slot.traits.set(Traits::ESTIMATED, false);
                // A younger record, in a segment between that of before and this one, may not be loaded yet.
                slot.traits.set(Traits::MOVED, index.is_loading.load(SeqCst));
            });
            shard.note_record(to.into(), checked, shard.now);
            Some(removed_entry)
        });
        moved.ok_or(self)
    }
}

fn is_at(slot: &Slot, address: SegmentAddress) -> bool {
    slot.holds == EntryState::File && slot.location.address() == Some(address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LoadedEntry, RestoreOutcome, Sequence, SnapshotEntry};

    const NOW: u32 = 1_000;

    fn index() -> Arc<Index> {
        Arc::new(Index::new(1 << 20, [3, 5], Arc::new(Sequence::starting(1_000_000, 0))))
    }

    fn at(segment: u32, block: u32) -> SegmentAddress {
        SegmentAddress { segment, block, blocks: 2 }
    }

    fn key() -> Key {
        Key::of(b"/a")
    }

    fn loaded(sequence: u64, address: SegmentAddress) -> LoadedRecord {
        LoadedRecord { key: key(), sequence, address, valid_until: 5 }
    }

    #[test]
    fn younger_record_wins_and_the_other_is_returned() {
        let index = index();
        assert!(matches!(index.load_record(&loaded(5, at(1, 1)), NOW), RecordOutcome::Added(None)));
        assert!(matches!(index.load_record(&loaded(5, at(1, 1)), NOW), RecordOutcome::Known));
        for (sequence, address, returned, segment_address) in [
            (4, at(0, 7), at(0, 7), at(1, 1)),
            (9, at(3, 1), at(1, 1), at(3, 1)),
            (9, at(2, 3), at(2, 3), at(3, 1)),
        ] {
            match index.load_record(&loaded(sequence, address), NOW) {
                RecordOutcome::Outdated(removed_entry) => assert_eq!(removed_entry.address, Some(returned)),
                other => panic!("{other:?}"),
            }
            assert_eq!(index.peek(key()).unwrap().address, Some(segment_address));
        }
        assert_eq!((index.bytes_on_disk(), index.packed_bytes()), (8192, 8192));
        assert_eq!([1, 2, 3].map(|segment| index.entries_of_segment(segment)), [0, 0, 1]);
        // A file found on the disk has no effect; a purge removes the record, and older records stay out.
        let entry = LoadedEntry { key: key(), sequence: 0, since: 0, size: 512, valid_until: 0 };
        index.load(&entry, NOW);
        assert_eq!(index.peek(key()).unwrap().address, Some(at(3, 1)));
        assert!(index.unlinked(key()).is_none());
        assert_eq!(
            index.purge(key()).removed_entry.map(|removed_entry| removed_entry.address),
            Some(Some(at(3, 1)))
        );
        assert_eq!((index.bytes_on_disk(), index.packed_bytes(), index.entries_of_segment(3)), (0, 0, 0));
    }

    #[test]
    fn store_returns_the_place_that_was_replaced() {
        let index = index();
        let store = |location: Location| {
            let commit = index.claim(key(), NOW).commit().unwrap();
            let placed = commit.store_at(location, 9, NOW).unwrap();
            placed.replaced.map(|removed_entry| (removed_entry.address, removed_entry.size))
        };
        assert_eq!(store(4096.into()), None);
        assert_eq!(store(8192.into()), None, "a file replaces the file of the same name");
        assert_eq!(store(at(1, 1).into()), Some((None, 8192)));
        assert_eq!(store(at(1, 1).into()), None, "its head was rewritten in place");
        assert_eq!(store(at(1, 5).into()), Some((Some(at(1, 1)), 8192)));
        assert_eq!(store(4096.into()), Some((Some(at(1, 5)), 8192)));
        assert_eq!((index.bytes_on_disk(), index.packed_bytes()), (4096, 0));
    }

    #[test]
    fn entry_of_a_snapshot_that_was_moved_is_not_lost() {
        let index = index();
        index.begin_load();
        let entry = SnapshotEntry {
            key: key(),
            location: Location::record(at(1, 1)).to_bits(),
            valid_until: 5,
            idle_s: 0,
            uses: 2,
            lately: 2,
            is_main: false,
        };
        assert_eq!(index.restore(&entry, NOW), RestoreOutcome::Added);
        index.claim_move(key(), at(1, 1), NOW).unwrap().finish(at(4, 1), 5).unwrap().deleted();
        // The segment from which it came is loaded afterwards.
        match index.load_record(&loaded(5, at(1, 1)), NOW) {
            RecordOutcome::Outdated(removed_entry) => assert_eq!(removed_entry.address, Some(at(1, 1))),
            other => panic!("{other:?}"),
        }
        let mut cursor = crate::ScanCursor::default();
        let mut unseen = Vec::new();
        while index.unseen(&mut cursor, &mut unseen) != crate::Progress::Done {}
        assert_eq!(unseen, []);
        assert_eq!(index.peek(key()).unwrap().address, Some(at(4, 1)));
        // A younger one that the snapshot did not have wins.
        assert!(matches!(index.load_record(&loaded(9, at(2, 1)), NOW), RecordOutcome::Outdated(_)));
        assert_eq!(index.peek(key()).unwrap().address, Some(at(2, 1)));
    }

    #[test]
    fn copy_of_a_loaded_record_gives_way_to_a_younger_one() {
        let index = index();
        index.begin_load();
        assert!(matches!(index.load_record(&loaded(5, at(1, 1)), NOW), RecordOutcome::Added(None)));
        index.claim_move(key(), at(1, 1), NOW).unwrap().finish(at(4, 1), 5).unwrap().deleted();
        match index.load_record(&loaded(9, at(2, 1)), NOW) {
            RecordOutcome::Outdated(removed_entry) => assert_eq!(removed_entry.address, Some(at(4, 1))),
            other => panic!("{other:?}"),
        }
        index.claim_move(key(), at(2, 1), NOW).unwrap().finish(at(4, 7), 9).unwrap().deleted();
        assert!(matches!(index.load_record(&loaded(8, at(3, 1)), NOW), RecordOutcome::Outdated(_)));
        assert_eq!(index.peek(key()).unwrap().address, Some(at(4, 7)));
        // The moved entry needs a full slot only until the load has ended.
        assert_eq!(index.compact.load(SeqCst), 0);
        index.end_load();
        let mut cursor = crate::ScanCursor::default();
        while index.pack(&mut cursor) == crate::Progress::More {}
        assert_eq!((index.compact.load(SeqCst), index.len()), (1, 1));
        assert_eq!(index.peek(key()).unwrap().address, Some(at(4, 7)));
    }

    #[test]
    fn record_is_moved_unless_it_is_removed_meanwhile() {
        let index = index();
        index.load_record(&loaded(5, at(1, 1)), NOW);
        index.lookup(key(), NOW);
        index.lookup(key(), NOW);
        assert_eq!(index.uses_of_record(key(), at(1, 1)), Some(2));
        assert!(index.claim_move(key(), at(1, 3), NOW).is_none());
        let moving = index.claim_move(key(), at(1, 1), NOW).unwrap();
        assert!(index.claim_move(key(), at(1, 1), NOW).is_none());
        let removed_entry = moving.finish(at(4, 1), 5).unwrap();
        assert_eq!((removed_entry.address, index.uses_of_record(key(), at(4, 1))), (Some(at(1, 1)), Some(1)));
        removed_entry.deleted();
        let moving = index.claim_move(key(), at(4, 1), NOW).unwrap();
        let purged = index.purge(key());
        assert!(purged.is_placing);
        assert_eq!(purged.removed_entry.and_then(|removed_entry| removed_entry.address), Some(at(4, 1)));
        drop(moving.finish(at(5, 1), 5).unwrap_err());
        assert_eq!(index.peek(key()), None);
        // A fill that goes on keeps the record where it is.
        index.load_record(&loaded(u64::MAX, at(6, 1)), NOW);
        let claim = index.claim(key(), NOW);
        assert!(index.claim_move(key(), at(6, 1), NOW).is_none());
        drop(claim);
        assert!(index.claim_move(key(), at(6, 1), NOW).is_some());
    }
}
