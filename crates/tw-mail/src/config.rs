//! Configuration of `mail`, beside the part that every protocol shares.

use std::collections::HashMap;
use std::sync::Arc;

use tw_accept::listen::{AddressServers, Listen, VirtualServer};
use tw_conf::Span;
use tw_connect::UpstreamGroup;
use tw_connect::health::CheckedGroup;
use tw_core::config_thread::{FreeInSteps, yield_if_due};
use tw_core::generation::ProtocolConfig;
pub use tw_core::server_names::ServerId;
use tw_core::server_names::WrittenNames;
use tw_core::vars::Slots;
use tw_net::Addr;
use tw_tls_settings::{Ssl, WatchedCertificate};

use crate::auth_http::settings::{AuthHttp, AuthTarget};
use crate::dialogue::{MailProtocol, StartTls};
use crate::health_check::HealthCheck;
use crate::login_delay::LoginDelay;
use crate::plan::Plan;
use crate::protocol::{Mail, SessionOfMail};
use crate::settings::protocols::ProtocolSettings;
use crate::settings::server::ServerSettings;
use crate::upstream::settings::MailProxy;

/// A configuration that is live.
pub type Generation = tw_core::generation::Generation<Config>;
/// One that loops use.
pub type GenerationRef = tw_core::config_thread::GenerationRef<Generation>;
/// One as a loop holds it.
pub type LoopGeneration = tw_core::generation::LoopGeneration<Config>;

/// A loaded configuration: nothing in it is open or running.
pub type Config = ProtocolConfig<MailConfig>;

/// The part of a configuration that only `mail` has.
pub struct MailConfig {
    /// All servers.
    pub(crate) servers: Box<[Server]>,
    /// The groups of all `upstream` blocks.
    pub(crate) upstreams: Box<[Arc<UpstreamGroup<Mail>>]>,
    /// Health checks by group.
    pub(crate) health_checks: Box<[HealthCheckGroup]>,
    pub(crate) listening: Listening,
    pub(crate) slots: Slots<SessionOfMail>,
}

/// One `server { }`.
pub struct Server {
    /// Core settings.
    pub settings: Arc<ServerSettings>,
    /// Protocol.
    pub protocol: MailProtocol,
    /// Settings of that protocol.
    pub dialogue: ProtocolSettings,
    /// `smtp_greeting_delay`
    pub greeting_delay: std::time::Duration,
    /// `starttls`
    pub starttls: StartTls,
    /// TLS of its sessions.
    pub ssl: Arc<Ssl<SessionOfMail>>,
    /// Authentication.
    pub auth_http: Arc<AuthHttp>,
    /// Mail servers.
    pub proxy: Arc<MailProxy>,
    /// Pause after refused logins.
    pub login_delay: Arc<LoginDelay>,
    /// Handlers of its sessions.
    pub plan: Plan,
    /// Place of the directive.
    pub(crate) span: Span,
}

impl VirtualServer for Server {
    type Session = SessionOfMail;
    type Listen = Listen;

    fn listens(&self) -> &[Listen] {
        &self.settings.listens
    }

    fn names(&self) -> WrittenNames<'_> {
        WrittenNames { names: &[], spans: &[], server: Some(self.span) }
    }

    fn ssl(&self) -> &Ssl<SessionOfMail> {
        &self.ssl
    }
}

/// Servers by listening address.
pub(crate) struct Listening {
    groups: Vec<AddressServers<ServerId>>,
    by_address: HashMap<Addr, usize>,
}

impl Listening {
    pub(crate) fn new(groups: Vec<AddressServers<ServerId>>) -> Self {
        let by_address = groups.iter().enumerate().map(|(at, group)| (group.address.clone(), at)).collect();
        Self { groups, by_address }
    }

    /// The server of an address; `None` if `mail` does not listen there.
    pub(crate) fn find(&self, address: &Addr) -> Option<&AddressServers<ServerId>> {
        self.groups.get(*self.by_address.get(address)?)
    }

    /// All addresses in the order of the configuration.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = &Addr> + Clone {
        self.groups.iter().map(|group| &group.address)
    }
}

impl FreeInSteps for MailConfig {
    fn free(self) {
        for server in self.servers {
            drop(server);
            yield_if_due();
        }
    }
}

impl MailConfig {
    /// Certificates whose files are watched.
    pub fn watched(&self) -> impl Iterator<Item = &Arc<WatchedCertificate>> {
        self.servers.iter().flat_map(|server| server.ssl.tls.iter().flat_map(|tls| tls.watched()))
    }

    /// A server by its index.
    #[expect(clippy::indexing_slicing, reason = "the index is that of a server of this configuration")]
    pub fn server(&self, id: ServerId) -> &Server {
        &self.servers[id.0 as usize]
    }
}

/// The health checks of one group.
pub(crate) type HealthCheckGroup = CheckedGroup<Mail, ServerHealthCheck>;

/// A health check, and the server in whose place the auth servers are checked.
pub(crate) struct ServerHealthCheck {
    pub(crate) server: ServerId,
    pub(crate) check: Arc<HealthCheck>,
}

/// The health checks of a configuration. Servers that inherit a check and ask the same auth server make it once.
pub(crate) fn health_checks(servers: &[Server]) -> Box<[HealthCheckGroup]> {
    let mut known_values: Vec<(&Arc<HealthCheck>, &AuthTarget)> = Vec::new();
    let mut checks = Vec::new();
    for (at, server) in servers.iter().enumerate() {
        let (Some(check), Some(target)) = (&server.plan.health_check, &server.auth_http.target) else {
            continue;
        };
        let is_same = |(other, to): &(&Arc<HealthCheck>, &AuthTarget)| {
            let has_same_servers =
                Arc::ptr_eq(&to.group, &target.group) && to.is_secured == target.is_secured;
            Arc::ptr_eq(other, check) && has_same_servers
        };
        if known_values.iter().any(is_same) {
            continue;
        }
        known_values.push((check, target));
        let located = ServerHealthCheck { server: ServerId(at as u32), check: check.clone() };
        checks.push((target.group.clone(), located));
    }
    CheckedGroup::gather(checks)
}
