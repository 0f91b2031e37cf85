//! Time of day for the engine, which has no clock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use quinn_proto as engine;

/// Time of day, which tokens contain. It goes on with the time that callers name.
pub(crate) struct WallClock {
    start: Instant,
    unix: Duration,
    elapsed_secs: AtomicU64,
}

impl WallClock {
    /// `unix` is the time since 1970 at `start`.
    pub(crate) fn new(start: Instant, unix: Duration) -> Self {
        Self { start, unix, elapsed_secs: AtomicU64::new(0) }
    }

    pub(crate) fn set(&self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.start).as_secs();
        self.elapsed_secs.store(elapsed, Ordering::Relaxed);
    }
}

impl engine::TimeSource for WallClock {
    fn now(&self) -> SystemTime {
        let elapsed = Duration::from_secs(self.elapsed_secs.load(Ordering::Relaxed));
        SystemTime::UNIX_EPOCH + self.unix + elapsed
    }
}
