//! Types of the index's interface: entries as callers pass them in and get them back.

use super::leaving::PendingRemoval;
use super::location::{Location, SegmentAddress};
use super::shard::{Slot, Traits};
use crate::Key;

/// State of an entry: a file, or only a use count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryState {
    /// No file: uses are counted, or the first fill is in progress.
    Count,
    /// A file.
    File,
}

/// Index entry of one key at the time of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// State of the entry: a file, or only a use count.
    pub holds: EntryState,
    /// Sequence number of the fetch that wrote the file ([`Sequence`](crate::Sequence)); zero without a file. For a record in
    /// a segment a number that its versions do not share, larger than any sequence number.
    pub sequence: u64,
    /// No purge up to this number concerns it: what to ask for the verdict of.
    pub checked: u64,
    /// Lower bound for variants: a variant of this entry is used only if its own sequence number is not smaller, so
    /// an exact purge of this key purges its variants, too. An entry that was removed and added again starts with a
    /// new bound, so older variants are not used then, either. Zero if it is not known: for a file that was found on
    /// the disk, the bound is the number in the file.
    pub since: u64,
    /// Bytes on disk, as reported.
    pub size: u64,
    /// Address of its record; `None` for a file of its own.
    pub address: Option<SegmentAddress>,
    /// Time at which the response becomes stale; zero if only its record tells.
    pub valid_until: u32,
    /// Time of the last use before this lookup; for a plain record that of its segment.
    pub used: u32,
    /// Number of uses that [`Index::count_use`](crate::Index::count_use) has counted, at most 65,535.
    pub uses: u16,
    /// Number of lookups that found the file before this one, at most 255; for a plain record at most 3.
    pub hits: u8,
    /// Fills of it that go on: it is being updated if there are any.
    pub claims: u32,
    /// True for a record that this process has stored or validated: the sequence number in its head is the true one.
    pub is_own: bool,
}

/// Entry that has left the index and whose file is to be deleted. A sweep waits for it until
/// [`deleted`](Self::deleted) is called. If it is dropped without that, the file counts as still present, and no
/// purge is forgotten until the next start finds it.
#[derive(Debug)]
#[must_use]
pub struct RemovedEntry {
    /// Key of the entry. Of a record in a segment, another key may have been taken for it.
    pub key: Key,
    /// Sequence number of its fetch; for a plain record it may be larger than that.
    pub sequence: u64,
    /// Bytes on disk.
    pub size: u64,
    /// Address of its record; `None` for a file of its own.
    pub address: Option<SegmentAddress>,
    pub(super) departure: PendingRemoval,
}

impl RemovedEntry {
    pub(super) fn new(key: Key, sequence: u64, location: Location, departure: PendingRemoval) -> Self {
        Self { key, sequence, size: location.size(), address: location.address(), departure }
    }

    /// Records that the file no longer exists, or belongs to another entry.
    pub fn deleted(self) {
        self.departure.deleted();
    }
}

/// Result of counting a use.
#[derive(Debug)]
pub struct UseCount {
    /// Number of uses including this one; at most 65,535.
    pub uses: u16,
    /// Entry that was evicted to make room.
    pub pushed_out: Option<RemovedEntry>,
}

/// Result of purging one key.
#[derive(Debug)]
pub struct PurgeOutcome {
    /// The number of the purge.
    pub sequence: u64,
    /// Entry whose file has to be deleted before the purge is acknowledged, so that it survives a restart.
    pub removed_entry: Option<RemovedEntry>,
    /// True if a file that is older than the purge is being put in place: it is removed afterwards, but a server that
    /// ends before that leaves it. To acknowledge the purge, the caller has to record it
    /// ([`Purges::purge_key`](crate::Purges::purge_key)).
    pub is_placing: bool,
}

/// Entry found by a scan of the disk or read from a saved index.
#[derive(Clone, Copy, Debug)]
pub struct LoadedEntry {
    /// Key of the entry.
    pub key: Key,
    /// Sequence number of its fetch, as [`Sequence::admit`](crate::Sequence::admit) returns it; zero if unknown.
    pub sequence: u64,
    /// See [`IndexEntry`]; zero if unknown.
    pub since: u64,
    /// Bytes on disk.
    pub size: u64,
    /// Time at which the response becomes stale.
    pub valid_until: u32,
}

/// Result of adding a known entry.
#[derive(Debug)]
pub enum LoadOutcome {
    /// Added to the index. The caller deletes the file of the entry that was evicted, if any.
    Added(Option<RemovedEntry>),
    /// There is one that is younger, or is about to be.
    Known,
}

/// Entry reported by [`Index::scan`](crate::Index::scan).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScannedEntry {
    /// Key of the entry.
    pub key: Key,
    /// State of the entry.
    pub state: IndexEntry,
    /// Smallest sequence number of the fills in progress; `None` without any.
    pub claimed_since: Option<u64>,
}

impl ScannedEntry {
    /// A purge up to this number concerns neither it nor what its fills will store; `None` if none ever will.
    #[must_use]
    pub fn alive_since(&self) -> Option<u64> {
        let file = (self.state.holds == EntryState::File).then_some(self.state.checked);
        [file, self.claimed_since].into_iter().flatten().min()
    }
}

/// Position of a scan. A finished one starts over.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScanCursor {
    pub(crate) shard: usize,
    /// Slots at this number and above have been reported.
    pub(crate) end: Option<u32>,
}

/// Tells an unfinished operation from a finished one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// There may be more to do.
    More,
    /// Nothing is left to do, or only entries that are held by fills.
    Done,
}

/// Limit that an eviction enforces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictionTarget {
    /// So many bytes on disk.
    Bytes(u64),
    /// So many entries.
    Entries(u64),
}

/// Sums of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexCounts {
    /// Entries, with those that have no file.
    pub entries: u64,
    /// Entries with a file.
    pub files: u64,
    /// Bytes of all these files.
    pub bytes: u64,
    /// Bytes of memory.
    pub memory: u64,
    /// Entries that the zone has room for.
    pub entries_max: u64,
}

impl IndexEntry {
    /// Describes a slot. No purge up to `confirmed` concerns any entry.
    pub(super) fn of(slot: &Slot, confirmed: u64) -> Self {
        let has_file = slot.holds == EntryState::File;
        Self {
            holds: slot.holds,
            sequence: slot.identity(),
            checked: if has_file { slot.checked.max(confirmed) } else { 0 },
            since: slot.since,
            size: slot.location.size(),
            address: slot.location.address(),
            valid_until: slot.valid_until,
            used: slot.used,
            uses: slot.uses,
            hits: slot.hits,
            claims: slot.claims,
            is_own: slot.traits.has(Traits::OWN) && slot.location.address().is_some(),
        }
    }
}

impl ScannedEntry {
    pub(super) fn of(slot: &Slot, confirmed: u64) -> Self {
        let claimed_since = (slot.claims > 0).then_some(slot.claimed_since);
        Self { key: slot.key, state: IndexEntry::of(slot, confirmed), claimed_since }
    }
}
