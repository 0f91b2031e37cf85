//! Thread pool that computes signatures of handshakes.

use tw_core::pools::{DiskMode, Disks, PoolSettings};
use tw_disk::{Pool, PoolSize};

/// Name of the pool that signs by default.
pub const POOL: &str = "tls";
/// Most threads of the pool; more would not sign faster.
const POOL_THREADS_MAX: u32 = 64;
/// Most jobs that wait for the pool. At 0.3 ms each, clients give up before it is their turn.
const POOL_QUEUE_MAX: usize = 4096;

/// Thread pool for signatures that take longer than a turn of a loop may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignPool {
    /// Pool [`POOL`].
    Default,
    /// Pool of this index.
    Named(usize),
    /// None: the loop signs.
    Off,
}

impl SignPool {
    /// Returns the pool; `None` if the loop signs.
    pub fn of(self, disks: &Disks) -> Option<Pool> {
        match self {
            Self::Default => Some(default_pool(disks)),
            Self::Named(pool) => {
                Some(disks.get(pool, DiskMode::Threads).unwrap_or(disks.default_disk()).pool().clone())
            }
            Self::Off => None,
        }
    }
}

/// Pool [`POOL`].
pub fn default_pool(disks: &Disks) -> Pool {
    let named = disks.pool_index(POOL.as_bytes()).and_then(|pool| disks.get(pool, DiskMode::Threads));
    named.unwrap_or(disks.default_disk()).pool().clone()
}

/// Settings of the pool [`POOL`] for `loops` event loops, unless it is configured: as many threads as loops, with which they
/// take turns.
pub fn pool_settings(loops: usize) -> PoolSettings {
    let threads = u32::try_from(loops).unwrap_or(u32::MAX).clamp(1, POOL_THREADS_MAX);
    PoolSettings { name: POOL.into(), size: PoolSize::new(threads, POOL_QUEUE_MAX), span: None }
}
