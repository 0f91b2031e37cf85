//! Peers of the current tier, as a method looks at them.

use std::sync::Arc;

use crate::peer::Peer;
use crate::peer_list::{PeerList, Tier};
use crate::selection::PeerSelection;

/// Peers to choose from.
pub(super) struct View<'a> {
    pub(super) list: &'a PeerList,
    pub(super) tier: &'a Tier,
    pub(super) now: i64,
}

impl<'a> View<'a> {
    /// The peer that the attempt is bound to, if it can be used and was not tried.
    pub(super) fn bound(&self, selection: &PeerSelection) -> Option<&'a Arc<Peer>> {
        let sid = selection.sid.as_deref()?;
        let peer = self.tier.peers.iter().find(|peer| **peer.sid() == *sid)?;
        (!selection.tried.has(peer.id) && peer.is_usable_if_bound(self.now)).then_some(peer)
    }

    /// Returns true if the peer can be used and was not tried.
    pub(super) fn is_free(&self, selection: &PeerSelection, peer: &Peer) -> bool {
        !selection.tried.has(peer.id) && peer.is_usable(self.now)
    }
}

/// Number of draws after which a hashing or random method falls back to round robin. Source: nginx.
pub(super) const TRIES_MAX: u32 = 20;
