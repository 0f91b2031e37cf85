//! Peers of a group at one time. A list never changes; it is replaced.

use std::sync::Arc;

use crate::balance::method::BalanceMethod;
use crate::balance::ring::Ring;
use crate::peer::{Peer, PeerId, ServerId};
use crate::server::{AdminState, Server};

/// All servers and peers of a group at one time.
#[derive(Debug)]
pub struct PeerList {
    /// Grows by one with each list of the group.
    pub(crate) generation: u64,
    pub(crate) servers: Vec<(ServerId, Arc<Server>)>,
    pub(crate) primary: Tier,
    pub(crate) backup: Tier,
    /// One peer and no backup: nginx's rules for such a group are simpler, and failures do not count.
    pub(crate) is_single: bool,
    /// As many attempts as a request may make: the peers that are not down.
    pub(crate) tries: u32,
}

/// Peers among which one is chosen.
#[derive(Debug, Default)]
pub(crate) struct Tier {
    pub(crate) peers: Vec<Arc<Peer>>,
    /// Of all peers, also those that are down.
    pub(crate) total_weight: u64,
    /// For each peer the sum of the weights up to and with it.
    ends: Vec<u64>,
    /// The points of `hash … consistent`.
    pub(crate) ring: Ring,
}

/// Tier of peers that is searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerTier {
    Primary,
    Backup,
}

impl PeerList {
    pub(crate) fn new(
        generation: u64,
        method: &BalanceMethod,
        servers: Vec<(ServerId, Arc<Server>)>,
        peers: Vec<Arc<Peer>>,
    ) -> Self {
        let tries = peers.iter().filter(|peer| peer.params.admin == AdminState::Up).count();
        let (backup, primary): (Vec<_>, Vec<_>) = peers.into_iter().partition(|peer| peer.params.backup);
        let is_single = primary.len() == 1 && backup.is_empty();
        let primary = Tier::new(primary, method);
        let backup = Tier::new(backup, method);
        let tries = u32::try_from(tries).unwrap_or(u32::MAX);
        Self { generation, servers, primary, backup, is_single, tries }
    }

    /// All peers: first those that are not backup, each in the order of the configuration and then of DNS.
    pub fn peers(&self) -> impl Iterator<Item = &Arc<Peer>> {
        self.primary.peers.iter().chain(&self.backup.peers)
    }

    /// Peers of a kind.
    pub(crate) fn tier(&self, kind: PeerTier) -> &Tier {
        match kind {
            PeerTier::Primary => &self.primary,
            PeerTier::Backup => &self.backup,
        }
    }

    /// The peer of this name.
    pub fn peer(&self, id: PeerId) -> Option<&Arc<Peer>> {
        self.peers().find(|peer| peer.id == id)
    }

    /// The servers with their names, in the order of the configuration.
    pub fn servers(&self) -> &[(ServerId, Arc<Server>)] {
        &self.servers
    }

    /// Number of the list in its group.
    pub fn generation(&self) -> u64 {
        self.generation
    }
}

impl Tier {
    fn new(peers: Vec<Arc<Peer>>, method: &BalanceMethod) -> Self {
        let mut total_weight = 0;
        let ends = peers
            .iter()
            .map(|peer| {
                total_weight += u64::from(peer.params.weight);
                total_weight
            })
            .collect();
        let ring = if method.has_ring() { Ring::new(&peers) } else { Ring::default() };
        Self { peers, total_weight, ends, ring }
    }

    /// The peer that has `at` if each has as many numbers from zero as it has weight.
    pub(crate) fn weighed(&self, at: u64) -> Option<(usize, &Arc<Peer>)> {
        let index = self.ends.partition_point(|end| *end <= at);
        Some((index, self.peers.get(index)?))
    }
}
