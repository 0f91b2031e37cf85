//! Number of requests of one loop that run beside others.

use std::cell::Cell;

/// Background requests of one loop.
#[derive(Default)]
pub struct BackgroundCount {
    /// Requests that run.
    pub running: Cell<u32>,
    /// Second of the last log line about too many of them.
    pub warned_at: Cell<i64>,
}
