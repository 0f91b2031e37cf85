//! `aio`: how the file operations of a location wait.

use tw_conf::{ConfError, Word};
use tw_core::pools::{DEFAULT, DiskMode, Disks};
use tw_disk::Disk;

use crate::protocol::{Resolve, Session};
use crate::vars::Template;

/// `aio`: how a location's file operations wait.
#[derive(Clone)]
pub struct PoolRef {
    mode: DiskMode,
    pool: Choice,
}

#[derive(Clone)]
enum Choice {
    /// Nothing is said.
    Usual,
    Fixed(usize),
    Named(Template),
}

impl PoolRef {
    /// As `aio threads`: the pool `default`, if nobody knows better.
    pub const DEFAULT: Self = Self { mode: DiskMode::Threads, pool: Choice::Usual };

    /// Returns true if the location names no pool.
    pub fn is_usual(&self) -> bool {
        matches!(self.pool, Choice::Usual)
    }

    /// Returns true if the loop itself waits for the disk (`aio off`).
    pub fn waits_inline(&self) -> bool {
        self.mode == DiskMode::Off
    }

    /// Returns true if files are read by io_uring (`aio on`).
    pub fn uses_ring(&self) -> bool {
        self.mode == DiskMode::Uring
    }

    /// Reads the argument of `aio`.
    pub fn parse(word: &Word, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let mode = match &*word.bytes {
            b"off" => DiskMode::Off,
            b"on" => DiskMode::Uring,
            b"threads" => DiskMode::Threads,
            bytes => match bytes.strip_prefix(b"threads=") {
                Some(name) if !name.is_empty() => {
                    let name = cx.template_text(name, Some(word.span))?;
                    let pool = match name.constant() {
                        Some(name) => Choice::Fixed(cx.pool(name, word.span)?),
                        None => Choice::Named(name),
                    };
                    return Ok(Self { mode: DiskMode::Threads, pool });
                }
                _ => return Err(ConfError::new("invalid value in \"aio\" directive").at(word.span)),
            },
        };
        Ok(Self { mode, pool: Choice::Fixed(DEFAULT) })
    }

    /// The disk for `r`; `None` when a name made of variables is not that of a pool.
    pub fn disk<'d>(&self, disks: &'d Disks, r: &Session) -> Option<&'d Disk> {
        let pool = match &self.pool {
            Choice::Usual => DEFAULT,
            Choice::Fixed(pool) => *pool,
            Choice::Named(name) => disks.pool_index(&name.value(r))?,
        };
        disks.get(pool, self.mode)
    }
}
