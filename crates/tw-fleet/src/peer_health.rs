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

    /// Another node has found this address to be up or down. Returns true if this node is going to look at it itself.
    fn hint(&self, address: &str, is_up: bool) -> bool;
}

/// Group of upstream servers that a configuration shares with the nodes of a fleet.
pub struct SharedGroup {
    /// The fleet.
    pub fleet: Arc<Fleet>,
    /// Its peers.
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

/// What other nodes have said last of addresses, by node, group and address.
#[derive(Default)]
pub(crate) struct HeardFindings(BTreeMap<String, BTreeMap<(String, String), bool>>);

impl HeardFindings {
    /// Takes in an announcement, and passes on what is new in it. Returns the number of hints that are followed.
    pub(crate) fn hear(&mut self, from: &Announcement, groups: &[Arc<dyn SharedPeers>]) -> u64 {
        let before = self.0.remove(&from.node).unwrap_or_default();
        let (mut now, mut followed) = (BTreeMap::new(), 0);
        for group in groups {
            for (address, is_up) in from.peers.get(group.name()).into_iter().flatten() {
                let key = (group.name().to_owned(), address.clone());
                let last = before.get(&key).copied();
                // One of which nothing was heard is taken to be up.
                if last.unwrap_or(true) != *is_up && group.hint(address, *is_up) {
                    followed += 1;
                }
                now.insert(key, *is_up);
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
    let mut left = PEERS_MAX;
    let mut found = BTreeMap::new();
    for group in groups.iter().filter(|group| group.name().len() <= PEER_TEXT_SIZE_MAX).take(GROUPS_MAX) {
        let findings = group.findings().into_iter();
        let fits = |finding: &PeerFinding| finding.address.len() <= PEER_TEXT_SIZE_MAX;
        let findings: Vec<_> =
            findings.filter(fits).take(left).map(|finding| (finding.address, finding.is_up)).collect();
        left -= findings.len();
        if !findings.is_empty() {
            found.insert(group.name().to_owned(), findings);
        }
    }
    found
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
    }

    impl SharedPeers for Group {
        fn name(&self) -> &str {
            &self.name
        }

        fn findings(&self) -> Vec<PeerFinding> {
            self.findings.clone()
        }

        fn hint(&self, address: &str, is_up: bool) -> bool {
            self.hints.lock().unwrap().push((address.to_owned(), is_up));
            true
        }
    }

    fn group(name: &str, down: usize) -> Arc<Group> {
        let finding = |nth| PeerFinding { address: format!("10.0.0.1:{nth}"), is_up: false };
        let (name, findings) = (name.to_owned(), (0..down).map(finding).collect());
        Arc::new(Group { name, findings, hints: Mutex::default() })
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
    fn findings_are_limited() {
        let groups: Vec<Arc<dyn SharedPeers>> = (0..100)
            .map(|nth| -> Arc<dyn SharedPeers> {
                group(&format!("http/{nth}"), if nth < 2 { 200 } else { 1 })
            })
            .collect();
        let found = announced(&groups);
        assert_eq!(found.values().map(Vec::len).sum::<usize>(), PEERS_MAX);
        assert!(found.len() <= GROUPS_MAX);
        let long: Arc<dyn SharedPeers> = group(&"x".repeat(PEER_TEXT_SIZE_MAX + 1), 1);
        assert!(announced(&[long]).is_empty());
    }
}
