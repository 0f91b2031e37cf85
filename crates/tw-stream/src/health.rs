//! Health checks of the groups of `stream`: where they stand in the configuration, and the loop that makes them (nginx:
//! ngx_stream_upstream_hc_module, of its commercial edition).
//!
//! ```text
//! run ─► tw_connect::health: one task for each group, on one loop
//!         └─► probe: one check, a task of its own ─► connect, send, read until the conditions hold
//! ```

mod probe;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tw_connect::health::{self, CheckFailure, GroupChecks};
use tw_connect::upstream_names::UpstreamNames;
use tw_connect::{Resolving, UpstreamGroup};
use tw_core::regex::{Match, Regex};
use tw_disk::Pool;
use tw_log::ErrorLog;
pub use tw_upstream::HealthCheckParams;
use tw_upstream::{Group, Peer, Rng};

use crate::application::StreamLoop;
use crate::client::Client;
use crate::config::{LoopGeneration, Server, ServerId};
use crate::protocol::Stream;
use crate::proxy::ProxySettings;
use crate::session::StreamSession;

tw_base::limits! {
    /// Limits of checks, for the module that has their directives.
    pub const LIMITS;

    /// Bytes of an answer to a health check of `stream`.
    const ANSWER_MAX: usize = 64 << 10, bytes, "the check has failed";
    /// Time for the answer to a health check of `stream`.
    directive "health_check_timeout", "the check has failed";
}

/// `health_check` of one server.
pub struct HealthCheck {
    /// Intervals and thresholds.
    pub params: HealthCheckParams,
    /// Transport of the check.
    pub transport: CheckTransport,
    /// `health_check_timeout`
    pub timeout: Duration,
    /// `port=`: where checks go, if not to the port of the server.
    pub port: Option<u16>,
    /// `match=`; without it, a connection suffices.
    pub criteria: Option<Arc<HealthCriteria>>,
    /// Servers that are checked.
    pub target: CheckTarget,
}

/// Transport of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckTransport {
    /// A TCP connection.
    Tcp,
    /// Datagrams (`udp`).
    Udp,
}

/// Destination of the sessions of a server whose peers can be checked.
#[derive(Clone)]
pub struct CheckTarget {
    /// The group.
    pub group: Arc<UpstreamGroup<Stream>>,
    /// Settings of the connections.
    pub proxy: Arc<ProxySettings>,
}

/// Conditions of a `match` block.
pub struct HealthCriteria {
    /// Name of the block.
    pub name: Box<str>,
    /// Bytes that are sent first.
    pub send: Option<Bytes>,
    /// Condition on the bytes that come.
    pub expect: Option<Expectation>,
}

/// Condition on an answer.
pub enum Expectation {
    /// The answer begins with these bytes.
    Prefix(Box<[u8]>),
    /// The answer, as far as it has come, matches.
    Pattern(Regex),
}

/// State of an answer of which a part has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AnswerState {
    /// The answer is as expected.
    Matches,
    /// The answer differs, whatever follows.
    Differs,
    /// The bytes that follow decide.
    Open,
}

impl Expectation {
    /// Looks at the bytes that have come so far.
    fn state(&self, answer: &[u8]) -> AnswerState {
        match self {
            Self::Prefix(prefix) if answer.starts_with(prefix) => AnswerState::Matches,
            Self::Prefix(prefix) if prefix.starts_with(answer) => AnswerState::Open,
            Self::Prefix(_) => AnswerState::Differs,
            // A match that was given up is none.
            Self::Pattern(regex) if regex.is_match(answer) == Ok(Match::Yes) => AnswerState::Matches,
            Self::Pattern(_) => AnswerState::Open,
        }
    }
}

/// The health checks of one group.
pub(crate) struct HealthCheckGroup {
    group: Arc<UpstreamGroup<Stream>>,
    /// Checks; each peer must pass all of them.
    checks: Vec<(ServerId, Arc<HealthCheck>)>,
}

impl HealthCheckGroup {
    /// The health checks of a configuration.
    pub(crate) fn gather(servers: &[Server]) -> Arc<[Self]> {
        let mut all: Vec<Self> = Vec::new();
        for (at, server) in servers.iter().enumerate() {
            let Some(check) = &server.plan.health_check else { continue };
            let group = &check.target.group;
            let check = (ServerId(at as u32), check.clone());
            match all.iter_mut().find(|checks| Arc::ptr_eq(&checks.group, group)) {
                Some(checks) => checks.checks.push(check),
                None => all.push(Self { group: group.clone(), checks: vec![check] }),
            }
        }
        all.into()
    }
}

/// Makes the checks of the loop's generation: those of the groups that are this loop's. Never ends by itself.
pub(crate) async fn run(event_loop: Rc<StreamLoop>) {
    let generation = event_loop.generation();
    let loops = generation.process.main.worker_count().max(1);
    let checks = |group: &Group| {
        let is_of_group = |checks: &HealthCheckGroup| std::ptr::eq(&*checks.group.peers, group);
        let at = generation.health_checks.iter().position(is_of_group)?;
        Some(LocatedChecks { event_loop: event_loop.clone(), generation: generation.clone(), at })
    };
    let objects = &generation.process.shared_objects;
    health::run::<Stream, _>(objects, generation.id, (event_loop.index, loops), checks).await;
}

/// Checks of one group.
#[derive(Clone)]
struct LocatedChecks {
    event_loop: Rc<StreamLoop>,
    generation: Rc<LoopGeneration>,
    /// Index among the checked groups of the generation.
    at: usize,
}

impl LocatedChecks {
    fn checks(&self) -> &HealthCheckGroup {
        &self.generation.health_checks[self.at]
    }

    fn server(&self, nth: usize) -> &Server {
        self.generation.server(self.checks().checks[nth].0)
    }
}

impl GroupChecks for LocatedChecks {
    fn peers(&self) -> &Arc<Group> {
        &self.checks().group.peers
    }

    fn names(&self) -> &UpstreamNames {
        &self.checks().group.names
    }

    fn resolving(&self) -> &Resolving {
        let own = self.checks().group.resolving.as_ref();
        own.unwrap_or_else(|| &self.server(0).settings.resolving)
    }

    fn pool(&self) -> &Pool {
        self.generation.disks.default_disk().pool()
    }

    fn random(&self) -> &RefCell<Rng> {
        &self.event_loop.upstreams.random
    }

    fn generation(&self) -> u64 {
        self.generation.id
    }

    fn params(&self) -> Vec<HealthCheckParams> {
        self.checks().checks.iter().map(|(_, check)| check.params).collect()
    }

    async fn probe(&self, nth: usize, peer: &Arc<Peer>) -> Result<(), CheckFailure> {
        let (server, check) = &self.checks().checks[nth];
        let client = Client::internal(self.event_loop.clone(), self.generation.clone(), *server);
        probe::probe(&StreamSession::internal(client), check, peer.addr()).await
    }

    fn criteria_name(&self, nth: usize) -> &str {
        self.checks().checks[nth].1.criteria.as_ref().map_or("", |criteria| &criteria.name)
    }

    fn error_log(&self, nth: usize) -> &ErrorLog {
        &self.server(nth).settings.error_log
    }
}

#[cfg(test)]
mod tests {
    use tw_core::regex::Caseless;

    use super::*;

    #[test]
    fn answers_match_as_they_arrive() {
        use AnswerState::{Differs, Matches, Open};
        let prefix = Expectation::Prefix(b"220 ".as_slice().into());
        let pattern = Expectation::Pattern(Regex::new(b"200 OK", Caseless::No).unwrap());
        for (answer, by_prefix, by_pattern) in [
            ("", Open, Open),
            ("22", Open, Open),
            ("220 mail", Matches, Open),
            ("500", Differs, Open),
            ("HTTP/1.1 200 OK\r\n", Differs, Matches),
        ] {
            assert_eq!(prefix.state(answer.as_bytes()), by_prefix, "{answer}");
            assert_eq!(pattern.state(answer.as_bytes()), by_pattern, "{answer}");
        }
    }
}
