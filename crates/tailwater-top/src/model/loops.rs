//! Event loops.

use super::change::{Change, P99};
use crate::format::span;
use crate::source::snapshot::Stall;

/// One event loop.
#[derive(Debug, Clone, PartialEq)]
pub struct LoopRow {
    /// Number.
    pub worker: String,
    /// Share of the time in which it was not waiting for events.
    pub busy: Option<f64>,
    /// 99 % of its turns were not longer, in seconds.
    pub turn_p99: Option<f64>,
    /// Longest turn since it began, in seconds.
    pub longest: Option<f64>,
    /// Longest stall that is remembered of it, with its cause; empty if it had none.
    pub cause: String,
    /// Turns that were stalls since the process began.
    pub stalls: Option<f64>,
    /// Stalls in which it was blocked: asleep in the kernel.
    pub blocked: Option<f64>,
    /// Pages that it had to wait for a disk for.
    pub faults: Option<f64>,
    /// Open connections.
    pub connections: Option<f64>,
    /// Requests a second.
    pub requests: Option<f64>,
}

pub(super) fn rows(change: &Change<'_>) -> Vec<LoopRow> {
    let workers = change.new.values("event_loop_busy_seconds_total", "worker");
    workers.into_iter().map(|worker| row(change, worker)).collect()
}

fn row(change: &Change<'_>, worker: String) -> LoopRow {
    let of = [("worker", &*worker)];
    let own = |stall: &&Stall| stall.worker.to_string() == worker;
    let worst = change.new.stalls.iter().filter(own).max_by(|one, two| one.turn.total_cmp(&two.turn));
    LoopRow {
        busy: change.rate("event_loop_busy_seconds_total", &of).map(|busy| busy.min(1.0)),
        turn_p99: change.quantile(P99, "event_loop_blocked_seconds", &of),
        longest: change.level("event_loop_blocked_max_seconds", &of),
        cause: worst.map(|stall| format!("{} {}", span(stall.turn), cause(stall))).unwrap_or_default(),
        stalls: change.level("event_loop_stalls_total", &of),
        blocked: change.level("event_loop_stalls_total", &[("worker", &*worker), ("cause", "kernel")]),
        faults: change.level("loop_major_faults_total", &of),
        connections: change.level("event_loop_connections_open", &of),
        requests: change.rate("event_loop_requests_total", &of),
        worker,
    }
}

/// Cause of a stall in words: what the loop did, and for whom.
pub(super) fn cause(stall: &Stall) -> String {
    let mut words = vec![stall.cause.as_str()];
    words.extend([&*stall.operation, &*stall.by, &*stall.client].into_iter().filter(|word| !word.is_empty()));
    words.join(", ")
}
