//! Shares of a rate: what the nodes of a fleet say of their demand, and the part of the rate that follows for this node.
//!
//! ```text
//! of a key that this node has announced   (demand of this node) / (demand of all), at least the floor
//! of any other key                        1 / nodes
//! ```
//! The second line is for little demand, and for new demand that others do not know yet. Demand that found no room in the announcement
//! has the floor, if others have announced theirs.
//!
//! Nodes that say nothing keep their equal shares for a while, because a node that is cut off goes on with its own. So the shares of
//! all nodes are never much more than the whole rate, whoever hears whom.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use crate::announcement::Announcement;
use crate::shared_rate::RateShare;
use crate::status::NODES_MAX;

/// Time without an announcement after which a node is away.
pub(crate) const SILENCE_MAX: Duration = Duration::from_millis(2500);
/// Time for which an equal share is kept for a node that is away.
pub(crate) const NODE_MEMORY: Duration = Duration::from_secs(300);
/// Part of an equal share that a node has of every key, however small its demand.
const FLOOR: f64 = 0.1;

/// Node as its last announcement describes it.
struct KnownNode {
    process: String,
    heard: Duration,
    /// Demand by rate and key, in thousandths of a request per second.
    rates: BTreeMap<String, HashMap<u64, u64>>,
}

/// Other nodes of a fleet.
pub(crate) struct OtherNodes {
    nodes: BTreeMap<String, KnownNode>,
    /// Nodes of each rate, with this one, as the process before knew them.
    saved: BTreeMap<String, u32>,
    /// Time until which these count.
    saved_until: Duration,
}

/// Numbers of nodes that have a rate, with this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodeCount {
    pub(crate) all: u32,
    pub(crate) away: u32,
}

/// Keys of a rate that are asked on this node.
#[derive(Clone, Copy)]
pub(crate) struct OwnKeys<'a> {
    /// All of them.
    pub(crate) keys: &'a HashSet<u64>,
    /// Demand of those that this node has announced.
    pub(crate) announced: &'a HashMap<u64, u64>,
    /// Keys that found no room in what this node announces.
    pub(crate) unannounced: &'a HashSet<u64>,
}

impl OtherNodes {
    /// Other nodes, of which nothing has been heard. `saved` has the numbers of before.
    pub(crate) fn new(saved: BTreeMap<String, u32>, now: Duration) -> Self {
        Self { nodes: BTreeMap::new(), saved, saved_until: now + NODE_MEMORY }
    }

    /// Takes in an announcement of another node.
    pub(crate) fn hear(&mut self, from: &Announcement, now: Duration) {
        if from.is_leaving {
            // A process that has taken over has another word.
            if self.nodes.get(&from.node).is_some_and(|node| node.process == from.process) {
                self.nodes.remove(&from.node);
            }
            return;
        }
        if self.nodes.len() >= NODES_MAX && !self.nodes.contains_key(&from.node) {
            return;
        }
        let demand = |keys: &Vec<(u64, u64)>| keys.iter().copied().collect();
        let rates = from.rates.iter().map(|(name, keys)| (name.clone(), demand(keys))).collect();
        let node = KnownNode { process: from.process.clone(), heard: now, rates };
        self.nodes.insert(from.node.clone(), node);
    }

    /// Forgets nodes that have been away for long; while this node hears nothing itself, none.
    pub(crate) fn forget(&mut self, now: Duration, is_isolated: bool) {
        if is_isolated {
            // The silence of other nodes counts from when this node hears again.
            let silent = now.saturating_sub(SILENCE_MAX);
            self.nodes.values_mut().for_each(|node| node.heard = node.heard.max(silent));
            self.saved_until = self.saved_until.max(now + NODE_MEMORY);
        }
        self.nodes.retain(|_, node| now.saturating_sub(node.heard) < NODE_MEMORY);
        if now >= self.saved_until {
            self.saved.clear();
        }
    }

    /// Returns true for a node that is known.
    pub(crate) fn is_known(&self, node: &str) -> bool {
        self.nodes.contains_key(node)
    }

    /// Other nodes that have a rate and are there, with their demand.
    fn present(&self, rate: &str, now: Duration) -> impl Iterator<Item = &HashMap<u64, u64>> {
        let is_there = move |node: &&KnownNode| now.saturating_sub(node.heard) < SILENCE_MAX;
        self.nodes.values().filter(is_there).filter_map(move |node| node.rates.get(rate))
    }

    /// Number of nodes that have a rate. `least` is a number that is known otherwise, as long as nothing was heard.
    pub(crate) fn count(&self, rate: &str, now: Duration, least: u32) -> NodeCount {
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX).saturating_add(1);
        let candidate = number(self.nodes.values().filter(|node| node.rates.contains_key(rate)).count());
        let present = number(self.present(rate, now).count());
        let saved = self.saved.get(rate).copied().unwrap_or(0);
        let all = candidate.max(saved).max(least);
        NodeCount { all, away: all - present }
    }

    /// Shares of this node of its keys. Keys that nobody has announced are not among them. Demand above the whole rate counts as the whole
    /// rate, so that no node gets more by a larger number.
    pub(crate) fn shares(
        &self,
        rate: &str,
        per_second: u64,
        demand: &OwnKeys<'_>,
        count: NodeCount,
        now: Duration,
    ) -> HashMap<u64, RateShare> {
        let OwnKeys { keys, announced: own, unannounced } = *demand;
        let mut demands: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for demand in self.present(rate, now) {
            // The shorter one of the two is gone through.
            let mut add = |key: u64, demand: u64| match demand.min(per_second) {
                0 => {}
                demand => demands.entry(key).or_default().push(demand),
            };
            if demand.len() < keys.len() {
                let asked = demand.iter().filter(|(key, _)| keys.contains(*key));
                asked.for_each(|(key, demand)| add(*key, *demand));
            } else {
                keys.iter().for_each(|key| demand.get(key).into_iter().for_each(|demand| add(*key, *demand)));
            }
        }
        for key in own.keys().filter(|key| keys.contains(*key)) {
            demands.entry(*key).or_default();
        }
        let pool = f64::from(count.all.saturating_sub(count.away).max(1)) / f64::from(count.all.max(1));
        let floor = FLOOR / f64::from(count.all.max(1));
        let share = |key: u64, mut others: Vec<u64>| {
            // The order is the same on all nodes.
            others.sort_unstable();
            let own = own.get(&key).copied().unwrap_or(0).min(per_second);
            if own == 0 && !unannounced.contains(&key) {
                return None;
            }
            part(own, &others, floor).map(|part| (key, RateShare::of(part * pool)))
        };
        demands.into_iter().filter_map(|(key, others)| share(key, others)).collect()
    }
}

/// Part of a rate for a node with the demand `own` beside those with the demands `others`; `None` if there is no demand.
fn part(own: u64, others: &[u64], floor: f64) -> Option<f64> {
    let all: u64 = others.iter().fold(own, |sum, demand| sum.saturating_add(*demand));
    if all == 0 {
        return None;
    }
    let wanted_share = |demand: u64| (demand as f64 / all as f64).max(floor);
    if own == 0 {
        return Some(floor);
    }
    // The floor raises the parts of some nodes, so all parts are scaled down to a sum of 1.
    let sum: f64 = wanted_share(own) + others.iter().map(|demand| wanted_share(*demand)).sum::<f64>();
    Some(wanted_share(own) / sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn announced(node: &str, process: &str, keys: &[(u64, u64)]) -> Announcement {
        let mut announcement = Announcement::new(node, process);
        announcement.rates.insert("z".to_owned(), keys.to_vec());
        announcement
    }

    fn share(others: &OtherNodes, own: u64, now: Duration) -> Option<f64> {
        let own: HashMap<u64, u64> = [(7, own)].into_iter().filter(|(_, own)| *own > 0).collect();
        let count = others.count("z", now, 0);
        let keys = [7].into();
        // A key that was asked less than others.
        let unannounced = if own.is_empty() { [7].into() } else { HashSet::new() };
        others
            .shares(
                "z",
                1000,
                &OwnKeys { keys: &keys, announced: &own, unannounced: &unannounced },
                count,
                now,
            )
            .get(&7)
            .map(|share| share.part())
    }

    fn is_near(value: Option<f64>, expected: f64) -> bool {
        value.is_some_and(|candidate| (candidate - expected).abs() < 1e-6)
    }

    #[test]
    fn parts_follow_demand_and_add_up_to_one() {
        for demands in [&[5_u64, 5][..], &[1, 999], &[1000, 1, 1, 1, 1], &[7], &[u64::MAX, 1], &[3; 100]] {
            let floor = FLOOR / demands.len() as f64;
            let parts: Vec<f64> = (0..demands.len())
                .map(|at| {
                    let others: Vec<u64> = demands
                        .iter()
                        .enumerate()
                        .filter(|(other, _)| *other != at)
                        .map(|(_, d)| *d)
                        .collect();
                    part(demands[at], &others, floor).unwrap()
                })
                .collect();
            assert!((parts.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{demands:?}: {parts:?}");
            assert!(parts.iter().all(|part| *part >= floor / 1.1), "{demands:?}: {parts:?}");
        }
        assert_eq!(part(0, &[], 0.1), None);
        assert_eq!(part(0, &[5], 0.01), Some(0.01));
        assert_eq!(part(5, &[], 0.01), Some(1.0));
    }

    #[test]
    fn shares_follow_what_other_nodes_announce() {
        let mut others = OtherNodes::new(BTreeMap::new(), SECOND);
        assert!(is_near(share(&others, 5, SECOND), 1.0));
        assert_eq!(share(&others, 0, SECOND), None, "nobody has announced it: an equal share");
        others.hear(&announced("b", "p", &[(7, 300)]), SECOND);
        assert_eq!(others.count("z", SECOND, 0), NodeCount { all: 2, away: 0 });
        assert_eq!(others.count("other", SECOND, 0), NodeCount { all: 1, away: 0 });
        assert!(is_near(share(&others, 100, SECOND), 0.25));
        assert!(is_near(share(&others, 0, SECOND), 0.05), "the floor");
        let count = others.count("z", SECOND, 0);
        let none = HashSet::new();
        let asked = OwnKeys { keys: &[7].into(), announced: &HashMap::new(), unannounced: &none };
        let new = others.shares("z", 1000, &asked, count, SECOND);
        assert!(new.is_empty(), "new demand, or little: an equal share");
        // A lying node gets no more than one that demands the whole rate, and a key that it announces twice counts
        // nothing.
        others.hear(&announced("b", "p", &[(7, u64::MAX), (7, u64::MAX)]), SECOND);
        assert!(is_near(share(&others, 1000, SECOND), 0.5));
        assert!(is_near(share(&others, u64::MAX, SECOND), 0.5));
    }

    #[test]
    fn equal_shares_are_kept_for_nodes_that_are_away() {
        let mut others = OtherNodes::new(BTreeMap::new(), Duration::ZERO);
        for node in ["b", "c", "d"] {
            others.hear(&announced(node, "p", &[(7, 500)]), SECOND);
        }
        let later = SECOND + SILENCE_MAX;
        others.hear(&announced("b", "p", &[(7, 100)]), later);
        others.forget(later, false);
        assert_eq!(others.count("z", later, 0), NodeCount { all: 4, away: 2 });
        assert!(is_near(share(&others, 100, later), 0.25));
        assert!(is_near(share(&others, 300, later), 0.375));
        // A node that leaves announces that.
        let bye = |process: &str| {
            let mut bye = announced("c", process, &[]);
            bye.is_leaving = true;
            bye
        };
        others.hear(&bye("before"), later);
        assert_eq!(others.count("z", later, 0).all, 4);
        others.hear(&bye("p"), later);
        assert_eq!(others.count("z", later, 0), NodeCount { all: 3, away: 1 });
        // The other node is forgotten after a while, unless this node hears nothing itself.
        let late = later + 2 * NODE_MEMORY;
        others.forget(late, true);
        assert_eq!(others.count("z", late, 0).all, 3);
        others.forget(late + NODE_MEMORY - SILENCE_MAX, false);
        assert_eq!(others.count("z", late + NODE_MEMORY, 0).all, 1);
    }

    #[test]
    fn number_of_nodes_outlives_a_restart() {
        let mut others = OtherNodes::new([("z".to_owned(), 5)].into(), SECOND);
        assert_eq!(others.count("z", SECOND, 0), NodeCount { all: 5, away: 4 });
        assert!(is_near(share(&others, 100, SECOND), 0.2));
        others.hear(&announced("b", "p", &[]), 2 * SECOND);
        assert_eq!(others.count("z", 2 * SECOND, 0), NodeCount { all: 5, away: 3 });
        let late = SECOND + NODE_MEMORY;
        others.hear(&announced("b", "p", &[]), late);
        others.forget(late, false);
        assert_eq!(others.count("z", late, 0), NodeCount { all: 2, away: 0 });
        assert_eq!(others.count("z", late, 4), NodeCount { all: 4, away: 2 });
        // Names that a hostile node invents are limited.
        (0..2000).for_each(|nth| others.hear(&announced(&format!("x{nth}"), "p", &[]), late));
        assert_eq!(others.count("z", late, 0).all, 1025);
    }
}
