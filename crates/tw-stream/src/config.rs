//! Configuration of `stream`, beside the parts that every protocol has.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;

use tw_accept::listen::AddressServers;
use tw_accept::ssl::{Ssl, WatchedCertificate};
use tw_conf::Span;
use tw_connect::UpstreamGroup;
use tw_core::config_thread::yield_if_due;
use tw_core::generation::{Configuration, ProcessConfig};
use tw_core::server_names::ServerNames;
use tw_core::vars::Slots;
use tw_net::Addr;
use tw_net::listen::SocketKind;

use crate::health::HealthCheckGroup;
use crate::plan::Plan;
use crate::protocol::Stream;
use crate::server::ServerSettings;
use crate::session::StreamSession;

/// A configuration that is live.
pub type Generation = tw_core::generation::Generation<Config>;
/// One that loops use.
pub type GenerationRef = tw_core::config_thread::GenerationRef<Generation>;
/// One as a loop holds it.
pub type LoopGeneration = tw_core::generation::LoopGeneration<Config>;

/// Index of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerId(pub(crate) u32);

/// A loaded configuration: nothing in it is open or running.
pub struct Config {
    pub(crate) process: ProcessConfig,
    /// All servers.
    pub(crate) servers: Box<[Server]>,
    /// The groups of all `upstream` blocks.
    pub(crate) upstreams: Box<[Arc<UpstreamGroup<Stream>>]>,
    /// Health checks by group.
    pub(crate) health_checks: Arc<[HealthCheckGroup]>,
    pub(crate) listening: Listening,
    pub(crate) slots: Slots<StreamSession>,
}

/// One `server { }`.
pub struct Server {
    /// Core settings.
    pub settings: Arc<ServerSettings>,
    /// TLS of its sessions.
    pub ssl: Arc<Ssl<StreamSession>>,
    /// Handlers of its sessions.
    pub plan: Plan,
    /// Place of the directive.
    pub(crate) span: Span,
}

/// The servers of a listening address.
pub(crate) struct AddressGroup {
    /// The part that every protocol has.
    pub(crate) servers: AddressServers<ServerId>,
    /// Servers by name.
    pub(crate) names: ServerNames<ServerId>,
}

/// Servers by listening address: a range of ports may be thousands of them.
pub(crate) struct Listening {
    groups: Vec<AddressGroup>,
    by_address: HashMap<(Addr, SocketKind), usize>,
}

impl Listening {
    pub(crate) fn new(groups: Vec<AddressGroup>) -> Self {
        let key = |servers: &AddressServers<ServerId>| (servers.address.clone(), servers.kind);
        let by_address = groups.iter().enumerate().map(|(at, group)| (key(&group.servers), at)).collect();
        Self { groups, by_address }
    }

    /// All addresses of sockets of this kind, in the order of the configuration.
    pub(crate) fn addresses(&self, kind: SocketKind) -> impl Iterator<Item = &Addr> + Clone {
        let servers = self.groups.iter().map(|group| &group.servers);
        servers.filter(move |servers| servers.kind == kind).map(|servers| &servers.address)
    }

    /// The servers of an address; `None` if `stream` does not listen there.
    pub(crate) fn find(&self, address: &Addr, kind: SocketKind) -> Option<&AddressGroup> {
        self.groups.get(*self.by_address.get(&(address.clone(), kind))?)
    }
}

impl Deref for Config {
    type Target = tw_core::generation::Config;

    fn deref(&self) -> &Self::Target {
        &self.process
    }
}

impl Configuration for Config {
    fn process(&self) -> &ProcessConfig {
        &self.process
    }

    fn free(self) {
        for server in self.servers {
            drop(server);
            yield_if_due();
        }
    }
}

impl Config {
    /// Certificates whose files are watched.
    pub fn watched(&self) -> impl Iterator<Item = &Arc<WatchedCertificate>> {
        self.servers.iter().flat_map(|server| server.ssl.tls.iter().flat_map(|tls| tls.watched()))
    }

    /// A server by its index.
    pub fn server(&self, id: ServerId) -> &Server {
        &self.servers[id.0 as usize]
    }
}
