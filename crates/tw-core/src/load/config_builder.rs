//! Assembly of a [`Config`] from its parts, after all blocks have been resolved.

use std::collections::HashSet;
use std::sync::Arc;

use tw_conf::{ConfError, Diagnostics, Sources};
use tw_disk::Locks;

use super::Mistakes;
use crate::generation::{Config, DebugLines, ListenAddress, share_sockets};
use crate::log::{Logs, SharedErrorLog};
use crate::metrics::MetricsTable;
use crate::pools::{PoolSettings, UringUse};
use crate::process::MainSettings;
use crate::reach::Reach;
use crate::shared_objects::SharedObjects;

/// A configuration whose blocks are resolved.
pub struct ConfigBuilder<'a> {
    /// Settings of the process.
    pub main: MainSettings,
    /// Receiver of warnings.
    pub diagnostics: &'a mut Diagnostics,
    /// The texts of the configuration.
    pub sources: &'a Sources,
    pub(super) logs: Logs,
    pub(super) error_log: SharedErrorLog,
    pub(super) metrics: Arc<MetricsTable>,
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
    /// Parts of two protocols. The files that are locked or cached in memory are those of the first. That both listen on one address is a
    /// mistake.
    pub fn join(mut self, other: Self, mistakes: &mut Mistakes) -> Self {
        let key = |listen: &ListenAddress| (listen.address.clone(), listen.options.kind);
        let own: HashSet<_> = self.listens.iter().map(key).collect();
        for twice in other.listens.iter().filter(|listen| own.contains(&key(listen))) {
            let error = ConfError::new(format!("duplicate \"{}\" address and port pair", twice.address))
                .hint("another protocol listens there already");
            mistakes.add_later(match twice.span {
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
        self
    }
}

impl ConfigBuilder<'_> {
    /// The part of the configuration that is not a protocol's. It is a mistake if the sandbox would forbid what the configuration asks
    /// for.
    pub(super) fn build(mut self, made: ProtocolParts, mistakes: &mut Mistakes) -> Config {
        let ProtocolParts { mut listens, reach, ring, pools, is_secured, locks, lock_max, hot_files_size } =
            made;
        let configured = |pool: &PoolSettings| self.main.pools.iter().any(|other| other.name == pool.name);
        let pools: Vec<_> = pools.into_iter().filter(|pool| !configured(pool)).collect();
        self.main.pools.extend(pools);
        share_sockets(&mut listens);
        if let Err(error) = reach.check(self.main.sandbox, self.diagnostics) {
            mistakes.add_later(error);
        }
        let has_debug = self.logs.has_debug() || !self.main.debug_connections.is_empty();
        Config {
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
            metrics: self.metrics,
            shared_objects: self.shared_objects,
        }
    }
}
