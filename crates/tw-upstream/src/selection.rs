//! State of one request while it selects peers, over several attempts.

use std::net::IpAddr;

use crate::peer::PeerId;
use crate::peer_list::{PeerList, PeerTier};

/// Key for the method of the group; see [`BalanceMethod::key_kind`](crate::BalanceMethod::key_kind).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum BalanceKey {
    /// None, or none that the method could use.
    #[default]
    None,
    /// The address of the client.
    Client(IpAddr),
    /// The text of `hash`.
    Text(Vec<u8>),
}

/// Selection of peers for one request: its key and the peers it has tried.
#[derive(Debug)]
pub struct PeerSelection {
    pub(crate) key: BalanceKey,
    /// Peer that the request is bound to, by its [`Peer::sid`](crate::Peer::sid).
    pub(crate) sid: Option<Box<[u8]>>,
    pub(crate) stage: PeerTier,
    pub(crate) tried: TriedPeers,
    pub(crate) search: Search,
    tries: Option<u32>,
    tries_max: u32,
}

/// Position of a hashing method for the next attempt.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Search {
    pub(crate) hash: u32,
    pub(crate) rehash: u32,
    pub(crate) tries: u32,
    /// The list for which `hash` is a position of its ring.
    pub(crate) ring_of: Option<u64>,
}

/// Tried peers. The first few take no heap memory.
#[derive(Debug, Default)]
pub(crate) struct TriedPeers {
    few: [PeerId; 4],
    len: usize,
    more: Vec<PeerId>,
}

impl PeerSelection {
    pub(crate) fn new(key: BalanceKey, sid: Option<Box<[u8]>>, tries_max: u32, search: Search) -> Self {
        let tried = TriedPeers::default();
        Self { key, sid, stage: PeerTier::Primary, tried, search, tries: None, tries_max }
    }

    /// Number of further peers that may be tried, without the current one. Unknown and zero before the first
    /// selection. Source: nginx, `peer.tries`.
    pub fn tries_left(&self) -> u32 {
        self.tries.unwrap_or(0)
    }

    /// Returns true if some peers are excluded because they were tried: another request may find a peer where this
    /// one does not.
    pub fn has_tried(&self) -> bool {
        self.tried.len() > 0
    }

    /// Allows one more try after a failure that says nothing about the peer, such as a kept connection that was just
    /// being closed.
    pub fn grant_try(&mut self) {
        self.tries = Some(self.tries_left().saturating_add(1));
    }

    /// Binds the request to the peer with this identifier for `sticky`, or to none.
    pub fn bind(&mut self, sid: Option<Box<[u8]>>) {
        self.sid = sid;
    }

    /// Counts a selection from this list. A group of one peer has no second try.
    pub(crate) fn count(&mut self, list: &PeerList) {
        let remaining = self.tries.unwrap_or(match self.tries_max {
            0 => list.tries,
            max => list.tries.min(max),
        });
        self.tries = Some(if list.is_single { 0 } else { remaining.saturating_sub(1) });
    }
}

impl TriedPeers {
    pub(crate) fn has(&self, id: PeerId) -> bool {
        self.few.iter().take(self.len).chain(&self.more).any(|tried| *tried == id)
    }

    pub(crate) fn add(&mut self, id: PeerId) {
        match self.few.get_mut(self.len) {
            Some(free) => {
                *free = id;
                self.len += 1;
            }
            None => self.more.push(id),
        }
    }

    /// Number of tried peers.
    pub(crate) fn len(&self) -> usize {
        self.len + self.more.len()
    }

    /// Forgets all but the first `len`.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.more.truncate(len.saturating_sub(self.few.len()));
        self.len = self.len.min(len);
    }
}
