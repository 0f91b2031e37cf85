//! By a text, as memcached's clients do: half of its CRC-32 to a place among the weights. Every further try adds another
//! hash. Source: nginx, `ngx_http_upstream_get_hash_peer`; Cache::Memcached.

use std::io::Write as _;
use std::sync::Arc;

use super::round_robin;
use super::view::{TRIES_MAX, View};
use crate::peer::Peer;
use crate::selection::{BalanceKey, PeerSelection};

pub(super) fn choose<'a>(view: &View<'a>, selection: &mut PeerSelection) -> Option<&'a Arc<Peer>> {
    let mut search = selection.search;
    let text = match &selection.key {
        BalanceKey::Text(text) if !text.is_empty() => text,
        _ => return round_robin::choose(view, selection),
    };
    if search.tries > TRIES_MAX || view.tier.peers.len() < 2 {
        return round_robin::choose(view, selection);
    }
    if let Some(bound) = view.bound(selection) {
        return Some(bound);
    }
    let chosen = loop {
        search.hash = search.hash.wrapping_add(hash(search.rehash, text));
        search.rehash += 1;
        let (_, peer) = view.tier.weighed(u64::from(search.hash) % view.tier.total_weight.max(1))?;
        if view.is_free(selection, peer) {
            break Some(peer);
        }
        search.tries += 1;
        if search.tries > TRIES_MAX {
            break None;
        }
    };
    selection.search = search;
    chosen.or_else(|| round_robin::choose(view, selection))
}

/// 15 bits of the text, with the number of the try before it from the second try on.
fn hash(rehash: u32, text: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    if rehash > 0 {
        let mut digits = [0; 10];
        let mut rest = digits.as_mut_slice();
        // Ten digits hold every number of 32 bits.
        let _ = write!(rest, "{rehash}");
        let free = rest.len();
        crc.update(digits.get(..10 - free).unwrap_or_default());
    }
    crc.update(text);
    (crc.finalize() >> 16) & 0x7fff
}
