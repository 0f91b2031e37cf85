//! Thread pools by name, and which one a location uses.

use std::collections::HashMap;
use tw_base::Limit;

use tw_conf::{ConfError, Node, Word};
use tw_disk::{Aio, Disk, Pool};

use crate::http::plan::Plan;
use crate::http::request::Request;
use crate::load::Resolve;
use crate::vars::Template;

/// `thread_pool NAME threads=N [max_queue=M]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolSettings {
    /// Name of the pool.
    pub name: Box<str>,
    /// Number of threads.
    pub threads: u32,
    /// Tasks that may wait; 0 allows only as many tasks as there are threads.
    pub max_queue: usize,
    /// Where it is written; `None` for the pool that exists without being named.
    pub span: Option<tw_conf::Span>,
}

/// Index of the pool `default`.
const DEFAULT: usize = 0;
/// Threads of the pool `default`, as in nginx.
pub const DEFAULT_THREADS: u32 = 32;
/// Tasks that may wait for the pool `default`, as in nginx.
pub const DEFAULT_MAX_QUEUE: usize = 65536;

pub(crate) const LIMITS: &[Limit] = &[
    Limit::parameter("thread_pool", "threads=", "32", "Jobs at work in one pool", "further jobs wait"),
    Limit::parameter(
        "thread_pool",
        "max_queue=",
        "65536",
        "Jobs that wait for a thread of one pool",
        "503 with Retry-After; the error log says so",
    ),
];

impl PoolSettings {
    /// The pool that `aio threads` uses.
    pub fn default_pool() -> Self {
        Self { name: "default".into(), threads: DEFAULT_THREADS, max_queue: DEFAULT_MAX_QUEUE, span: None }
    }

    /// Reads a `thread_pool` directive.
    pub fn parse(node: &Node) -> Result<Self, ConfError> {
        let name = node.arg(0)?;
        let mut threads = None;
        let mut max_queue = DEFAULT_MAX_QUEUE;
        for word in &node.args[1..] {
            if let Some(value) = word.param("threads") {
                let count =
                    tw_conf::units::number(value).and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0);
                threads = Some(count.ok_or_else(|| node.fail(format!("invalid threads value \"{word}\"")))?);
            } else if let Some(value) = word.param("max_queue") {
                max_queue = tw_conf::units::number(value)
                    .and_then(|n| usize::try_from(n).ok())
                    .ok_or_else(|| node.fail(format!("invalid max_queue value \"{word}\"")))?;
            } else {
                return Err(node.invalid_parameter(word));
            }
        }
        let name: Box<str> = name.lossy().into();
        let threads = match (threads, &*name) {
            (Some(threads), _) => threads,
            (None, "default") => DEFAULT_THREADS,
            (None, _) => {
                return Err(node.fail(format!("missing \"threads\" parameter in thread pool \"{name}\"")));
            }
        };
        Ok(Self { name, threads, max_queue, span: Some(node.span) })
    }
}

/// `aio`: how a location's file operations wait.
#[derive(Clone)]
pub struct PoolRef {
    mode: Mode,
    pool: Choice,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Off,
    Threads,
    Uring,
}

#[derive(Clone)]
enum Choice {
    Fixed(usize),
    Named(Template),
}

impl PoolRef {
    /// `aio threads`: the pool `default`.
    pub const DEFAULT: Self = Self { mode: Mode::Threads, pool: Choice::Fixed(DEFAULT) };

    /// Whether the loop itself waits (`aio off`).
    pub(crate) fn waits_inline(&self) -> bool {
        self.mode == Mode::Off
    }

    /// Whether files are read by io_uring (`aio on`).
    pub fn uses_ring(&self) -> bool {
        self.mode == Mode::Uring
    }

    /// Reads the argument of `aio`.
    pub fn parse(word: &Word, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let mode = match &*word.bytes {
            b"off" => Mode::Off,
            b"on" => Mode::Uring,
            b"threads" => Mode::Threads,
            bytes => match bytes.strip_prefix(b"threads=") {
                Some(name) if !name.is_empty() => {
                    let name = cx.template_text(name, Some(word.span))?;
                    let pool = match name.constant() {
                        Some(name) => Choice::Fixed(cx.pool(name, word.span)?),
                        None => Choice::Named(name),
                    };
                    return Ok(Self { mode: Mode::Threads, pool });
                }
                _ => return Err(ConfError::new("invalid value in \"aio\" directive").at(word.span)),
            },
        };
        Ok(Self { mode, pool: Choice::Fixed(DEFAULT) })
    }
}

/// The disks of one generation: each pool in each mode.
pub struct Disks {
    pools: Vec<[Disk; 3]>,
    names: HashMap<Box<str>, usize>,
}

impl Disks {
    /// Handles for the pools, in the order of the configuration. A ring is started for `aio on` only.
    pub fn new(pools: impl IntoIterator<Item = Pool>, plans: &[Plan]) -> Self {
        let uses_ring = plans.iter().any(|plan| plan.core.files.aio.uses_ring());
        let mut disks = Self { pools: Vec::new(), names: HashMap::new() };
        for pool in pools {
            let index = disks.pools.len();
            disks.names.insert(pool.name().into(), index);
            let disk = |aio| Disk::new(pool.clone(), aio);
            let ring = if uses_ring && index == DEFAULT { Aio::Uring } else { Aio::Threads };
            disks.pools.push([disk(Aio::Off), disk(Aio::Threads), disk(ring)]);
        }
        disks
    }

    /// The disk a location uses for `r`; `None` when a name made of variables is not that of a pool.
    pub fn of(&self, choice: &PoolRef, r: &Request) -> Option<&Disk> {
        let index = match &choice.pool {
            Choice::Fixed(index) => *index,
            Choice::Named(name) => {
                let name = name.value(r);
                *self.names.get(std::str::from_utf8(&name).ok()?)?
            }
        };
        self.pools.get(index)?.get(choice.mode as usize)
    }

    /// The disk of the pool `default` with threads, for work that belongs to no location.
    pub fn default_disk(&self) -> &Disk {
        &self.pools[DEFAULT][Mode::Threads as usize]
    }

    /// Every pool once.
    pub fn pools(&self) -> impl Iterator<Item = &Disk> {
        self.pools.iter().map(|modes| &modes[Mode::Threads as usize])
    }
}
