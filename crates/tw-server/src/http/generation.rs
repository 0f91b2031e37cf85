//! Everything one configuration makes: immutable, shared by all loops, replaced as a whole.

use std::collections::HashMap;
use std::sync::Arc;

use tw_conf::Span;
use tw_net::{Addr, ListenOptions};

use super::plan::Plan;
use super::route::{Locations, ServerNames};
use crate::core::location::TempPath;
use crate::core::main::MainSettings;
use crate::core::server::ServerSettings;
use crate::load::Kept;
use crate::log::{Logs, SharedErrorLog};
use crate::pools::Disks;
use crate::reach::Reach;
use crate::vars::Slots;

/// Index of a server in its configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ServerId(pub u32);

/// Index of a plan in its configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PlanId(pub u32);

/// Whether steps are worth a look at the logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DebugLines {
    /// No log takes them.
    Never,
    /// Some log does, or those of some clients.
    Perhaps,
}

/// A loaded configuration: nothing in it is open or running.
pub struct Config {
    /// Settings of the process.
    pub main: MainSettings,
    /// All plans.
    pub plans: Box<[Plan]>,
    /// All servers.
    pub servers: Box<[Server]>,
    /// Listening addresses.
    pub listens: Vec<ListenGroup>,
    /// Slots of the request's variables.
    pub slots: Slots,
    /// Logs to open.
    pub logs: Logs,
    /// `error_log` of `main`.
    pub error_log: SharedErrorLog,
    /// Whether some log takes debug lines.
    pub debug_lines: DebugLines,
    /// Directories to make.
    pub temp_paths: Vec<Arc<TempPath>>,
    /// What requests make the process open, change and connect to.
    pub reach: Reach,
    /// Name of this host: `$hostname`.
    pub hostname: Box<[u8]>,
    /// What modules keep for the process.
    pub kept: Kept,
}

/// A configuration that is live: its logs are open and its pools run.
pub struct Generation {
    /// Number of this generation, from 1.
    pub id: u64,
    /// What was loaded.
    pub config: Config,
    /// Thread pools.
    pub disks: Disks,
}

/// One `server { }`.
pub struct Server {
    /// Its core settings.
    pub settings: Arc<ServerSettings>,
    /// The plan for requests that no location takes.
    pub plan: PlanId,
    /// Its locations.
    pub locations: Locations,
    /// Its named locations.
    pub named: HashMap<Box<[u8]>, PlanId>,
    /// Where it is written.
    pub span: Option<Span>,
}

/// A listening address and its servers.
pub struct ListenGroup {
    /// The address.
    pub address: Addr,
    /// Socket options.
    pub options: ListenOptions,
    /// Who gave the socket options and `default_server`.
    pub(crate) given: Given,
    /// Whose socket its connections come by.
    pub socket: SocketOf,
    /// `proxy_protocol`
    pub proxy_protocol: bool,
    /// Servers by name.
    pub names: ServerNames,
    /// The server for hosts that no name matches.
    pub default_server: ServerId,
    /// All servers of the address.
    pub members: Vec<ServerId>,
}

/// Sockets of addresses with the same port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketOf {
    /// It has a socket, for itself alone.
    Itself,
    /// It has a socket, which takes the connections to other addresses, too: `*:80` beside `127.0.0.1:80`.
    Several,
    /// It has none: another one's takes its connections.
    Another,
}

/// What was said about a listening address so far.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Given {
    pub(crate) options: bool,
    pub(crate) default_server: bool,
}

impl std::ops::Deref for Generation {
    type Target = Config;

    fn deref(&self) -> &Config {
        &self.config
    }
}

impl Config {
    /// A plan by its index.
    pub fn plan(&self, id: PlanId) -> &Plan {
        &self.plans[id.0 as usize]
    }

    /// A server by its index.
    pub fn server(&self, id: ServerId) -> &Server {
        &self.servers[id.0 as usize]
    }
}
