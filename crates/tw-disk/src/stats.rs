//! Counters of the door, per pool and operation. Written with relaxed atomics, read by a metrics page.

use crate::op::Op;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use tw_base::count::Counter;
use tw_base::hist::{Histogram, Snapshot};

/// Threads that count inline operations without sharing a cache line; more threads share.
const SHARDS: usize = 16;

static NEXT_SHARD: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static SHARD: Cell<usize> = const { Cell::new(usize::MAX) };
}

fn shard() -> usize {
    SHARD.with(|shard| {
        if shard.get() == usize::MAX {
            shard.set(NEXT_SHARD.fetch_add(1, Relaxed) % SHARDS);
        }
        shard.get()
    })
}

/// Two cache lines, because processors fetch them in pairs.
#[repr(align(128))]
struct Padded<const N: usize>([AtomicU64; N]);

/// `N` counts that loops add to on every request: each thread has its own line, readers add them up.
pub(crate) struct Sharded<const N: usize>(Box<[Padded<N>]>);

impl<const N: usize> Sharded<N> {
    pub(crate) fn new() -> Self {
        Self((0..SHARDS).map(|_| Padded([const { AtomicU64::new(0) }; N])).collect())
    }

    pub(crate) fn add(&self, which: usize) {
        self.add_many(which, 1);
    }

    pub(crate) fn add_many(&self, which: usize, n: u64) {
        self.0[shard()].0[which].fetch_add(n, Relaxed);
    }

    pub(crate) fn sum(&self, which: usize) -> u64 {
        self.0.iter().map(|line| line.0[which].load(Relaxed)).fold(0, u64::wrapping_add)
    }
}

/// Counters of one operation in one pool.
#[derive(Default)]
pub(crate) struct OpCounters {
    pub(crate) queue: Histogram,
    pub(crate) service: Histogram,
}

/// Counters of one pool.
pub(crate) struct PoolCounters {
    /// Operations that ended on the caller's thread, per operation.
    pub(crate) inline: Sharded<{ Op::COUNT }>,
    pub(crate) ops: Box<[OpCounters]>,
    pub(crate) overflows: Counter,
    pub(crate) refusals: Counter,
    pub(crate) ring_reads: Counter,
    pub(crate) cancellations: Counter,
    pub(crate) panics: Counter,
}

impl PoolCounters {
    pub(crate) fn new() -> Self {
        Self {
            inline: Sharded::new(),
            ops: (0..Op::COUNT).map(|_| OpCounters::default()).collect(),
            overflows: Counter::new(),
            refusals: Counter::new(),
            ring_reads: Counter::new(),
            cancellations: Counter::new(),
            panics: Counter::new(),
        }
    }
}

/// One operation of one pool, at one moment.
#[derive(Clone, Debug)]
pub struct OpStats {
    /// Operation that is counted.
    pub op: Op,
    /// Number of operations that ended without a job.
    pub inline: u64,
    /// Number of operations that became jobs and ended.
    pub jobs: u64,
    /// Time from being queued to being begun.
    pub queue: Snapshot,
    /// Time from being begun to being done.
    pub service: Snapshot,
}

/// Operations of one pool that hang on one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HungDevice {
    /// Mount point of the device, or its number.
    pub mount: Arc<str>,
    /// Time at which the first of them made its last progress, in seconds since 1970.
    pub since_s: u64,
    /// Number of operations.
    pub operations: u32,
}

/// One pool at one moment.
#[derive(Clone, Debug)]
pub struct PoolStats {
    /// Name of the pool.
    pub name: Arc<str>,
    /// Number of threads.
    pub threads: u32,
    /// Number of those threads that one device may occupy.
    pub device_threads: u32,
    /// The most jobs that may wait for one device.
    pub max_queue: usize,
    /// Devices on which something hangs.
    pub hung: Vec<HungDevice>,
    /// Threads that hang and were replaced by others.
    pub hung_threads: u32,
    /// Jobs refused or given up because their device hangs.
    pub refusals: u64,
    /// Jobs that wait.
    pub waiting: usize,
    /// Jobs that hold a thread, or a place in the ring.
    pub running: u32,
    /// Jobs refused because the queue was full.
    pub overflows: u64,
    /// Reads done by io_uring.
    pub ring_reads: u64,
    /// Jobs taken back before they began.
    pub cancellations: u64,
    /// Jobs that panicked.
    pub panics: u64,
    /// Per operation, those that happened at least once.
    pub ops: Vec<OpStats>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_add_up() {
        let counts = Arc::new(Sharded::<2>::new());
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let counts = counts.clone();
                std::thread::spawn(move || (0..1000).for_each(|_| counts.add(1)))
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!((counts.sum(0), counts.sum(1)), (0, 4000));
    }
}
