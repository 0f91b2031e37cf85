//! Numbers of the whole process.

use super::loops::cause;
use super::{Change, LoopRow};
use crate::source::snapshot::Stall;

/// The process in a few lines.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Summary {
    /// Name of the machine; empty if unknown.
    pub host: String,
    /// Version of Tailwater; empty if unknown.
    pub version: String,
    /// Number of the configuration.
    pub generation: Option<f64>,
    /// Seconds since the start.
    pub uptime: Option<f64>,
    /// Bytes of memory.
    pub memory: Option<f64>,
    /// Requests a second.
    pub requests: Option<f64>,
    /// Responses 4xx a second.
    pub client_errors: Option<f64>,
    /// Responses 5xx a second.
    pub server_errors: Option<f64>,
    /// Bytes a second of requests.
    pub received: Option<f64>,
    /// Bytes a second of responses.
    pub sent: Option<f64>,
    /// Open connections.
    pub connections: Option<f64>,
    /// Connections a second that were accepted.
    pub accepted: Option<f64>,
    /// Connections refused since the start.
    pub refused: Option<f64>,
    /// Turns of loops since the start in which a loop was blocked.
    pub blocked: Option<f64>,
    /// Longest remembered stall, one in which a loop was blocked if there is one: seconds, loop and cause.
    pub worst: Option<(f64, String)>,
    /// Mount points whose operations hang.
    pub hung: Vec<String>,
    /// Lines that logs have lost since the start.
    pub lines_dropped: Option<f64>,
    /// Panics since the start.
    pub panics: Option<f64>,
}

impl Summary {
    pub(super) fn of(change: &Change<'_>, loops: &[LoopRow]) -> Self {
        let new = change.new;
        let class = |class| change.rate("requests_total", &[("class", class)]);
        let version = new.values("build_info", "version").into_iter().next();
        let is_blocked = |stall: &Stall| stall.cause == "kernel";
        let worst = new
            .stalls
            .iter()
            .max_by(|one, two| is_blocked(one).cmp(&is_blocked(two)).then(one.turn.total_cmp(&two.turn)));
        let hung = new.values("pool_hung_operations", "mount");
        let is_hung = |mount: &String| new.number("pool_hung_operations", &[("mount", mount)]) > Some(0.0);
        Self {
            host: new.host.clone(),
            version: version.unwrap_or_default(),
            generation: change.level("generation", &[]),
            uptime: change.level("uptime_seconds", &[]),
            memory: change.level("process_resident_memory_bytes", &[]),
            requests: change.rate("requests_total", &[]),
            client_errors: class("4xx"),
            server_errors: class("5xx"),
            received: change.rate("received_bytes_total", &[]),
            sent: change.rate("sent_bytes_total", &[]),
            connections: change.level("connections_open", &[]),
            accepted: change.rate("connections_accepted_total", &[]),
            refused: change.level("connections_refused_total", &[]),
            blocked: loops.iter().filter_map(|row| row.blocked).reduce(|sum, number| sum + number),
            worst: worst.map(|stall| (stall.turn, format!("loop {}: {}", stall.worker, cause(stall)))),
            hung: hung.into_iter().filter(is_hung).collect(),
            lines_dropped: change.level("log_dropped_total", &[]),
            panics: change.level("panics_total", &[]),
        }
    }
}
