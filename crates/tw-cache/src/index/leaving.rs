//! Entries that have left an index while their files are still on disk.
//!
//! A purge is remembered until no file is left that it concerns. A sweep sees only what the index has. An entry that
//! has left the index is not seen, but if the server ends before the file is deleted, the next start finds it again.
//! So every entry that leaves is counted until its file is gone, and before a sweep forgets a purge it waits for the
//! entries that left before it.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use tw_base::FatalMutex;

/// Shared record of the entries that have left.
#[derive(Debug, Default)]
pub(super) struct Removals(FatalMutex<LeavingEntries>);

#[derive(Debug, Default)]
struct LeavingEntries {
    /// Number of entries that have left.
    count: u64,
    /// Numbers of the entries whose files may still exist.
    open: BTreeSet<u64>,
    /// True if the file of an entry may stay until the next start.
    has_strays: bool,
}

/// State of the entries that left an index before some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalState {
    /// No file is left.
    Nothing,
    /// Files that are being deleted.
    Files,
    /// A file that could not be deleted, for all that is known: only the next start finds it.
    Strays,
}

/// One that has left. Dropped without [`deleted`](Self::deleted), its file stays.
#[must_use]
pub(super) struct PendingRemoval {
    from: Arc<Removals>,
    number: u64,
    is_deleted: bool,
}

impl Removals {
    /// One more leaves. The caller holds the lock of its shard, so that a sweep sees either the entry or this.
    pub(super) fn leave(self: &Arc<Self>) -> PendingRemoval {
        let mut leaving_entries = self.0.lock();
        let number = leaving_entries.count;
        leaving_entries.count += 1;
        leaving_entries.open.insert(number);
        PendingRemoval { from: self.clone(), number, is_deleted: false }
    }

    pub(super) fn count(&self) -> u64 {
        self.0.lock().count
    }

    /// State of the first `count` entries that left.
    pub(super) fn removal_state(&self, count: u64) -> RemovalState {
        let leaving_entries = self.0.lock();
        match leaving_entries.open.first() {
            _ if leaving_entries.has_strays => RemovalState::Strays,
            Some(number) if *number < count => RemovalState::Files,
            _ => RemovalState::Nothing,
        }
    }
}

impl PendingRemoval {
    /// The file was deleted, or belongs to another entry by now.
    pub(super) fn deleted(mut self) {
        self.is_deleted = true;
    }
}

impl Drop for PendingRemoval {
    fn drop(&mut self) {
        let mut leaving_entries = self.from.0.lock();
        leaving_entries.open.remove(&self.number);
        leaving_entries.has_strays |= !self.is_deleted;
    }
}

impl fmt::Debug for PendingRemoval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Departure").field(&self.number).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_removals_are_waited_for() {
        let leaving = Arc::new(Removals::default());
        let one = leaving.leave();
        let two = leaving.leave();
        assert_eq!(
            [0, 1, 2].map(|count| leaving.removal_state(count)),
            [RemovalState::Nothing, RemovalState::Files, RemovalState::Files]
        );
        one.deleted();
        assert_eq!(
            (leaving.removal_state(1), leaving.removal_state(leaving.count())),
            (RemovalState::Nothing, RemovalState::Files)
        );
        drop(two);
        assert_eq!(leaving.removal_state(0), RemovalState::Strays);
    }
}
