//! What every configuration is made of at last, whatever its protocols made of their blocks.

use tw_conf::{ConfError, Diagnostics, Sources};

use crate::generation::{Config, DebugLines, ListenAddress, share_sockets};
use crate::kept::Kept;
use crate::log::{Logs, SharedErrorLog};
use crate::pools::{PoolSettings, Ring};
use crate::process::MainSettings;
use crate::reach::Reach;

/// A configuration in which nothing is wrong with any block.
pub struct Process<'a> {
    /// Settings of the process.
    pub main: MainSettings,
    /// Where warnings go.
    pub diagnostics: &'a mut Diagnostics,
    /// The texts of the configuration.
    pub sources: &'a Sources,
    pub(super) logs: Logs,
    pub(super) error_log: SharedErrorLog,
    pub(super) kept: Kept,
    pub(super) hostname: &'a [u8],
}

/// What protocols made of their blocks, as far as the process has to know it.
pub struct Made {
    /// Listening addresses. Which of them share a socket is found out here.
    pub listens: Vec<ListenAddress>,
    /// What clients make the process open, change and connect to.
    pub reach: Reach,
    /// Whether files are read by io_uring somewhere.
    pub ring: Ring,
    /// Thread pools that are needed even if nobody has configured them.
    pub pools: Vec<PoolSettings>,
}

impl Process<'_> {
    /// The part of the configuration that is not a protocol's.
    ///
    /// # Errors
    /// The sandbox would forbid what the configuration asks for.
    pub fn with(mut self, made: Made) -> Result<Config, ConfError> {
        let Made { mut listens, reach, ring, pools } = made;
        let configured = |pool: &PoolSettings| self.main.pools.iter().any(|other| other.name == pool.name);
        let pools: Vec<_> = pools.into_iter().filter(|pool| !configured(pool)).collect();
        self.main.pools.extend(pools);
        share_sockets(&mut listens);
        reach.check(self.main.sandbox, self.diagnostics)?;
        let has_debug = self.logs.has_debug() || !self.main.debug_connections.is_empty();
        Ok(Config {
            main: self.main,
            listens,
            logs: self.logs,
            error_log: self.error_log,
            debug_lines: if has_debug { DebugLines::Perhaps } else { DebugLines::Never },
            ring,
            reach,
            hostname: self.hostname.into(),
            kept: self.kept,
        })
    }
}
