//! Sequence numbers for all changes of a cache: they order fills and purges whatever the clocks say.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// A second has so many numbers, 2^24: more than a process takes, so that the next process, which begins with the
/// number of its first millisecond, is ahead of all that this one has written.
const NUMBERS_PER_SECOND_BITS: u32 = 24;

/// Source of sequence numbers for fills and purges of one cache: each takes one when it begins, and a purge concerns
/// entries with a smaller one.
///
/// The number of a fill is written into its file. A new process begins at its start time, or after the last number in
/// the purge file if that is larger ([`Purges::decode`](crate::Purges::decode)): so numbers grow over restarts even
/// when that file is lost or the clock went back.
#[derive(Debug)]
pub struct Sequence {
    start: u64,
    last: AtomicU64,
}

impl Sequence {
    /// The numbers of a process that begins at `now_ms`, in milliseconds of the clock on the wall, after one whose
    /// last was `last`.
    #[must_use]
    pub fn starting(now_ms: u64, last: u64) -> Self {
        let of = |seconds: u64| seconds << NUMBERS_PER_SECOND_BITS;
        let start = last.max(of(now_ms / 1000) + of(now_ms % 1000) / 1000);
        Self { start, last: AtomicU64::new(start) }
    }

    /// A number that is larger than all before.
    pub fn next(&self) -> u64 {
        self.last.fetch_add(1, SeqCst) + 1
    }

    /// The last number that was taken.
    pub fn last(&self) -> u64 {
        self.last.load(SeqCst)
    }

    /// Goes on behind `last`, a number that another process has taken.
    pub(super) fn pass(&self, last: u64) {
        self.last.fetch_max(last, SeqCst);
    }

    /// The number to take for a file that was found with `sequence` in it. One from the future, which was written
    /// while a clock was ahead, counts as the oldest there is: every purge that is known concerns it.
    pub fn admit(&self, sequence: u64) -> u64 {
        if sequence > self.start { 0 } else { sequence }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_grow_over_restarts() {
        let first = Sequence::starting(1_800_000_000_000, 0);
        let fill = first.next();
        assert_eq!((first.next(), first.last()), (fill + 1, fill + 1));
        // A moment later, with and without the file that has the last number; and with a clock that was set back.
        assert!(Sequence::starting(1_800_000_000_001, 0).next() > first.last());
        assert!(Sequence::starting(1_800_000_000_001, first.last()).next() > first.last());
        assert!(Sequence::starting(1, first.last()).next() > first.last());
    }

    #[test]
    fn sequence_number_from_the_future_counts_as_the_oldest() {
        let ahead = Sequence::starting(1_900_000_000_000, 0).next();
        let sequence = Sequence::starting(1_800_000_000_000, 0);
        assert_eq!(sequence.admit(ahead), 0);
        let before = Sequence::starting(1_799_999_999_000, 0).next();
        assert_eq!(sequence.admit(before), before);
    }
}
