//! State of the tasks that announce: what is shared, what other nodes have said, and which demand of this node they have heard.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::peer_health::{HeardFindings, SharedPeers};
use crate::rate_shares::OtherNodes;
use crate::shared_rate::SharedRate;

/// Announcements of this process that may be on their way at once. An older one that comes back counts no more.
const ON_THE_WAY_MAX: usize = 8;

/// Parts of configurations that nodes share by announcements.
#[derive(Clone, Default)]
pub struct SharedParts {
    /// Rates of zones.
    pub rates: Vec<Arc<SharedRate>>,
    /// Groups of upstream servers.
    pub peers: Vec<Arc<dyn SharedPeers>>,
}

impl SharedParts {
    /// Returns true if nothing is shared.
    pub(crate) fn is_empty(&self) -> bool {
        self.rates.is_empty() && self.peers.is_empty()
    }
}

/// State of the tasks.
pub(crate) struct Announcer {
    pub(crate) parts: RefCell<SharedParts>,
    pub(crate) parts_changed: Notify,
    pub(crate) others: RefCell<OtherNodes>,
    pub(crate) findings: RefCell<HeardFindings>,
    /// Time of the last announcement of this process that came back: only then others hear it, too.
    pub(crate) heard_itself: RefCell<Option<Duration>>,
    pub(crate) own: RefCell<OwnDemand>,
    /// Time of the last round.
    pub(crate) last_round: Cell<Option<Duration>>,
}

/// Demand of each rate by key, in thousandths of a request per second.
pub(crate) type Demands = BTreeMap<String, HashMap<u64, u64>>;

/// Demand of this node as others know it. A share that followed from demand that nobody else has heard of yet would be too large: with a
/// new key, every node would believe that it alone is asked, and have the whole rate.
#[derive(Default)]
pub(crate) struct OwnDemand {
    last_number: u64,
    /// Announcements that have not come back.
    on_the_way: VecDeque<(u64, Demands)>,
    /// Demand of the last announcement that came back.
    pub(crate) confirmed_demand: Demands,
}

impl OwnDemand {
    /// Remembers what is about to be announced; returns the number for it.
    pub(crate) fn send(&mut self, demands: Demands) -> u64 {
        self.last_number += 1;
        if self.on_the_way.len() >= ON_THE_WAY_MAX {
            self.on_the_way.pop_front();
        }
        self.on_the_way.push_back((self.last_number, demands));
        self.last_number
    }

    /// Takes note that an announcement came back. Its demand is the remembered one, whatever somebody else makes of it.
    pub(crate) fn come_back(&mut self, number: u64) {
        let Some(at) = self.on_the_way.iter().position(|(sent, _)| *sent == number) else { return };
        // Announcements sent before this one are lost, or come too late to count.
        if let Some((_, demands)) = self.on_the_way.drain(..=at).next_back() {
            self.confirmed_demand = demands;
        }
    }
}

impl Announcer {
    pub(crate) fn new(now: Duration) -> Self {
        Self {
            parts: RefCell::default(),
            parts_changed: Notify::new(),
            others: RefCell::new(OtherNodes::new(Default::default(), now)),
            findings: RefCell::default(),
            heard_itself: RefCell::default(),
            own: RefCell::default(),
            last_round: Cell::new(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_demand_counts_when_its_announcement_has_come_back() {
        let demands = |demand: u64| Demands::from([("z".to_owned(), HashMap::from([(7, demand)]))]);
        let mut own = OwnDemand::default();
        assert_eq!((own.send(demands(1)), own.send(demands(2)), own.send(demands(3))), (1, 2, 3));
        assert_eq!(own.confirmed_demand, Demands::new());
        own.come_back(2);
        assert_eq!(own.confirmed_demand, demands(2));
        // Numbers that are ignored: one that was overtaken, two that were never sent, and one that comes back twice.
        for number in [1, 0, 99, 2] {
            own.come_back(number);
            assert_eq!(own.confirmed_demand, demands(2), "{number}");
        }
        own.come_back(3);
        assert_eq!(own.confirmed_demand, demands(3));
        // As long as no announcement comes back, the latest ones are remembered.
        for demand in 0..100 {
            assert_eq!(own.send(demands(demand)), demand + 4);
        }
        assert_eq!(own.on_the_way.len(), ON_THE_WAY_MAX);
        own.come_back(103);
        assert_eq!((own.confirmed_demand, own.on_the_way.len()), (demands(99), 0));
    }
}
