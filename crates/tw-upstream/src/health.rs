//! Schedule of health checks, and the health that follows from their results. The caller makes the checks: it asks
//! for the next action and reports results; nothing here waits or sends.
//!
//! ```text
//!            `fails` failures in a row
//! Healthy ─────────────────────────────► Unhealthy
//!    ▲  ◄─────────────────────────────      ▲
//!    │       `passes` passes in a row       │
//!    └── first passes ── Checking ── fails ─┘     (`mandatory`: new peers, and after a reload without `persistent`)
//! ```
//! A group may have several tests, each with such a state for each peer; the worst state applies.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tw_base::FatalMutex;

use crate::group::Group;
use crate::peer::{Peer, PeerId};
use crate::peer_list::PeerList;
use crate::peer_state::{Health, signed};
use crate::server::AdminState;
use tw_base::Rng;

/// Parameters of `health_check` about schedule and thresholds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthCheckParams {
    /// Time between the starts of two checks, in milliseconds.
    pub interval_ms: u64,
    /// Largest random delay of a check, in milliseconds.
    pub jitter_ms: u64,
    /// Failures in a row that make a peer unhealthy.
    pub fails: u32,
    /// Passes in a row that make a peer healthy.
    pub passes: u32,
    /// True if a peer has to pass its first check before it gets requests.
    pub mandatory: bool,
    /// True if `mandatory` is waived for a peer that was healthy before a reload.
    pub persistent: bool,
}

/// Health checks of one group. One loop owns it, for the term of its configuration.
#[derive(Debug)]
pub struct HealthChecker {
    /// Tests that each peer has to pass.
    tests: Box<[HealthCheckParams]>,
    term: Arc<FatalMutex<Term>>,
    own_term: Term,
    /// Number of the list of peers that was applied last.
    list: u64,
    pub(crate) peers: BTreeMap<PeerId, CheckedPeer>,
    /// Checks that are not in progress, by their time.
    pub(crate) due: BTreeSet<(u64, PeerId, usize)>,
}

/// Configuration whose checks count: an older one that still runs has no effect any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Term(u64);

/// Peer with the results of each test.
#[derive(Debug)]
pub(crate) struct CheckedPeer {
    pub(crate) peer: Arc<Peer>,
    tests: Vec<CheckResults>,
}

/// Results of one test for one peer.
#[derive(Clone, Copy, Debug)]
struct CheckResults {
    health: Health,
    /// Number of equal results in a row, up to the latest one.
    in_row: u32,
    has_passed: bool,
    /// Start of the next check, while one is in progress.
    next_ms: Option<u64>,
}

/// Next action of the caller.
#[derive(Clone, Debug)]
pub enum CheckAction {
    /// Check this peer with the test of this number, and report the result.
    Check(Arc<Peer>, usize),
    /// Wait until this time.
    WaitUntil(u64),
    /// Wait until a check in progress has ended or the list of peers has changed.
    Wait,
    /// Stop: the checks of another configuration count.
    Stop,
}

/// nginx's defaults.
impl Default for HealthCheckParams {
    fn default() -> Self {
        Self { interval_ms: 5000, jitter_ms: 0, fails: 1, passes: 1, mandatory: false, persistent: false }
    }
}

impl HealthChecker {
    /// Starts the checks of a group. `term` is the number of their configuration: a later one takes over, and one
    /// with the same number continues.
    pub fn new(tests: &[HealthCheckParams], group: &Group, term: u64, now: u64, rng: &mut Rng) -> Self {
        let mut checker = Self {
            tests: tests.into(),
            term: group.term.clone(),
            own_term: Term(term),
            list: 0,
            peers: BTreeMap::new(),
            due: BTreeSet::new(),
        };
        let mut held_term = group.term.lock();
        let begins = *held_term < checker.own_term;
        *held_term = checker.own_term.max(*held_term);
        if *held_term == checker.own_term {
            checker.take_in(&group.list(), begins, now, rng);
        }
        drop(held_term);
        checker
    }

    /// Applies changes of the list of peers. Cheap if there are none; call it before each [`next`](Self::next).
    pub fn follow(&mut self, list: &PeerList, now: u64, rng: &mut Rng) {
        if list.generation() == self.list {
            return;
        }
        let term = self.term.clone();
        let held_term = term.lock();
        if *held_term == self.own_term {
            self.take_in(list, true, now, rng);
        }
    }

    /// Checks the peers of `list`. `mandatory` tests have no result for a new peer with which it `begins`.
    fn take_in(&mut self, list: &PeerList, begins: bool, now: u64, rng: &mut Rng) {
        self.list = list.generation();
        let mut peers = BTreeMap::new();
        for peer in list.peers().filter(|peer| peer.params.admin != AdminState::Down) {
            let tests = match self.peers.remove(&peer.id) {
                Some(checked) => checked.tests,
                None => {
                    for (nth, test) in self.tests.iter().enumerate() {
                        self.due.insert((now + rng.below(test.jitter_ms + 1), peer.id, nth));
                    }
                    self.tests.iter().map(|test| CheckResults::first(test, peer, begins)).collect()
                }
            };
            let checked = CheckedPeer { peer: peer.clone(), tests };
            checked.settle(now);
            peers.insert(peer.id, checked);
        }
        self.peers = peers;
        self.due.retain(|(_, id, _)| self.peers.contains_key(id));
    }

    /// Returns the next action. A check that is returned is in progress until [`done`](Self::done).
    pub fn next(&mut self, now: u64, rng: &mut Rng) -> CheckAction {
        if *self.term.lock() != self.own_term {
            return CheckAction::Stop;
        }
        while let Some((due_ms, id, nth)) = self.due.first().copied() {
            if due_ms > now {
                return CheckAction::WaitUntil(due_ms);
            }
            self.due.pop_first();
            let Some((checked, test)) = self.peers.get_mut(&id).zip(self.tests.get(nth)) else { continue };
            let Some(results) = checked.tests.get_mut(nth) else { continue };
            results.next_ms = Some(now + test.interval_ms.max(1) + rng.below(test.jitter_ms + 1));
            checked.peer.state.counters.checks.add(1);
            return CheckAction::Check(checked.peer.clone(), nth);
        }
        CheckAction::Wait
    }

    /// Reports the result of a check. Returns the health of the peer if it has changed. A result for a peer that has
    /// left the group has no effect, nor has one of an old configuration.
    pub fn done(&mut self, id: PeerId, nth: usize, passed: bool, now: u64) -> Option<Health> {
        let term = self.term.clone();
        let held_term = term.lock();
        if *held_term != self.own_term {
            return None;
        }
        self.ended(id, nth);
        let checked = self.peers.get_mut(&id)?;
        checked.tests.get_mut(nth)?.learn(passed, self.tests.get(nth)?);
        checked.peer.state.note_check(passed);
        checked.settle(now)
    }

    /// Ends a check without a result, after a failure at this end. The next one follows in its time.
    pub fn give_up(&mut self, id: PeerId, nth: usize) {
        self.ended(id, nth);
    }

    fn ended(&mut self, id: PeerId, nth: usize) {
        let results = self.peers.get_mut(&id).and_then(|checked| checked.tests.get_mut(nth));
        if let Some(next_ms) = results.and_then(|results| results.next_ms.take()) {
            self.due.insert((next_ms, id, nth));
        }
    }
}

impl CheckResults {
    /// Initial state of a test.
    fn first(test: &HealthCheckParams, peer: &Peer, begins: bool) -> Self {
        let found_health = peer.state.health();
        // A peer counts as found healthy only if it was checked before.
        let was_healthy = found_health == Health::Healthy && peer.state.counters.checks.value() > 0;
        let health = match found_health {
            _ if begins && test.mandatory && !(test.persistent && was_healthy) => Health::Checking,
            Health::Checking if !test.mandatory => Health::Healthy,
            found_health => found_health,
        };
        Self { health, in_row: 0, has_passed: false, next_ms: None }
    }

    fn learn(&mut self, passed: bool, test: &HealthCheckParams) {
        self.in_row = if self.has_passed == passed { self.in_row.saturating_add(1) } else { 1 };
        self.has_passed = passed;
        self.health = match (self.health, passed) {
            (Health::Healthy, false) if self.in_row >= test.fails => Health::Unhealthy,
            (Health::Unhealthy, true) if self.in_row >= test.passes => Health::Healthy,
            (Health::Checking, true) => Health::Healthy,
            (Health::Checking, false) => Health::Unhealthy,
            (health, _) => health,
        };
    }
}

impl CheckedPeer {
    /// Applies the worst state of all tests; returns it if it has changed.
    fn settle(&self, now: u64) -> Option<Health> {
        let has = |health: Health| self.tests.iter().any(|results| results.health == health);
        let worst = [Health::Unhealthy, Health::Checking].into_iter().find(|health| has(*health));
        let health = worst.unwrap_or(Health::Healthy);
        if self.peer.state.health() == health {
            return None;
        }
        match health {
            Health::Healthy => self.peer.recovers(now),
            Health::Unhealthy => self.peer.becomes_unhealthy(now),
            Health::Checking => self.peer.state.set_health(health),
        }
        Some(health)
    }
}

impl Group {
    /// Ends health checks in the configuration with the number `term`: earlier results no longer count.
    pub fn disable_checks(&self, term: u64, now: u64) {
        let mut held_term = self.term.lock();
        if *held_term > Term(term) {
            return;
        }
        *held_term = Term(term);
        let list = self.list();
        let judged = list.peers().filter(|peer| peer.state.health() != Health::Healthy);
        judged.for_each(|peer| peer.recovers(now));
    }
}

impl Peer {
    fn becomes_unhealthy(&self, now: u64) {
        self.state.counters.unhealthy.add(1);
        self.state.set_health(Health::Unhealthy);
        self.state.goes_out(signed(now));
    }

    /// With it goes what requests have found: the check is newer.
    fn recovers(&self, now: u64) {
        self.state.fails.store(0, Relaxed);
        self.state.set_health(Health::Healthy);
        self.state.comes_back(signed(now));
    }
}

#[cfg(test)]
mod tests {
    use tw_net::Addr;

    use super::*;
    use crate::{BalanceKey, BalanceMethod, NoPeer, PeerOutcome, PeerStatus, Server};

    const MANDATORY: HealthCheckParams = HealthCheckParams {
        interval_ms: 5000,
        jitter_ms: 0,
        fails: 1,
        passes: 1,
        mandatory: true,
        persistent: false,
    };

    fn group(count: u8, old: Option<&Group>) -> Group {
        let server = |n| Server::fixed("s", [Addr::Inet(([127, 0, 0, n], 80).into())]);
        Group::new("g", BalanceMethod::RoundRobin, (1..=count).map(server).collect(), old)
    }

    fn checker(tests: &[HealthCheckParams], group: &Group, term: u64) -> HealthChecker {
        HealthChecker::new(tests, group, term, 0, &mut Rng::seeded(1))
    }

    fn check(checker: &mut HealthChecker, now: u64) -> Option<(PeerId, usize)> {
        match checker.next(now, &mut Rng::seeded(1)) {
            CheckAction::Check(peer, nth) => Some((peer.id(), nth)),
            CheckAction::WaitUntil(_) | CheckAction::Wait | CheckAction::Stop => None,
        }
    }

    fn statuses(group: &Group) -> Vec<PeerStatus> {
        group.list().peers().map(|peer| peer.status()).collect()
    }

    #[test]
    fn results_in_a_row_change_the_health() {
        let params = HealthCheckParams { fails: 2, passes: 3, ..HealthCheckParams::default() };
        let group = group(1, None);
        let mut checker = checker(&[params], &group, 1);
        let answers = [
            (true, None),
            (false, None),
            (true, None),
            (false, None),
            (false, Some(Health::Unhealthy)),
            (true, None),
            (false, None),
            (true, None),
            (true, None),
            (true, Some(Health::Healthy)),
            (true, None),
        ];
        for (round, (passed, expected)) in (0..).zip(answers) {
            let now = round * 5000;
            let (id, nth) = check(&mut checker, now).unwrap();
            assert_eq!(check(&mut checker, now + 60_000), None, "it is under way");
            assert_eq!(checker.done(id, nth, passed, now + 10), expected, "{round}");
            assert!(
                matches!(checker.next(now + 10, &mut Rng::seeded(1)), CheckAction::WaitUntil(at) if at == now + 5000)
            );
        }
        let peer = &group.snapshot(60_000).peers[0];
        assert_eq!((peer.checks.checks, peer.checks.fails, peer.checks.unhealthy), (11, 4, 1));
        assert_eq!((peer.checks.last_passed, peer.downtime_ms), (Some(true), 25_000));
    }

    #[test]
    fn unhealthy_peer_gets_no_requests() {
        let group = group(2, None);
        group.require_checks();
        let mut rng = Rng::seeded(1);
        assert_eq!(statuses(&group), [PeerStatus::Checking; 2], "before anybody checks");
        let mut checker = checker(&[MANDATORY], &group, 1);
        assert_eq!(statuses(&group), [PeerStatus::Checking; 2]);
        let mut select = || group.select(&mut group.start_selection(BalanceKey::None, None, 0), 50, &mut rng);
        assert_eq!(select().err(), Some(NoPeer));
        let [(one, _), (two, _)] = [0; 2].map(|now| check(&mut checker, now).unwrap());
        assert_eq!(checker.done(one, 0, true, 10), Some(Health::Healthy));
        assert_eq!(checker.done(two, 0, false, 10), Some(Health::Unhealthy));
        assert_eq!(statuses(&group), [PeerStatus::Up, PeerStatus::Unhealthy]);
        for _ in 0..3 {
            let lease = select().unwrap();
            assert_eq!(lease.peer().id(), one);
            lease.done(PeerOutcome::Success, 50);
        }
        group.disable_checks(2, 60);
        assert_eq!(statuses(&group), [PeerStatus::Up; 2]);
    }

    #[test]
    fn persistent_health_survives_a_reload() {
        for (persistent, expected) in [(true, PeerStatus::Up), (false, PeerStatus::Checking)] {
            let params = HealthCheckParams { persistent, ..MANDATORY };
            let old = group(2, None);
            let mut first = checker(&[params], &old, 1);
            let (id, nth) = check(&mut first, 0).unwrap();
            first.done(id, nth, true, 10);
            let new = group(3, Some(&old));
            new.require_checks();
            assert_eq!(statuses(&old), [PeerStatus::Up, PeerStatus::Checking], "it has not begun");
            checker(&[params], &new, 2);
            assert_eq!(
                statuses(&new),
                [expected, PeerStatus::Checking, PeerStatus::Checking],
                "{persistent}"
            );
        }
    }

    #[test]
    fn only_checks_of_the_latest_configuration_count() {
        let old = group(1, None);
        let mut first = checker(&[HealthCheckParams::default()], &old, 1);
        let (id, nth) = check(&mut first, 0).unwrap();
        let new = group(1, Some(&old));
        new.disable_checks(2, 10);
        assert_eq!(first.done(id, nth, false, 20), None);
        assert_eq!(statuses(&new), [PeerStatus::Up]);
        assert!(matches!(first.next(60_000, &mut Rng::seeded(1)), CheckAction::Stop));
        // A loop that is late begins with the one before.
        let mut late = checker(&[MANDATORY], &old, 1);
        assert!(matches!(late.next(60_000, &mut Rng::seeded(1)), CheckAction::Stop));
        assert_eq!(statuses(&new), [PeerStatus::Up]);
        // A new checker takes over the state of one that has ended.
        let newest = group(1, Some(&new));
        let mut third = checker(&[MANDATORY], &newest, 3);
        let (id, nth) = check(&mut third, 0).unwrap();
        third.done(id, nth, true, 20);
        let mut third = checker(&[MANDATORY], &newest, 3);
        assert_eq!(statuses(&newest), [PeerStatus::Up]);
        assert_eq!(check(&mut third, 0), Some((id, nth)));
    }

    #[test]
    fn worst_of_several_tests_applies() {
        let group = group(1, None);
        let twice = HealthCheckParams { passes: 2, ..HealthCheckParams::default() };
        let mut checker = checker(&[HealthCheckParams::default(), twice], &group, 1);
        let id = PeerId(0);
        let mut now = 0;
        let steps = [
            ([true, true], [None, None]),
            ([false, false], [Some(Health::Unhealthy), None]),
            ([true, true], [None, None]),
            ([true, true], [None, Some(Health::Healthy)]),
            ([true, false], [None, Some(Health::Unhealthy)]),
        ];
        for (answers, expected) in steps {
            assert_eq!([0, 1].map(|_| check(&mut checker, now).unwrap()), [(id, 0), (id, 1)]);
            let became = [0, 1].map(|nth| checker.done(id, nth, answers[nth], now));
            assert_eq!(became, expected, "{now}");
            now += 5000;
        }
    }

    #[test]
    fn added_peers_are_checked_and_removed_ones_are_not() {
        let group = group(2, None);
        let mut rng = Rng::seeded(1);
        let mut checker = checker(&[HealthCheckParams::default()], &group, 1);
        let [(one, _), (two, _)] = [0; 2].map(|now| check(&mut checker, now).unwrap());
        group.remove(one).unwrap();
        group.require_checks();
        group.add(Server::fixed("new", [Addr::Inet(([127, 0, 0, 9], 80).into())])).unwrap();
        group.change(two, |params| params.admin = AdminState::Down).unwrap();
        assert_eq!(statuses(&group)[1], PeerStatus::Checking);
        checker.follow(&group.list(), 100, &mut rng);
        assert_eq!(checker.done(one, 0, false, 100), None);
        let (new, nth) = check(&mut checker, 100).unwrap();
        assert!(new != one && new != two);
        checker.give_up(new, nth);
        assert!(matches!(checker.next(150, &mut rng), CheckAction::WaitUntil(5100)));
        assert_eq!(check(&mut checker, 5100), Some((new, nth)));
        assert!(matches!(checker.next(u64::MAX / 2, &mut rng), CheckAction::Wait));
    }

    #[test]
    fn jitter_spreads_the_checks() {
        let params = HealthCheckParams { jitter_ms: 1000, ..HealthCheckParams::default() };
        let group = group(1, None);
        let mut rng = Rng::seeded(5);
        let mut checker = HealthChecker::new(&[params], &group, 1, 0, &mut rng);
        let mut spans = Vec::new();
        let CheckAction::WaitUntil(mut at) = checker.next(0, &mut rng) else { panic!() };
        for _ in 0..50 {
            assert!(matches!(checker.next(at, &mut rng), CheckAction::Check(..)));
            checker.done(PeerId(0), 0, true, at);
            let CheckAction::WaitUntil(next) = checker.next(at, &mut rng) else { panic!() };
            spans.push(next - at);
            at = next;
        }
        assert!(
            spans.iter().all(|span| (5000..=6000).contains(span)) && spans.iter().max() > spans.iter().min()
        );
    }
}
