//! Number of requests of one loop that run beside others.

use std::cell::Cell;

/// Background requests of one loop.
#[derive(Default)]
pub(crate) struct BackgroundCount {
    /// Requests that run.
    pub(crate) running: Cell<u32>,
    /// Second of the last log line about too many of them.
    pub(crate) warned_at: Cell<i64>,
}
