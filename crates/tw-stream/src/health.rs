//! Health checks of the groups of `stream`: where they stand in the configuration, and the loop that makes them (nginx:
//! ngx_stream_upstream_hc_module, of its commercial edition).
//!
//! ```text
//! run ─► tw_connect::health: one task for each group, on one loop
//!         └─► probe: one check, a task of its own ─► connect, send, read until the conditions hold
//! ```

mod check;
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
pub use tw_upstream::HealthCheckParams;
use tw_upstream::{Group, Peer, Rng};

use crate::application::StreamApplication;
use crate::client::Client;
use crate::config::{HealthCheckGroup, LoopGeneration, Server, ServerHealthCheck};
use crate::protocol::Stream;
use crate::session::StreamSession;
use crate::stream_loop::StreamLoop;

pub(crate) use check::LIMITS;
pub use check::{CheckTarget, CheckTransport, Expectation, HealthCheck, HealthCriteria};

/// Makes the checks of the loop's generation: those of the groups that are this loop's. Never ends by itself.
pub(crate) async fn run(application: Rc<StreamApplication>) {
    let event_loop = &application.event_loop;
    let generation = application.generation();
    let loops = generation.process.main.worker_count().max(1);
    let checks = |group: &Group| {
        let is_of_group = |checks: &HealthCheckGroup| std::ptr::eq(&*checks.group.peers, group);
        let at = generation.health_checks.iter().position(is_of_group)?;
        Some(LocatedChecks { event_loop: event_loop.clone(), generation: generation.clone(), at })
    };
    let objects = &generation.process.shared_objects;
    let share = LoopShare { index: event_loop.index, loops };
    health::run::<Stream, _>(objects, generation.id, share, checks).await;
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
        self.generation.server(self.checks().checks[nth].server)
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
        self.checks().checks.iter().map(|check| check.check.params()).collect()
    }

    async fn probe(&self, nth: usize, peer: &Arc<Peer>) -> Result<(), CheckFailure> {
        let ServerHealthCheck { server, check } = &self.checks().checks[nth];
        let client = Client::internal(self.event_loop.clone(), self.generation.clone(), *server);
        check.probe(&StreamSession::internal(client), peer.addr()).await
    }

    fn criteria_name(&self, nth: usize) -> &str {
        self.checks().checks[nth].check.criteria_name()
    }

    fn error_log(&self, nth: usize) -> &ErrorLog {
        &self.server(nth).settings.error_log
    }
}
