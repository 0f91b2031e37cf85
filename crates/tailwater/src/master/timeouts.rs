//! Longest times that the master waits for a worker process.

use std::time::Duration;

use crate::worker::SHUTDOWN_TIMEOUT;

/// Longest time to load a configuration. A large one needs a second.
pub(super) const LOAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest time to end after the limit. The process writes its logs to the end.
pub(super) const STOP_TIMEOUT: Duration = SHUTDOWN_TIMEOUT.saturating_add(Duration::from_secs(1));
