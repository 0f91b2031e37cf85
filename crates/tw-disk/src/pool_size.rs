//! Size of a thread pool, and the defaults of the directive `thread_pool`.

use std::time::Duration;

/// Name of the pool that exists without a directive.
pub const DEFAULT_NAME: &str = "default";
/// Number of threads of the default pool.
pub const DEFAULT_THREADS: u32 = 32;
/// Maximum number of jobs that may wait in the default pool for one device.
pub const DEFAULT_MAX_QUEUE: usize = 65_536;
/// Time for which an operation may make no progress before its device is given up.
pub const DEFAULT_DEVICE_TIMEOUT: Duration = Duration::from_secs(10);

/// Size of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSize {
    /// Threads (at least 1).
    pub threads: u32,
    /// Jobs that may wait for each device; with 0, only as many jobs as threads are accepted.
    pub max_queue: usize,
    /// Threads that one device may occupy; half of them without a number.
    pub device_threads: Option<u32>,
    /// Time for which an operation may make no progress before its device is given up.
    pub device_timeout: Duration,
}

impl PoolSize {
    /// Without anything special for devices.
    pub const fn new(threads: u32, max_queue: usize) -> Self {
        Self { threads, max_queue, device_threads: None, device_timeout: DEFAULT_DEVICE_TIMEOUT }
    }

    /// Number of threads that one device may occupy.
    pub fn device_share(&self) -> u32 {
        let threads = self.threads.max(1);
        self.device_threads.unwrap_or(threads.div_ceil(2)).clamp(1, threads)
    }
}
