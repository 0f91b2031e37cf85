//! TLS handshakes with clients, over TCP and QUIC.

use super::metric::{Metric, MetricKind};
use crate::event_loop::HandshakeFailure;

pub(super) const METRICS: &[Metric] = &[
    Metric {
        name: "tls_handshakes_total",
        kind: MetricKind::Counter,
        labels: &["kind"],
        doc: "TLS handshakes with clients that were completed: full ones, and resumed ones that reused a session. With early data, \
              those far enough for the first request.",
        read: |scrape, out| {
            out.value(&["full"], scrape.counts().total(|tally| &tally.tls_full));
            out.value(&["resumed"], scrape.counts().total(|tally| &tally.tls_resumed));
        },
    },
    Metric {
        name: "tls_handshake_failures_total",
        kind: MetricKind::Counter,
        labels: &["cause"],
        doc: "TLS handshakes with clients that failed: rejected (ssl_reject_handshake), timeout, closed by the client, protocol (the \
              client broke it, or has nothing in common with the server), certificate (of the server, that could not be loaded), \
              overload (no connection or no thread was free).",
        read: |scrape, out| {
            for failure in HandshakeFailure::ALL {
                let count = scrape.counts().total(|tally| &tally.tls_failed[failure as usize]);
                out.value(&[failure.word()], count);
            }
        },
    },
];
