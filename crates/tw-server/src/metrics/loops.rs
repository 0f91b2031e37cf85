//! Event loops: was one ever blocked?

use super::{Kind, Metric};

pub(super) const METRICS: &[Metric] = &[
    Metric {
        name: "event_loop_blocked_seconds",
        kind: Kind::Histogram,
        labels: &["worker"],
        doc: "Length of every turn of an event loop: how long an event may have had to wait for others.",
        read: |scrape, out| {
            for (index, stats) in scrape.request().conn().worker.counts.loops().iter().enumerate() {
                out.histogram(&[&index.to_string()], &stats.blocked.snapshot());
            }
        },
    },
    Metric {
        name: "event_loop_blocked_max_seconds",
        kind: Kind::Gauge,
        labels: &["worker"],
        doc: "The longest turn of an event loop since it began.",
        read: |scrape, out| {
            for (index, stats) in scrape.request().conn().worker.counts.loops().iter().enumerate() {
                out.float(&[&index.to_string()], super::seconds(stats.longest.ns()));
            }
        },
    },
    Metric {
        name: "event_loop_stalls_total",
        kind: Kind::Counter,
        labels: &["worker"],
        doc: "Turns longer than stall_threshold. The error log and the status page name who took the time.",
        read: |scrape, out| {
            for (index, stats) in scrape.request().conn().worker.counts.loops().iter().enumerate() {
                out.value(&[&index.to_string()], stats.stalls.value());
            }
        },
    },
];
