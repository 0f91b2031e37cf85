//! Counters of one zone: a set for each loop, which are added up on reading.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Sets of counters of one zone; with more loops, some share one.
pub const SETS: usize = 64;

/// Sets of counters, each made when its loop first counts. A loop that leaves and the one in its place may count at the same
/// time, so counters are added to by atomic operations.
pub struct LoopSets<T>([OnceLock<Box<T>>; SETS]);

impl<T> Default for LoopSets<T> {
    fn default() -> Self {
        Self([const { OnceLock::new() }; SETS])
    }
}

impl<T: Default> LoopSets<T> {
    /// The counters of a loop.
    pub fn of_loop(&self, index: usize) -> &T {
        self.0[index % SETS].get_or_init(Box::default)
    }

    /// The sets of all loops that have counted.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().filter_map(|set| set.get().map(|set| &**set))
    }

    /// Sum of one counter over all loops.
    pub fn total(&self, which: impl Fn(&T) -> &AtomicU64) -> u64 {
        self.iter().fold(0, |sum: u64, set| sum.wrapping_add(which(set).load(Relaxed)))
    }
}
