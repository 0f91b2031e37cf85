//! Statistics of a cache by event loop: times of hits, and bytes sent.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tw_base::Histogram;
use tw_base::hist::Snapshot;

use tw_request::cache_info::{CountedResponse, HitFrom, PendingHit, UpstreamCacheStatus};
use tw_request::request::Request;

/// Sets of numbers; loops of the same remainder share one.
const SETS: usize = 64;

/// Begins a hit with the turn in which the cache is searched: that needs no reading of a clock.
pub(crate) fn begin_hit(r: &Request) -> PendingHit {
    PendingHit { began: tw_rt::clock::now(), jobs: r.costs.account.jobs() }
}

/// Statistics of all loops.
pub(crate) struct ResponseStats {
    sets: [OnceLock<Box<LoopResponseStats>>; SETS],
}

/// Statistics of one loop. A loop that ends and the one that replaces it may write at the same time; no other thread writes
/// here.
#[derive(Default)]
struct LoopResponseStats {
    times: [Histogram; 2],
    bytes: [AtomicU64; UpstreamCacheStatus::ALL.len()],
    collapsed_bytes: AtomicU64,
}

impl Default for ResponseStats {
    fn default() -> Self {
        Self { sets: [const { OnceLock::new() }; SETS] }
    }
}

impl ResponseStats {
    fn set(&self, index: usize) -> &LoopResponseStats {
        self.sets[index % SETS].get_or_init(Box::default)
    }

    fn sets(&self) -> impl Iterator<Item = &LoopResponseStats> {
        self.sets.iter().filter_map(|set| set.get().map(|set| &**set))
    }

    /// Records the time of a hit on the loop of number `index`, in nanoseconds.
    pub(crate) fn record_hit(&self, index: usize, from: HitFrom, ns: u64) {
        self.set(index).times[from as usize].record_ns(ns);
    }

    /// Counts the bytes of a response on the loop of number `index`.
    pub(crate) fn count_bytes(&self, index: usize, response: CountedResponse) {
        let CountedResponse { status, bytes, is_collapsed } = response;
        if bytes > 0 {
            let set = self.set(index);
            set.bytes[status as usize].fetch_add(bytes, Relaxed);
            if is_collapsed {
                set.collapsed_bytes.fetch_add(bytes, Relaxed);
            }
        }
    }

    /// Times of hits until their first byte was sent.
    pub(crate) fn times(&self, from: HitFrom) -> Snapshot {
        let mut times = Snapshot::empty();
        self.sets().for_each(|set| times.merge(&set.times[from as usize].snapshot()));
        times
    }

    /// Bytes of the bodies of responses with this status.
    pub(crate) fn bytes(&self, status: UpstreamCacheStatus) -> u64 {
        self.sets().map(|set| set.bytes[status as usize].load(Relaxed)).sum()
    }

    /// Bytes of the bodies of collapsed requests.
    pub(crate) fn collapsed_bytes(&self) -> u64 {
        self.sets().map(|set| set.collapsed_bytes.load(Relaxed)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_note_for_themselves_and_are_added_up() {
        let noted = ResponseStats::default();
        for (index, from, ns) in
            [(0, HitFrom::Inline, 5_000), (1, HitFrom::Inline, 7_000), (SETS, HitFrom::Disk, 9_000_000)]
        {
            noted.set(index).times[from as usize].record_ns(ns);
            noted.set(index).bytes[UpstreamCacheStatus::Hit as usize].fetch_add(10, Relaxed);
        }
        noted.set(1).collapsed_bytes.fetch_add(3, Relaxed);
        assert_eq!(noted.sets().count(), 2, "loop {SETS} notes where loop 0 does");
        assert_eq!((noted.times(HitFrom::Inline).count(), noted.times(HitFrom::Disk).count()), (2, 1));
        assert_eq!(
            (
                noted.bytes(UpstreamCacheStatus::Hit),
                noted.bytes(UpstreamCacheStatus::Miss),
                noted.collapsed_bytes()
            ),
            (30, 0, 3)
        );
    }
}
