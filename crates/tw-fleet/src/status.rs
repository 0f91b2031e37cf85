//! State of a node and what it knows of the others, for metrics and for `tailwater fleet status`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Length of texts of other nodes.
const TEXT_SIZE_MAX: usize = 64;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Nodes of a fleet that are listed.
    pub(crate) const NODES_MAX: usize = 1024, count, "further ones are not listed; they are purged as all others";
}

/// Configuration that a node follows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeConfiguration {
    /// Number of the version that is served; 0 for one that was never pushed.
    pub number: u64,
    /// Number of the version before it.
    pub previous: u64,
    /// Word for the state: `waiting`, `serving`, `refused`, or `silent` if the program that follows does not report any more.
    pub state: String,
}

/// Summary that each node publishes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeSummary {
    /// Name of the node.
    pub node: String,
    /// Version of its program.
    pub version: String,
    /// Sequence up to which it has applied the log.
    pub sequence: u64,
    /// Records behind it, as far as it knows.
    pub lag: u64,
    /// Purges that wait on its disk for the engine.
    pub queued: u64,
    /// Time of the summary, in milliseconds since 1970.
    pub time: u64,
    /// Time of the last purge that it has applied, in milliseconds since 1970; 0 if there was none.
    pub last_purge: u64,
    /// Word of the process that has written it: another server with the same name has another one.
    pub process: String,
    /// Configuration, if the node follows one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub configuration: Option<NodeConfiguration>,
}

/// State of a node.
#[derive(Debug, Clone, Default)]
pub struct FleetStatus {
    /// Name and version of the server of the engine; `None` while there is no connection.
    pub engine: Option<String>,
    /// Reason of the last lost or failed connection.
    pub last_error: Option<String>,
    /// Sequence up to which the log is applied.
    pub sequence: u64,
    /// Records behind it.
    pub lag: u64,
    /// Purges that wait on disk.
    pub queued: u64,
    /// Purges of this node that the log has got.
    pub published: u64,
    /// Purges of this node that the engine has acknowledged and lost; they are published again.
    pub lost: u64,
    /// Purges of this node that could neither be published nor queued.
    pub unpublished: u64,
    /// Purges of other nodes that were applied.
    pub applied: u64,
    /// Records that were not understood.
    pub unreadable: u64,
    /// Number of times that everything stored became stale.
    pub resets: u64,
    /// Connections to the engine that were made.
    pub connections: u64,
    /// Time of the last purge that was applied, in milliseconds since 1970; 0 if there was none.
    pub last_purge: u64,
    /// True if the position cannot be saved, or a purge is not saved.
    pub is_unsaved: bool,
    /// Nodes that hold leases, by the name of the lease; `None` while nobody does.
    pub leases: BTreeMap<String, Option<String>>,
    /// Configuration of this node, if it follows one.
    pub configuration: Option<NodeConfiguration>,
    /// True while another server publishes summaries under the name of this node.
    pub has_name_conflict: bool,
    /// Rates that the nodes share, by zone.
    pub rates: BTreeMap<String, SharedRateState>,
    /// Announcements of other nodes that were heard.
    pub announcements: u64,
    /// Announcements that were not understood, or too large.
    pub unreadable_announcements: u64,
    /// Hints of other nodes about upstream servers that were followed.
    pub hints: u64,
    /// Other nodes and this one, as they describe themselves.
    pub nodes: BTreeMap<String, NodeSummary>,
}

/// State of a rate, for metrics and `tailwater fleet status`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SharedRateState {
    /// Nodes that are known to have the rate, with this one.
    pub nodes: u32,
    /// Nodes among them that say nothing. Their equal shares are kept for them.
    pub away: u32,
    /// Keys that this node has a share of its own for.
    pub keys: u32,
    /// True while shares follow the demand; false while this node hears nothing, and has an equal share of each key.
    pub is_shared: bool,
}

impl NodeConfiguration {
    /// Version and state in words.
    pub fn describe(&self) -> String {
        match (&*self.state, self.number) {
            ("serving", number) => number.to_string(),
            (state, number) => format!("{number} {state}"),
        }
    }
}

impl FleetStatus {
    /// Records of the log that a node has not applied yet. One that is behind does not know what it misses.
    pub fn lag_of(&self, node: &NodeSummary) -> u64 {
        node.lag.max(self.sequence.saturating_sub(node.sequence))
    }

    /// Takes in the summary of a node under its key; `None` removes it.
    pub(crate) fn set_node(&mut self, key: &str, value: Option<&[u8]>) {
        let summary = value.and_then(|value| serde_json::from_slice::<NodeSummary>(value).ok());
        match summary {
            None => drop(self.nodes.remove(key)),
            Some(_) if self.nodes.len() >= NODES_MAX && !self.nodes.contains_key(key) => {}
            Some(mut summary) => {
                key.clone_into(&mut summary.node);
                let state = summary.configuration.as_mut().map(|configuration| &mut configuration.state);
                for text in [&mut summary.version, &mut summary.process].into_iter().chain(state) {
                    text.retain(|char| char.is_ascii_graphic());
                    text.truncate(TEXT_SIZE_MAX);
                }
                self.nodes.insert(key.to_owned(), summary);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_of_other_nodes_are_not_believed() {
        let mut status = FleetStatus::default();
        status.set_node("a", Some(br#"{"node":"b","version":"0.1\u001b[31m","sequence":7,"more":1}"#));
        let node_summary = status.nodes.get("a").unwrap();
        assert_eq!((&*node_summary.node, &*node_summary.version, node_summary.sequence), ("a", "0.1[31m", 7));
        status.set_node("a", Some(br#"{"configuration":{"number":3,"state":"\u001bserving"}}"#));
        let configuration = status.nodes["a"].configuration.clone().unwrap();
        assert_eq!((configuration.describe(), configuration.state.len()), ("3".to_owned(), 7));
        status.set_node("a", Some(b"[]x"));
        assert!(status.nodes.is_empty());
        for number in 0..NODES_MAX + 5 {
            status.set_node(&number.to_string(), Some(b"{}"));
        }
        assert_eq!(status.nodes.len(), NODES_MAX);
    }
}
