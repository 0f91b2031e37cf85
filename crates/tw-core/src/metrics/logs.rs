//! Metrics of logs: lines written, and lines dropped rather than waited for.

use super::metric::{Metric, MetricKind, Samples, Scrape};

pub(super) const METRICS: &[Metric] = &[
    Metric {
        name: "log_lines_total",
        kind: MetricKind::Counter,
        labels: &["log"],
        doc: "Lines written to a log.",
        read: |scrape, out| each(scrape, out, |counts| counts.written_lines.value()),
    },
    Metric {
        name: "log_dropped_total",
        kind: MetricKind::Counter,
        labels: &["log"],
        doc: "Lines that were dropped because a log could not take them in time.",
        read: |scrape, out| each(scrape, out, |counts| counts.dropped.value()),
    },
    Metric {
        name: "log_failures_total",
        kind: MetricKind::Counter,
        labels: &["log"],
        doc: "Failed writes to a log.",
        read: |scrape, out| each(scrape, out, |counts| counts.failed.value()),
    },
];

fn each(scrape: &Scrape<'_>, out: &mut Samples<'_>, read: impl Fn(&tw_log::Counts) -> u64) {
    for sink in scrape.config().logs.sinks() {
        out.value(&[&sink.name()], read(sink.counts()));
    }
}
