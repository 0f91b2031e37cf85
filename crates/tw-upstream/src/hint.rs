//! Hints of other nodes about the health of peers: a reason to look, and never more.
//!
//! ```text
//! "it is down"   health checks: one at once        requests: one at a time, until one succeeds, fails, or the hint expires
//! "it is up"     health checks: one at once        requests: if it is left alone after failures, the next one tries it
//! ```
//! A request that finds no other peer does not heed hints. Requests that `sticky` binds to a peer never do.

use std::collections::HashSet;
use std::sync::atomic::Ordering::Relaxed;

use crate::health::HealthChecker;
use crate::peer::{Peer, PeerId, PeerStatus};
use crate::peer_list::Tier;
use crate::peer_state::{NEVER, PeerState, signed};

/// Time for which other requests leave a peer alone while one tries it after a hint, in milliseconds.
const TRIAL_TIME_MS: i64 = 1000;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Time for which a hint of another node about an upstream server has an effect.
    const HINT_TIME_MS: i64 = 10_000, millis, "it is forgotten";
    /// Time between two hints of other nodes about one upstream server.
    ///
    /// Time between two hints about one peer that have an effect, in milliseconds: whoever says something else all the time
    /// causes no more checks than this.
    const HINT_SPACING_MS: i64 = 2000, millis, "an earlier one has no effect";
}

impl Peer {
    /// Takes in that another node has found the peer to be up or down. Returns true if this node is going to look itself. May be called
    /// by any thread.
    pub fn hint(&self, is_up: bool, now: u64) -> bool {
        let state = &self.state;
        let now = signed(now);
        let status = self.status();
        let is_news = if is_up {
            matches!(status, PeerStatus::Unavailable | PeerStatus::Unhealthy | PeerStatus::Checking)
        } else {
            status == PeerStatus::Up
        };
        if !is_news || now.saturating_sub(state.hinted_ms.load(Relaxed)) < HINT_SPACING_MS {
            return false;
        }
        state.hinted_ms.store(now, Relaxed);
        state.wants_check.store(true, Relaxed);
        if !is_up {
            state.trial_ms.store(NEVER, Relaxed);
            state.suspect_until_ms.store(now.saturating_add(HINT_TIME_MS), Relaxed);
        } else if self.status() == PeerStatus::Unavailable {
            // The peer may be tried as if its fail_timeout were over.
            let before = now.saturating_sub(signed(self.params.fail_timeout_ms)).saturating_sub(1);
            state.checked_ms.fetch_min(before, Relaxed);
            state.queue.wake_one();
        }
        true
    }
}

impl PeerState {
    /// Returns true if a request tries the peer after a hint, so that others leave it alone.
    pub(crate) fn is_spared(&self, now: i64) -> bool {
        now < self.suspect_until_ms.load(Relaxed)
            && now.saturating_sub(self.trial_ms.load(Relaxed)) < TRIAL_TIME_MS
    }

    /// Notes that a request is sent there.
    pub(crate) fn note_trial(&self, now: i64) {
        if now < self.suspect_until_ms.load(Relaxed) {
            self.trial_ms.store(now, Relaxed);
        }
    }

    /// Forgets a hint: this node knows better, or has no choice.
    pub(crate) fn forget_hint(&self) {
        if self.suspect_until_ms.load(Relaxed) != NEVER {
            self.suspect_until_ms.store(NEVER, Relaxed);
        }
    }

    /// Returns true if the peer was out and has come back within this time before `now`; both in milliseconds.
    pub fn has_come_back(&self, now: u64, within: u64) -> bool {
        let back = self.ramp_ms.load(Relaxed);
        back != NEVER && signed(now).saturating_sub(back) <= signed(within)
    }
}

impl Tier {
    /// Forgets the hints by which peers are left alone now. Returns true if there were some.
    pub(crate) fn forget_hints(&self, now: i64) -> bool {
        let spared = self.peers.iter().filter(|peer| peer.state.is_spared(now));
        spared.map(|peer| peer.state.forget_hint()).count() > 0
    }
}

impl HealthChecker {
    /// Makes checks due at once for peers that another node has hinted at. Cheap if there are none.
    pub fn take_hints(&mut self, now: u64) {
        let is_hinted =
            |state: &PeerState| state.wants_check.load(Relaxed) && state.wants_check.swap(false, Relaxed);
        let hinted: HashSet<_> = self
            .peers
            .values()
            .filter(|checked| is_hinted(&checked.peer.state))
            .map(|checked| checked.peer.id)
            .collect();
        if hinted.is_empty() {
            return;
        }
        // A check in progress is not in `due`, and its result serves the hint as well.
        let is_later = |check: &&(u64, PeerId, usize)| check.0 > now && hinted.contains(&check.1);
        let later: Vec<_> = self.due.iter().filter(is_later).copied().collect();
        for check in later {
            self.due.remove(&check);
            self.due.insert((now, check.1, check.2));
        }
    }
}

#[cfg(test)]
mod tests {
    use tw_net::Addr;

    use super::*;
    use crate::{
        BalanceKey, BalanceMethod, CheckAction, Group, HealthCheckParams, Lease, NoPeer, PeerOutcome, Rng,
        Server,
    };

    fn group(count: u8) -> Group {
        let server = |n| Server::fixed("s", [Addr::Inet(([127, 0, 0, n], 80).into())]);
        Group::new("g", BalanceMethod::RoundRobin, (1..=count).map(server).collect(), None)
    }

    fn select(group: &Group, now: u64) -> Result<Lease, NoPeer> {
        let mut selection = group.start_selection(BalanceKey::None, None, 0);
        group.select(&mut selection, now, &mut Rng::seeded(1))
    }

    fn peers(group: &Group) -> Vec<std::sync::Arc<Peer>> {
        group.list().peers().cloned().collect()
    }

    #[test]
    fn hinted_peer_gets_one_request_until_it_succeeds() {
        let group = group(2);
        let known_peers = peers(&group);
        assert!(known_peers[0].hint(false, 10_000));
        assert_eq!(known_peers[0].status(), PeerStatus::Up, "nobody is down because another node says so");
        let leases: Vec<Lease> = (0..10).map(|_| select(&group, 10_000).unwrap()).collect();
        let (tried, others): (Vec<_>, Vec<_>) =
            leases.into_iter().partition(|lease| lease.peer().id() == known_peers[0].id());
        assert_eq!((tried.len(), others.len()), (1, 9));
        for lease in tried {
            let _ = lease.done(PeerOutcome::Success, 10_100);
        }
        let again = (0..10)
            .map(|_| select(&group, 10_100).unwrap())
            .filter(|lease| lease.peer().id() == known_peers[0].id());
        assert!(again.count() >= 4, "it is as any other");
    }

    #[test]
    fn trial_that_takes_long_is_followed_by_another_one() {
        let group = group(2);
        let known_peers = peers(&group);
        assert!(known_peers[0].hint(false, 10_000));
        let at = |now: u64| {
            let leases: Vec<Lease> = (0..10).map(|_| select(&group, now).unwrap()).collect();
            leases.iter().filter(|lease| lease.peer().id() == known_peers[0].id()).count()
        };
        assert_eq!((at(10_000), at(10_500), at(11_000), at(20_000)), (1, 0, 1, 5));
    }

    #[test]
    fn requests_without_another_peer_do_not_heed_hints() {
        let group = group(3);
        for peer in peers(&group) {
            assert!(peer.hint(false, 10_000));
        }
        for _ in 0..30 {
            assert!(select(&group, 10_000).is_ok());
        }
    }

    #[test]
    fn failed_trial_counts_as_any_failure() {
        let group = group(2);
        let known_peers = peers(&group);
        assert!(known_peers[1].hint(false, 10_000));
        let lease = (0..2)
            .map(|_| select(&group, 10_000).unwrap())
            .find(|lease| lease.peer().id() == known_peers[1].id());
        let _ = lease.unwrap().done(PeerOutcome::Failed, 10_010);
        assert_eq!(known_peers[1].status(), PeerStatus::Unavailable);
        assert!(!known_peers[1].hint(false, 20_000), "it is known");
        assert!((0..5).all(|_| select(&group, 10_100).unwrap().peer().id() == known_peers[0].id()));
        // Another node has found the peer up, so the next request tries it early.
        assert!(known_peers[1].hint(true, 12_100));
        let lease = (0..4)
            .map(|_| select(&group, 12_100).unwrap())
            .find(|lease| lease.peer().id() == known_peers[1].id());
        let _ = lease.unwrap().done(PeerOutcome::Success, 12_110);
        assert_eq!(known_peers[1].status(), PeerStatus::Up);
        assert!(
            known_peers[1].state().has_come_back(13_000, 30_000)
                && !known_peers[1].state().has_come_back(50_000, 30_000)
        );
    }

    #[test]
    fn hints_have_a_distance() {
        let group = group(2);
        let known_peers = peers(&group);
        let followed = (0..100).filter(|nth| known_peers[0].hint(false, 10_000 + nth * 100)).count();
        assert_eq!(followed, 5);
    }

    #[test]
    fn hint_makes_checks_due_at_once() {
        let group = group(2);
        let mut rng = Rng::seeded(1);
        let params = [HealthCheckParams::default(); 2];
        let mut checker = HealthChecker::new(&params, &group, 1, 0, &mut rng);
        let mut checked = |checker: &mut HealthChecker, now: u64| {
            let mut ids = Vec::new();
            while let CheckAction::Check(peer, nth) = checker.next(now, &mut rng) {
                checker.done(peer.id(), nth, true, now);
                ids.push(peer.id());
            }
            ids
        };
        assert_eq!(checked(&mut checker, 0).len(), 4);
        let known_peers = peers(&group);
        assert!(known_peers[1].hint(false, 1000));
        assert!(checked(&mut checker, 1000).is_empty());
        checker.take_hints(1000);
        assert_eq!(checked(&mut checker, 1000), [known_peers[1].id(); 2]);
        checker.take_hints(1001);
        assert!(checked(&mut checker, 1001).is_empty());
        assert_eq!(checked(&mut checker, 5000), [known_peers[0].id(); 2]);
        // Hints for several peers at once bring only checks forward that are not due anyway.
        assert!(known_peers.iter().all(|peer| peer.hint(false, 5500)));
        checker.take_hints(5500);
        let mut both = checked(&mut checker, 5500);
        both.sort();
        assert_eq!(
            both,
            [known_peers[0].id(), known_peers[0].id(), known_peers[1].id(), known_peers[1].id()]
        );
    }
}
