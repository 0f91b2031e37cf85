//! Connections of clients by protocol.

use super::Change;

/// Connections of one protocol.
#[derive(Debug, Clone, PartialEq)]
pub struct ConnectionRow {
    /// Protocol, as operators write it.
    pub protocol: &'static str,
    /// Open connections.
    pub open: Option<f64>,
    /// Share of all open connections.
    pub share: Option<f64>,
}

/// Protocols with their labels.
const PROTOCOLS: [(&str, &str); 4] =
    [("http/1", "HTTP/1.1"), ("http/2", "HTTP/2"), ("http/3", "HTTP/3"), ("stream", "stream")];

pub(super) fn rows(change: &Change<'_>) -> Vec<ConnectionRow> {
    let name = "protocol_connections_open";
    let all = change.level(name, &[]).filter(|all| *all > 0.0);
    let row = |(label, protocol)| {
        let open = change.level(name, &[("protocol", label)]);
        ConnectionRow { protocol, open, share: open.zip(all).map(|(open, all)| open / all) }
    };
    PROTOCOLS.into_iter().map(row).filter(|row| row.open.is_some()).collect()
}
