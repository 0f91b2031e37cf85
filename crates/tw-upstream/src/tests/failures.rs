//! Failures, limits, slow starts, and groups of one peer.

use super::*;
use crate::{AdminState, KeyKind, LeastTime, NoPeer, PeerChange, PeerStatus, RandomTwo, TimeKind};

fn select(group: &Group, now: u64) -> Result<Lease, NoPeer> {
    let (mut selection, mut rng) = new_selection(group, BalanceKey::None);
    group.select(&mut selection, now, &mut rng)
}

#[test]
fn single_peer_is_always_selected_once() {
    let group = group(BalanceMethod::RoundRobin, vec![with(1, |_| ())]);
    let (mut selection, mut rng) = new_selection(&group, BalanceKey::None);
    for now in 0..3 {
        let lease = group.select(&mut selection, now, &mut rng).unwrap();
        assert_eq!(selection.tries_left(), 0);
        assert_eq!(lease.done(PeerOutcome::Failed, now), PeerChange::Unchanged);
    }
    assert_eq!(group.list().peers().next().unwrap().status(), PeerStatus::Up);
    // A kept connection that was just being closed.
    selection.grant_try();
    assert_eq!(selection.tries_left(), 1);
    let snapshot = group.snapshot(9);
    assert_eq!((snapshot.peers[0].fails, snapshot.peers[0].requests), (3, 3));
}

#[test]
fn tries_are_limited_by_live_peers_and_configuration() {
    let servers = || {
        let down = with(3, |params| params.admin = AdminState::Down);
        vec![server(1, 1), server(2, 1), down, with(4, |params| params.backup = true)]
    };
    for (max, expected) in [(0, vec![2, 1, 0]), (2, vec![1, 0]), (9, vec![2, 1, 0])] {
        let group = group(BalanceMethod::RoundRobin, servers());
        let mut selection = group.start_selection(BalanceKey::None, None, max);
        let mut rng = Rng::seeded(1);
        let mut rest = Vec::new();
        while rest.last() != Some(&0) {
            group.select(&mut selection, 0, &mut rng).unwrap().done(PeerOutcome::Failed, 0);
            rest.push(selection.tries_left());
        }
        assert_eq!(rest, expected, "{max}");
    }
}

#[test]
fn failed_peers_are_retried_after_fail_timeout() {
    let servers = (1..=2).map(|n| with(n, |params| params.fail_timeout_ms = 1000)).collect();
    let group = group(BalanceMethod::RoundRobin, servers);
    assert_eq!(all_fail(&group, BalanceKey::None, 5000), [1, 2]);
    assert_eq!(group.retry_ms(), Some(6001));
    assert_eq!(select(&group, 6000).err(), Some(NoPeer));
    let statuses: Vec<_> = group.list().peers().map(|peer| peer.status()).collect();
    assert_eq!(statuses, [PeerStatus::Unavailable; 2]);
    // One trial request decides about each peer.
    let one = select(&group, 6001).unwrap();
    let two = select(&group, 6001).unwrap();
    assert_eq!((number(&one), number(&two)), (2, 1));
    assert_eq!(select(&group, 6002).err(), Some(NoPeer));
    assert_eq!(one.done(PeerOutcome::Success, 6003), PeerChange::Recovered);
    // A lease that is dropped without an outcome changes nothing.
    drop(two);
    assert_eq!(turns(&group, 2, 6004), [2, 2]);
    assert_eq!(group.snapshot(6004).peers[0].status, PeerStatus::Unavailable);
}

#[test]
fn next_is_no_failure() {
    let group = group(BalanceMethod::RoundRobin, vec![with(1, |_| ()), with(2, |_| ())]);
    let lease = select(&group, 20_000).unwrap();
    assert_eq!(lease.done(PeerOutcome::Next, 20_001), PeerChange::Unchanged);
    assert_eq!(group.snapshot(20_002).peers[0].fails, 0);
}

#[test]
fn connections_are_limited_by_every_method() {
    let time = LeastTime { by: TimeKind::Header, inflight: true };
    let methods = [
        BalanceMethod::RoundRobin,
        BalanceMethod::LeastConn,
        BalanceMethod::IpHash,
        BalanceMethod::Hash,
        BalanceMethod::HashConsistent,
        BalanceMethod::Random(None),
        BalanceMethod::Random(Some(RandomTwo::LeastConn)),
        BalanceMethod::Random(Some(RandomTwo::LeastTime(time))),
        BalanceMethod::LeastTime(time),
    ];
    for method in methods {
        let limited = |n| with(n, |params| params.max_conns = 2);
        let group = group(method, vec![limited(1), limited(2), limited(3)]);
        let mut rng = Rng::seeded(7);
        let mut one = || {
            let mut selection = group.start_selection(BalanceKey::Text(b"key".to_vec()), None, 0);
            group.select(&mut selection, 1, &mut rng)
        };
        let leases: Vec<_> = (0..6).map(|_| one().unwrap()).collect();
        assert_eq!(one().err(), Some(NoPeer), "{method:?}");
        assert!(group.list().peers().all(|peer| peer.state().connections() == 2), "{method:?}");
        drop(leases);
        assert!(group.list().peers().all(|peer| peer.state().connections() == 0), "{method:?}");
    }
}

#[test]
fn recovered_peer_regains_its_share_gradually() {
    let slow = with(1, |params| (params.slow_start_ms, params.fail_timeout_ms) = (10_000, 1000));
    let group = group(BalanceMethod::RoundRobin, vec![slow, server(2, 1)]);
    assert_eq!(number(&select(&group, 5000).unwrap()), 1);
    assert_eq!(turns(&group, 1, 5000), [2]);
    let lease = select(&group, 5000).unwrap();
    assert_eq!((number(&lease), lease.done(PeerOutcome::Failed, 5000)), (1, PeerChange::Disabled));
    assert_eq!(turns(&group, 3, 5500), [2, 2, 2]);
    let lease = loop {
        let lease = select(&group, 7000).unwrap();
        if number(&lease) == 1 {
            break lease;
        }
    };
    assert_eq!(lease.done(PeerOutcome::Success, 7000), PeerChange::Recovered);
    // In the middle of each quarter the peer gets an eighth, three eighths, … of the requests of the other one, out of
    // a thousand.
    for (now, expected) in [(8250, 111), (10_750, 273), (13_250, 385), (15_750, 467), (17_000, 500)] {
        let ones = turns(&group, 1000, now).iter().filter(|n| **n == 1).count();
        assert!(ones.abs_diff(expected) < 9, "{now}: {ones}");
    }
}

#[test]
fn random_draws_by_weight_and_two_prefers_the_idle_peer() {
    let group = group(BalanceMethod::Random(None), vec![server(1, 3), server(2, 1)]);
    let mut rng = Rng::seeded(3);
    let mut draw = |group: &Group| {
        group.select(&mut group.start_selection(BalanceKey::None, None, 0), 0, &mut rng).unwrap()
    };
    let ones = (0..4000).filter(|_| number(&draw(&group)) == 1).count();
    assert!((2900..3100).contains(&ones), "{ones}");

    let two =
        super::group(BalanceMethod::Random(Some(RandomTwo::LeastConn)), vec![server(1, 1), server(2, 1)]);
    let busy: Vec<_> = (0..10).map(|_| draw(&two)).collect();
    assert!(two.list().peers().all(|peer| peer.state().connections() == 5));
    drop(busy);
}

#[test]
fn least_time_prefers_the_faster_peer() {
    let time = LeastTime { by: TimeKind::LastByte, inflight: false };
    let group = group(BalanceMethod::LeastTime(time), vec![server(1, 1), server(2, 1)]);
    let mut now = 100_000;
    let mut shares = [0; 2];
    for _ in 0..200 {
        let lease = select(&group, now).unwrap();
        let number = number(&lease);
        let span = if number == 1 { 10 } else { 90 };
        now += span;
        shares[usize::from(number) - 1] += 1;
        lease.done(PeerOutcome::Success, now);
    }
    assert!(shares[0] > 190 && shares[1] > 0, "{shares:?}");
    let snapshot = group.snapshot(now);
    assert_eq!((snapshot.peers[0].response_ms, snapshot.peers[1].response_ms), (10, 90));
    assert_eq!(group.list().peers().next().unwrap().state().counters.response.snapshot().count(), shares[0]);
}

#[test]
fn least_time_inflight_avoids_a_silent_peer() {
    let time = LeastTime { by: TimeKind::Header, inflight: true };
    let group = group(BalanceMethod::LeastTime(time), vec![server(1, 1), server(2, 1)]);
    let stuck = select(&group, 0).unwrap();
    assert_eq!(number(&stuck), 1);
    for now in (1000..20_000).step_by(1000) {
        let mut lease = select(&group, now).unwrap();
        assert_eq!(number(&lease), 2, "{now}");
        lease.header(now + 5);
        lease.status(200);
        lease.done(PeerOutcome::Success, now + 6);
    }
    drop(stuck);
    let peers = group.snapshot(20_000).peers;
    assert_eq!((peers[1].header_ms, peers[1].responses), (5, [0, 19, 0, 0, 0]));
}

#[test]
fn failed_selection_starts_over_with_all_peers() {
    let one_each = |backup| move |params: &mut PeerParams| (params.max_conns, params.backup) = (1, backup);
    for method in [
        BalanceMethod::RoundRobin,
        BalanceMethod::LeastConn,
        BalanceMethod::Hash,
        BalanceMethod::HashConsistent,
    ] {
        let servers = vec![with(1, one_each(false)), with(2, one_each(false)), with(3, one_each(true))];
        let group = group(method, servers);
        let key = || BalanceKey::Text(b"text".to_vec());
        let (mut fresh, mut rng) = new_selection(&group, key());
        let first = number(&group.select(&mut fresh, 0, &mut rng).unwrap());
        let mut leases: Vec<_> =
            (0..3).map(|_| group.select(&mut new_selection(&group, key()).0, 0, &mut rng).unwrap()).collect();
        let (mut waiting, _) = new_selection(&group, key());
        for _ in 0..50 {
            assert_eq!(group.select(&mut waiting, 0, &mut rng).unwrap_err(), NoPeer);
        }
        leases.clear();
        let value = number(&group.select(&mut waiting, 0, &mut rng).unwrap());
        assert_ne!(value, 3, "{method:?}: a primary is free");
        if method.key_kind() == KeyKind::Text {
            assert_eq!(value, first, "{method:?}");
        }
    }
}
