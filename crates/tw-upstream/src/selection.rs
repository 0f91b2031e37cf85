//! What one request remembers while it looks for a peer, and looks again after a failure.

use std::net::IpAddr;

use crate::peer::PeerId;
use crate::peer_list::PeerList;

/// What the method of the group chooses by; see [`BalanceMethod::wants`](crate::BalanceMethod::wants).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum BalanceKey {
    /// Nothing, or nothing that it could use.
    #[default]
    None,
    /// The address of the client.
    Client(IpAddr),
    /// The text of `hash`.
    Text(Vec<u8>),
}

/// One request on its way to a peer: what it chooses by and which peers it has tried.
#[derive(Debug)]
pub struct PeerSelection {
    pub(crate) key: BalanceKey,
    /// The peer it is bound to, by what [`Peer::sid`](crate::Peer::sid) says.
    pub(crate) sid: Option<Box<[u8]>>,
    pub(crate) stage: PeerTier,
    pub(crate) tried: TriedPeers,
    pub(crate) search: Search,
    tries: Option<u32>,
    tries_max: u32,
}

/// Which peers are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerTier {
    Primary,
    Backup,
}

/// Where a method that hashes goes on after a failure.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Search {
    pub(crate) hash: u32,
    pub(crate) rehash: u32,
    pub(crate) tries: u32,
    /// The list for which `hash` is a position of its ring.
    pub(crate) ring_of: Option<u64>,
}

/// Peers that were tried. The first few need no memory of their own.
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

    /// How many more peers may be tried, not counting the one that is being tried. Before the first choice it is not known
    /// and zero. Source: nginx, `peer.tries`.
    pub fn tries_left(&self) -> u32 {
        self.tries.unwrap_or(0)
    }

    /// Whether some peers will not be chosen because they were tried: others may find a peer where this one does not.
    pub fn has_tried(&self) -> bool {
        self.tried.len() > 0
    }

    /// One more try: for a failure that says nothing of the peer, such as a kept connection that was just being closed.
    pub fn grant_try(&mut self) {
        self.tries = Some(self.tries_left().saturating_add(1));
    }

    /// From now on bound to the peer that has this name for `sticky`, or to none.
    pub fn bind(&mut self, sid: Option<Box<[u8]>>) {
        self.sid = sid;
    }

    /// A peer was chosen from this list. A group of one peer has no second try.
    pub(crate) fn count(&mut self, list: &PeerList) {
        let left = self.tries.unwrap_or(match self.tries_max {
            0 => list.tries,
            max => list.tries.min(max),
        });
        self.tries = Some(if list.is_single { 0 } else { left.saturating_sub(1) });
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

    /// How many.
    pub(crate) fn len(&self) -> usize {
        self.len + self.more.len()
    }

    /// Forgets all but the first `len`.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.more.truncate(len.saturating_sub(self.few.len()));
        self.len = self.len.min(len);
    }
}

impl Default for PeerId {
    fn default() -> Self {
        Self(u32::MAX)
    }
}
