//! A histogram of durations with bounded relative error.
//!
//! Buckets are log-linear: eight per power of two, so a quantile is at most 12.5 % above the true value. The range is
//! one nanosecond to about 73 minutes; longer spans land in the last bucket. Recording is two relaxed atomic additions,
//! or none where one thread records.
//! A histogram without a span has no buckets: there may be thousands of them, such as three for each upstream server.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Buckets per power of two, as a power of two.
const SUB_BITS: u32 = 3;
const SUB: usize = 1 << SUB_BITS;
/// Highest power of two that has buckets of its own: 2^42 ns, 73 minutes.
const MAX_POW: u32 = 42;
/// Number of buckets.
pub const BUCKETS: usize = SUB * (MAX_POW - SUB_BITS + 2) as usize;

/// Durations in nanoseconds, recorded by many threads and read by any.
pub struct Histogram {
    /// Made for the first span.
    buckets: OnceLock<Box<Buckets>>,
    sum_ns: AtomicU64,
}

type Buckets = [AtomicU64; BUCKETS];

/// A copy of a [`Histogram`] at one moment; two can be merged or subtracted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    buckets: Box<[u64; BUCKETS]>,
    /// Sum of all recorded spans in nanoseconds.
    pub sum_ns: u64,
}

fn bucket_of(ns: u64) -> usize {
    if ns < SUB as u64 {
        return ns as usize;
    }
    let pow = ns.ilog2();
    if pow > MAX_POW {
        return BUCKETS - 1;
    }
    let sub = (ns >> (pow - SUB_BITS)) as usize & (SUB - 1);
    ((pow - SUB_BITS + 1) as usize) * SUB + sub
}

/// Largest value that falls into bucket `index`, in nanoseconds.
fn upper_bound(index: usize) -> u64 {
    if index < SUB {
        return index as u64;
    }
    let shift = (index / SUB - 1) as u32;
    let base = (SUB + index % SUB) as u64;
    ((base + 1) << shift) - 1
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl Histogram {
    /// An empty histogram, which allocates nothing.
    pub const fn new() -> Self {
        Self { buckets: OnceLock::new(), sum_ns: AtomicU64::new(0) }
    }

    /// Adds one span in nanoseconds. The first one allocates 2.5 KiB.
    pub fn record_ns(&self, ns: u64) {
        self.buckets()[bucket_of(ns)].fetch_add(1, Relaxed);
        // A clock of milliseconds measures most spans of a fast server as zero.
        if ns > 0 {
            self.sum_ns.fetch_add(ns, Relaxed);
        }
    }

    /// Adds one span of a histogram that only this thread adds to, without atomic additions.
    pub fn record_own_ns(&self, ns: u64) {
        let add = |to: &AtomicU64, n| to.store(to.load(Relaxed).wrapping_add(n), Relaxed);
        add(&self.buckets()[bucket_of(ns)], 1);
        add(&self.sum_ns, ns);
    }

    fn buckets(&self) -> &Buckets {
        match self.buckets.get() {
            Some(buckets) => buckets,
            None => self.make_buckets(),
        }
    }

    /// Makes the buckets, unless another thread does so at the same moment.
    #[cold]
    fn make_buckets(&self) -> &Buckets {
        // Allocated before it is published, so that no thread waits for an allocation of another one.
        let buckets = Box::new([const { AtomicU64::new(0) }; BUCKETS]);
        self.buckets.get_or_init(|| buckets)
    }

    /// A copy of the counts. Spans recorded meanwhile may or may not be in it.
    pub fn snapshot(&self) -> Snapshot {
        let mut s = Snapshot::empty();
        for (to, from) in s.buckets.iter_mut().zip(self.buckets.get().into_iter().flat_map(|all| all.iter()))
        {
            *to = from.load(Relaxed);
        }
        s.sum_ns = self.sum_ns.load(Relaxed);
        s
    }
}

impl std::fmt::Debug for Histogram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let s = self.snapshot();
        write!(f, "Histogram {{ count: {}, p99: {:?} ns }}", s.count(), s.quantile_ns(0.99))
    }
}

impl Snapshot {
    /// No spans.
    pub fn empty() -> Self {
        Self { buckets: Box::new([0; BUCKETS]), sum_ns: 0 }
    }

    /// Returns the number of recorded spans.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The span that a fraction `q` (0 to 1) of all spans do not exceed, in nanoseconds; `None` when empty.
    pub fn quantile_ns(&self, q: f64) -> Option<u64> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let rank = ((count as f64 * q).ceil() as u64).clamp(1, count);
        let mut seen_count = 0;
        for (index, n) in self.buckets.iter().enumerate() {
            seen_count += n;
            if seen_count >= rank {
                return Some(upper_bound(index));
            }
        }
        None
    }

    /// Returns the number of spans of at most `ns`, rounded up to a bucket's bound.
    pub fn count_at_most(&self, ns: u64) -> u64 {
        self.buckets[..=bucket_of(ns)].iter().sum()
    }

    /// For each of `bounds`, in nanoseconds and growing, how many spans were at most so long. One walk over the buckets.
    pub fn cumulative<const N: usize>(&self, bounds: &[u64; N]) -> [u64; N] {
        let mut at = 0;
        let mut seen_count = 0;
        bounds.map(|bound| {
            let end = bucket_of(bound);
            while at <= end {
                seen_count += self.buckets[at];
                at += 1;
            }
            seen_count
        })
    }

    /// Adds the spans of `other`.
    pub fn merge(&mut self, other: &Snapshot) {
        for (to, from) in self.buckets.iter_mut().zip(other.buckets.iter()) {
            *to += from;
        }
        self.sum_ns += other.sum_ns;
    }

    /// The spans recorded after `earlier`, an older snapshot of the same histogram.
    pub fn since(&self, earlier: &Snapshot) -> Snapshot {
        let mut s = self.clone();
        for (to, from) in s.buckets.iter_mut().zip(earlier.buckets.iter()) {
            *to = to.saturating_sub(*from);
        }
        s.sum_ns = s.sum_ns.saturating_sub(earlier.sum_ns);
        s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_falls_into_the_bucket_that_bounds_it() {
        for ns in (0..4096).chain((12..=MAX_POW).flat_map(|p| [(1u64 << p) - 1, 1 << p, (1 << p) + 1])) {
            let index = bucket_of(ns);
            assert!(upper_bound(index) >= ns, "{ns}");
            assert!(index == 0 || upper_bound(index - 1) < ns, "{ns}");
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_at_most_an_eighth_too_high() {
        let h = Histogram::new();
        for ns in 1..=100_000u64 {
            h.record_ns(ns);
        }
        let s = h.snapshot();
        assert_eq!(s.count(), 100_000);
        for (q, expected) in [(0.5, 50_000u64), (0.99, 99_000), (0.999, 99_900), (1.0, 100_000)] {
            let got = s.quantile_ns(q).unwrap();
            assert!(got >= expected && got <= expected + expected / 8, "{q}: {got}");
        }
    }

    #[test]
    fn snapshots_merge_and_subtract() {
        let h = Histogram::new();
        h.record_ns(10);
        let first = h.snapshot();
        h.record_ns(1_000_000);
        let second = h.snapshot();
        let delta = second.since(&first);
        assert_eq!((delta.count(), delta.sum_ns), (1, 1_000_000));
        assert_eq!(second.cumulative(&[5, 10, 999, 2_000_000]), [0, 1, 1, 2]);
        for ns in [5, 10, 999, 2_000_000] {
            assert_eq!(second.cumulative(&[ns]), [second.count_at_most(ns)], "{ns}");
        }
        let mut merged = first.clone();
        merged.merge(&delta);
        assert_eq!(merged, second);
        assert_eq!(Snapshot::empty().quantile_ns(0.5), None);
    }
}
