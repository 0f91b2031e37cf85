//! By the network of the client: the first three octets of an IPv4 address, all of an IPv6 one, hashed to a place among
//! the weights. Source: nginx, `ngx_http_upstream_get_ip_hash_peer`.

use std::net::IpAddr;
use std::sync::Arc;

use super::{TRIES_MAX, View, round_robin};
use crate::attempt::{Attempt, Key};
use crate::peer::Peer;

/// Where the hash begins.
pub(super) const SEED: u32 = 89;

pub(super) fn choose<'a>(view: &View<'a>, attempt: &mut Attempt) -> Option<&'a Arc<Peer>> {
    let mut search = attempt.search;
    if search.tries > TRIES_MAX || view.tier.peers.len() < 2 {
        return round_robin::choose(view, attempt);
    }
    if let Some(bound) = view.bound(attempt) {
        return Some(bound);
    }
    let address = match attempt.key {
        Key::Client(IpAddr::V4(ip)) => Address::V4(ip.octets()),
        Key::Client(IpAddr::V6(ip)) => Address::V6(ip.octets()),
        // As nginx does for clients of a Unix socket.
        Key::None | Key::Text(_) => Address::V4([0; 4]),
    };
    let chosen = loop {
        search.hash =
            address.octets().fold(search.hash, |hash, octet| (hash * 113 + u32::from(octet)) % 6271);
        let (_, peer) = view.tier.weighed(u64::from(search.hash) % view.tier.total_weight.max(1))?;
        if view.is_free(attempt, peer) {
            break Some(peer);
        }
        search.tries += 1;
        if search.tries > TRIES_MAX {
            break None;
        }
    };
    match chosen {
        Some(_) => attempt.search = search,
        None => attempt.search.tries = search.tries,
    }
    chosen.or_else(|| round_robin::choose(view, attempt))
}

enum Address {
    V4([u8; 4]),
    V6([u8; 16]),
}

impl Address {
    fn octets(&self) -> impl Iterator<Item = u8> {
        let octets = match self {
            Address::V4(octets) => octets.iter().take(3),
            Address::V6(octets) => octets.iter().take(16),
        };
        octets.copied()
    }
}
