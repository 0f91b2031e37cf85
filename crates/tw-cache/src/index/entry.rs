//! What an index is told, and what it tells.

use super::leaving::Departure;
use super::shard::Slot;
use crate::Key;

/// What an entry stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// Nothing on disk: its uses are counted, or it is being filled for the first time.
    Count,
    /// A file.
    File,
}

/// What is known of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Whether there is a file.
    pub holds: Holds,
    /// When what is on disk began to be fetched ([`Sequence`](crate::Sequence)); zero without a file.
    pub sequence: u64,
    /// No purge up to this number concerns it: what to ask for the verdict of.
    pub checked: u64,
    /// A variant of this entry counts only if its own sequence is not smaller: an exact purge of this key purges them, too.
    /// An entry that went and came again knows nothing of what was before, so older variants are not used then, either.
    pub since: u64,
    /// Bytes on disk, as they were told.
    pub size: u64,
    /// When it becomes stale.
    pub valid_until: u32,
    /// When it was used before this.
    pub used: u32,
    /// How often [`Index::count_use`](crate::Index::count_use) has counted it, at most 65,535.
    pub uses: u16,
    /// Fills of it that go on: it is being updated if there are any.
    pub claims: u32,
}

/// What is no longer in the index: its file is to be deleted. As long as that is not [said](Self::deleted), a sweep waits for it;
/// dropped without a word, the file is taken to stay, and no purge is forgotten until the next start finds it.
#[derive(Debug)]
#[must_use]
pub struct Gone {
    /// Its key.
    pub key: Key,
    /// When it began to be fetched.
    pub sequence: u64,
    /// Bytes on disk.
    pub size: u64,
    pub(super) departure: Departure,
}

impl Gone {
    /// Its file is not there any more, or is that of another entry.
    pub fn deleted(self) {
        self.departure.deleted();
    }
}

/// What counting a use has come to.
#[derive(Debug)]
pub struct Counted {
    /// How often it was used, with this; at most 65,535.
    pub uses: u16,
    /// What made room for it.
    pub pushed_out: Option<Gone>,
}

/// What an exact purge has come to.
#[derive(Debug)]
pub struct Purged {
    /// The number of the purge.
    pub sequence: u64,
    /// What is to be deleted before the purge is said to be done: it outlives a restart by that.
    pub gone: Option<Gone>,
    /// A file that is older than the purge is being put in its place: it is removed when that is done, and a server that ends
    /// before that leaves it. Who says that the purge is done has to write it down ([`Purges::purge_key`](crate::Purges::purge_key)).
    pub is_placing: bool,
}

/// An entry that a scan of the disk, or a written index, tells.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// Its key.
    pub key: Key,
    /// When it began to be fetched, as [`Sequence::admit`](crate::Sequence::admit) takes it; zero if nobody knows.
    pub sequence: u64,
    /// As in [`Found`]; its own sequence if nobody knows.
    pub since: u64,
    /// Bytes on disk.
    pub size: u64,
    /// When it becomes stale.
    pub valid_until: u32,
}

/// What came of an entry that was told.
#[derive(Debug)]
pub enum Loaded {
    /// It is in the index; what it pushed out is to be deleted.
    Added(Option<Gone>),
    /// There is one that is younger, or is about to be.
    Known,
}

/// An entry that [`Index::scan`](crate::Index::scan) tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its key.
    pub key: Key,
    /// What is known of it.
    pub found: Found,
    /// No fill of it that goes on began before; `None` without any.
    pub claimed_since: Option<u64>,
}

impl Seen {
    /// A purge up to this number concerns neither it nor what its fills will store; `None` if none ever will.
    #[must_use]
    pub fn alive_since(&self) -> Option<u64> {
        let file = (self.found.holds == Holds::File).then_some(self.found.checked);
        [file, self.claimed_since].into_iter().flatten().min()
    }
}

/// Where a scan is. One that is done begins anew.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cursor {
    pub(super) shard: usize,
    /// What is at this number of a slot and above has been told.
    pub(super) end: Option<u32>,
}

/// Whether a call has come to the end of its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// There may be more to do.
    More,
    /// There is nothing left to do, or what is left is held by fills.
    Done,
}

/// What an eviction is to make free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Excess {
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

impl Found {
    pub(super) fn of(slot: &Slot) -> Self {
        Self {
            holds: slot.holds,
            sequence: slot.sequence,
            checked: slot.checked,
            since: slot.since,
            size: slot.size,
            valid_until: slot.valid_until,
            used: slot.used,
            uses: slot.uses,
            claims: slot.claims,
        }
    }
}

impl Seen {
    pub(super) fn of(slot: &Slot) -> Self {
        let claimed_since = (slot.claims > 0).then_some(slot.claimed_since);
        Self { key: slot.key, found: Found::of(slot), claimed_since }
    }
}
