//! By a text on the [ring](super::ring), with a bounded load: a peer that has its share of the requests under way, times a factor, is
//! left out, and the text goes to the next peer of the ring. HAProxy: `hash-balance-factor`; Mirrokni, Thorup, Zadimoghaddam:
//! Consistent Hashing with Bounded Loads.

use std::sync::Arc;

use super::method::BalanceFactor;
use super::view::{TRIES_MAX, View};
use super::{least_conn, round_robin};
use crate::peer::Peer;
use crate::selection::{BalanceKey, PeerSelection};

/// Points with busy peers that are passed over before the peer with the fewest connections is taken.
const BUSY_POINTS_MAX: u32 = 64;

/// Requests under way, and the most that a peer may have of them.
struct Load {
    factor: BalanceFactor,
    /// Connections of all peers that can be used, with the next one.
    connections: u64,
    /// Weights of these peers.
    weight: u64,
}

impl Load {
    /// Load of the peers now. One that cannot be used has no share.
    fn of(view: &View<'_>, selection: &PeerSelection, factor: BalanceFactor) -> Self {
        let mut load = Self { factor, connections: 1, weight: 0 };
        for peer in view.tier.peers.iter().filter(|peer| view.is_free(selection, peer)) {
            load.connections += u64::from(peer.state.connections());
            load.weight += u64::from(peer.params.weight);
        }
        load
    }

    /// Returns true if one more connection is not more than the peer may have, rounded up. There always is such a peer.
    fn has_room(&self, peer: &Peer) -> bool {
        let most = u128::from(self.connections) * u128::from(peer.params.weight) * u128::from(self.factor.0);
        let most = most.div_ceil(u128::from(self.weight.max(1)) * 100);
        u128::from(peer.state.connections()) < most
    }
}

pub(super) fn choose<'a>(
    view: &View<'a>,
    selection: &mut PeerSelection,
    factor: BalanceFactor,
) -> Option<&'a Arc<Peer>> {
    let ring = &view.tier.ring;
    let text = match &selection.key {
        BalanceKey::Text(text) if !text.is_empty() => text,
        _ => return least_conn::choose(view, selection),
    };
    let mut search = selection.search;
    if search.tries > TRIES_MAX {
        return least_conn::choose(view, selection);
    }
    if search.ring_of != Some(view.list.generation) {
        search.hash = ring.find(text);
        search.ring_of = Some(view.list.generation);
    }
    if let Some(bound) = view.bound(selection) {
        return Some(bound);
    }
    let load = Load::of(view, selection, factor);
    let mut busy = 0;
    let chosen = loop {
        let peers = ring.at(search.hash)?.iter().filter_map(|index| view.tier.peers.get(*index));
        let mut is_busy = false;
        let with_room = |peer: &&Arc<Peer>| load.has_room(peer);
        let free = peers.inspect(|peer| is_busy |= view.is_free(selection, peer)).filter(with_room);
        if let Some(peer) = round_robin::turn(view, selection, free, None) {
            break Some(peer);
        }
        search.hash = search.hash.wrapping_add(1);
        let (count, max) =
            if is_busy { (&mut busy, BUSY_POINTS_MAX) } else { (&mut search.tries, TRIES_MAX) };
        *count += 1;
        if *count > max {
            break None;
        }
    };
    selection.search = search;
    // The peer with the fewest connections is always within the bound.
    chosen.or_else(|| least_conn::choose(view, selection))
}
