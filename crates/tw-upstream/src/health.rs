//! When which peer is checked, and what its answers mean. Who makes the checks is told what to do next, and tells how it
//! went; nothing here waits or sends.
//!
//! ```text
//!            `fails` failures in a row
//! Healthy ─────────────────────────────► Unhealthy
//!    ▲  ◄─────────────────────────────      ▲
//!    │       `passes` passes in a row       │
//!    └── first passes ── Checking ── fails ─┘     (`mandatory`: new peers, and after a reload without `persistent`)
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::group::Group;
use crate::list::List;
use crate::peer::{Peer, PeerId};
use crate::rng::Rng;
use crate::server::Admin;
use crate::state::{Health, signed};

/// The parameters of `health_check` that say when, and what counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckParams {
    /// From the beginning of a check to that of the next one, in milliseconds.
    pub interval_ms: u64,
    /// Up to so many milliseconds later, at random.
    pub jitter_ms: u64,
    /// So many failures in a row make a peer unhealthy.
    pub fails: u32,
    /// So many passes in a row make it healthy.
    pub passes: u32,
    /// Whether a peer has to pass its first check before it gets requests.
    pub mandatory: bool,
    /// Whether that does not hold for one that was healthy before a reload.
    pub persistent: bool,
}

/// The checks of one group. One loop has it.
#[derive(Debug)]
pub struct Checker {
    params: CheckParams,
    generation: u64,
    checks: BTreeMap<PeerId, Check>,
}

#[derive(Debug)]
struct Check {
    peer: Arc<Peer>,
    due_ms: u64,
    is_running: bool,
    /// How many of the latest answers were the same, and which.
    in_row: u32,
    has_passed: bool,
}

/// What to do next.
#[derive(Clone, Debug)]
pub enum Next {
    /// Check this peer, and tell how that went.
    Check(Arc<Peer>),
    /// Nothing before this moment.
    At(u64),
    /// Nothing, until a check that is under way has ended or the list of peers has changed.
    Nothing,
}

/// nginx's defaults.
impl Default for CheckParams {
    fn default() -> Self {
        Self { interval_ms: 5000, jitter_ms: 0, fails: 1, passes: 1, mandatory: false, persistent: false }
    }
}

impl Checker {
    /// Checks for a group, which begin at once.
    pub fn new(params: CheckParams, group: &Group, now: u64, rng: &mut Rng) -> Self {
        let mut checker = Self { params, generation: 0, checks: BTreeMap::new() };
        checker.follow(&group.list(), now, rng);
        checker
    }

    /// Takes in what has changed in the list of peers. Cheap if nothing has; ask before each [`next`](Self::next).
    pub fn follow(&mut self, list: &List, now: u64, rng: &mut Rng) {
        if list.generation() == self.generation {
            return;
        }
        self.generation = list.generation();
        let mut checks = BTreeMap::new();
        for peer in list.peers().filter(|peer| peer.params.admin != Admin::Down) {
            let check = match self.checks.remove(&peer.id) {
                Some(check) => Check { peer: peer.clone(), ..check },
                None => self.first(peer, now, rng),
            };
            checks.insert(peer.id, check);
        }
        self.checks = checks;
    }

    fn first(&self, peer: &Arc<Peer>, now: u64, rng: &mut Rng) -> Check {
        let CheckParams { mandatory, persistent, jitter_ms, .. } = self.params;
        // Only a peer that somebody has checked before was found healthy.
        let was_healthy = peer.state.health() == Health::Healthy && peer.state.counters.checks.value() > 0;
        if mandatory && !(persistent && was_healthy) {
            peer.state.set_health(Health::Checking);
        }
        let due_ms = now + rng.below(jitter_ms + 1);
        Check { peer: peer.clone(), due_ms, is_running: false, in_row: 0, has_passed: false }
    }

    /// What to do next. A check that is handed out is under way until [`done`](Self::done). Looks at every peer.
    pub fn next(&mut self, now: u64, rng: &mut Rng) -> Next {
        let waiting = self.checks.values_mut().filter(|check| !check.is_running);
        let Some(check) = waiting.min_by_key(|check| check.due_ms) else { return Next::Nothing };
        if check.due_ms > now {
            return Next::At(check.due_ms);
        }
        check.is_running = true;
        check.due_ms = now + self.params.interval_ms.max(1) + rng.below(self.params.jitter_ms + 1);
        check.peer.state.counters.checks.add(1);
        Next::Check(check.peer.clone())
    }

    /// A check has ended. Says what the peer has become, if that is something else. A check of a peer that has left the group
    /// means nothing.
    pub fn done(&mut self, id: PeerId, passed: bool, now: u64) -> Option<Health> {
        let check = self.checks.get_mut(&id)?;
        check.is_running = false;
        check.in_row = if check.has_passed == passed { check.in_row.saturating_add(1) } else { 1 };
        check.has_passed = passed;
        let (state, in_row) = (&check.peer.state, check.in_row);
        if !passed {
            state.counters.check_fails.add(1);
        }
        match (state.health(), passed) {
            (Health::Healthy, false) if in_row >= self.params.fails => check.peer.falls_ill(now),
            (Health::Unhealthy, true) if in_row >= self.params.passes => check.peer.recovers(now),
            (Health::Checking, true) => check.peer.recovers(now),
            (Health::Checking, false) => check.peer.falls_ill(now),
            _ => return None,
        }
        Some(check.peer.state.health())
    }

    /// A check was given up before it said anything; it is made again at once.
    pub fn give_up(&mut self, id: PeerId, now: u64) {
        if let Some(check) = self.checks.get_mut(&id) {
            check.is_running = false;
            check.due_ms = now;
        }
    }
}

impl Group {
    /// Nobody checks the peers any more: what earlier checks have found no longer counts.
    pub fn without_checks(&self, now: u64) {
        let list = self.list();
        let judged = list.peers().filter(|peer| peer.state.health() != Health::Healthy);
        judged.for_each(|peer| peer.recovers(now));
    }
}

impl Peer {
    fn falls_ill(&self, now: u64) {
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
    use crate::{Key, Method, NoPeer, Outcome, Server, Status};

    fn group(count: u8, old: Option<&Group>) -> Group {
        let server = |n| Server::fixed("s", [Addr::Inet(([127, 0, 0, n], 80).into())]);
        Group::new("g", Method::RoundRobin, (1..=count).map(server).collect(), old)
    }

    fn check(checker: &mut Checker, now: u64) -> Option<PeerId> {
        match checker.next(now, &mut Rng::seeded(1)) {
            Next::Check(peer) => Some(peer.id()),
            Next::At(_) | Next::Nothing => None,
        }
    }

    fn statuses(group: &Group) -> Vec<Status> {
        group.list().peers().map(|peer| peer.status()).collect()
    }

    #[test]
    fn answers_in_a_row_change_the_health() {
        let params = CheckParams { fails: 2, passes: 3, ..CheckParams::default() };
        let group = group(1, None);
        let mut checker = Checker::new(params, &group, 0, &mut Rng::seeded(1));
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
            let id = check(&mut checker, now).unwrap();
            assert_eq!(check(&mut checker, now + 60_000), None, "it is under way");
            assert_eq!(checker.done(id, passed, now + 10), expected, "{round}");
            assert!(matches!(checker.next(now + 10, &mut Rng::seeded(1)), Next::At(at) if at == now + 5000));
        }
        let peer = &group.snapshot(60_000).peers[0];
        assert_eq!((peer.checks.checks, peer.checks.fails, peer.checks.unhealthy), (11, 4, 1));
        assert_eq!(peer.downtime_ms, 25_000);
    }

    #[test]
    fn who_is_not_healthy_gets_nothing() {
        let group = group(2, None);
        let params = CheckParams { mandatory: true, ..CheckParams::default() };
        let mut rng = Rng::seeded(1);
        let mut checker = Checker::new(params, &group, 0, &mut rng);
        assert_eq!(statuses(&group), [Status::Checking; 2]);
        let mut select = || group.select(&mut group.begin(Key::None, None, 0), 50, &mut rng);
        assert_eq!(select().err(), Some(NoPeer));
        let (one, two) = (check(&mut checker, 0).unwrap(), check(&mut checker, 0).unwrap());
        assert_eq!(checker.done(one, true, 10), Some(Health::Healthy));
        assert_eq!(checker.done(two, false, 10), Some(Health::Unhealthy));
        assert_eq!(statuses(&group), [Status::Up, Status::Unhealthy]);
        for _ in 0..3 {
            let lease = select().unwrap();
            assert_eq!(lease.peer().id(), one);
            lease.done(Outcome::Success, 50);
        }
        group.without_checks(60);
        assert_eq!(statuses(&group), [Status::Up; 2]);
    }

    #[test]
    fn a_reload_keeps_who_was_healthy_if_it_is_to() {
        for (persistent, expected) in [(true, Status::Up), (false, Status::Checking)] {
            let params = CheckParams { mandatory: true, persistent, ..CheckParams::default() };
            let (old, mut rng) = (group(2, None), Rng::seeded(1));
            let mut checker = Checker::new(params, &old, 0, &mut rng);
            let id = check(&mut checker, 0).unwrap();
            checker.done(id, true, 10);
            let new = group(3, Some(&old));
            Checker::new(params, &new, 20, &mut rng);
            assert_eq!(statuses(&new), [expected, Status::Checking, Status::Checking], "{persistent}");
        }
    }

    #[test]
    fn peers_that_come_are_checked_and_those_that_go_are_not() {
        let (group, mut rng) = (group(2, None), Rng::seeded(1));
        let mut checker = Checker::new(CheckParams::default(), &group, 0, &mut rng);
        let (one, two) = (check(&mut checker, 0).unwrap(), check(&mut checker, 0).unwrap());
        group.remove(one).unwrap();
        group.add(Server::fixed("new", [Addr::Inet(([127, 0, 0, 9], 80).into())])).unwrap();
        group.change(two, |params| params.admin = Admin::Down).unwrap();
        checker.follow(&group.list(), 100, &mut rng);
        assert_eq!(checker.done(one, false, 100), None);
        let new = check(&mut checker, 100).unwrap();
        assert!(new != one && new != two);
        checker.give_up(new, 150);
        assert_eq!(check(&mut checker, 150), Some(new));
        assert!(matches!(checker.next(u64::MAX / 2, &mut rng), Next::Nothing));
    }

    #[test]
    fn jitter_spreads_the_checks() {
        let params = CheckParams { jitter_ms: 1000, ..CheckParams::default() };
        let (group, mut rng) = (group(1, None), Rng::seeded(5));
        let mut checker = Checker::new(params, &group, 0, &mut rng);
        let mut due = Vec::new();
        for _ in 0..50 {
            let Next::At(at) = checker.next(0, &mut rng) else { panic!() };
            assert!(matches!(checker.next(at, &mut rng), Next::Check(_)));
            checker.done(PeerId(0), true, at);
            let Next::At(next) = checker.next(at, &mut rng) else { panic!() };
            due.push(next - at);
            checker.checks.values_mut().for_each(|check| check.due_ms = next - at);
        }
        assert!(due.iter().all(|span| (5000..=6000).contains(span)) && due.iter().max() > due.iter().min());
    }
}
