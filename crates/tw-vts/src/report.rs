//! All counters as JSON.
//!
//! A zone may have thousands of nodes: each is locked for itself, and others have their turns meanwhile.

use std::fmt::Write as _;
use std::rc::Rc;

use tw_core::NGINX_VERSION;
use tw_core::metrics::json_string;
use tw_module_support::connections::Connections;
use tw_request::generation::LoopGeneration;
use tw_request::request::Request;

use super::node::{TrafficNode, now_ms};
use super::settings::Vts;
use super::traffic_zone::{NodeName, TrafficZone};
use super::upstreams::{self, ALONE};

/// Version of the module whose documentation describes the format.
pub(super) const MODULE_VERSION: &str = "v0.2.5";

/// Nodes that are written in one turn.
const NODES_A_TURN: usize = 64;

/// Writer of a report about one configuration.
pub(super) struct Report<'a> {
    pub(super) vts: &'a Vts,
    pub(super) zone: &'a TrafficZone,
    pub(super) generation: Rc<LoopGeneration>,
    pub(super) facts: ProcessFacts,
    pub(super) now_ms: u64,
    /// Nodes of this turn.
    node_count: usize,
}

/// Facts of the process.
pub(super) struct ProcessFacts {
    pub(super) started_ms: u64,
    pub(super) connections: Connections,
    pub(super) accepted: u64,
    pub(super) handled: u64,
    pub(super) requests: u64,
}

/// Upstream servers that are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UpstreamPart {
    All,
    /// Servers of `upstream` blocks.
    Groups,
    /// Servers that stand in no block.
    Alone,
}

impl ProcessFacts {
    fn of(r: &Request) -> Self {
        let counts = &r.client().event_loop.counts;
        let accepted = counts.total(|tally| &tally.accepted);
        let started = counts.started.wall;
        Self {
            started_ms: started.secs.unsigned_abs() * 1000 + u64::from(started.msec),
            connections: Connections::of(counts),
            accepted,
            handled: accepted.saturating_sub(counts.total(|tally| &tally.refused)),
            requests: counts.total(|tally| &tally.sessions),
        }
    }
}

impl<'a> Report<'a> {
    /// A report for a request.
    pub(super) fn new(r: &Request, vts: &'a Vts, zone: &'a TrafficZone) -> Self {
        let generation = r.generation().clone();
        Self { vts, zone, generation, facts: ProcessFacts::of(r), now_ms: now_ms(), node_count: 0 }
    }

    /// Appends the whole report.
    pub(super) async fn write(&mut self, out: &mut String) {
        out.push('{');
        self.write_main(out);
        let usage = self.zone.usage();
        out.push_str(r#","sharedZones":{"name":"#);
        json_string(&self.zone.name, out);
        let size = self.zone.size;
        let bytes = usage.bytes;
        let nodes = usage.nodes;
        let _ = write!(out, r#","maxSize":{size},"usedSize":{bytes},"usedNode":{nodes}}},"#);
        self.write_servers(out).await;
        // Parts without content are left out, as by the module.
        for part in [Part::Filters, Part::Upstreams, Part::Caches] {
            let len = out.len();
            out.push(',');
            match part {
                Part::Filters => self.write_filters(out).await,
                Part::Upstreams if self.vts.by_upstream => self.write_upstreams(UpstreamPart::All, out).await,
                Part::Upstreams => out.push_str("{}"),
                Part::Caches => self.write_caches(out),
            }
            if out.ends_with("{}") {
                out.truncate(len);
            }
        }
        out.push('}');
    }

    /// Appends the members about the process.
    pub(super) fn write_main(&self, out: &mut String) {
        out.push_str(r#""hostName":"#);
        json_string(&String::from_utf8_lossy(&self.generation.process.hostname), out);
        let ProcessFacts { started_ms, connections, accepted, handled, requests } = &self.facts;
        let Connections { active, reading, writing, waiting } = connections;
        let now_ms = self.now_ms;
        let _ = write!(
            out,
            r#","moduleVersion":"{MODULE_VERSION}","nginxVersion":"{NGINX_VERSION}","loadMsec":{started_ms},"nowMsec":{now_ms}"#
        );
        let _ = write!(
            out,
            r#","connections":{{"active":{active},"reading":{reading},"writing":{writing},"waiting":{waiting},"accepted":{accepted},"handled":{handled},"requests":{requests}}}"#
        );
    }

    /// Appends `"serverZones":{…}` with the sum of all servers.
    pub(super) async fn write_servers(&mut self, out: &mut String) {
        out.push_str(r#""serverZones":{"#);
        let mut sum = TrafficNode::default();
        for key in self.zone.keys() {
            let NodeName::Server(name) = NodeName::of_key(&key) else { continue };
            if let Some(node) = self.node(&key).await {
                self.write_node(name, &node, out);
                out.push(',');
                sum.add(&node);
            }
        }
        self.write_node(&self.vts.sum_key, &sum, out);
        out.push('}');
    }

    /// Appends `"filterZones":{…}`.
    pub(super) async fn write_filters(&mut self, out: &mut String) {
        out.push_str(r#""filterZones":{"#);
        let mut current: Option<Vec<u8>> = None;
        for key in self.zone.keys() {
            let NodeName::Filter { group, name } = NodeName::of_key(&key) else { continue };
            let Some(node) = self.node(&key).await else { continue };
            if current.as_deref() != Some(group) {
                out.push_str(if current.is_some() { "}," } else { "" });
                json_string(&String::from_utf8_lossy(group), out);
                out.push_str(":{");
                current = Some(group.to_vec());
            } else {
                out.push(',');
            }
            self.write_node(name, &node, out);
        }
        out.push_str(if current.is_some() { "}}" } else { "}" });
    }

    /// Appends `"upstreamZones":{…}`.
    pub(super) async fn write_upstreams(&mut self, part: UpstreamPart, out: &mut String) {
        let generation = self.generation.clone();
        out.push_str(r#""upstreamZones":{"#);
        let groups = upstreams::groups(&generation.process.shared_objects).into_iter();
        let is_shown = |name: &str| match part {
            UpstreamPart::All => true,
            UpstreamPart::Groups => name != ALONE,
            UpstreamPart::Alone => name == ALONE,
        };
        for (at, (name, groups)) in groups.filter(|(name, _)| is_shown(name)).enumerate() {
            out.push_str(if at > 0 { "," } else { "" });
            json_string(name, out);
            out.push_str(":[");
            for (at, server) in upstreams::servers(&groups, &self.vts.buckets).iter().enumerate() {
                out.push_str(if at > 0 { "," } else { "" });
                server.write_json(out);
            }
            out.push(']');
            tw_rt::yield_now().await;
        }
        out.push('}');
    }

    /// Appends `"cacheZones":{…}`.
    pub(super) fn write_caches(&self, out: &mut String) {
        out.push_str(r#""cacheZones":{"#);
        for (at, cache) in upstreams::caches(&self.generation.process.shared_objects).iter().enumerate() {
            out.push_str(if at > 0 { "," } else { "" });
            cache.write_member(out);
        }
        out.push('}');
    }

    /// Appends a node as a member of a JSON object.
    pub(super) fn write_node(&self, name: &[u8], node: &TrafficNode, out: &mut String) {
        json_string(&String::from_utf8_lossy(name), out);
        out.push(':');
        node.write_json(self.vts.average, self.now_ms, out);
    }

    /// A copy of the node of `key`. Others have their turns once some were copied.
    pub(super) async fn node(&mut self, key: &[u8]) -> Option<TrafficNode> {
        self.node_count += 1;
        if self.node_count.is_multiple_of(NODES_A_TURN) {
            tw_rt::yield_now().await;
        }
        self.zone.with(key, |node| node.clone())
    }
}

/// Parts of a report that may be missing.
#[derive(Clone, Copy)]
enum Part {
    Filters,
    Upstreams,
    Caches,
}
