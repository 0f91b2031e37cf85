//! By the network of the client: the first three octets of an IPv4 address, all of an IPv6 one, hashed to a place among
//! the weights. Source: nginx, `ngx_http_upstream_get_ip_hash_peer`.

use std::net::IpAddr;
use std::sync::Arc;

use super::round_robin;
use super::view::{TRIES_MAX, View};
use crate::peer::Peer;
use crate::selection::{BalanceKey, PeerSelection};

/// Initial value of the hash.
pub(super) const SEED: u32 = 89;

pub(super) fn choose<'a>(view: &View<'a>, selection: &mut PeerSelection) -> Option<&'a Arc<Peer>> {
    let mut search = selection.search;
    if search.tries > TRIES_MAX || view.tier.peers.len() < 2 {
        return round_robin::choose(view, selection);
    }
    if let Some(bound) = view.bound(selection) {
        return Some(bound);
    }
    let address = match selection.key {
        BalanceKey::Client(IpAddr::V4(ip)) => Octets::V4(ip.octets()),
        BalanceKey::Client(IpAddr::V6(ip)) => Octets::V6(ip.octets()),
        // As in nginx, clients of a Unix socket share one hash.
        BalanceKey::None | BalanceKey::Text(_) => Octets::V4([0; 4]),
    };
    let chosen = loop {
        search.hash =
            address.octets().fold(search.hash, |hash, octet| (hash * 113 + u32::from(octet)) % 6271);
        let (_, peer) = view.tier.weighed(u64::from(search.hash) % view.tier.total_weight.max(1))?;
        if view.is_free(selection, peer) {
            break Some(peer);
        }
        search.tries += 1;
        if search.tries > TRIES_MAX {
            break None;
        }
    };
    match chosen {
        Some(_) => selection.search = search,
        None => selection.search.tries = search.tries,
    }
    chosen.or_else(|| round_robin::choose(view, selection))
}

enum Octets {
    V4([u8; 4]),
    V6([u8; 16]),
}

impl Octets {
    fn octets(&self) -> impl Iterator<Item = u8> {
        let octets = match self {
            Octets::V4(octets) => octets.iter().take(3),
            Octets::V6(octets) => octets.iter().take(16),
        };
        octets.copied()
    }
}
