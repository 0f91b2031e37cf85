//! Periodic release of unused memory of a loop.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use tw_base::memory;

use crate::clock;

/// Interval.
const EVERY: Duration = Duration::from_secs(2);
/// Interval while little of a bound is left: what one load has freed is there for the next one.
const EVERY_LOW: Duration = Duration::from_millis(200);

thread_local! {
    static FREE: RefCell<Vec<fn()>> = const { RefCell::new(Vec::new()) };
}

/// Calls `free` on this thread at every [release](MemoryRelease), to free what the thread keeps for later use. Each
/// call adds a function, for good.
pub fn on_memory_release(free: fn()) {
    // When a thread ends, its memory is freed anyway.
    let _ = FREE.try_with(|all| all.borrow_mut().push(free));
}

/// Time of the last release.
#[derive(Debug, Clone, Copy)]
pub struct MemoryRelease(Instant);

impl Default for MemoryRelease {
    fn default() -> Self {
        Self(clock::now())
    }
}

impl MemoryRelease {
    /// Time between two releases.
    pub fn interval() -> Duration {
        if memory::is_low() { EVERY_LOW } else { EVERY }
    }

    /// Calls the registered functions and releases memory of this thread, if the last release was long enough ago.
    pub fn run_if_due(&mut self) {
        let now = clock::now();
        if now.saturating_duration_since(self.0) < Self::interval() {
            return;
        }
        self.0 = now;
        let all = FREE.with_borrow(Vec::clone);
        all.iter().for_each(|free| free());
        tw_sys::heap::release_unused();
    }
}
