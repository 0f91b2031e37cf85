//! Health checks of the groups of auth servers: where they stand in the configuration, and the loop that makes them.
//!
//! ```text
//! run ─► tw_connect::health: one task for each group, on one loop
//!         └─► probe: one check, a task of its own ─► connect, ask for a page, read the status
//! ```
//! A check uses the settings of one server for its auth server: TLS, the host, and the fields of `auth_http_header`.

mod probe;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use tw_connect::Resolving;
use tw_connect::health::{self, CheckFailure, GroupChecks};
use tw_connect::upstream_names::UpstreamNames;
use tw_core::event_loop::LoopShare;
use tw_disk::Pool;
use tw_log::ErrorLog;
use tw_upstream::{Group, HealthCheckParams, Peer, Rng};

use crate::client::Client;
use crate::config::{HealthCheckGroup, LoopGeneration, Server, ServerHealthCheck};
use crate::mail_loop::MailLoop;
use crate::protocol::Mail;
use crate::session::MailSession;

/// Makes the checks of the loop's generation: those of the groups that are this loop's. Never ends by itself.
pub(crate) async fn run(event_loop: Rc<MailLoop>) {
    let generation = event_loop.generation();
    let loops = generation.process.main.worker_count().max(1);
    let checks = |group: &Group| {
        let is_of_group = |checks: &HealthCheckGroup| std::ptr::eq(&*checks.group.peers, group);
        let at = generation.health_checks.iter().position(is_of_group)?;
        Some(LocatedChecks { event_loop: event_loop.clone(), generation: generation.clone(), at })
    };
    let objects = &generation.process.shared_objects;
    let share = LoopShare { index: event_loop.index, loops };
    health::run::<Mail, _>(objects, generation.id, share, checks).await;
}

/// Checks of one group.
#[derive(Clone)]
struct LocatedChecks {
    event_loop: Rc<MailLoop>,
    generation: Rc<LoopGeneration>,
    /// Index among the checked groups of the generation.
    at: usize,
}

#[expect(clippy::indexing_slicing, reason = "the indices are those of checks of this generation")]
impl LocatedChecks {
    fn group(&self) -> &HealthCheckGroup {
        &self.generation.health_checks[self.at]
    }

    fn check(&self, nth: usize) -> &ServerHealthCheck {
        &self.group().checks[nth]
    }

    fn server(&self, nth: usize) -> &Server {
        self.generation.server(self.check(nth).server)
    }
}

impl GroupChecks for LocatedChecks {
    fn peers(&self) -> &Arc<Group> {
        &self.group().group.peers
    }

    fn names(&self) -> &UpstreamNames {
        &self.group().group.names
    }

    fn resolving(&self) -> &Resolving {
        let own = self.group().group.resolving.as_ref();
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
        self.group().checks.iter().map(|located| located.check.params).collect()
    }

    async fn probe(&self, nth: usize, peer: &Arc<Peer>) -> Result<(), CheckFailure> {
        let ServerHealthCheck { server, check } = self.check(nth);
        let client = Client::internal(self.event_loop.clone(), self.generation.clone(), *server);
        probe::probe(&MailSession::internal(client), check, peer.addr()).await
    }

    /// Empty: checks of `mail` have no conditions with a name.
    fn criteria_name(&self, _: usize) -> &str {
        ""
    }

    fn error_log(&self, nth: usize) -> &ErrorLog {
        &self.server(nth).settings.error_log
    }
}
