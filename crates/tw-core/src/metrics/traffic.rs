//! Connections and requests.

use super::{Kind, Metric, Samples, Scrape};

pub(super) const METRICS: &[Metric] = &[
    Metric {
        name: "connections_accepted_total",
        kind: Kind::Counter,
        labels: &[],
        doc: "Connections accepted.",
        read: |scrape, out| out.value(&[], scrape.counts().total(|tally| &tally.accepted)),
    },
    Metric {
        name: "connections_open",
        kind: Kind::Gauge,
        labels: &[],
        doc: "Connections open now.",
        read: |scrape, out| out.value(&[], scrape.counts().total(|tally| &tally.open)),
    },
    Metric {
        name: "connections_refused_total",
        kind: Kind::Counter,
        labels: &[],
        doc: "Connections closed at once for want of worker_connections.",
        read: |scrape, out| out.value(&[], scrape.counts().total(|tally| &tally.refused)),
    },
    Metric {
        name: "requests_total",
        kind: Kind::Counter,
        labels: &["class"],
        doc: "Requests answered, by class of their status: 1xx to 5xx, or other.",
        read: requests,
    },
    Metric {
        name: "received_bytes_total",
        kind: Kind::Counter,
        labels: &[],
        doc: "Bytes of requests: heads, and bodies as they came over the wire. Counted when a request is over.",
        read: |scrape, out| out.value(&[], scrape.counts().total(|tally| &tally.received)),
    },
    Metric {
        name: "sent_bytes_total",
        kind: Kind::Counter,
        labels: &[],
        doc: "Bytes of responses, heads included, as they went over the wire. Counted as they are sent.",
        read: |scrape, out| out.value(&[], scrape.counts().total(|tally| &tally.sent)),
    },
];

fn requests(scrape: &Scrape<'_>, out: &mut Samples<'_>) {
    let classes = ["other", "1xx", "2xx", "3xx", "4xx", "5xx"];
    for (at, class) in classes.iter().enumerate() {
        out.value(&[class], scrape.counts().total(|tally| &tally.by_class[at]));
    }
}
