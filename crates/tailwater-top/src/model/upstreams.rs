//! Upstream servers of both protocols.

use super::change::{Change, P99};

/// One address of a group.
#[derive(Debug, Clone, PartialEq)]
pub struct UpstreamRow {
    /// Name of the group.
    pub group: String,
    /// Address.
    pub peer: String,
    /// `http` or `stream`.
    pub protocol: String,
    /// State, as `up`.
    pub state: String,
    /// True for a backup server.
    pub is_backup: bool,
    /// Requests, tunnels and sessions that are under way.
    pub active: Option<f64>,
    /// Requests or sessions a second.
    pub requests: Option<f64>,
    /// Failed attempts and responses 5xx a second.
    pub errors: Option<f64>,
    /// Average time until the response is complete, in seconds.
    pub response_mean: Option<f64>,
    /// 99 % of the responses were not later complete, in seconds.
    pub response_p99: Option<f64>,
    /// 99 % of the response heads were not later there, in seconds.
    pub header_p99: Option<f64>,
    /// Bytes a second from it.
    pub received: Option<f64>,
}

/// Labels of every metric of an address, and of no other address.
const LABELS: [&str; 5] = ["protocol", "upstream", "peer", "server", "id"];

pub(super) fn rows(change: &Change<'_>) -> Vec<UpstreamRow> {
    let peers = change.new.samples("upstream_peer_info", &[]);
    let known_names = peers.filter_map(|(family, values, _)| {
        let label = |name| family.label(values, name);
        let mut labels = [("", ""); LABELS.len()];
        for (at, name) in LABELS.iter().enumerate() {
            labels[at] = (name, label(name)?);
        }
        Some(row(change, &labels, label("state").unwrap_or_default(), label("role") == Some("backup")))
    });
    known_names.collect()
}

fn row(
    change: &Change<'_>,
    labels: &[(&str, &str); LABELS.len()],
    state: &str,
    is_backup: bool,
) -> UpstreamRow {
    let [(_, protocol), (_, group), (_, peer), ..] = *labels;
    let mut failed = labels.to_vec();
    failed.push(("class", "5xx"));
    let errors = [
        change.rate("upstream_peer_failures_total", labels),
        change.rate("upstream_peer_responses_total", &failed),
    ];
    let response = "upstream_peer_response_seconds";
    UpstreamRow {
        group: group.to_owned(),
        peer: peer.to_owned(),
        protocol: protocol.to_owned(),
        state: state.to_owned(),
        is_backup,
        active: change.level("upstream_peer_connections", labels),
        requests: change.rate("upstream_peer_requests_total", labels),
        errors: errors.into_iter().flatten().reduce(|sum, number| sum + number),
        response_mean: change.spans(response, labels).and_then(|spans| spans.mean()),
        response_p99: change.quantile(P99, response, labels),
        header_p99: change.quantile(P99, "upstream_peer_header_seconds", labels),
        received: change.rate("upstream_peer_received_bytes_total", labels),
    }
}
