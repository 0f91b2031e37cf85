//! Smooth weighted round robin: every peer gains its weight, the one that stands highest is chosen and pays for all.
//! Source: nginx, `ngx_http_upstream_get_peer`.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::view::View;
use crate::peer::{Peer, WHOLE_STEP};
use crate::selection::PeerSelection;
use crate::server::AdminState;

pub(super) fn choose<'a>(view: &View<'a>, selection: &PeerSelection) -> Option<&'a Arc<Peer>> {
    let bound = view.bound(selection);
    if view.list.is_single {
        let only =
            || view.tier.peers.first().filter(|peer| peer.params.admin == AdminState::Up && peer.is_open());
        return bound.or_else(only);
    }
    if let Some(peer) = bound {
        // Bound requests must not keep other requests from the peer for ever: below this bound its current weight is
        // not reduced further.
        let others = view.tier.total_weight.saturating_sub(u64::from(peer.params.weight));
        let low = i64::try_from(others).unwrap_or(i64::MAX).saturating_mul(WHOLE_STEP);
        if peer.state.current.load(Relaxed) <= -low {
            return bound;
        }
    }
    turn(view, selection, &view.tier.peers, bound)
}

/// One turn among those of `peers` that can be used. `bound` is chosen whoever stands highest.
pub(super) fn turn<'a>(
    view: &View<'a>,
    selection: &PeerSelection,
    peers: impl IntoIterator<Item = &'a Arc<Peer>>,
    bound: Option<&'a Arc<Peer>>,
) -> Option<&'a Arc<Peer>> {
    let mut best = None;
    let mut highest = 0;
    let mut total = 0;
    for peer in peers {
        if !view.is_free(selection, peer) {
            continue;
        }
        let advance = peer.advance(view.now);
        total += advance.step;
        if best.is_none() || advance.current > highest {
            (best, highest) = (Some(peer), advance.current);
        }
    }
    let best = bound.or(best)?;
    best.state.current.fetch_sub(total, Relaxed);
    Some(best)
}
