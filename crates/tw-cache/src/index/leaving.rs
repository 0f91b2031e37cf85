//! What has left an index while its file is still on the disk.
//!
//! A purge is remembered until no file is left that it concerns. A sweep sees what the index has; what has left the index is not
//! seen any more, and a server that ends before the file is deleted finds it again at its next start. So whoever takes an entry
//! out is counted until its file is gone, and what a sweep wants to forget waits for those who left before it.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use tw_base::FatalMutex;

/// Who has left.
#[derive(Debug, Default)]
pub(super) struct Leaving(FatalMutex<Left>);

#[derive(Debug, Default)]
struct Left {
    /// How many have left.
    count: u64,
    /// Those of them whose files may be there, by number.
    open: BTreeSet<u64>,
    /// Whether a file of one may be there until the next start.
    has_strays: bool,
}

/// What is left of those who left an index before some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remains {
    /// Nothing.
    Nothing,
    /// Files that are being deleted.
    Files,
    /// A file that could not be deleted, for all that is known: only the next start finds it.
    Strays,
}

/// One that has left. Dropped without [`deleted`](Self::deleted), its file stays.
#[must_use]
pub(super) struct Departure {
    from: Arc<Leaving>,
    number: u64,
    is_deleted: bool,
}

impl Leaving {
    /// One more leaves. The caller holds the lock of its shard, so that a sweep sees either the entry or this.
    pub(super) fn leave(self: &Arc<Self>) -> Departure {
        let mut left = self.0.lock();
        let number = left.count;
        left.count += 1;
        left.open.insert(number);
        Departure { from: self.clone(), number, is_deleted: false }
    }

    pub(super) fn count(&self) -> u64 {
        self.0.lock().count
    }

    /// What is left of the first `count`.
    pub(super) fn remains(&self, count: u64) -> Remains {
        let left = self.0.lock();
        match left.open.first() {
            _ if left.has_strays => Remains::Strays,
            Some(number) if *number < count => Remains::Files,
            _ => Remains::Nothing,
        }
    }
}

impl Departure {
    /// The file is gone, or belongs to another entry by now.
    pub(super) fn deleted(mut self) {
        self.is_deleted = true;
    }
}

impl Drop for Departure {
    fn drop(&mut self) {
        let mut left = self.from.0.lock();
        left.open.remove(&self.number);
        left.has_strays |= !self.is_deleted;
    }
}

impl fmt::Debug for Departure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Departure").field(&self.number).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_left_before_is_waited_for() {
        let leaving = Arc::new(Leaving::default());
        let (one, two) = (leaving.leave(), leaving.leave());
        assert_eq!(
            [0, 1, 2].map(|count| leaving.remains(count)),
            [Remains::Nothing, Remains::Files, Remains::Files]
        );
        one.deleted();
        assert_eq!(
            (leaving.remains(1), leaving.remains(leaving.count())),
            (Remains::Nothing, Remains::Files)
        );
        drop(two);
        assert_eq!(leaving.remains(0), Remains::Strays);
    }
}
