//! Configuration of `stream`, beside the part that every protocol shares.

use std::collections::HashMap;
use std::sync::Arc;

use tw_accept::listen::{AddressServers, Listen, VirtualServer};
use tw_conf::Span;
use tw_connect::UpstreamGroup;
use tw_core::config_thread::{FreeInSteps, yield_if_due};
use tw_core::generation::ProtocolConfig;
pub use tw_core::server_names::ServerId;
use tw_core::server_names::{ServerNames, WrittenNames};
use tw_core::vars::Slots;
use tw_net::Addr;
use tw_net::listen::SocketKind;
use tw_tls_settings::{Ssl, WatchedCertificate};

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

/// A loaded configuration: nothing in it is open or running.
pub type Config = ProtocolConfig<StreamConfig>;

/// The part of a configuration that only `stream` has.
pub struct StreamConfig {
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

impl VirtualServer for Server {
    type Session = StreamSession;
    type Listen = Listen;

    fn listens(&self) -> &[Listen] {
        &self.settings.listens
    }

    fn names(&self) -> WrittenNames<'_> {
        let ServerSettings { names, name_spans: spans, .. } = &*self.settings;
        WrittenNames { names, spans, server: Some(self.span) }
    }

    fn ssl(&self) -> &Ssl<StreamSession> {
        &self.ssl
    }
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

impl FreeInSteps for StreamConfig {
    fn free(self) {
        for server in self.servers {
            drop(server);
            yield_if_due();
        }
    }
}

impl StreamConfig {
    /// Certificates whose files are watched.
    pub fn watched(&self) -> impl Iterator<Item = &Arc<WatchedCertificate>> {
        self.servers.iter().flat_map(|server| server.ssl.tls.iter().flat_map(|tls| tls.watched()))
    }

    /// A server by its index.
    pub fn server(&self, id: ServerId) -> &Server {
        &self.servers[id.0 as usize]
    }
}
