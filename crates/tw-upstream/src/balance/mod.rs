//! The methods of choosing a peer, one file each, with nginx's sequences. All of them choose among the peers of one tier
//! under the lock of the group, and leave what is common to [`Group::select`](crate::Group::select).

mod hash;
mod ip_hash;
mod least_conn;
mod least_time;
mod random;
mod ring;
mod round_robin;

use std::sync::Arc;

use crate::peer::Peer;
use crate::peer_list::{PeerList, Tier};
use crate::rng::Rng;
use crate::selection::{PeerSelection, PeerTier, Search};

pub use least_time::{LeastTime, TimeKind};
pub(crate) use ring::{LIMITS, Ring};

/// A method that hashes or draws looks so often for a usable peer, and then leaves it to the round robin. Source: nginx.
const TRIES_MAX: u32 = 20;

/// How a group chooses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BalanceMethod {
    /// In turns, by weight.
    #[default]
    RoundRobin,
    /// The fewest connections for its weight.
    LeastConn,
    /// By the network of the client.
    IpHash,
    /// By a text.
    Hash,
    /// By a text, so that few texts move when a peer comes or goes (ketama).
    HashConsistent,
    /// By chance; or the better one of two.
    Random(Option<RandomTwo>),
    /// The least time for its connections and its weight.
    LeastTime(LeastTime),
}

/// Which of two is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RandomTwo {
    /// The one with fewer connections for its weight.
    LeastConn,
    /// The one that needs less time.
    LeastTime(LeastTime),
}

/// What a method has to be told ([`BalanceKey`](crate::BalanceKey)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// Nothing.
    Nothing,
    /// The address of the client.
    Client,
    /// The text of the directive.
    Text,
}

impl BalanceMethod {
    /// What it has to be told of a request.
    pub fn key_kind(self) -> KeyKind {
        match self {
            BalanceMethod::IpHash => KeyKind::Client,
            BalanceMethod::Hash | BalanceMethod::HashConsistent => KeyKind::Text,
            BalanceMethod::RoundRobin
            | BalanceMethod::LeastConn
            | BalanceMethod::Random(_)
            | BalanceMethod::LeastTime(_) => KeyKind::Nothing,
        }
    }

    /// Where a search begins.
    pub(crate) fn search(self) -> Search {
        let hash = if self == BalanceMethod::IpHash { ip_hash::SEED } else { 0 };
        Search { hash, ..Search::default() }
    }

    /// What is measured for it.
    pub(crate) fn measure(self) -> Option<LeastTime> {
        match self {
            BalanceMethod::LeastTime(measure)
            | BalanceMethod::Random(Some(RandomTwo::LeastTime(measure))) => Some(measure),
            _ => None,
        }
    }

    /// The next peer of the tier that the attempt is at; `None` sends it to the next tier.
    pub(crate) fn choose<'a>(
        self,
        list: &'a PeerList,
        selection: &mut PeerSelection,
        now: i64,
        rng: &mut Rng,
    ) -> Option<&'a Arc<Peer>> {
        let tier = match selection.stage {
            PeerTier::Primary => &list.primary,
            PeerTier::Backup => &list.backup,
        };
        let view = View { list, tier, now };
        match (self, selection.stage) {
            _ if list.is_single => round_robin::choose(&view, selection),
            (BalanceMethod::LeastConn, _) => least_conn::choose(&view, selection),
            (BalanceMethod::LeastTime(measure), _) => least_time::choose(&view, selection, measure),
            (BalanceMethod::IpHash, PeerTier::Primary) => ip_hash::choose(&view, selection),
            (BalanceMethod::Hash, PeerTier::Primary) => hash::choose(&view, selection),
            (BalanceMethod::HashConsistent, PeerTier::Primary) => ring::choose(&view, selection),
            (BalanceMethod::Random(None), PeerTier::Primary) => random::choose(&view, selection, rng),
            (BalanceMethod::Random(Some(two)), PeerTier::Primary) => {
                random::choose_of_two(&view, selection, two, rng)
            }
            _ => round_robin::choose(&view, selection),
        }
    }
}

/// What is chosen from.
struct View<'a> {
    list: &'a PeerList,
    tier: &'a Tier,
    now: i64,
}

impl<'a> View<'a> {
    /// The peer that the attempt is bound to, if it can be used and was not tried.
    fn bound(&self, selection: &PeerSelection) -> Option<&'a Arc<Peer>> {
        let sid = selection.sid.as_deref()?;
        let peer = self.tier.peers.iter().find(|peer| **peer.sid() == *sid)?;
        (!selection.tried.has(peer.id) && peer.is_usable_if_bound(self.now)).then_some(peer)
    }

    fn is_free(&self, selection: &PeerSelection, peer: &Peer) -> bool {
        !selection.tried.has(peer.id) && peer.is_usable(self.now)
    }
}
