//! Assembly of a [`Config`] from its parts, after all blocks have been resolved without errors.

use std::collections::HashSet;
use std::sync::Arc;

use tw_conf::{ConfError, Diagnostics, Sources};
use tw_disk::Locks;

use crate::generation::{Config, DebugLines, ListenAddress, share_sockets};
use crate::log::{Logs, SharedErrorLog};
use crate::pools::{PoolSettings, UringUse};
use crate::process::MainSettings;
use crate::reach::Reach;
use crate::shared_objects::SharedObjects;

/// A configuration in which nothing is wrong with any block.
pub struct ConfigBuilder<'a> {
    /// Settings of the process.
    pub main: MainSettings,
    /// Receiver of warnings.
    pub diagnostics: &'a mut Diagnostics,
    /// The texts of the configuration.
    pub sources: &'a Sources,
    pub(super) logs: Logs,
    pub(super) error_log: SharedErrorLog,
    pub(super) shared_objects: SharedObjects,
    pub(super) hostname: &'a [u8],
}

/// Parts that the protocols contribute to the process-wide configuration.
#[derive(Default)]
pub struct ProtocolParts {
    /// Listening addresses. Which of them share a socket is found out here.
    pub listens: Vec<ListenAddress>,
    /// Files and connections that requests need, for the sandbox.
    pub reach: Reach,
    /// Use of io_uring for reading files.
    pub ring: UringUse,
    /// Thread pools that are needed even if the configuration does not name them.
    pub pools: Vec<PoolSettings>,
    /// True if there are TLS handshakes, with clients or upstream servers.
    pub is_secured: bool,
    /// Files of the process that are locked in memory.
    pub locks: Arc<Locks>,
    /// Largest number of bytes of them: `hot_lock_size`, or 0 where no location sends files that way.
    pub lock_max: u64,
    /// Largest number of bytes of small files in memory, per loop.
    pub hot_files_size: usize,
}

impl ProtocolParts {
    /// Parts of two protocols. The files that are locked or cached in memory are those of the first.
    ///
    /// # Errors
    /// Both listen on one address.
    pub fn join(mut self, other: Self) -> Result<Self, ConfError> {
        let key = |listen: &ListenAddress| (listen.address.clone(), listen.options.kind);
        let own: HashSet<_> = self.listens.iter().map(key).collect();
        if let Some(twice) = other.listens.iter().find(|listen| own.contains(&key(listen))) {
            let error = ConfError::new(format!("duplicate \"{}\" address and port pair", twice.address))
                .hint("another protocol listens there already");
            return Err(match twice.span {
                Some(span) => error.at(span),
                None => error,
            });
        }
        self.listens.extend(other.listens);
        self.reach.join(other.reach);
        if other.ring == UringUse::Used {
            self.ring = UringUse::Used;
        }
        let is_new = |pool: &PoolSettings| self.pools.iter().all(|own| own.name != pool.name);
        let pools: Vec<_> = other.pools.into_iter().filter(is_new).collect();
        self.pools.extend(pools);
        self.is_secured |= other.is_secured;
        Ok(self)
    }
}

impl ConfigBuilder<'_> {
    /// The part of the configuration that is not a protocol's.
    ///
    /// # Errors
    /// The sandbox would forbid what the configuration asks for.
    pub(super) fn build(mut self, made: ProtocolParts) -> Result<Config, ConfError> {
        let ProtocolParts { mut listens, reach, ring, pools, is_secured, locks, lock_max, hot_files_size } =
            made;
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
            debug_lines: if has_debug { DebugLines::Possible } else { DebugLines::Never },
            ring,
            reach,
            is_secured,
            locks,
            lock_max,
            hot_files_size,
            hostname: self.hostname.into(),
            shared_objects: self.shared_objects,
        })
    }
}
