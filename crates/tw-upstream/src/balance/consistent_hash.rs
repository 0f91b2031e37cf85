//! By a text on the [ring](super::ring): few texts move when a peer comes or goes. Source: nginx, `ngx_http_upstream_get_chash_peer`.

use std::sync::Arc;

use super::round_robin;
use super::view::{TRIES_MAX, View};
use crate::peer::Peer;
use crate::selection::{BalanceKey, PeerSelection};

pub(super) fn choose<'a>(view: &View<'a>, selection: &mut PeerSelection) -> Option<&'a Arc<Peer>> {
    let ring = &view.tier.ring;
    let text = match &selection.key {
        BalanceKey::Text(text) if !text.is_empty() => text,
        _ => return round_robin::choose(view, selection),
    };
    let mut search = selection.search;
    if search.tries > TRIES_MAX {
        return round_robin::choose(view, selection);
    }
    if search.ring_of != Some(view.list.generation) {
        search.hash = ring.find(text);
        search.ring_of = Some(view.list.generation);
    }
    if let Some(bound) = view.bound(selection) {
        return Some(bound);
    }
    let chosen = loop {
        let peers = ring.at(search.hash)?.iter().filter_map(|index| view.tier.peers.get(*index));
        if let Some(peer) = round_robin::turn(view, selection, peers, None) {
            break Some(peer);
        }
        search.hash = search.hash.wrapping_add(1);
        search.tries += 1;
        if search.tries > TRIES_MAX {
            break None;
        }
    };
    selection.search = search;
    chosen.or_else(|| round_robin::choose(view, selection))
}
