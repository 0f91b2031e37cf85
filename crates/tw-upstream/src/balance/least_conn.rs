//! The fewest connections for its weight; among equals in turns. Source: nginx, `ngx_http_upstream_get_least_conn_peer`.

use std::sync::Arc;

use super::round_robin;
use super::view::View;
use crate::peer::Peer;
use crate::selection::PeerSelection;

pub(super) fn choose<'a>(view: &View<'a>, selection: &PeerSelection) -> Option<&'a Arc<Peer>> {
    if let Some(bound) = view.bound(selection) {
        return Some(bound);
    }
    least(view, selection, |peer| u64::from(peer.state.connections()))
}

/// The peer whose cost is the least for its weight. Among equals, from the first of them on, in turns.
pub(super) fn least<'a>(
    view: &View<'a>,
    selection: &PeerSelection,
    cost: impl Fn(&Peer) -> u64,
) -> Option<&'a Arc<Peer>> {
    let mut best: Option<Best<'a>> = None;
    for (index, peer) in view.tier.peers.iter().enumerate() {
        if !view.is_free(selection, peer) {
            continue;
        }
        let cost = cost(peer);
        let weight = peer.steps(view.now);
        // cost / weight < best.cost / best.weight
        let order = best.as_ref().map(|best| by_weight(cost, best.weight).cmp(&by_weight(best.cost, weight)));
        match (order, &mut best) {
            (Some(std::cmp::Ordering::Equal), Some(best)) => best.has_equals = true,
            (Some(std::cmp::Ordering::Greater), _) => {}
            _ => best = Some(Best { index, peer, cost, weight, has_equals: false }),
        }
    }
    let best = best?;
    if !best.has_equals {
        return Some(best.peer);
    }
    let rest = view.tier.peers.iter().skip(best.index);
    let equals =
        rest.filter(|peer| by_weight(cost(peer), best.weight) == by_weight(best.cost, peer.steps(view.now)));
    round_robin::turn(view, selection, equals, None).or(Some(best.peer))
}

fn by_weight(cost: u64, weight: i64) -> u128 {
    u128::from(cost) * u128::from(weight.unsigned_abs())
}

struct Best<'a> {
    index: usize,
    peer: &'a Arc<Peer>,
    cost: u64,
    weight: i64,
    has_equals: bool,
}
