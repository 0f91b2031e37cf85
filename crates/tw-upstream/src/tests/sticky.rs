//! Requests that are bound to a peer.

use super::*;
use crate::{AdminState, LeastTime, NoPeer, RandomTwo, TimeKind};

fn routed(n: u8, change: impl FnOnce(&mut PeerParams)) -> Server {
    with(n, |params| {
        params.route = route(&format!("r{n}"));
        change(params);
    })
}

fn bound(group: &Group, sid: &str, now: u64) -> Result<Lease, NoPeer> {
    let mut selection =
        group.start_selection(BalanceKey::Text(b"k".to_vec()), Some(sid.as_bytes().into()), 0);
    group.select(&mut selection, now, &mut Rng::seeded(1))
}

#[test]
fn every_method_honours_sticky() {
    let time = LeastTime { by: TimeKind::Header, inflight: true };
    let methods = [
        BalanceMethod::RoundRobin,
        BalanceMethod::LeastConn,
        BalanceMethod::IpHash,
        BalanceMethod::Hash,
        BalanceMethod::HashConsistent,
        BalanceMethod::Random(None),
        BalanceMethod::Random(Some(RandomTwo::LeastConn)),
        BalanceMethod::LeastTime(time),
    ];
    for method in methods {
        let group = group(method, (1..=4).map(|n| routed(n, |_| ())).collect());
        for n in [3, 3, 1, 3, 3, 4, 3, 3] {
            let lease = bound(&group, &format!("r{n}"), 0).unwrap();
            assert_eq!(number(&lease), n, "{method:?}");
        }
    }
}

#[test]
fn draining_peer_gets_only_bound_requests() {
    let group = group(
        BalanceMethod::RoundRobin,
        vec![
            routed(1, |params| params.admin = AdminState::Drain),
            routed(2, |_| ()),
            routed(3, |params| params.admin = AdminState::Down),
        ],
    );
    assert_eq!(turns(&group, 3, 0), [2, 2, 2]);
    for (sid, expected) in [("r1", 1), ("r2", 2), ("r3", 2), ("r9", 2), ("", 2)] {
        assert_eq!(number(&bound(&group, sid, 0).unwrap()), expected, "{sid}");
    }
    let single =
        super::group(BalanceMethod::RoundRobin, vec![routed(1, |params| params.admin = AdminState::Drain)]);
    assert!(bound(&single, "r1", 0).is_ok() && bound(&single, "r2", 0).is_err());
}

#[test]
fn request_bound_to_a_failed_peer_gets_another() {
    let group = group(BalanceMethod::RoundRobin, vec![routed(1, |_| ()), routed(2, |_| ())]);
    let mut selection = group.start_selection(BalanceKey::None, Some(b"r1".as_slice().into()), 0);
    let mut rng = Rng::seeded(1);
    let lease = group.select(&mut selection, 0, &mut rng).unwrap();
    assert_eq!(number(&lease), 1);
    lease.done(PeerOutcome::Failed, 0);
    assert_eq!(number(&group.select(&mut selection, 0, &mut rng).unwrap()), 2);
    assert_eq!(number(&bound(&group, "r1", 5).unwrap()), 2);
}

#[test]
fn bound_requests_hardly_shift_the_balance() {
    // Bound requests reduce the peer's current weight down to a bound only, so its turn among the others is not far.
    let group = group(BalanceMethod::RoundRobin, vec![routed(1, |_| ()), routed(2, |_| ())]);
    for _ in 0..100 {
        assert_eq!(number(&bound(&group, "r1", 0).unwrap()), 1);
    }
    assert_eq!(turns(&group, 4, 0), [2, 1, 2, 1]);
}
