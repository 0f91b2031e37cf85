//! A counter that many threads may add to and anyone may read.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A monotonically growing count. Adding is one relaxed atomic operation; reads see a recent value.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// A counter at zero.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds `n`; wraps after 2^64.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    /// Takes `n` off: for counts that are levels (queue length, open connections).
    pub fn sub(&self, n: u64) {
        self.0.fetch_sub(n, Relaxed);
    }

    /// The value now.
    pub fn value(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_up_and_down() {
        let c = Counter::new();
        c.add(5);
        c.sub(2);
        assert_eq!(c.value(), 3);
    }
}
