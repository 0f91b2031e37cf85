//! Requests, and the bytes of HTTP.

use tw_core::metrics::{Metric, MetricKind, each_loop};
use tw_disk::{Locks, Refusal};
use tw_request::http_version::HttpVersion;

/// Metrics of requests, whatever modules answer them.
pub static METRICS: &[Metric] = &[
    Metric {
        name: "requests_total",
        kind: MetricKind::Counter,
        labels: &["class"],
        doc: "Requests answered, by class of their status: 1xx to 5xx, or other.",
        read: |scrape, out| {
            for (at, class) in ["other", "1xx", "2xx", "3xx", "4xx", "5xx"].iter().enumerate() {
                out.value(&[class], scrape.counts().total(|tally| &tally.by_class[at]));
            }
        },
    },
    Metric {
        name: "requests_by_protocol_total",
        kind: MetricKind::Counter,
        labels: &["protocol"],
        doc: "Requests begun, by protocol: HTTP/1, HTTP/2 or HTTP/3.",
        read: |scrape, out| {
            for version in HttpVersion::ALL {
                let count = scrape.counts().total(|tally| &tally.by_version[version as usize]);
                out.value(&[version.name()], count);
            }
        },
    },
    Metric {
        name: "event_loop_requests_total",
        kind: MetricKind::Counter,
        labels: &["worker"],
        doc: "Requests that an event loop began to serve.",
        read: |scrape, out| {
            each_loop(scrape, |worker, sibling| out.value(&[worker], sibling.tally.sessions.value()));
        },
    },
    Metric {
        name: "received_bytes_total",
        kind: MetricKind::Counter,
        labels: &[],
        doc: "Bytes of requests: heads, and bodies as they came over the wire. Counted when a request is over.",
        read: |scrape, out| out.value(&[], scrape.counts().total(|tally| &tally.received)),
    },
    Metric {
        name: "sent_bytes_total",
        kind: MetricKind::Counter,
        labels: &[],
        doc: "Bytes of responses, heads included, as they went over the wire. Counted as they are sent.",
        read: |scrape, out| out.value(&[], scrape.counts().total(|tally| &tally.sent)),
    },
    Metric {
        name: "slow_clients_total",
        kind: MetricKind::Counter,
        labels: &["direction"],
        doc: "Clients that were slower than they have to be, while sending a body (client_body_min_rate) or taking a response (send_min_rate).",
        read: |scrape, out| {
            out.value(&["body"], scrape.counts().total(|tally| &tally.slow_bodies));
            out.value(&["response"], scrape.counts().total(|tally| &tally.slow_responses));
        },
    },
    Metric {
        name: "sendfile_bytes_total",
        kind: MetricKind::Counter,
        labels: &[],
        doc: "Bytes of files locked in memory that event loops had the kernel send (sendfile on).",
        read: |scrape, out| scrape.shared_objects::<Locks>().for_each(|locks| out.value(&[], locks.sent())),
    },
    Metric {
        name: "locked_files",
        kind: MetricKind::Gauge,
        labels: &[],
        doc: "Files that are locked in memory, or about to be (hot_lock_size).",
        read: |scrape, out| scrape.shared_objects::<Locks>().for_each(|locks| out.value(&[], locks.files())),
    },
    Metric {
        name: "locked_files_bytes",
        kind: MetricKind::Gauge,
        labels: &[],
        doc: "Bytes of them, in whole pages.",
        read: |scrape, out| scrape.shared_objects::<Locks>().for_each(|locks| out.value(&[], locks.bytes())),
    },
    Metric {
        name: "locked_files_limit_bytes",
        kind: MetricKind::Gauge,
        labels: &[],
        doc: "The most bytes of them: hot_lock_size, or what of it RLIMIT_MEMLOCK leaves room for; 0 without sendfile on.",
        read: |scrape, out| scrape.shared_objects::<Locks>().for_each(|locks| out.value(&[], locks.max())),
    },
    Metric {
        name: "locked_files_evictions_total",
        kind: MetricKind::Counter,
        labels: &[],
        doc: "Files that were unlocked to make room for others.",
        read: |scrape, out| {
            scrape.shared_objects::<Locks>().for_each(|locks| out.value(&[], locks.evictions()))
        },
    },
    Metric {
        name: "locked_files_refusals_total",
        kind: MetricKind::Counter,
        labels: &["reason"],
        doc: "Files that were not locked: not all of it was in memory (cold), others took the room (full), it was changed meanwhile \
              (changed), or the kernel refused (kernel).",
        read: |scrape, out| {
            for locks in scrape.shared_objects::<Locks>() {
                for why in Refusal::ALL {
                    out.value(&[why.word()], locks.refusals(why));
                }
            }
        },
    },
];
