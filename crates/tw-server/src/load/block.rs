//! Where a block stands that is being resolved, and what its modules ask of that.

use std::collections::HashMap;
use std::sync::Arc;

use crate::core::acme::Gathered;
use crate::core::location::{Resolving, TempPath};
use crate::core::server::ServerSettings;
use crate::http::gateway::Group;
use crate::http::gateway::health::Passing;
use crate::http::route::{Pattern, ServerName};

/// The block of `http` that is being resolved.
#[derive(Default)]
pub struct Block {
    pub(super) location: Option<Pattern>,
    pub(super) nameless: bool,
    pub(super) server: Option<Arc<ServerSettings>>,
    pub(super) temp_paths: Vec<Arc<TempPath>>,
    /// The name of the `upstream` that is being resolved.
    pub(crate) upstream: Option<Arc<str>>,
    /// The groups of servers that are written, by name.
    pub(crate) upstreams: Arc<HashMap<Box<str>, Arc<Group>>>,
    /// How they ask for names, unless they say so themselves: as `http` says.
    pub(crate) resolving: Option<Resolving>,
    /// Those that URLs have made.
    pub(crate) implicit: HashMap<Box<str>, Arc<Group>>,
    /// Whether connections to upstream servers may be secured somewhere.
    pub(crate) secures_upstreams: bool,
    /// Certificates that come by themselves.
    pub(crate) acme: Gathered,
    /// Whether somewhere in the server CONNECT is answered.
    pub opens_tunnels: bool,
    /// Where requests go from here, as the module says that passes them on.
    pub passing: Passing,
}

impl Block {
    /// The names of the server that is being resolved, or whose block is.
    pub fn server_names(&self) -> &[ServerName] {
        self.server.as_ref().map(|server| &*server.names).unwrap_or_default()
    }

    /// The location that is being resolved; `None` at `http` and `server`.
    pub fn location(&self) -> Option<&Pattern> {
        self.location.as_ref()
    }

    /// The groups of servers by the names of their `upstream` blocks.
    pub fn upstreams(&self) -> &Arc<HashMap<Box<str>, Arc<Group>>> {
        &self.upstreams
    }

    /// Whether the block is an `if` or a `limit_except`, which is a part of its location.
    pub fn is_nameless(&self) -> bool {
        self.nameless
    }

    /// Remembers a directory for temporary files, to be made when the configuration goes live.
    pub fn temp_path(&mut self, path: TempPath) -> Arc<TempPath> {
        if let Some(known) = self.temp_paths.iter().find(|known| ***known == path) {
            return known.clone();
        }
        let path = Arc::new(path);
        self.temp_paths.push(path.clone());
        path
    }
}
