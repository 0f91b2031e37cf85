//! By chance, weighted; or the better one of two that chance names. Source: nginx, `ngx_http_upstream_random_module.c`.

use std::sync::Arc;

use super::method::RandomTwo;
use super::view::{TRIES_MAX, View};
use super::{least_time, round_robin};
use crate::peer::Peer;
use crate::selection::PeerSelection;
use tw_base::Rng;

pub(super) fn choose<'a>(
    view: &View<'a>,
    selection: &mut PeerSelection,
    rng: &mut Rng,
) -> Option<&'a Arc<Peer>> {
    if is_drawn(view, selection) {
        let bound = view.bound(selection);
        if let Some(peer) = bound.or_else(|| draw(view, selection, rng, None)) {
            return Some(peer);
        }
    }
    round_robin::choose(view, selection)
}

pub(super) fn choose_of_two<'a>(
    view: &View<'a>,
    selection: &mut PeerSelection,
    two: RandomTwo,
    rng: &mut Rng,
) -> Option<&'a Arc<Peer>> {
    if is_drawn(view, selection) {
        if let Some(bound) = view.bound(selection) {
            return Some(bound);
        }
        if let Some(first) = draw(view, selection, rng, None)
            && let Some(second) = draw(view, selection, rng, Some(first))
        {
            let is_worse = weighed(view, second, two, first) > weighed(view, first, two, second);
            return Some(if is_worse { first } else { second });
        }
    }
    round_robin::choose(view, selection)
}

fn is_drawn(view: &View<'_>, selection: &PeerSelection) -> bool {
    selection.search.tries <= TRIES_MAX && view.tier.peers.len() > 1
}

/// A usable peer other than `first`, unless too many draws gave none.
fn draw<'a>(
    view: &View<'a>,
    selection: &mut PeerSelection,
    rng: &mut Rng,
    first: Option<&Arc<Peer>>,
) -> Option<&'a Arc<Peer>> {
    loop {
        let (_, peer) = view.tier.weighed(rng.below(view.tier.total_weight))?;
        if first.is_none_or(|first| !Arc::ptr_eq(first, peer)) && view.is_free(selection, peer) {
            return Some(peer);
        }
        selection.search.tries += 1;
        if selection.search.tries > TRIES_MAX {
            return None;
        }
    }
}

/// The cost of a peer in units in which it can be compared with that of the other one.
fn weighed(view: &View<'_>, peer: &Peer, two: RandomTwo, other: &Peer) -> u128 {
    let cost = match two {
        RandomTwo::LeastConn => u64::from(peer.state.connections()),
        RandomTwo::LeastTime(measure) => least_time::cost(peer, measure, view.now),
    };
    u128::from(cost) * u128::from(other.params.weight)
}
