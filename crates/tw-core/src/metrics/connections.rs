//! Connections, whatever is asked for on them.

use super::metric::{Metric, MetricKind};

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
        name: "protocol_connections_open",
        kind: MetricKind::Gauge,
        labels: &["protocol"],
        doc: "Connections open now by protocol: http/1 (with those that have not chosen one yet), http/2, http/3, stream (TCP and UDP), and mail.",
        read: |scrape, out| {
            let counts = scrape.counts();
            let others = [
                ("http/2", counts.total(|tally| &tally.open_http2)),
                ("http/3", counts.total(|tally| &tally.open_http3)),
                ("stream", counts.total(|tally| &tally.open_stream)),
                ("mail", counts.total(|tally| &tally.open_mail)),
            ];
            let open = counts.total(|tally| &tally.open);
            // The numbers are not read at one moment.
            out.value(&["http/1"], open.saturating_sub(others.iter().map(|(_, level)| level).sum()));
            others.iter().for_each(|(protocol, level)| out.value(&[protocol], *level));
        },
    },
    Metric {
        name: "connections_refused_total",
        kind: MetricKind::Counter,
        labels: &[],
        doc: "Connections closed at once for want of worker_connections.",
        read: |scrape, out| out.value(&[], scrape.counts().total(|tally| &tally.refused)),
    },
    Metric {
        name: "udp_datagrams_dropped_total",
        kind: MetricKind::Counter,
        labels: &[],
        doc: "Datagrams from clients or for them that were dropped: the queue of the session or the socket was full, no session \
            could begin, or the upstream server sent more than proxy_responses allows.",
        read: |scrape, out| {
            let counts = scrape.counts();
            let of_processes = counts.linked_dropped.load(std::sync::atomic::Ordering::Relaxed);
            out.value(&[], counts.total(|tally| &tally.datagrams_dropped) + of_processes);
        },
    },
    Metric {
        name: "udp_datagrams_forwarded_total",
        kind: MetricKind::Counter,
        labels: &[],
        doc: "Datagrams that one loop has received for a session or connection of another and handed to it: their client has moved, or a \
            reload has changed the number of loops.",
        read: |scrape, out| out.value(&[], scrape.counts().total(|tally| &tally.datagrams_forwarded)),
    },
    Metric {
        name: "udp_datagrams_passed_to_processes_total",
        kind: MetricKind::Counter,
        labels: &[],
        doc: "Datagrams of connections over QUIC that were handed to the worker process before, after an upgrade or a replacement.",
        read: |scrape, out| {
            out.value(&[], scrape.counts().total(|tally| &tally.datagrams_passed_to_processes))
        },
    },
    Metric {
        name: "udp_sessions_evicted_total",
        kind: MetricKind::Counter,
        labels: &[],
        doc: "Sessions over UDP that ended to make room, the longest idle first.",
        read: |scrape, out| out.value(&[], scrape.counts().total(|tally| &tally.datagram_sessions_evicted)),
    },
    Metric {
        name: "udp_sessions_taken_over_total",
        kind: MetricKind::Counter,
        labels: &[],
        doc: "Sessions over UDP that were taken over from the worker process before, with their sockets.",
        read: |scrape, out| {
            out.value(&[], scrape.counts().total(|tally| &tally.datagram_sessions_taken_over))
        },
    },
    Metric {
        name: "udp_sessions_not_taken_over_total",
        kind: MetricKind::Counter,
        labels: &[],
        doc: "Sessions over UDP of the worker process before that were not taken over: another configuration, another version, no room.",
        read: |scrape, out| {
            out.value(&[], scrape.counts().total(|tally| &tally.datagram_sessions_not_taken_over))
        },
    },
    Metric {
        name: "quic_connections_open",
        kind: MetricKind::Gauge,
        labels: &[],
        doc: "Connections over QUIC open now, with those whose handshake is not complete.",
        read: |scrape, out| out.value(&[], scrape.counts().total(|tally| &tally.quic_open)),
    },
    Metric {
        name: "quic_connections_accepted_total",
        kind: MetricKind::Counter,
        labels: &[],
        doc: "Connections over QUIC accepted.",
        read: |scrape, out| out.value(&[], scrape.counts().total(|tally| &tally.quic_accepted)),
    },
    Metric {
        name: "quic_connections_refused_total",
        kind: MetricKind::Counter,
        labels: &[],
        doc: "Connections over QUIC refused, or whose handshake failed at once.",
        read: |scrape, out| out.value(&[], scrape.counts().total(|tally| &tally.quic_refused)),
    },
    Metric {
        name: "quic_retries_total",
        kind: MetricKind::Counter,
        labels: &[],
        doc: "Clients of QUIC that had to prove their address first (Retry).",
        read: |scrape, out| out.value(&[], scrape.counts().total(|tally| &tally.quic_retries)),
    },
    Metric {
        name: "quic_resets_total",
        kind: MetricKind::Counter,
        labels: &[],
        doc: "Stateless resets: clients of QUIC that were told that their connection is lost, as after a crash.",
        read: |scrape, out| out.value(&[], scrape.counts().total(|tally| &tally.quic_resets)),
    },
    Metric {
        name: "quic_engine_failures_total",
        kind: MetricKind::Counter,
        labels: &[],
        doc: "Panics of the QUIC engine, which end one connection or those of a listening address on one loop.",
        read: |scrape, out| out.value(&[], scrape.counts().total(|tally| &tally.quic_panics)),
    },
];
