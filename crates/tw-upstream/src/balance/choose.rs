//! Choice of a peer by the method of the group.

use std::sync::Arc;

use tw_base::Rng;

use super::method::BalanceMethod;
use super::view::View;
use super::{bounded, consistent_hash, hash, ip_hash, least_conn, least_time, random, round_robin};
use crate::peer::Peer;
use crate::peer_list::{PeerList, PeerTier};
use crate::selection::{PeerSelection, Search};

impl BalanceMethod {
    /// Initial state of a search.
    pub(crate) fn search(self) -> Search {
        let hash = if self == BalanceMethod::IpHash { ip_hash::SEED } else { 0 };
        Search { hash, ..Search::default() }
    }

    /// Chooses the next peer of the current tier; `None` moves on to the next tier.
    pub(crate) fn choose<'a>(
        self,
        list: &'a PeerList,
        selection: &mut PeerSelection,
        now: i64,
        rng: &mut Rng,
    ) -> Option<&'a Arc<Peer>> {
        let view = View { list, tier: list.tier(selection.stage), now };
        match (self, selection.stage) {
            _ if list.is_single => round_robin::choose(&view, selection),
            (BalanceMethod::LeastConn, _) => least_conn::choose(&view, selection),
            (BalanceMethod::LeastTime(measure), _) => least_time::choose(&view, selection, measure),
            (BalanceMethod::IpHash, PeerTier::Primary) => ip_hash::choose(&view, selection),
            (BalanceMethod::Hash, PeerTier::Primary) => hash::choose(&view, selection),
            (BalanceMethod::HashConsistent, PeerTier::Primary) => consistent_hash::choose(&view, selection),
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
