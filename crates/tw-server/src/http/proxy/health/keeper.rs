//! Schedules the checks: each group belongs to one loop, which has its `Checker`.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tw_connect::group::now_ms;
use tw_connect::upstream_names;
use tw_log::Level;
use tw_rt::watch::Subject;
use tw_rt::{Deadline, TaskSet};
use tw_upstream::{CheckAction, Health, HealthCheckParams, HealthChecker, Peer};

use super::probe::{CheckFailure, probe};
use super::{CheckProtocol, GroupChecks, PlacedCheck};
use crate::event_loop::Loop;
use crate::http::generation::LoopGeneration;

/// Interval in which the peer list of a group is compared, and names are checked for expiry.
const LOOK: Duration = Duration::from_secs(1);

/// Makes the checks of the loop's generation: those of the groups that are this loop's. Never ends by itself.
pub(crate) async fn run(home: Rc<Loop>) {
    let generation = home.generation();
    let loops = generation.main.worker_count().max(1);
    let mut groups = TaskSet::default();
    for (nth, (_, group)) in generation.shared_objects.of_type::<tw_upstream::Group>().into_iter().enumerate()
    {
        if nth % loops != home.index {
            continue;
        }
        let is_of_group = |checks: &GroupChecks| std::ptr::eq(&*checks.group.peers, group);
        match generation.health_checks.iter().position(is_of_group) {
            None => group.disable_checks(generation.id, now_ms()),
            Some(at) => {
                let subject = Subject { kind: "health checks", id: nth as u64 };
                groups.spawn((), subject, check_group(home.clone(), generation.clone(), at));
            }
        }
    }
    // One that has panicked is made again with the loop.
    while let ((), Ok(())) = poll_fn(|cx| groups.poll_ended(cx)).await {}
}

/// Checks the peers of one group, until another generation does.
async fn check_group(home: Rc<Loop>, generation: Rc<LoopGeneration>, at: usize) {
    let GroupChecks { group, tests } = &generation.health_checks[at];
    let resolving = group.resolving.as_ref().unwrap_or_else(|| {
        let plan = tests.first().map(|test| generation.plan(test.plan));
        &plan.expect("a group with checks has one").core.resolving
    });
    let params: Vec<HealthCheckParams> = tests.iter().map(|test| test.check.params).collect();
    let (random, pool) = (&home.app.upstreams.random, generation.disks.default_disk().pool());
    let mut checker =
        HealthChecker::new(&params, &group.peers, generation.id, now_ms(), &mut random.borrow_mut());
    let mut running: TaskSet<(Arc<Peer>, usize), Result<(), CheckFailure>> = TaskSet::default();
    let mut timer = Deadline::new();
    loop {
        // Without addresses there is nobody to check; requests tell why there are none.
        let _ = upstream_names::ensure_addresses(&group.names, &group.peers, resolving, pool).await;
        let now = now_ms();
        checker.follow(&group.peers.list(), now, &mut random.borrow_mut());
        let due = loop {
            match checker.next(now, &mut random.borrow_mut()) {
                CheckAction::Check(peer, nth) => {
                    let subject = Subject { kind: "health check", id: peer.id().0.into() };
                    let (home, generation) = (home.clone(), generation.clone());
                    let key = (peer.clone(), nth);
                    running.spawn(key, subject, async move {
                        probe(&home, &generation.health_checks[at].tests[nth], &peer).await
                    });
                }
                CheckAction::WaitUntil(due) => break Duration::from_millis(due.saturating_sub(now)),
                CheckAction::Wait => break LOOK,
                CheckAction::Stop => return,
            }
        };
        timer.set(due.min(LOOK));
        let ended = poll_fn(|cx| match running.poll_ended(cx) {
            Poll::Ready(ended) => Poll::Ready(Some(ended)),
            Poll::Pending => timer.poll_elapsed(cx).map(|()| None),
        });
        match ended.await {
            None => {}
            Some(((peer, nth), Err(_))) => checker.give_up(peer.id(), nth),
            Some(((peer, nth), Ok(outcome))) => {
                let became = match &outcome {
                    // The peer was not asked: that says nothing of it.
                    Err(CheckFailure::Upstream(failure)) if failure.cause.is_local() => {
                        checker.give_up(peer.id(), nth);
                        None
                    }
                    outcome => checker.done(peer.id(), nth, outcome.is_ok(), now_ms()),
                };
                log_outcome(&generation, &tests[nth], &peer, &outcome, became);
            }
        }
    }
}

/// Writes what a peer has become, and why.
fn log_outcome(
    generation: &LoopGeneration,
    test: &PlacedCheck,
    peer: &Peer,
    outcome: &Result<(), CheckFailure>,
    became: Option<Health>,
) {
    let log = &generation.plan(test.plan).core.error_log;
    let level = match (became, outcome) {
        (Some(Health::Unhealthy), _) => Level::Error,
        (Some(Health::Healthy), _) => Level::Notice,
        (_, Err(_)) => Level::Info,
        (_, Ok(())) => Level::Debug,
    };
    if !log.enabled(level) {
        return;
    }
    let name = match &test.check.how {
        CheckProtocol::Ask { criteria: Some(criteria), .. } => criteria.name(),
        CheckProtocol::Ask { criteria: None, .. } | CheckProtocol::Connect => "",
    };
    let what = match became {
        Some(Health::Unhealthy) => "peer is unhealthy",
        Some(Health::Healthy) => "peer is healthy",
        _ if outcome.is_ok() => "health check passed",
        _ => "health check failed",
    };
    let of = format_args!(
        "health check \"{name}\" of peer {peer} in upstream \"{}\"",
        test.check.of.group().peers.name()
    );
    match outcome {
        Ok(()) => log.write(level, None, format_args!("{what}, {of}")),
        Err(why) => log.write(level, None, format_args!("{what}: {why}, {of}")),
    }
}
