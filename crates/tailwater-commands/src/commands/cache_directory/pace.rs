//! Limit of the bytes that a command reads in a second, for all its threads together.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Pace of reading.
#[derive(Debug)]
pub(super) struct Pace {
    /// Bytes per second.
    rate: Option<u64>,
    began: Instant,
    read: AtomicU64,
}

impl Pace {
    /// Creates a pace of so many bytes per second; none is as fast as the disk.
    pub(super) fn new(rate: Option<u64>) -> Self {
        Self { rate, began: Instant::now(), read: AtomicU64::new(0) }
    }

    /// Waits until so many more bytes may be read.
    pub(super) fn wait(&self, bytes: u64) {
        let before = self.read.fetch_add(bytes, Relaxed);
        let Some(rate) = self.rate else { return };
        let due = Duration::from_secs_f64(before as f64 / rate.max(1) as f64);
        let early = due.saturating_sub(self.began.elapsed());
        if !early.is_zero() {
            pause(early);
        }
    }

    /// Bytes so far.
    pub(super) fn bytes(&self) -> u64 {
        self.read.load(Relaxed)
    }
}

/// Waits: a command runs no loop.
#[expect(clippy::disallowed_methods, reason = "this process is a command, whose threads may wait")]
pub(super) fn pause(span: Duration) {
    std::thread::sleep(span);
}
