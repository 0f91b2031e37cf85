//! Two forms of the entry of a record: compact as long as nothing happens to it, a slot as long as something does.
//!
//! Operations know only slots. Before one works on a key, its compact entry becomes a slot ([`Shard::unpack`]); afterwards a slot
//! that is plain becomes compact ([`Shard::pack`]). Lookups of compact entries do without.

use super::compact::{CompactBytes, CompactEntry};
use super::location::{Location, SegmentAddress};
use super::queue::{Queue, USES_MAX};
use super::shard::{Shard, Slot, Traits, UNKNOWN};
use super::slot::PackNeeds;
use super::{EntryState, IndexEntry};
use crate::Key;

impl Shard {
    /// Compact entry of a hash.
    pub(super) fn compact_entry(&self, hash: u64) -> Option<CompactEntry> {
        if self.compact.is_empty() { None } else { self.compact.get(CompactEntry::tag_of(hash)) }
    }

    /// Compact entry of a key, if no slot is in its way.
    pub(super) fn plain_entry(&self, hash: u64, key: Key) -> Option<CompactEntry> {
        let entry = self.compact_entry(hash)?;
        self.find(hash, key).is_none().then_some(entry)
    }

    /// Index entry of a compact one.
    pub(super) fn describe(&self, entry: CompactEntry) -> IndexEntry {
        let CompactEntry { address, revision, is_own, lately, .. } = entry;
        IndexEntry {
            holds: EntryState::File,
            sequence: Location::record(address).identity(revision.into()),
            checked: self.segments.checked(address.segment),
            since: UNKNOWN,
            size: address.size(),
            address: Some(address),
            valid_until: 0,
            used: self.segments.times(address.segment).0,
            uses: 0,
            hits: lately,
            claims: 0,
            is_own,
        }
    }

    /// Records a use of a compact entry.
    pub(super) fn use_compact(&mut self, entry: CompactEntry, now: u32) {
        self.now = self.now.max(now);
        self.segments.touch(entry.address.segment, now);
        if entry.lately < USES_MAX {
            self.compact.update(CompactEntry { lately: entry.lately + 1, ..entry });
        }
    }

    /// Makes a slot of the compact entry of this key, if there is one. `last` is the last sequence number that was taken.
    pub(super) fn unpack(&mut self, hash: u64, key: Key, last: u64) {
        let Some(entry) = self.compact_entry(hash) else { return };
        let at = self.find(hash, key);
        let is_free = at
            .and_then(|at| self.slot(at))
            .is_none_or(|slot| slot.holds == EntryState::Count && !slot.traits.has(Traits::APART));
        if !is_free {
            return;
        }
        let Some(at) = at.or_else(|| self.insert(hash, Slot::new(key, UNKNOWN, self.now))) else { return };
        if self.slot(at).is_some_and(|slot| slot.queue == Queue::Ghost) {
            self.move_to(at, Queue::Main);
        }
        // The slot gets the record before the compact entry is removed, so that the segment is never seen without
        // entries.
        let checked = self.segments.checked(entry.address.segment);
        self.change_file(at, |slot| {
            let since = slot.since;
            slot.put_file(entry.sequence(last), entry.address.into());
            (slot.since, slot.checked) = (since, checked);
            (slot.lately, slot.hits) = (entry.lately, entry.lately);
            slot.traits.set(Traits::RESTORED, entry.is_unseen);
            slot.traits.set(Traits::OWN, entry.is_own);
            slot.traits.set(Traits::ESTIMATED, true);
        });
        self.remove_compact(entry.tag);
    }

    /// Makes the slot of this key compact, if it is plain.
    pub(super) fn pack(&mut self, hash: u64, key: Key, needs: PackNeeds) {
        let Some(at) = self.find(hash, key) else { return };
        self.pack_slot(hash, at, needs);
    }

    fn pack_slot(&mut self, hash: u64, at: u32, needs: PackNeeds) {
        let Some(entry) = self.slot(at).and_then(|slot| slot.compact(hash, needs)) else { return };
        if self.insert_compact(entry) {
            self.take_out(at);
        }
    }

    /// Makes slots compact that are plain, from `end` on backwards, as many as `count`. Returns the number of those before them.
    pub(super) fn pack_some(&mut self, end: u32, count: u32, needs: PackNeeds) -> u32 {
        let end = end.min(self.len());
        let begin = end.saturating_sub(count);
        for at in (begin..end).rev() {
            let Some(hash) = self.slot(at).map(|slot| self.seed.hash(slot.key)) else { continue };
            self.pack_slot(hash, at, needs);
        }
        begin
    }

    /// Adds a compact entry. Returns false if there is one with its tag.
    pub(super) fn insert_compact(&mut self, entry: CompactEntry) -> bool {
        let is_added = self.compact.insert(entry);
        if is_added {
            self.count_file(None, Some(entry.address.into()));
        }
        is_added
    }

    /// Takes a compact entry out.
    pub(super) fn remove_compact(&mut self, tag: u64) -> Option<CompactEntry> {
        let removed = self.compact.remove(tag)?;
        self.count_file(Some(removed.address.into()), None);
        Some(removed)
    }

    /// Puts another address in the place of a compact entry with this tag.
    pub(super) fn replace_compact(&mut self, entry: CompactEntry) {
        let Some(before) = self.compact.get(entry.tag) else { return };
        self.compact.update(entry);
        self.count_file(Some(before.address.into()), Some(entry.address.into()));
    }

    /// Notes that a record with this sequence number, or a larger one, is at this place.
    pub(super) fn note_record(&self, location: Location, sequence: u64, now: u32) {
        if let Some(address) = location.address() {
            self.segments.note_record(address.segment, Some(sequence), now);
            self.segments.note_written(address.segment, now);
        }
    }

    /// Number of pages of compact entries.
    pub(super) const fn compact_pages(&self) -> u32 {
        self.compact.pages()
    }

    /// A page of compact entries.
    pub(super) fn compact_page(&self, page: u32) -> &[CompactBytes] {
        self.compact.page(page).unwrap_or_default()
    }

    /// Gives the record at `address` back that was taken for that of this key, and keeps the key apart.
    pub(super) fn set_apart(&mut self, hash: u64, key: Key, address: SegmentAddress, now: u32) {
        let at = self.find(hash, key).or_else(|| self.insert(hash, Slot::new(key, UNKNOWN, now)));
        let Some(at) = at else { return };
        let taken =
            self.slot(at).filter(|slot| slot.file() == Some(address.into())).map(|slot| CompactEntry {
                tag: CompactEntry::tag_of(hash),
                address,
                revision: CompactEntry::revision_of(slot.sequence),
                is_own: slot.traits.has(Traits::OWN),
                lately: slot.lately,
                is_unseen: slot.traits.has(Traits::RESTORED),
            });
        if let Some(entry) = taken {
            self.insert_compact(entry);
            self.change_file(at, Slot::drop_file);
        }
        if let Some(slot) = self.slot_mut(at) {
            slot.traits.set(Traits::APART, true);
        }
    }
}
