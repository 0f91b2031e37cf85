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

use crate::attempt::{Attempt, Search, Stage};
use crate::list::{List, Tier};
use crate::peer::Peer;
use crate::rng::Rng;

pub use least_time::{LeastTime, Time};
pub(crate) use ring::{LIMITS, Ring};

/// A method that hashes or draws looks so often for a usable peer, and then leaves it to the round robin. Source: nginx.
const TRIES_MAX: u32 = 20;

/// How a group chooses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
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
    Random(Option<Two>),
    /// The least time for its connections and its weight.
    LeastTime(LeastTime),
}

/// Which of two is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Two {
    /// The one with fewer connections for its weight.
    LeastConn,
    /// The one that needs less time.
    LeastTime(LeastTime),
}

/// What a method has to be told ([`Key`](crate::Key)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// Nothing.
    Nothing,
    /// The address of the client.
    Client,
    /// The text of the directive.
    Text,
}

impl Method {
    /// What it has to be told of a request.
    pub fn wants(self) -> Wants {
        match self {
            Method::IpHash => Wants::Client,
            Method::Hash | Method::HashConsistent => Wants::Text,
            Method::RoundRobin | Method::LeastConn | Method::Random(_) | Method::LeastTime(_) => {
                Wants::Nothing
            }
        }
    }

    /// Where a search begins.
    pub(crate) fn search(self) -> Search {
        let hash = if self == Method::IpHash { ip_hash::SEED } else { 0 };
        Search { hash, ..Search::default() }
    }

    /// What is measured for it.
    pub(crate) fn measure(self) -> Option<LeastTime> {
        match self {
            Method::LeastTime(measure) | Method::Random(Some(Two::LeastTime(measure))) => Some(measure),
            _ => None,
        }
    }

    /// The next peer of the tier that the attempt is at; `None` sends it to the next tier.
    pub(crate) fn choose<'a>(
        self,
        list: &'a List,
        attempt: &mut Attempt,
        now: i64,
        rng: &mut Rng,
    ) -> Option<&'a Arc<Peer>> {
        let tier = match attempt.stage {
            Stage::Primary => &list.primary,
            Stage::Backup => &list.backup,
        };
        let view = View { list, tier, now };
        match (self, attempt.stage) {
            _ if list.is_single => round_robin::choose(&view, attempt),
            (Method::LeastConn, _) => least_conn::choose(&view, attempt),
            (Method::LeastTime(measure), _) => least_time::choose(&view, attempt, measure),
            (Method::IpHash, Stage::Primary) => ip_hash::choose(&view, attempt),
            (Method::Hash, Stage::Primary) => hash::choose(&view, attempt),
            (Method::HashConsistent, Stage::Primary) => ring::choose(&view, attempt),
            (Method::Random(None), Stage::Primary) => random::choose(&view, attempt, rng),
            (Method::Random(Some(two)), Stage::Primary) => random::choose_of_two(&view, attempt, two, rng),
            _ => round_robin::choose(&view, attempt),
        }
    }
}

/// What is chosen from.
struct View<'a> {
    list: &'a List,
    tier: &'a Tier,
    now: i64,
}

impl<'a> View<'a> {
    /// The peer that the attempt is bound to, if it can be used and was not tried.
    fn bound(&self, attempt: &Attempt) -> Option<&'a Arc<Peer>> {
        let sid = attempt.sid.as_deref()?;
        let peer = self.tier.peers.iter().find(|peer| **peer.sid() == *sid)?;
        (!attempt.tried.has(peer.id) && peer.is_usable_if_bound(self.now)).then_some(peer)
    }

    fn is_free(&self, attempt: &Attempt, peer: &Peer) -> bool {
        !attempt.tried.has(peer.id) && peer.is_usable(self.now)
    }
}
