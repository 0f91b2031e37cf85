//! Statistics of Tailwater's event loops under a load, from its metrics.

use serde_json::{Value, json};

use super::Outcome;
use super::contestant::{Binary, Contestant, Running};
use super::prometheus::{Histogram, Page};
use super::report::{Report, number};

const TURNS: &str = "tailwater_event_loop_blocked_seconds";
const PARTS: &str = "tailwater_event_loop_part_seconds";
const FAULTS: &str = "tailwater_loop_major_faults_total";
/// Path of Tailwater's metrics.
const METRICS: &str = "/.metrics";

/// Columns of a table about loops.
pub(super) const COLUMNS: [&str; 3] = ["turn p99.9", "in the kernel p99.9", "major faults"];

/// Statistics of loops: 99.9th percentiles in seconds, `None` without a single turn.
pub(super) struct Loops {
    /// Of the length of turns.
    turn: Option<f64>,
    /// Of the time in a turn that a loop was blocked in the kernel.
    kernel: Option<f64>,
    /// Major page faults.
    faults: u64,
}

/// Metrics of the loops at one moment.
pub(super) struct LoopMetrics {
    turns: Histogram,
    kernel: Histogram,
    faults: u64,
}

/// Location of the metrics, if the server has them.
pub(super) fn location(binary: &Binary) -> String {
    if binary.is_tailwater() { format!("location = {METRICS} {{ metrics; }}") } else { String::new() }
}

/// All metrics of Tailwater.
pub(super) fn page(server: &Running) -> Outcome<Page> {
    Page::fetch(&server.url(METRICS))
}

impl LoopMetrics {
    /// Metrics of the server so far, if it has them.
    pub(super) fn by(contestant: &Contestant, server: &Running) -> Outcome<Option<Self>> {
        if !contestant.has_metrics() {
            return Ok(None);
        }
        let page = page(server)?;
        let turns = page.histogram(TURNS, "")?;
        // Servers of before did not take their turns apart.
        let kernel = page.histogram(PARTS, "cause=\"kernel\"").unwrap_or_default();
        Ok(Some(Self { turns, kernel, faults: page.sum(FAULTS) }))
    }
}

impl Loops {
    /// Statistics since `before`.
    pub(super) fn since(
        before: Option<LoopMetrics>,
        contestant: &Contestant,
        server: &Running,
    ) -> Outcome<Option<Self>> {
        let after = LoopMetrics::by(contestant, server)?;
        Ok(before.zip(after).map(|(before, after)| Self {
            turn: after.turns.since(&before.turns).quantile(0.999),
            kernel: after.kernel.since(&before.kernel).quantile(0.999),
            faults: after.faults - before.faults,
        }))
    }

    /// Adds the values that have targets.
    pub(super) fn targets(&self, report: &mut Report, case: &str) {
        for (what, seconds) in
            [("event_loop_blocked_seconds p99.9", self.turn), ("of it in the kernel, p99.9", self.kernel)]
        {
            if let Some(seconds) = seconds {
                report.target(format!("{case}: {what}"), seconds * 1e3);
            }
        }
        let faults = self.faults as f64;
        report.target(format!("{case}: major faults of loops"), faults);
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "event_loop_blocked_p999_seconds": self.turn,
            "event_loop_kernel_p999_seconds": self.kernel,
            "loop_major_faults": self.faults,
        })
    }
}

/// The cells of [`COLUMNS`].
pub(super) fn cells(loops: Option<&Loops>) -> [String; 3] {
    let at_most = |seconds: Option<f64>| {
        seconds.map_or("—".to_owned(), |seconds| format!("≤ {} ms", number(seconds * 1e3)))
    };
    [
        at_most(loops.and_then(|loops| loops.turn)),
        at_most(loops.and_then(|loops| loops.kernel)),
        loops.map_or("—".to_owned(), |loops| loops.faults.to_string()),
    ]
}
