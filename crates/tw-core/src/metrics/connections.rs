//! Connections, whatever is asked for on them.

use super::{Metric, MetricKind};

pub(super) const METRICS: &[Metric] = &[
    Metric {
        name: "connections_accepted_total",
        kind: MetricKind::Counter,
        labels: &[],
        doc: "Connections accepted.",
        read: |scrape, out| out.value(&[], scrape.counts().total(|tally| &tally.accepted)),
    },
    Metric {
        name: "connections_open",
        kind: MetricKind::Gauge,
        labels: &[],
        doc: "Connections open now.",
        read: |scrape, out| out.value(&[], scrape.counts().total(|tally| &tally.open)),
    },
    Metric {
        name: "connections_refused_total",
        kind: MetricKind::Counter,
        labels: &[],
        doc: "Connections closed at once for want of worker_connections.",
        read: |scrape, out| out.value(&[], scrape.counts().total(|tally| &tally.refused)),
    },
];
