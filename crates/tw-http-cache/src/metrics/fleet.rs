//! Numbers of fleets, for metrics and for the status page.
//!
//! Metrics are about this node alone: with those of all nodes, a fleet would have as many series as the square of its nodes. The
//! status page lists what all nodes say of themselves.

use std::fmt::Write as _;

use tw_core::metrics::{Metric, MetricKind, Scrape, json_string};
use tw_core::shared_objects::SharedObjects;
use tw_fleet::{Fleet, FleetStatus, NodeSummary};

const FLEET: &[&str] = &["fleet"];

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Nodes of a fleet in the numbers of the status page, those with the largest lag first.
    ///
    /// Nodes of a fleet that the status page lists. It makes the list on a loop every second.
    const NODES_SHOWN_MAX: usize = 200, count, "further ones are only counted";
}

/// Metrics of fleets.
pub static FLEET_METRICS: &[Metric] = &[
    Metric {
        name: "fleet_connected",
        kind: MetricKind::Gauge,
        labels: FLEET,
        doc: "State of the connection to the engine of a fleet: 1 if the log is followed.",
        read: |scrape, out| {
            each_fleet(scrape, |name, status| out.value(&[name], status.engine.is_some().into()))
        },
    },
    Metric {
        name: "fleet_sequence",
        kind: MetricKind::Gauge,
        labels: FLEET,
        doc: "Sequence up to which this node has applied the log of a fleet.",
        read: |scrape, out| each_fleet(scrape, |name, status| out.value(&[name], status.sequence)),
    },
    Metric {
        name: "fleet_lag",
        kind: MetricKind::Gauge,
        labels: FLEET,
        doc: "Records of the log of a fleet that this node has not applied yet, as of the last one that it has received.",
        read: |scrape, out| each_fleet(scrape, |name, status| out.value(&[name], status.lag)),
    },
    Metric {
        name: "fleet_queued",
        kind: MetricKind::Gauge,
        labels: FLEET,
        doc: "Purges of this node that wait on disk for the engine of a fleet.",
        read: |scrape, out| each_fleet(scrape, |name, status| out.value(&[name], status.queued)),
    },
    Metric {
        name: "fleet_published_total",
        kind: MetricKind::Counter,
        labels: FLEET,
        doc: "Purges of this node that the log of a fleet has.",
        read: |scrape, out| each_fleet(scrape, |name, status| out.value(&[name], status.published)),
    },
    Metric {
        name: "fleet_unpublished_total",
        kind: MetricKind::Counter,
        labels: FLEET,
        doc: "Purges of this node that could neither be published nor queued: other nodes do not have them.",
        read: |scrape, out| each_fleet(scrape, |name, status| out.value(&[name], status.unpublished)),
    },
    Metric {
        name: "fleet_applied_total",
        kind: MetricKind::Counter,
        labels: FLEET,
        doc: "Purges of other nodes of a fleet that were applied.",
        read: |scrape, out| each_fleet(scrape, |name, status| out.value(&[name], status.applied)),
    },
    Metric {
        name: "fleet_unreadable_total",
        kind: MetricKind::Counter,
        labels: FLEET,
        doc: "Records of the log of a fleet that were not understood.",
        read: |scrape, out| each_fleet(scrape, |name, status| out.value(&[name], status.unreadable)),
    },
    Metric {
        name: "fleet_resets_total",
        kind: MetricKind::Counter,
        labels: FLEET,
        doc: "Number of times that everything stored became stale, because records of the log of a fleet were missed.",
        read: |scrape, out| each_fleet(scrape, |name, status| out.value(&[name], status.resets)),
    },
    Metric {
        name: "fleet_connections_total",
        kind: MetricKind::Counter,
        labels: FLEET,
        doc: "Connections to the engine of a fleet that were made.",
        read: |scrape, out| each_fleet(scrape, |name, status| out.value(&[name], status.connections)),
    },
    Metric {
        name: "fleet_lost_total",
        kind: MetricKind::Counter,
        labels: FLEET,
        doc: "Purges of this node that the engine of a fleet had acknowledged and lost, and that were published again.",
        read: |scrape, out| each_fleet(scrape, |name, status| out.value(&[name], status.lost)),
    },
    Metric {
        name: "fleet_name_conflict",
        kind: MetricKind::Gauge,
        labels: FLEET,
        doc: "State of the name of this node in a fleet: 1 while another server uses it, too.",
        read: |scrape, out| {
            each_fleet(scrape, |name, status| out.value(&[name], status.has_name_conflict.into()))
        },
    },
    Metric {
        name: "fleet_nodes",
        kind: MetricKind::Gauge,
        labels: FLEET,
        doc: "Nodes of a fleet that have published a summary in the last day.",
        read: |scrape, out| each_fleet(scrape, |name, status| out.value(&[name], status.nodes.len() as u64)),
    },
    Metric {
        name: "fleet_lease_held",
        kind: MetricKind::Gauge,
        labels: &["fleet", "lease"],
        doc: "State of a lease of a fleet: 1 if this node holds it, so it orders the certificates of an issuer or makes the secrets.",
        read: |scrape, out| {
            for fleet in scrape.shared_objects::<Fleet>() {
                let settings = fleet.settings();
                fleet.see_status(|status| {
                    for (lease, holder) in &status.leases {
                        let is_held = holder.as_deref() == Some(&*settings.node);
                        out.value(&[&settings.name, lease], is_held.into());
                    }
                });
            }
        },
    },
    Metric {
        name: "fleet_lease_vacant",
        kind: MetricKind::Gauge,
        labels: &["fleet", "lease"],
        doc: "State of a lease of a fleet: 1 if no node holds it, as far as this node has seen.",
        read: |scrape, out| {
            each_fleet(scrape, |name, status| {
                for (lease, holder) in &status.leases {
                    out.value(&[name, lease], holder.is_none().into());
                }
            });
        },
    },
    Metric {
        name: "fleet_configuration_version",
        kind: MetricKind::Gauge,
        labels: &["fleet", "state"],
        doc: "Version of the configuration that this node serves, by what the program that follows has reported (waiting, serving, refused; silent if it does not report any more).",
        read: |scrape, out| {
            each_fleet(scrape, |name, status| {
                if let Some(configuration) = &status.configuration {
                    out.value(&[name, &configuration.state], configuration.number);
                }
            });
        },
    },
];

/// Calls `see` with each fleet.
fn each_fleet(scrape: &Scrape<'_>, mut see: impl FnMut(&str, &FleetStatus)) {
    for fleet in scrape.shared_objects::<Fleet>() {
        fleet.see_status(|status| see(&fleet.settings().name, status));
    }
}

/// Appends all fleets as a list in JSON, at a time in milliseconds since 1970.
pub fn write_fleets(objects: &SharedObjects, now_ms: u64, out: &mut String) {
    out.push('[');
    for (at, (_, fleet)) in objects.of_type::<Fleet>().into_iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        let settings = fleet.settings();
        fleet.see_status(|status| write_fleet(&settings.name, &settings.node, status, now_ms, out));
    }
    out.push(']');
}

fn write_fleet(name: &str, node: &str, status: &FleetStatus, now_ms: u64, out: &mut String) {
    let text = |key: &str, value: Option<&str>, out: &mut String| {
        let _ = write!(out, "\"{key}\":");
        match value {
            Some(value) => json_string(value, out),
            None => out.push_str("null"),
        }
        out.push(',');
    };
    out.push('{');
    text("fleet", Some(name), out);
    text("node", Some(node), out);
    text("engine", status.engine.as_deref(), out);
    text("error", status.last_error.as_deref().filter(|_| status.engine.is_none()), out);
    // Writing into a string cannot fail.
    let _ = write!(
        out,
        "\"name_conflict\":{},\"unsaved\":{},\"count\":{},\"leases\":[",
        status.has_name_conflict,
        status.is_unsaved,
        status.nodes.len()
    );
    for (at, (lease, holder)) in status.leases.iter().enumerate() {
        out.push_str(if at > 0 { ",[" } else { "[" });
        json_string(lease, out);
        out.push(',');
        match holder {
            Some(holder) => json_string(holder, out),
            None => out.push_str("null"),
        }
        out.push(']');
    }
    out.push_str("],\"nodes\":[");
    let mut nodes: Vec<&NodeSummary> = status.nodes.values().collect();
    if nodes.len() > NODES_SHOWN_MAX {
        // Those that are behind, of many; of a few, all by their names.
        nodes.sort_by_key(|node| std::cmp::Reverse(status.lag_of(node)));
        nodes.truncate(NODES_SHOWN_MAX);
    }
    let ago = |time: u64| (time > 0).then(|| now_ms.saturating_sub(time) / 1000);
    for (at, node) in nodes.into_iter().enumerate() {
        out.push_str(if at > 0 { ",{" } else { "{" });
        text("node", Some(&node.node), out);
        text("version", Some(&node.version), out);
        text("configuration", node.configuration.as_ref().map(|it| it.describe()).as_deref(), out);
        for (key, time) in [("last_purge", ago(node.last_purge)), ("seen", ago(node.time))] {
            let _ = match time {
                Some(time) => write!(out, "\"{key}\":{time},"),
                None => write!(out, "\"{key}\":null,"),
            };
        }
        let _ = write!(
            out,
            "\"sequence\":{},\"lag\":{},\"queued\":{}}}",
            node.sequence,
            status.lag_of(node),
            node.queued
        );
    }
    out.push_str("]}");
}

#[cfg(test)]
mod tests {
    use tw_fleet::NodeConfiguration;

    use super::*;

    fn status(count: u64) -> FleetStatus {
        let mut status = FleetStatus { sequence: 17, ..FleetStatus::default() };
        for at in 0..count {
            let node = NodeSummary {
                node: format!("n{at:03}"),
                version: "0.2\"".to_owned(),
                sequence: 17 - at.min(17),
                time: 8_000,
                ..NodeSummary::default()
            };
            status.nodes.insert(node.node.clone(), node);
        }
        status
    }

    #[test]
    fn fleet_as_json() {
        let mut status = status(2);
        status.last_error = Some("away".to_owned());
        status.leases = [("secrets".to_owned(), Some("n001".to_owned())), ("x".to_owned(), None)].into();
        let configuration = NodeConfiguration { number: 3, previous: 2, state: "refused".to_owned() };
        status.nodes.get_mut("n001").unwrap().configuration = Some(configuration);
        let mut out = String::new();
        write_fleet("edge", "n000", &status, 10_500, &mut out);
        assert_eq!(
            out,
            r#"{"fleet":"edge","node":"n000","engine":null,"error":"away","name_conflict":false,"unsaved":false,"count":2,"leases":[["secrets","n001"],["x",null]],"nodes":[{"node":"n000","version":"0.2\"","configuration":null,"last_purge":null,"seen":2,"sequence":17,"lag":0,"queued":0},{"node":"n001","version":"0.2\"","configuration":"3 refused","last_purge":null,"seen":2,"sequence":16,"lag":1,"queued":0}]}"#
        );
    }

    #[test]
    fn nodes_that_are_behind_are_listed_first_among_many() {
        let mut out = String::new();
        write_fleet("edge", "n000", &status(300), 10_000, &mut out);
        assert!(out.contains("\"count\":300,"));
        assert_eq!(out.matches("{\"node\":").count(), NODES_SHOWN_MAX);
        assert!(!out.contains("\"n000\",\"version\"") && out.contains("\"n017\",\"version\""));
    }
}
