//! `hash … consistent balance_factor=`: simulations of requests that stay under way.

use std::collections::HashMap;

use super::{all_fail, group, new_selection, number, server, with};
use crate::server::AdminState;
use crate::{BalanceFactor, BalanceKey, BalanceMethod, Group, Lease, PeerOutcome, Rng, Server};

const PERCENTS: [u64; 4] = [101, 125, 200, 1000];

fn bounded(percent: u64, servers: Vec<Server>) -> Group {
    group(BalanceMethod::HashBounded(BalanceFactor::new(percent).unwrap()), servers)
}

fn text(key: u64) -> BalanceKey {
    BalanceKey::Text(key.to_string().into_bytes())
}

fn select(group: &Group, key: u64) -> Lease {
    let (mut selection, mut rng) = new_selection(group, text(key));
    group.select(&mut selection, 0, &mut rng).unwrap()
}

#[test]
fn factor_is_more_than_the_share() {
    for (percent, is_one) in [(0, false), (100, false), (101, true), (10_000, true), (10_001, false)] {
        assert_eq!(BalanceFactor::new(percent).is_some(), is_one, "{percent}");
    }
}

#[test]
fn no_peer_has_more_than_its_share_times_the_factor() {
    let weights = [1, 1, 2, 1, 3, 1, 1];
    for percent in PERCENTS {
        let group = bounded(percent, (1..).zip(weights).map(|(n, weight)| server(n, weight)).collect());
        let mut rng = Rng::seeded(percent);
        let mut leases = Vec::new();
        let mut random = |below: u64| rng.below(below);
        for _ in 0..5000 {
            // A tenth of the texts have nearly all requests; the number of requests goes up and down.
            if random(100) < 55 || leases.is_empty() {
                let key = if random(10) < 9 { random(5) } else { random(1000) };
                leases.push(select(&group, key));
                let mut loads = HashMap::new();
                leases.iter().for_each(|lease| *loads.entry(number(lease)).or_insert(0_u64) += 1);
                let chosen = number(leases.last().unwrap());
                let total = leases.len() as u64;
                let weight = u64::from(weights[usize::from(chosen) - 1]);
                let most = (total * weight * percent).div_ceil(weights.iter().sum::<u32>() as u64 * 100);
                assert!(loads[&chosen] <= most, "{percent}: {chosen} has {loads:?}, {most} at most");
            } else {
                let at = random(leases.len() as u64) as usize;
                leases.swap_remove(at).done(PeerOutcome::Success, 0);
            }
        }
    }
}

#[test]
fn texts_stay_on_their_peers_below_the_bound() {
    let servers = || (1..=10).map(|n| server(n, 1)).collect::<Vec<_>>();
    let plain = group(BalanceMethod::HashConsistent, servers());
    let group = bounded(125, servers());
    // With one request at a time, the peer of a text is always within the bound.
    for key in 0..1000 {
        let expected = select(&plain, key);
        let found_lease = select(&group, key);
        assert_eq!(number(&found_lease), number(&expected), "{key}");
    }
    // With all texts under way, most are on the peers of the plain ring.
    let expected: Vec<_> = (0..2000).map(|key| number(&select(&plain, key))).collect();
    let leases: Vec<_> = (0..2000).map(|key| select(&group, key)).collect();
    let kept = leases.iter().zip(&expected).filter(|(lease, expected)| number(lease) == **expected).count();
    assert!(kept > 1800, "{kept}");
}

#[test]
fn one_text_spreads_to_as_few_peers_as_the_factor_allows() {
    let group = bounded(200, (1..=10).map(|n| server(n, 1)).collect());
    let leases: Vec<_> = (0..100).map(|_| select(&group, 7)).collect();
    let mut loads = HashMap::new();
    leases.iter().for_each(|lease| *loads.entry(number(lease)).or_insert(0) += 1);
    assert_eq!(loads.values().max(), Some(&20), "{loads:?}");
    assert!(loads.len() <= 6, "{loads:?}");
}

#[test]
fn peers_that_cannot_be_used_have_no_share() {
    let servers = vec![server(1, 1), with(2, |params| params.admin = AdminState::Down), server(3, 1)];
    let group = bounded(101, servers);
    let leases: Vec<_> = (0..10).map(|key| select(&group, key)).collect();
    let first = leases.iter().filter(|lease| number(lease) == 1).count();
    assert!((4..=6).contains(&first), "{first}");
    // A request that fails everywhere has tried each once.
    let mut tried = all_fail(&group, text(1), 0);
    tried.sort_unstable();
    assert_eq!(tried, [1, 3]);
    // A text that is empty goes to the peer with the fewest connections.
    let (mut selection, mut rng) = new_selection(&group, BalanceKey::Text(Vec::new()));
    assert!(group.select(&mut selection, 0, &mut rng).is_ok());
}
