//! `/control`: shows, resets and deletes counters.

use std::fmt::Write as _;

use tw_core::metrics::json_string;
use tw_http::escape::{Unescape, unescape};
use tw_http::target;

use super::node::TrafficNode;
use super::report::{Report, UpstreamPart};
use super::traffic_zone::NodeName;
use super::upstreams::{self, ALONE};

/// Name of all groups, and of all zones of a group.
const ALL: &str = "*";
/// Zone of the facts of the process.
const MAIN: &str = "::main";
/// Nodes that are changed in one turn.
const KEYS_A_TURN: usize = 256;

/// A request as its arguments have it.
pub(super) struct ControlRequest {
    command: String,
    group: String,
    zone: String,
}

impl ControlRequest {
    /// Reads the arguments of a URI.
    pub(super) fn of(args: &[u8]) -> Self {
        let text = |name: &str| {
            let mut value = Vec::new();
            unescape(target::arg(args, name.as_bytes()).unwrap_or_default(), Unescape::All, &mut value);
            String::from_utf8_lossy(&value).into_owned()
        };
        Self { command: text("cmd"), group: text("group"), zone: text("zone") }
    }

    /// Returns true for a request that changes counters.
    pub(super) fn changes(&self) -> bool {
        matches!(&*self.command, "reset" | "delete")
    }

    /// Carries it out and appends the answer.
    pub(super) async fn run(&self, report: &mut Report<'_>, out: &mut String) {
        match &*self.command {
            "status" => self.show(report, out).await,
            "reset" => self.answer(self.change(report, Change::Reset).await, out),
            "delete" => self.answer(self.change(report, Change::Delete).await, out),
            _ => self.answer(0, out),
        }
    }

    async fn show(&self, report: &mut Report<'_>, out: &mut String) {
        let is_group = self.zone.is_empty() || self.zone == ALL;
        if self.group == ALL {
            return report.write(out).await;
        }
        out.push('{');
        match &*self.group {
            "server" if self.zone == MAIN => report.write_main(out),
            "server" if is_group => report.write_servers(out).await,
            "filter" if is_group => report.write_filters(out).await,
            "server" | "filter" => {
                if let Some((name, node)) = self.node(report).await {
                    report.write_node(&name, &node, out);
                }
            }
            "upstream@group" if is_group => report.write_upstreams(UpstreamPart::Groups, out).await,
            "upstream@alone" if is_group => report.write_upstreams(UpstreamPart::Alone, out).await,
            "upstream@group" | "upstream@alone" => self.show_upstream(report, out),
            "cache" if is_group => report.write_caches(out),
            "cache" => {
                let caches = upstreams::caches(&report.generation.process.shared_objects);
                if let Some(cache) = caches.iter().find(|cache| cache.name == self.zone) {
                    cache.write_member(out);
                }
            }
            _ => {}
        }
        out.push('}');
    }

    /// Name and counters of a node.
    async fn node(&self, report: &mut Report<'_>) -> Option<(Vec<u8>, TrafficNode)> {
        let node = self.named()?;
        let mut key = Vec::new();
        node.write_key(&mut key);
        let counters = report.node(&key).await?;
        let (NodeName::Server(name) | NodeName::Filter { name, .. }) = node;
        Some((name.to_vec(), counters))
    }

    fn show_upstream(&self, report: &Report<'_>, out: &mut String) {
        let (group, server) = match self.zone.split_once('@') {
            Some((group, server)) if !group.is_empty() => (group, server),
            Some((_, server)) => (ALONE, server),
            None => (ALONE, &*self.zone),
        };
        let groups = upstreams::groups(&report.generation.process.shared_objects);
        let Some((_, groups)) = groups.iter().find(|(name, _)| *name == group) else { return };
        let servers = upstreams::servers(groups, &report.vts.buckets);
        if let Some(server) = servers.iter().find(|upstream_view| *upstream_view.server == *server) {
            let mut json = String::new();
            server.write_json(&mut json);
            // The braces are there already.
            out.push_str(json.get(1..json.len() - 1).unwrap_or_default());
        }
    }

    /// The node that the zone names.
    fn named(&self) -> Option<NodeName<'_>> {
        match &*self.group {
            "server" => Some(NodeName::Server(self.zone.as_bytes())),
            "filter" => {
                let (group, name) = self.zone.split_once('@')?;
                Some(NodeName::Filter { group: group.as_bytes(), name: name.as_bytes() })
            }
            _ => None,
        }
    }

    /// Changes nodes and returns their number. Counters of upstream servers and caches are not changed.
    async fn change(&self, report: &Report<'_>, change: Change) -> usize {
        let run = |key: &[u8]| {
            let done = match change {
                Change::Reset => report.zone.with(key, |node| *node = TrafficNode::default()),
                Change::Delete => report.zone.remove(key),
            };
            usize::from(done.is_some())
        };
        let is_group = self.zone.is_empty() || self.zone == ALL;
        if self.group != ALL && !is_group {
            let Some(node) = self.named() else { return 0 };
            let mut key = Vec::new();
            node.write_key(&mut key);
            return run(&key);
        }
        let is_meant = |key: &[u8]| match NodeName::of_key(key) {
            NodeName::Server(_) => matches!(&*self.group, "server" | ALL),
            NodeName::Filter { .. } => matches!(&*self.group, "filter" | ALL),
        };
        let mut count = 0;
        for keys in report.zone.keys().chunks(KEYS_A_TURN) {
            count += keys.iter().filter(|key| is_meant(key)).map(|key| run(key)).sum::<usize>();
            tw_rt::yield_now().await;
        }
        count
    }

    fn answer(&self, count: usize, out: &mut String) {
        let _ = write!(out, r#"{{"processingReturn":{}"#, count > 0);
        for (name, value) in [("Command", &self.command), ("Group", &self.group), ("Zone", &self.zone)] {
            let _ = write!(out, r#","processing{name}String":"#);
            json_string(value, out);
        }
        let _ = write!(out, r#","processingCounts":{count}}}"#);
    }
}

/// Change of nodes.
#[derive(Clone, Copy)]
enum Change {
    Reset,
    Delete,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_name_nodes() {
        let request = ControlRequest::of(b"cmd=reset&group=filter&zone=country%3A%3Aa@K%20R&x");
        assert!(request.changes());
        assert_eq!(request.named(), Some(NodeName::Filter { group: b"country::a", name: b"K R" }));
        for (args, expected) in [
            ("cmd=status&group=server&zone=a", Some(NodeName::Server(b"a"))),
            ("cmd=status&group=filter&zone=a", None),
            ("cmd=status&group=cache&zone=a", None),
            ("", None),
        ] {
            let request = ControlRequest::of(args.as_bytes());
            assert_eq!((request.changes(), request.named()), (false, expected), "{args}");
        }
        let mut out = String::new();
        ControlRequest::of(b"cmd=delete&group=\"").answer(0, &mut out);
        assert_eq!(
            out,
            r#"{"processingReturn":false,"processingCommandString":"delete","processingGroupString":"\"","processingZoneString":"","processingCounts":0}"#
        );
    }
}
