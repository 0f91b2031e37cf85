//! Permit to store a response, held from the start of the fetch until its file is in place.
//!
//! ```text
//! Index::claim ─► Claim ─► commit ─► Commit ─► (the file is put in its place) ─► store ─► File
//!                   │        └─► Refused             │                             └─► Commit: purged meanwhile,
//!                   └────────────────────────────────┴─► dropped: given up             the file is deleted, dropped
//! ```
//!
//! The number of a claim is taken when it is made. An entry that fills hold stays in the index, so that a purge of
//! its key finds it and leaves its own number there: what began before is refused when it ends, however late. One of
//! several fills of a key puts its file in place at a time, and never an older one over a younger one; so the file is
//! never older than its entry.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use super::location::{Location, SegmentAddress};
use super::shard::{Placement, Traits};
use super::{EntryState, Index, RemovedEntry};
use crate::Key;

/// The permit to store one response under a key. Dropping it gives that up.
#[must_use = "dropping it gives up"]
pub struct Claim {
    pub(super) index: Arc<Index>,
    pub(super) key: Key,
    pub(super) sequence: u64,
}

/// Permit to put a file in place, which one fill of a key has at a time. After dropping it no file may be left
/// behind.
#[must_use = "dropping it gives up"]
pub struct Commit(pub(super) Claim);

/// Entries that left the index when a response was stored; the caller removes what they had on the disk.
#[derive(Debug)]
pub struct StoredEntry {
    /// Entry that was evicted to make room in memory.
    pub pushed_out: Option<RemovedEntry>,
    /// Earlier response of the same key, unless its file was replaced by one of the same name.
    pub replaced: Option<RemovedEntry>,
}

/// Why a response is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimRefused {
    /// The key was purged after the fetch began.
    Purged,
    /// A younger response is there.
    Older,
    /// Another fill is putting its file in place.
    Busy,
    /// The claim is for a variant, and a sweep that began after the fetch may have passed its place.
    Swept,
}

/// Why a claim could not be committed at once.
#[derive(Debug)]
pub enum CommitRefused {
    /// The response is not to be stored; the claim is given up.
    Refused(ClaimRefused),
    /// Another fill is putting its file in place: the claim can be committed when that is done.
    Busy(Claim),
}

impl Index {
    /// A fill of this key begins. As long as its claim lives, the entry stays in the index.
    pub fn claim(self: &Arc<Self>, key: Key, now: u32) -> Claim {
        let sequence = self.with(key, |shard, hash| {
            // The number is taken under the lock, as for purges.
            let sequence = self.sequence.next();
            shard.claim(hash, key, sequence, now);
            sequence
        });
        Claim { index: Arc::clone(self), key, sequence }
    }
}

impl Claim {
    /// Under which key it stores.
    pub fn key(&self) -> Key {
        self.key
    }

    /// Sequence number of the claim, which is written into the file.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The permit to store the same response, which began to be fetched when this did, as a variant of this key.
    ///
    /// # Errors
    /// Only [`ClaimRefused::Swept`].
    pub fn variant(&self, key: Key, now: u32) -> Result<Self, ClaimRefused> {
        let Self { index, sequence, .. } = self;
        index.with(key, |shard, hash| {
            // Checked under the lock: a sweep that comes to this shard later finds the claim.
            if *sequence < index.swept.load(SeqCst) {
                return Err(ClaimRefused::Swept);
            }
            shard.claim(hash, key, *sequence, now);
            Ok(())
        })?;
        Ok(Self { index: Arc::clone(index), key, sequence: *sequence })
    }

    /// All has been fetched, and its file is about to be put in its place.
    ///
    /// # Errors
    /// The response is not to be stored; the claim is given up.
    pub fn commit(self) -> Result<Commit, ClaimRefused> {
        self.try_commit().map_err(|why| match why {
            CommitRefused::Refused(why) => why,
            CommitRefused::Busy(_) => ClaimRefused::Busy,
        })
    }

    /// [`commit`](Self::commit), which leaves the claim if it has to wait for its turn.
    ///
    /// # Errors
    /// Fails if it is not its turn, or the response is not to be stored.
    pub fn try_commit(self) -> Result<Commit, CommitRefused> {
        let turn = self.index.with(self.key, |shard, hash| {
            let Some(slot) = shard.found_mut(hash, self.key) else { return Err(ClaimRefused::Purged) };
            if self.sequence < slot.since {
                Err(ClaimRefused::Purged)
            // DIFF(nginx): the youngest stays, whoever ends last.
            } else if slot.holds == EntryState::File && self.sequence < slot.sequence {
                Err(ClaimRefused::Older)
            } else if slot.placing != Placement::Idle {
                Err(ClaimRefused::Busy)
            } else {
                slot.placing = Placement::Busy;
                Ok(())
            }
        });
        match turn {
            Ok(()) => Ok(Commit(self)),
            Err(ClaimRefused::Busy) => Err(CommitRefused::Busy(self)),
            Err(why) => Err(CommitRefused::Refused(why)),
        }
    }
}

impl Commit {
    /// Key under which it stores.
    pub fn key(&self) -> Key {
        self.0.key
    }

    /// Sequence number of the claim.
    pub fn sequence(&self) -> u64 {
        self.0.sequence
    }

    /// Notes that the response has variants: the bound for them is kept as long as its entry is.
    pub fn set_varies(&self, varies: bool) {
        self.0.index.with(self.0.key, |shard, hash| {
            if let Some(slot) = shard.found_mut(hash, self.0.key) {
                slot.traits.set(Traits::VARIES, varies);
            }
        });
    }

    /// Records that the file is in place, with `size` bytes on disk, fresh until `valid_until`; it has replaced any
    /// earlier file. A response that was only validated (304) is stored the same way once its file is updated.
    /// Returns the entry that was evicted to make room in memory, if any.
    ///
    /// # Errors
    /// The key was purged meanwhile, or the file may have been removed in place of another ([`Index::unlinked`]). The
    /// caller deletes the file and then drops this permit.
    pub fn store(self, size: u64, valid_until: u32, now: u32) -> Result<Option<RemovedEntry>, Self> {
        let stored = self.store_at(size.into(), valid_until, now)?;
        // Without segments, the new file replaces the one of the same name.
        if let Some(replaced) = stored.replaced {
            replaced.deleted();
        }
        Ok(stored.pushed_out)
    }

    /// Records like [`store`](Self::store) that the response is at `location`, which may be a record in a segment.
    ///
    /// # Errors
    /// As [`store`](Self::store).
    pub fn store_at(self, location: Location, valid_until: u32, now: u32) -> Result<StoredEntry, Self> {
        self.put(location, None, valid_until, now)
    }

    /// Records that the record at `address`, which was validated, has a new head.
    ///
    /// # Errors
    /// As [`store`](Self::store); also if the entry does not have this record any more.
    pub fn refresh_at(
        self,
        address: SegmentAddress,
        valid_until: u32,
        now: u32,
    ) -> Result<StoredEntry, Self> {
        self.put(address.into(), Some(address.into()), valid_until, now)
    }

    fn put(
        self,
        location: Location,
        expected: Option<Location>,
        valid_until: u32,
        now: u32,
    ) -> Result<StoredEntry, Self> {
        let Claim { index, key, sequence } = &self.0;
        let replaced = index.with(*key, |shard, hash| {
            let at = shard.find(hash, *key)?;
            let slot = shard.slot(at)?;
            let is_gone = expected.is_some() && slot.file() != expected;
            if *sequence < slot.since || slot.placing == Placement::Spoiled || is_gone {
                return None;
            }
            let is_other = |before: &Location| {
                *before != location && (before.address().is_some() || location.address().is_some())
            };
            let replaced = slot
                .file()
                .filter(is_other)
                .map(|before| RemovedEntry::new(*key, slot.sequence, before, index.leaving.leave()));
            shard.change_file(at, |slot| {
                slot.put_file(*sequence, location);
                slot.traits.set(Traits::OWN, true);
                slot.valid_until = valid_until;
            });
            shard.note_record(location, *sequence, now);
            shard.touch(at, now);
            Some(replaced)
        });
        match replaced {
            Some(replaced) => Ok(StoredEntry { pushed_out: index.make_room(now), replaced }),
            None => Err(self),
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.index.with(self.key, |shard, hash| {
            let Some(at) = shard.find(hash, self.key) else { return };
            let Some(slot) = shard.slot_mut(at) else { return };
            slot.claims = slot.claims.saturating_sub(1);
            if slot.claims == 0 && slot.uses == 0 && slot.holds == EntryState::Count {
                shard.remove(at);
            }
        });
    }
}

impl Drop for Commit {
    fn drop(&mut self) {
        self.0.index.with(self.0.key, |shard, hash| {
            if let Some(slot) = shard.found_mut(hash, self.0.key) {
                slot.placing = Placement::Idle;
            }
        });
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim")
            .field("key", &self.key)
            .field("sequence", &self.sequence)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Commit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Commit").field(&self.0).finish()
    }
}
