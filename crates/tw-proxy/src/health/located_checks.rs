//! Health checks of the groups of HTTP: where they stand in the configuration, and the loop that makes them.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use tw_connect::Resolving;
use tw_connect::health::{CheckFailure, GroupChecks};
use tw_connect::upstream_names::UpstreamNames;
use tw_core::event_loop::LoopShare;
use tw_disk::Pool;
use tw_log::ErrorLog;
use tw_upstream::{Group, HealthCheckParams, Peer, Rng};

use super::probe::probe;
use super::{CheckProtocol, HealthCheckGroup};
use tw_request::config::upstream::run_checks;
use tw_request::event_loop::Loop;
use tw_request::generation::LoopGeneration;

/// Makes the checks of the loop's generation: those of the groups that are this loop's. Never ends by itself.
pub async fn run(event_loop: Rc<Loop>) {
    let generation = event_loop.generation();
    let loops = generation.process.main.worker_count().max(1);
    let all = generation.parts.get::<Vec<HealthCheckGroup>>().unwrap_or_default();
    let checks = |group: &Group| {
        let is_of_group = |checks: &HealthCheckGroup| std::ptr::eq(&*checks.group.peers, group);
        let at = all.iter().position(is_of_group)?;
        let event_loop = event_loop.clone();
        let generation = generation.clone();
        let all = all.clone();
        Some(LocatedChecks { event_loop, generation, all, at })
    };
    let objects = &generation.process.shared_objects;
    let share = LoopShare { index: event_loop.index, loops };
    run_checks(objects, generation.id, share, checks).await;
}

/// Checks of one group.
#[derive(Clone)]
struct LocatedChecks {
    event_loop: Rc<Loop>,
    generation: Rc<LoopGeneration>,
    /// Checked groups of the generation.
    all: Arc<Vec<HealthCheckGroup>>,
    /// Index among the checked groups of the generation.
    at: usize,
}

impl LocatedChecks {
    fn checks(&self) -> &HealthCheckGroup {
        &self.all[self.at]
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
        let HealthCheckGroup { group, tests } = self.checks();
        group.resolving.as_ref().unwrap_or_else(|| {
            let plan = tests.first().map(|test| self.generation.plan(test.plan));
            &plan.expect("a group with checks has one").core.resolving
        })
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
        self.checks().tests.iter().map(|test| test.check.params).collect()
    }

    async fn probe(&self, nth: usize, peer: &Arc<Peer>) -> Result<(), CheckFailure> {
        probe(&self.event_loop, &self.checks().tests[nth], peer).await
    }

    fn criteria_name(&self, nth: usize) -> &str {
        match &self.checks().tests[nth].check.protocol {
            CheckProtocol::Request { criteria: Some(criteria), .. } => criteria.name(),
            CheckProtocol::Request { criteria: None, .. }
            | CheckProtocol::Grpc(_)
            | CheckProtocol::Connect => "",
        }
    }

    fn error_log(&self, nth: usize) -> &ErrorLog {
        &self.generation.plan(self.checks().tests[nth].plan).core.error_log
    }
}
