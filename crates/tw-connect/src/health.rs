//! Health checks: servers of a group are checked in turn, and get no sessions while they are unhealthy. The protocol of the
//! servers checks one peer ([`GroupChecks::probe`]); scheduling, thresholds and log lines are the same for all.
//!
//! ```text
//! run: one task for each group, on one loop ─► HealthChecker (tw-upstream): next peer that is due, effect of a result
//!                                         └──► probe: one check, a task of its own
//! ```

use std::cell::RefCell;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tw_core::event_loop::LoopShare;
use tw_core::shared_objects::SharedObjects;
use tw_disk::Pool;
use tw_log::{ErrorLog, Level};
use tw_rt::watch::Subject;
use tw_rt::{Deadline, TaskSet};
use tw_upstream::{CheckAction, Group, Health, HealthCheckParams, HealthChecker, Peer, Rng};

use crate::failure::AttemptFailure;
use crate::group::UpstreamGroup;
use crate::group_clock::now_ms;
use crate::protocol::ConnectingProtocol;
use crate::resolving::Resolving;
use crate::upstream_block::shared_groups;
use crate::upstream_names::{self, UpstreamNames};

/// Interval in which the peer list of a group is compared, and names are checked for expiry.
const LOOK: Duration = Duration::from_secs(1);

/// Health checks of one group by one generation of the configuration.
pub trait GroupChecks: Clone + 'static {
    /// Peers of the group.
    fn peers(&self) -> &Arc<Group>;

    /// Servers of the group that are given by name.
    fn names(&self) -> &UpstreamNames;

    /// Resolver of the names.
    fn resolving(&self) -> &Resolving;

    /// Pool for work that takes longer than a turn may.
    fn pool(&self) -> &Pool;

    /// Random numbers of the loop.
    fn random(&self) -> &RefCell<Rng>;

    /// Number of the generation.
    fn generation(&self) -> u64;

    /// Intervals and thresholds of the checks; each server must pass all of them.
    fn params(&self) -> Vec<HealthCheckParams>;

    /// Runs the check at index `nth` on `peer`.
    fn probe(&self, nth: usize, peer: &Arc<Peer>) -> impl Future<Output = Result<(), CheckFailure>>;

    /// Name of the conditions of the check at index `nth`, for log lines; empty if there are none.
    fn criteria_name(&self, nth: usize) -> &str;

    /// Error log of the check at index `nth`.
    fn error_log(&self, nth: usize) -> &ErrorLog;
}

/// Checks of one group that a configuration has; each peer must pass all of them.
pub struct CheckedGroup<P: ConnectingProtocol, C> {
    /// The group.
    pub group: Arc<UpstreamGroup<P>>,
    /// Checks, in the order of the configuration.
    pub checks: Vec<C>,
}

impl<P: ConnectingProtocol, C> CheckedGroup<P, C> {
    /// Puts the checks of each group together.
    pub fn gather(checks: impl IntoIterator<Item = (Arc<UpstreamGroup<P>>, C)>) -> Box<[Self]> {
        let mut all: Vec<Self> = Vec::new();
        for (group, check) in checks {
            match all.iter_mut().find(|checked| Arc::ptr_eq(&checked.group, &group)) {
                Some(checked) => checked.checks.push(check),
                None => all.push(Self { group, checks: vec![check] }),
            }
        }
        all.into()
    }
}

/// Reason why a check has failed.
#[derive(Debug)]
pub enum CheckFailure {
    /// There is no response.
    Upstream(AttemptFailure),
    /// The request cannot be written; the text says why.
    Request(String),
    /// The response is not as required; the text says why.
    Answer(String),
}

impl fmt::Display for CheckFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Upstream(failure) => failure.fmt(f),
            Self::Request(what) | Self::Answer(what) => f.write_str(what),
        }
    }
}

/// Runs the checks of the groups of a generation that are in the `share` of a loop. `checks` finds those of a group; one without is not
/// checked any more. Ends if a task of one of them panics.
pub async fn run<P: ConnectingProtocol, C: GroupChecks>(
    objects: &SharedObjects,
    generation: u64,
    share: LoopShare,
    checks: impl Fn(&Group) -> Option<C>,
) {
    let mut own = Vec::new();
    for (nth, group) in shared_groups::<P>(objects).enumerate() {
        if !share.has(nth) {
            continue;
        }
        match checks(group) {
            None => group.disable_checks(generation, now_ms()),
            Some(checks) => own.push((nth as u64, checks)),
        }
    }
    let mut groups = TaskSet::default();
    for (id, checks) in own {
        groups.spawn((), Subject { kind: "health checks", id }, check_group(checks));
    }
    // A panic of one of these tasks ends this one, and the loop then starts all of them again.
    while let ((), Ok(())) = poll_fn(|cx| groups.poll_ended(cx)).await {}
}

/// Checks the peers of one group, until another generation does.
async fn check_group(checks: impl GroupChecks) {
    let (peers, random) = (checks.peers(), checks.random());
    let mut checker =
        HealthChecker::new(&checks.params(), peers, checks.generation(), now_ms(), &mut random.borrow_mut());
    let mut running: TaskSet<(Arc<Peer>, usize), Result<(), CheckFailure>> = TaskSet::default();
    let mut timer = Deadline::new();
    loop {
        // Without addresses there is no peer to check; the requests log why there are none.
        let _ =
            upstream_names::ensure_addresses(checks.names(), peers, checks.resolving(), checks.pool()).await;
        let now = now_ms();
        checker.follow(&peers.list(), now, &mut random.borrow_mut());
        checker.take_hints(now);
        let due = loop {
            match checker.next(now, &mut random.borrow_mut()) {
                CheckAction::Check(peer, nth) => {
                    let subject = Subject { kind: "health check", id: peer.id().0.into() };
                    let (checks, key) = (checks.clone(), (peer.clone(), nth));
                    running.spawn(key, subject, async move { checks.probe(nth, &peer).await });
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
                    // The check failed locally, which says nothing about the peer.
                    Err(CheckFailure::Upstream(failure)) if failure.cause.is_local() => {
                        checker.give_up(peer.id(), nth);
                        None
                    }
                    outcome => checker.done(peer.id(), nth, outcome.is_ok(), now_ms()),
                };
                log_outcome(&checks, nth, &peer, &outcome, became);
            }
        }
    }
}

/// Writes what a peer has become, and why.
fn log_outcome(
    checks: &impl GroupChecks,
    nth: usize,
    peer: &Peer,
    outcome: &Result<(), CheckFailure>,
    became: Option<Health>,
) {
    let log = checks.error_log(nth);
    let level = match (became, outcome) {
        (Some(Health::Unhealthy), _) => Level::Error,
        (Some(Health::Healthy), _) => Level::Notice,
        (_, Err(_)) => Level::Info,
        (_, Ok(())) => Level::Debug,
    };
    if !log.enabled(level) {
        return;
    }
    let what = match became {
        Some(Health::Unhealthy) => "peer is unhealthy",
        Some(Health::Healthy) => "peer is healthy",
        _ if outcome.is_ok() => "health check passed",
        _ => "health check failed",
    };
    let of = format_args!(
        "health check \"{}\" of peer {peer} in upstream \"{}\"",
        checks.criteria_name(nth),
        checks.peers().name()
    );
    match outcome {
        Ok(()) => log.write(level, None, format_args!("{what}, {of}")),
        Err(why) => log.write(level, None, format_args!("{what}: {why}, {of}")),
    }
}
