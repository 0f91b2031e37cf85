//! Load balancing methods, one file each, with nginx's sequences. All of them choose among the peers of one tier
//! under the lock of the group, and leave what is common to [`Group::select`](crate::Group::select).

mod bounded;
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
use crate::selection::{PeerSelection, PeerTier, Search};
use tw_base::Rng;

pub use bounded::BalanceFactor;
pub use least_time::{LeastTime, TimeKind};
pub(crate) use ring::{LIMITS, Ring};

/// Number of draws after which a hashing or random method falls back to round robin. Source: nginx.
const TRIES_MAX: u32 = 20;

/// Load balancing method of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BalanceMethod {
    /// Weighted round robin.
    #[default]
    RoundRobin,
    /// Fewest connections in relation to the weight.
    LeastConn,
    /// Hash of the client's network.
    IpHash,
    /// Hash of a text.
    Hash,
    /// Consistent hash of a text: few texts move when a peer is added or removed (ketama).
    HashConsistent,
    /// Consistent hash of a text with a bounded load: no peer has more of the requests under way than its share, times a factor.
    HashBounded(BalanceFactor),
    /// Random; or the better one of two random peers.
    Random(Option<RandomTwo>),
    /// Least time for its connections and its weight.
    LeastTime(LeastTime),
}

/// Comparison of `random two`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RandomTwo {
    /// Fewer connections in relation to the weight.
    LeastConn,
    /// Less time.
    LeastTime(LeastTime),
}

/// Key that a method needs ([`BalanceKey`](crate::BalanceKey)).
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
    /// Kind of key that the method needs from a request.
    pub fn key_kind(self) -> KeyKind {
        match self {
            BalanceMethod::IpHash => KeyKind::Client,
            BalanceMethod::Hash | BalanceMethod::HashConsistent | BalanceMethod::HashBounded(_) => {
                KeyKind::Text
            }
            BalanceMethod::RoundRobin
            | BalanceMethod::LeastConn
            | BalanceMethod::Random(_)
            | BalanceMethod::LeastTime(_) => KeyKind::Nothing,
        }
    }

    /// Returns true if the method places peers on a ring of points, which are computed for each list of peers.
    pub fn has_ring(self) -> bool {
        matches!(self, BalanceMethod::HashConsistent | BalanceMethod::HashBounded(_))
    }

    /// Initial state of a search.
    pub(crate) fn search(self) -> Search {
        let hash = if self == BalanceMethod::IpHash { ip_hash::SEED } else { 0 };
        Search { hash, ..Search::default() }
    }

    /// Measure that the method needs, if it compares times.
    pub(crate) fn measure(self) -> Option<LeastTime> {
        match self {
            BalanceMethod::LeastTime(measure)
            | BalanceMethod::Random(Some(RandomTwo::LeastTime(measure))) => Some(measure),
            _ => None,
        }
    }

    /// Chooses the next peer of the current tier; `None` moves on to the next tier.
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
            (BalanceMethod::HashBounded(factor), PeerTier::Primary) => {
                bounded::choose(&view, selection, factor)
            }
            (BalanceMethod::Random(None), PeerTier::Primary) => random::choose(&view, selection, rng),
            (BalanceMethod::Random(Some(two)), PeerTier::Primary) => {
                random::choose_of_two(&view, selection, two, rng)
            }
            _ => round_robin::choose(&view, selection),
        }
    }
}

/// Peers to choose from.
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
