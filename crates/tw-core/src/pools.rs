//! Thread pools by name, and the ways to use them.

use std::collections::HashMap;

use tw_conf::{ConfError, Node, units};
use tw_disk::{Aio, DEFAULT_MAX_QUEUE, DEFAULT_NAME, DEFAULT_THREADS, Disk, Pool, PoolSize};

// DIFF(nginx): a device has a share of a pool and a queue of its own, and one that hangs is given up.
/// `thread_pool NAME threads=N [max_queue=M] [device_threads=K] [device_timeout=T]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolSettings {
    /// Name of the pool.
    pub name: Box<str>,
    /// Threads, queue, and what one device gets of them.
    pub size: PoolSize,
    /// Position in the configuration; `None` for the pool that exists without being named.
    pub span: Option<tw_conf::Span>,
}

/// Index of the pool `default`.
pub const DEFAULT: usize = 0;

tw_base::limits! {
    /// Limits of pools.
    pub(crate) const LIMITS;

    /// Jobs at work in one pool.
    parameter "thread_pool", "threads=", "32", "further jobs wait";
    /// Jobs that wait for a thread of one pool, for each device.
    parameter "thread_pool", "max_queue=", "65536", "503 with Retry-After; the error log says so";
    /// Threads of one pool that work for one device.
    parameter "thread_pool", "device_threads=", "half of the threads, rounded up",
        "further jobs for the device wait in its queue; other devices have the other threads";
    /// Time that an operation may make no progress before its device is taken to hang.
    parameter "thread_pool", "device_timeout=", "10s",
        "its thread is replaced; whoever waits for the device gets 503 with Retry-After, or what the origin server answers; the \
        error log says so";
}

impl PoolSettings {
    /// The pool that `aio threads` uses.
    pub fn default_pool() -> Self {
        Self {
            name: DEFAULT_NAME.into(),
            size: PoolSize::new(DEFAULT_THREADS, DEFAULT_MAX_QUEUE),
            span: None,
        }
    }

    /// Reads a `thread_pool` directive.
    pub fn parse(node: &Node) -> Result<Self, ConfError> {
        let name = node.arg(0)?;
        let mut threads = None;
        let mut size = PoolSize::new(DEFAULT_THREADS, DEFAULT_MAX_QUEUE);
        let count = |value| units::number(value).and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0);
        for word in &node.args[1..] {
            let invalid = |what: &str| node.fail(format!("invalid {what} value \"{word}\""));
            if let Some(value) = word.param("threads") {
                threads = Some(count(value).ok_or_else(|| invalid("threads"))?);
            } else if let Some(value) = word.param("max_queue") {
                size.max_queue = units::number(value)
                    .and_then(|n| usize::try_from(n).ok())
                    .ok_or_else(|| invalid("max_queue"))?;
            } else if let Some(value) = word.param("device_threads") {
                size.device_threads = Some(count(value).ok_or_else(|| invalid("device_threads"))?);
            } else if let Some(value) = word.param("device_timeout") {
                size.device_timeout = units::msec(value)
                    .filter(|timeout| !timeout.is_zero())
                    .ok_or_else(|| invalid("device_timeout"))?;
            } else {
                return Err(node.invalid_parameter(word));
            }
        }
        let name: Box<str> = name.lossy().into();
        size.threads = match (threads, &*name) {
            (Some(threads), _) => threads,
            (None, DEFAULT_NAME) => DEFAULT_THREADS,
            (None, _) => {
                return Err(node.fail(format!("missing \"threads\" parameter in thread pool \"{name}\"")));
            }
        };
        if size.device_threads.is_some_and(|most| most > size.threads) {
            return Err(
                node.fail(format!("thread pool \"{name}\" has fewer threads than \"device_threads\""))
            );
        }
        Ok(Self { name, size, span: Some(node.span) })
    }
}

/// Way of doing file operations that would wait for the disk (`aio`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskMode {
    /// The loop itself waits.
    Off,
    /// A thread of a pool does.
    Threads,
    /// Files are read by io_uring, the rest is done by threads.
    Uring,
}

/// Use of io_uring for reading files (`aio on`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum UringUse {
    /// Nowhere: none is started.
    #[default]
    Unused,
    /// Somewhere.
    Used,
}

/// The disks of one generation: each pool in each mode.
pub struct Disks {
    pools: Vec<[Disk; 3]>,
    names: HashMap<Box<str>, usize>,
}

impl Disks {
    /// Handles for the pools, in the order of the configuration.
    pub fn new(pools: impl IntoIterator<Item = Pool>, ring: UringUse) -> Self {
        let mut disks = Self { pools: Vec::new(), names: HashMap::new() };
        for pool in pools {
            let index = disks.pools.len();
            disks.names.insert(pool.name().into(), index);
            let disk = Disk::new(pool, Aio::Off);
            let ring = if ring == UringUse::Used && index == DEFAULT { Aio::Uring } else { Aio::Threads };
            let threads = disk.with_aio(Aio::Threads);
            let ring = disk.with_aio(ring);
            disks.pools.push([disk, threads, ring]);
        }
        disks
    }

    /// The index of the pool of this name.
    pub fn pool_index(&self, name: &[u8]) -> Option<usize> {
        self.names.get(std::str::from_utf8(name).ok()?).copied()
    }

    /// A pool, used in this way.
    pub fn get(&self, pool: usize, mode: DiskMode) -> Option<&Disk> {
        self.pools.get(pool)?.get(mode as usize)
    }

    /// The disk of the pool `default` with threads, for work that belongs to no location.
    pub fn default_disk(&self) -> &Disk {
        &self.pools[DEFAULT][DiskMode::Threads as usize]
    }

    /// Every pool once.
    pub fn pools(&self) -> impl Iterator<Item = &Disk> {
        self.pools.iter().map(|modes| &modes[DiskMode::Threads as usize])
    }
}
