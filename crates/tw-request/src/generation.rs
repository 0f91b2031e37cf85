//! Configuration of HTTP, beside the part that every protocol shares.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;

use tw_accept::listen::{AddressServers, VirtualServer};
use tw_conf::Span;
use tw_core::config_thread::{FreeInSteps, yield_if_due};
use tw_core::generation::ProtocolConfig;
use tw_core::server_names::{ServerNames, WrittenNames};
use tw_http::HeadLimits;
use tw_net::listen::SocketKind;
use tw_quic::TransportConfig;
use tw_tls_settings::{Ssl, WatchedCertificate};

use crate::config::directories::Directory;
use crate::config::listen::Listen;
use crate::config::location::TempPath;
use crate::config::memory::Memory;
use crate::config::server::ServerSettings;
use crate::config::upstream::UpstreamGroup;
pub use crate::ids::{PlanId, ServerId};
use crate::plan::Plan;
pub use crate::protocol::{Generation, GenerationRef, LoopGeneration};
use crate::request::{Parts, Request};
use crate::route::Locations;
use crate::vars::Slots;

/// A loaded configuration: nothing in it is open or running.
pub type Config = ProtocolConfig<HttpConfig>;

/// The part of a configuration that only HTTP has.
pub struct HttpConfig {
    /// Sizes of caches in memory.
    pub memory: Memory,
    /// All plans.
    pub plans: Box<[Plan]>,
    /// All servers.
    pub servers: Box<[Server]>,
    /// The groups of all `upstream` blocks.
    pub upstreams: Box<[Arc<UpstreamGroup>]>,
    /// The servers of each listening address.
    pub groups: Vec<ListenGroup>,
    /// Parts of modules.
    pub parts: Parts,
    /// Slots of the request's variables.
    pub slots: Slots,
    /// Directories to make.
    pub temp_paths: Vec<Arc<TempPath>>,
    /// Directories with their purpose and the places that name them.
    pub directories: Vec<Directory>,
    /// True if a plan has `request_timeout`: then every request has a deadline, which may be unlimited.
    pub has_request_timeouts: bool,
    /// Certificates that come by themselves.
    pub acme: Arc<tw_acme::AcmeConfig>,
}

/// Protocols that a server speaks besides HTTP/1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServedProtocols {
    /// `http2`
    pub http2: bool,
    /// `http3`
    pub http3: bool,
    /// `http3_hq`: HTTP/0.9 over QUIC.
    pub hq: bool,
}

/// One `server { }`.
pub struct Server {
    /// Core settings.
    pub settings: Arc<ServerSettings>,
    /// Limits of request heads in HTTP/1.
    pub head: HeadLimits,
    /// TLS with its name.
    pub ssl: Arc<Ssl<Request>>,
    /// Protocols besides HTTP/1.
    pub protocols: ServedProtocols,
    /// Transport of connections over QUIC.
    pub quic: TransportConfig,
    /// Settings of the protocols, and of its automatic certificate.
    pub parts: Parts,
    /// The plan for requests that no location takes.
    pub plan: PlanId,
    /// Locations.
    pub locations: Locations,
    /// Named locations.
    pub named: HashMap<Box<[u8]>, PlanId>,
    /// Place of the directive.
    pub span: Span,
}

impl VirtualServer for Server {
    type Session = Request;
    type Listen = Listen;

    fn listens(&self) -> &[Listen] {
        &self.settings.listens
    }

    fn names(&self) -> WrittenNames<'_> {
        let ServerSettings { names, name_spans: spans, .. } = &*self.settings;
        WrittenNames { names, spans, server: Some(self.span) }
    }

    fn ssl(&self) -> &Ssl<Request> {
        &self.ssl
    }
}

/// The servers of a listening address.
pub struct ListenGroup {
    /// The part that every protocol has.
    pub servers: AddressServers<ServerId>,
    /// `listen … http2`: every server of it speaks HTTP/2.
    pub http2: bool,
    /// Servers by name.
    pub names: ServerNames<ServerId>,
}

impl Deref for ListenGroup {
    type Target = AddressServers<ServerId>;

    fn deref(&self) -> &Self::Target {
        &self.servers
    }
}

impl ListenGroup {
    /// `listen … quic`
    pub fn is_quic(&self) -> bool {
        self.kind == SocketKind::Datagram
    }

    /// Returns true if a server speaks HTTP/2 with clients of this address.
    pub fn speaks_http2(&self, server: &Server) -> bool {
        self.http2 || server.protocols.http2
    }
}

impl FreeInSteps for HttpConfig {
    fn free(self) {
        for plan in self.plans {
            drop(plan);
            yield_if_due();
        }
        for server in self.servers {
            drop(server);
            yield_if_due();
        }
    }
}

impl HttpConfig {
    /// A plan by its index.
    pub fn plan(&self, id: PlanId) -> &Plan {
        &self.plans[id.0 as usize]
    }

    /// Certificates whose files are watched.
    pub fn watched(&self) -> impl Iterator<Item = &Arc<WatchedCertificate>> {
        self.servers.iter().flat_map(|server| server.ssl.tls.iter().flat_map(|tls| tls.watched()))
    }

    /// A server by its index.
    pub fn server(&self, id: ServerId) -> &Server {
        &self.servers[id.0 as usize]
    }
}
