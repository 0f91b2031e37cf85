//! Entry of a shard that is not compact.

use std::sync::Arc;

use super::compact::CompactEntry;
use super::leaving::Removals;
use super::location::Location;
use super::queue::Queue;
use super::shard::{NONE, UNKNOWN};
use super::{EntryState, RemovedEntry};
use crate::Key;

/// An entry: 88 bytes.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) key: Key,
    /// Of the fill that made the file.
    pub(super) sequence: u64,
    /// No purge up to this number concerns it.
    pub(super) checked: u64,
    /// Fetches with a smaller sequence number are not stored here, nor used as a variant. [`UNKNOWN`] if the file was
    /// found on the disk.
    pub(super) since: u64,
    /// No claim began before, if there are any.
    pub(super) claimed_since: u64,
    /// Place of the response on disk; [`Location::NOWHERE`] without one.
    pub(super) location: Location,
    pub(super) valid_until: u32,
    pub(super) used: u32,
    /// Fills that go on.
    pub(super) claims: u32,
    pub(super) uses: u16,
    pub(super) holds: EntryState,
    /// State of the claim that is putting its file in place.
    pub(super) placing: Placement,
    /// Queue of the entry.
    pub(super) queue: Queue,
    /// Number of uses since the entry came into its queue, up to the number that the policy needs.
    pub(super) lately: u8,
    /// Number of lookups that found the file, at most 255.
    pub(super) hits: u8,
    /// Properties: see [`Traits`].
    pub(super) traits: Traits,
    pub(super) chain: u32,
    pub(super) newer: u32,
    pub(super) older: u32,
}

/// Properties of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Traits(u8);

impl Traits {
    /// The file was in a snapshot, and has not been seen on the disk since.
    pub(super) const RESTORED: Self = Self(1);
    /// The response has variants, whose bound is kept.
    pub(super) const VARIES: Self = Self(2);
    /// Another key has its tag.
    pub(super) const APART: Self = Self(4);
    /// This process has taken its sequence number.
    pub(super) const OWN: Self = Self(16);
    /// The sequence number may be larger than the true one.
    pub(super) const ESTIMATED: Self = Self(8);
    /// The record was copied while segments were loaded, so that its address does not tell which response is younger.
    pub(super) const MOVED: Self = Self(32);

    /// Properties of a file, which another one does not have.
    const OF_FILE: [Self; 4] = [Self::RESTORED, Self::ESTIMATED, Self::OWN, Self::MOVED];

    pub(super) const fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub(super) const fn set(&mut self, other: Self, is_so: bool) {
        self.0 = if is_so { self.0 | other.0 } else { self.0 & !other.0 };
    }
}

/// Facts about entries that an index needs and compact ones do not have.
#[derive(Clone, Copy, Debug)]
pub(super) struct PackNeeds {
    /// Number of the last purge before the sweep that goes on.
    pub(super) swept: Option<u64>,
    /// True while segments are loaded.
    pub(super) is_loading: bool,
}

/// Progress of putting a file in the place of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placement {
    /// No.
    Idle,
    /// One is.
    Busy,
    /// A file is being put in place, and may have been removed by a deletion that was meant for the file before it.
    Spoiled,
}

const _: () = assert!(size_of::<Slot>() == 88, "with a head and what pieces leave empty, 96 bytes");

impl Slot {
    /// Makes an entry without a file, with `since` as the lower bound for its variants.
    pub(super) const fn new(key: Key, since: u64, now: u32) -> Self {
        Self {
            key,
            sequence: 0,
            checked: 0,
            since,
            claimed_since: 0,
            location: Location::NOWHERE,
            valid_until: 0,
            used: now,
            claims: 0,
            uses: 0,
            holds: EntryState::Count,
            placing: Placement::Idle,
            queue: Queue::Small,
            lately: 0,
            hits: 0,
            traits: Traits(0),
            chain: NONE,
            newer: NONE,
            older: NONE,
        }
    }

    /// Place of its response, if it has one.
    pub(super) fn file(&self) -> Option<Location> {
        (self.holds == EntryState::File).then_some(self.location)
    }

    /// Entry for the caller to delete if this slot is removed.
    pub(super) fn removed_entry(&self, leaving: &Arc<Removals>) -> Option<RemovedEntry> {
        let &Self { key, sequence, .. } = self;
        self.file().map(|location| RemovedEntry::new(key, sequence, location, leaving.leave()))
    }

    /// From now on it has a file that began to be fetched at `sequence`. If the key may have been purged before this
    /// process began, nothing older is used as a variant.
    pub(super) fn put_file(&mut self, sequence: u64, location: Location) {
        if self.since == UNKNOWN {
            self.since = sequence;
        }
        (self.holds, self.hits) = (EntryState::File, 0);
        (self.sequence, self.checked, self.location) = (sequence, sequence, location);
        for of_file in Traits::OF_FILE {
            self.traits.set(of_file, false);
        }
    }

    /// Number that tells its versions apart.
    pub(super) const fn identity(&self) -> u64 {
        self.location.identity(self.sequence)
    }

    /// Compact form, if nothing is lost that is needed.
    pub(super) fn compact(&self, hash: u64, needs: PackNeeds) -> Option<CompactEntry> {
        let address = self.file()?.address().filter(|address| CompactEntry::fits(*address))?;
        let is_idle = self.claims == 0 && self.placing == Placement::Idle;
        let is_simple = !self.traits.has(Traits::VARIES) && !self.traits.has(Traits::APART);
        // A sweep would miss it that has passed the compact entries already.
        let is_seen = needs.swept.is_none_or(|swept| self.checked >= swept);
        let is_ordered = !needs.is_loading || !self.traits.has(Traits::MOVED);
        (is_idle && is_simple && is_seen && is_ordered).then(|| CompactEntry {
            tag: CompactEntry::tag_of(hash),
            address,
            revision: CompactEntry::revision_of(self.sequence),
            is_own: self.traits.has(Traits::OWN),
            lately: self.lately,
            is_unseen: self.traits.has(Traits::RESTORED),
        })
    }

    /// Forgets the file.
    pub(super) fn drop_file(&mut self) {
        (self.holds, self.hits) = (EntryState::Count, 0);
        for of_file in Traits::OF_FILE {
            self.traits.set(of_file, false);
        }
        (self.sequence, self.checked, self.valid_until) = (0, 0, 0);
        self.location = Location::NOWHERE;
    }
}
