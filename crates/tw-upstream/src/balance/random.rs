//! By chance, weighted; or the better one of two that chance names. Source: nginx, `ngx_http_upstream_random_module.c`.

use std::sync::Arc;

use super::{TRIES_MAX, Two, View, least_time, round_robin};
use crate::attempt::Attempt;
use crate::peer::Peer;
use crate::rng::Rng;

pub(super) fn choose<'a>(view: &View<'a>, attempt: &mut Attempt, rng: &mut Rng) -> Option<&'a Arc<Peer>> {
    if is_drawn(view, attempt) {
        let bound = view.bound(attempt);
        if let Some(peer) = bound.or_else(|| draw(view, attempt, rng, None)) {
            return Some(peer);
        }
    }
    round_robin::choose(view, attempt)
}

pub(super) fn choose_of_two<'a>(
    view: &View<'a>,
    attempt: &mut Attempt,
    two: Two,
    rng: &mut Rng,
) -> Option<&'a Arc<Peer>> {
    if is_drawn(view, attempt) {
        if let Some(bound) = view.bound(attempt) {
            return Some(bound);
        }
        if let Some(first) = draw(view, attempt, rng, None)
            && let Some(second) = draw(view, attempt, rng, Some(first))
        {
            let is_worse = weighed(view, second, two, first) > weighed(view, first, two, second);
            return Some(if is_worse { first } else { second });
        }
    }
    round_robin::choose(view, attempt)
}

fn is_drawn(view: &View<'_>, attempt: &Attempt) -> bool {
    attempt.search.tries <= TRIES_MAX && view.tier.peers.len() > 1
}

/// A usable peer other than `first`, unless too many draws gave none.
fn draw<'a>(
    view: &View<'a>,
    attempt: &mut Attempt,
    rng: &mut Rng,
    first: Option<&Arc<Peer>>,
) -> Option<&'a Arc<Peer>> {
    loop {
        let (_, peer) = view.tier.weighed(rng.below(view.tier.total_weight))?;
        if first.is_none_or(|first| !Arc::ptr_eq(first, peer)) && view.is_free(attempt, peer) {
            return Some(peer);
        }
        attempt.search.tries += 1;
        if attempt.search.tries > TRIES_MAX {
            return None;
        }
    }
}

/// The cost of a peer in units in which it can be compared with that of the other one.
fn weighed(view: &View<'_>, peer: &Peer, two: Two, other: &Peer) -> u128 {
    let cost = match two {
        Two::LeastConn => u64::from(peer.state.connections()),
        Two::LeastTime(measure) => least_time::cost(peer, measure, view.now),
    };
    u128::from(cost) * u128::from(other.params.weight)
}
