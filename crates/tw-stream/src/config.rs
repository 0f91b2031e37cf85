//! Configuration of `stream`, beside the part that every protocol shares.

use std::sync::Arc;
use std::time::Duration;

use tw_accept::listen::{Listen, VirtualServer};
use tw_conf::Span;
use tw_connect::health::CheckedGroup;
use tw_connect::{Resolving, UpstreamGroup};
use tw_core::config_thread::{FreeInSteps, yield_if_due};
use tw_core::generation::ProtocolConfig;
use tw_core::log::{LogTags, SharedErrorLog};
pub use tw_core::server_names::ServerId;
use tw_core::server_names::{ServerName, WrittenNames};
use tw_core::vars::Slots;
use tw_tls_settings::{Ssl, WatchedCertificate};

use crate::listening::Listening;
use crate::plan::{GroupHealthCheck, Plan};
use crate::protocol::Stream;
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
    pub(crate) health_checks: Box<[HealthCheckGroup]>,
    pub(crate) listening: Listening,
    pub(crate) slots: Slots<StreamSession>,
}

/// Settings of one server.
pub struct ServerSettings {
    /// Addresses on which its sessions begin.
    pub listens: Vec<Listen>,
    /// `server_name`, as they are looked up: the empty name if there is none, for clients that name none.
    pub names: Vec<ServerName>,
    /// The first `server_name`, for `$server_name`.
    pub name: Box<[u8]>,
    /// Places of the [`names`](Self::names); fewer if one is not written.
    pub name_spans: Vec<Span>,
    /// `error_log`
    pub error_log: SharedErrorLog,
    /// `error_log_tag`
    pub error_log_tags: LogTags<StreamSession>,
    /// Name resolution while sessions are served.
    pub resolving: Resolving,
    /// `tcp_nodelay`
    pub tcp_nodelay: bool,
    /// `proxy_protocol_timeout`
    pub proxy_protocol_timeout: Duration,
    /// `preread_buffer_size`, bytes.
    pub preread_buffer_size: usize,
    /// `preread_timeout`
    pub preread_timeout: Duration,
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

/// The health checks of one group.
pub(crate) type HealthCheckGroup = CheckedGroup<Stream, ServerHealthCheck>;

/// The health checks of a configuration.
pub(crate) fn health_checks(servers: &[Server]) -> Box<[HealthCheckGroup]> {
    CheckedGroup::gather(servers.iter().enumerate().filter_map(|(at, server)| {
        let check = server.plan.health_check.clone()?;
        Some((check.group().clone(), ServerHealthCheck { server: ServerId(at as u32), check }))
    }))
}

/// Health check of one server.
pub(crate) struct ServerHealthCheck {
    /// Server in whose place the group is checked.
    pub(crate) server: ServerId,
    /// The check.
    pub(crate) check: Arc<dyn GroupHealthCheck>,
}
