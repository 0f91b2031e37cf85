//! Requests, and the bytes of HTTP.

use tw_core::metrics::{Kind, Metric, each_loop};

/// What is counted of requests, whatever modules answer them.
pub static METRICS: &[Metric] = &[
    Metric {
        name: "requests_total",
        kind: Kind::Counter,
        labels: &["class"],
        doc: "Requests answered, by class of their status: 1xx to 5xx, or other.",
        read: |scrape, out| {
            for (at, class) in ["other", "1xx", "2xx", "3xx", "4xx", "5xx"].iter().enumerate() {
                out.value(&[class], scrape.counts().total(|tally| &tally.by_class[at]));
            }
        },
    },
    Metric {
        name: "event_loop_requests_total",
        kind: Kind::Counter,
        labels: &["worker"],
        doc: "Requests that an event loop began to serve.",
        read: |scrape, out| {
            each_loop(scrape, |worker, sibling| out.value(&[worker], sibling.tally.sessions.value()));
        },
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
