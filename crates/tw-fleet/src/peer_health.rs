//! Health of upstream servers as a hint: what other nodes have found, and what of it is new. Nobody believes it; the owner of a group
//! decides what it looks at itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::announcement::{Announcement, GROUPS_MAX, PEER_TEXT_SIZE_MAX, PEERS_MAX};
use crate::fleet::Fleet;

/// Group of upstream servers whose health the nodes of a fleet share.
pub trait SharedPeers: Send + Sync {
    /// Name of the group, the same on all nodes.
    fn name(&self) -> &str;

    /// Addresses that this node itself has found to be down, and those that have come back a short time ago.
    fn findings(&self) -> Vec<PeerFinding>;

    /// Takes in that another node has found this address to be up or down. Returns true if this node is going to look at it itself.
    fn hint(&self, address: &str, is_up: bool) -> bool;
}

/// Group of upstream servers that a configuration shares with the nodes of a fleet.
pub struct SharedGroup {
    /// The fleet.
    pub fleet: Arc<Fleet>,
    /// Peers of the group.
    pub peers: Arc<dyn SharedPeers>,
}

/// Address of a group with what a node has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerFinding {
    /// Address, as `$upstream_addr` shows it.
    pub address: String,
    /// False if it is down.
    pub is_up: bool,
}

/// Announcements in which a change is passed on again while nobody follows it, because hints about one address have a distance of
/// two seconds: half a second each. Otherwise a server that comes back soon after it was down would not be looked at.
const TRIES: u8 = 6;

/// Finding of another node.
#[derive(Debug, Clone, Copy)]
struct HeardFinding {
    is_up: bool,
    /// Times that it is still passed on.
    tries: u8,
}

/// Last findings of other nodes about addresses, by node, group and address.
#[derive(Default)]
pub(crate) struct HeardFindings(BTreeMap<String, BTreeMap<(String, String), HeardFinding>>);

impl HeardFindings {
    /// Takes in an announcement, and passes on what is new in it. Returns the number of hints that are followed.
    pub(crate) fn hear(&mut self, from: &Announcement, groups: &[Arc<dyn SharedPeers>]) -> u64 {
        let before = self.0.remove(&from.node).unwrap_or_default();
        let mut now = BTreeMap::new();
        let mut followed = 0;
        for group in groups {
            for (address, is_up) in from.peers.get(group.name()).into_iter().flatten() {
                let key = (group.name().to_owned(), address.clone());
                // A peer without an earlier finding counts as up.
                let last = before.get(&key).copied().unwrap_or(HeardFinding { is_up: true, tries: 0 });
                let tries = if last.is_up == *is_up { last.tries } else { TRIES };
                let is_followed = tries > 0 && group.hint(address, *is_up);
                followed += u64::from(is_followed);
                let tries = if is_followed { 0 } else { tries.saturating_sub(1) };
                now.insert(key, HeardFinding { is_up: *is_up, tries });
            }
        }
        if !now.is_empty() && !from.is_leaving {
            self.0.insert(from.node.clone(), now);
        }
        followed
    }

    /// Forgets nodes that are not known any more.
    pub(crate) fn retain(&mut self, is_known: impl Fn(&str) -> bool) {
        self.0.retain(|node, _| is_known(node));
    }
}

/// Findings of this node, for its announcement.
pub(crate) fn announced(groups: &[Arc<dyn SharedPeers>]) -> BTreeMap<String, Vec<(String, bool)>> {
    let mut remaining = PEERS_MAX;
    let mut results = BTreeMap::new();
    for group in groups.iter().filter(|group| group.name().len() <= PEER_TEXT_SIZE_MAX).take(GROUPS_MAX) {
        let findings = group.findings().into_iter();
        let fits = |finding: &PeerFinding| finding.address.len() <= PEER_TEXT_SIZE_MAX;
        let findings: Vec<_> =
            findings.filter(fits).take(remaining).map(|finding| (finding.address, finding.is_up)).collect();
        remaining -= findings.len();
        if !findings.is_empty() {
            results.insert(group.name().to_owned(), findings);
        }
    }
    results
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Group that remembers what it was told.
    struct Group {
        name: String,
        findings: Vec<PeerFinding>,
        hints: Mutex<Vec<(String, bool)>>,
        /// Hints that are not followed.
        refused: usize,
    }

    impl SharedPeers for Group {
        fn name(&self) -> &str {
            &self.name
        }

        fn findings(&self) -> Vec<PeerFinding> {
            self.findings.clone()
        }

        fn hint(&self, address: &str, is_up: bool) -> bool {
            let mut hints = self.hints.lock().unwrap();
            hints.push((address.to_owned(), is_up));
            hints.len() > self.refused
        }
    }

    fn group(name: &str, down: usize) -> Arc<Group> {
        group_that_refuses(name, down, 0)
    }

    fn group_that_refuses(name: &str, down: usize, refused: usize) -> Arc<Group> {
        let finding = |nth| PeerFinding { address: format!("10.0.0.1:{nth}"), is_up: false };
        let name = name.to_owned();
        let findings = (0..down).map(finding).collect();
        Arc::new(Group { name, findings, hints: Mutex::default(), refused })
    }

    fn announcement(node: &str, peers: &[(&str, bool)]) -> Announcement {
        let mut announcement = Announcement::new(node, "p");
        let peers = peers.iter().map(|(address, is_up)| ((*address).to_owned(), *is_up)).collect();
        announcement.peers.insert("http/g".to_owned(), peers);
        announcement
    }

    #[test]
    fn only_changes_are_passed_on() {
        let group = group("http/g", 0);
        let groups: [Arc<dyn SharedPeers>; 1] = [group.clone()];
        let mut heard = HeardFindings::default();
        let mut hear = |peers: &[(&str, bool)]| {
            heard.hear(&announcement("n", peers), &groups);
            std::mem::take(&mut *group.hints.lock().unwrap())
        };
        assert!(hear(&[("a", true)]).is_empty(), "nobody said that it was down");
        assert_eq!(hear(&[("a", false), ("b", false)]), [("a".to_owned(), false), ("b".to_owned(), false)]);
        assert_eq!(hear(&[("a", false), ("b", true)]), [("b".to_owned(), true)]);
        assert!(hear(&[("a", false)]).is_empty());
        heard.retain(|_| false);
        assert_eq!(heard.hear(&announcement("n", &[("a", false)]), &groups), 1, "a node that is new");
        let mut other = announcement("n", &[]);
        other.peers.insert("http/unknown".to_owned(), vec![("a".to_owned(), false)]);
        assert_eq!(heard.hear(&other, &groups), 0);
    }

    #[test]
    fn change_is_passed_on_again_until_it_is_followed() {
        for (refused, expected) in [(0, 1), (3, 4), (100, usize::from(TRIES))] {
            let group = group_that_refuses("http/g", 0, refused);
            let groups: [Arc<dyn SharedPeers>; 1] = [group.clone()];
            let mut heard = HeardFindings::default();
            let followed: u64 =
                (0..20).map(|_| heard.hear(&announcement("n", &[("a", false)]), &groups)).sum();
            assert_eq!(group.hints.lock().unwrap().len(), expected, "{refused}");
            assert_eq!(followed, u64::from(refused < 100), "{refused}");
        }
    }

    #[test]
    fn findings_are_limited() {
        let groups: Vec<Arc<dyn SharedPeers>> = (0..100)
            .map(|nth| -> Arc<dyn SharedPeers> {
                group(&format!("http/{nth}"), if nth < 2 { 200 } else { 1 })
            })
            .collect();
        let results = announced(&groups);
        assert_eq!(results.values().map(Vec::len).sum::<usize>(), PEERS_MAX);
        assert!(results.len() <= GROUPS_MAX);
        let long: Arc<dyn SharedPeers> = group(&"x".repeat(PEER_TEXT_SIZE_MAX + 1), 1);
        assert!(announced(&[long]).is_empty());
    }
}
