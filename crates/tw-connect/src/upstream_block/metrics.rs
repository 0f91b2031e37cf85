//! Metrics of upstream groups and their peers, of all protocols.
//!
//! The label `protocol` tells groups of one name apart: it is the block that a group stands in. The label `id` tells peers apart that
//! have one address: a group may name it twice.

use tw_base::hist::Histogram;
use tw_core::metrics::{Metric, MetricKind, Samples, Scrape};
use tw_upstream::{Group, Peer, PeerCounters, PeerStatus};

/// Labels of a peer.
const PEER: &[&str] = &["protocol", "upstream", "peer", "server", "id"];

/// The records of groups and peers.
pub(super) const METRICS: &[Metric] = &[
    Metric {
        name: "upstream_waiting",
        kind: MetricKind::Gauge,
        labels: &["protocol", "upstream"],
        doc: "Requests or sessions that wait until a server of a group may be asked.",
        read: |scrape, out| {
            for (protocol, group) in groups(scrape) {
                out.value(&[protocol, group.name()], u64::try_from(group.queue_len()).unwrap_or(u64::MAX));
            }
        },
    },
    Metric {
        name: "upstream_retries_active",
        kind: MetricKind::Gauge,
        labels: &["protocol", "upstream"],
        doc: "Requests under way to a group that are retries within a budget (next_upstream_budget).",
        read: |scrape, out| {
            for (protocol, group) in groups(scrape) {
                out.value(&[protocol, group.name()], group.active_retries().into());
            }
        },
    },
    Metric {
        name: "upstream_retries_refused_total",
        kind: MetricKind::Counter,
        labels: &["protocol", "upstream"],
        doc: "Retries that were not made because the budget of a group was used up (next_upstream_budget).",
        read: |scrape, out| {
            for (protocol, group) in groups(scrape) {
                out.value(&[protocol, group.name()], group.refused_retries());
            }
        },
    },
    Metric {
        name: "upstream_peer_info",
        kind: MetricKind::Gauge,
        labels: &["protocol", "upstream", "peer", "server", "id", "state", "role"],
        doc: "Always 1: an address of a group, whether it can get requests (up, down, draining, unavailable after failures, \
              unhealthy or checking for health checks), and whether it is primary or backup.",
        read: |scrape, out| {
            each(scrape, out, |peer, [protocol, upstream, addr, server, id], out| {
                let role = if peer.params().backup { "backup" } else { "primary" };
                out.value(&[protocol, upstream, addr, server, id, word(peer.status()), role], 1);
            });
        },
    },
    Metric {
        name: "upstream_peer_weight",
        kind: MetricKind::Gauge,
        labels: PEER,
        doc: "Its share of the requests.",
        read: |scrape, out| {
            each(scrape, out, |peer, labels, out| out.value(&labels, peer.params().weight.into()))
        },
    },
    Metric {
        name: "upstream_peer_connections",
        kind: MetricKind::Gauge,
        labels: PEER,
        doc: "Requests, tunnels and sessions that are under way there.",
        read: |scrape, out| {
            each(scrape, out, |peer, labels, out| out.value(&labels, peer.state().connections().into()))
        },
    },
    Metric {
        name: "upstream_peer_requests_total",
        kind: MetricKind::Counter,
        labels: PEER,
        doc: "How often it was asked: requests, and attempts to pass a session to it.",
        read: |scrape, out| count(scrape, out, |counters| counters.requests.value()),
    },
    Metric {
        name: "upstream_peer_responses_total",
        kind: MetricKind::Counter,
        labels: &["protocol", "upstream", "peer", "server", "id", "class"],
        doc: "Its responses, by class of their status: 1xx to 5xx.",
        read: |scrape, out| {
            each(scrape, out, |peer, [protocol, upstream, addr, server, id], out| {
                for (class, responses) in CLASSES.into_iter().zip(&peer.state().counters.responses) {
                    out.value(&[protocol, upstream, addr, server, id, class], responses.value());
                }
            });
        },
    },
    Metric {
        name: "upstream_peer_failures_total",
        kind: MetricKind::Counter,
        labels: PEER,
        doc: "How often it failed: what proxy_next_upstream names; for a session, that it could not be connected to.",
        read: |scrape, out| count(scrape, out, |counters| counters.fails.value()),
    },
    Metric {
        name: "upstream_peer_unavailable_total",
        kind: MetricKind::Counter,
        labels: PEER,
        doc: "How often it was left alone for fail_timeout, because it had failed max_fails times.",
        read: |scrape, out| count(scrape, out, |counters| counters.unavail.value()),
    },
    Metric {
        name: "upstream_peer_downtime_seconds_total",
        kind: MetricKind::Counter,
        labels: PEER,
        doc: "Time in which it was left alone, because of failures or health checks.",
        read: |scrape, out| {
            let now = tw_rt::clock::millis();
            each(scrape, out, |peer, labels, out| {
                out.float(&labels, peer.state().downtime_ms(now) as f64 / 1e3);
            });
        },
    },
    Metric {
        name: "upstream_peer_checks_total",
        kind: MetricKind::Counter,
        labels: PEER,
        doc: "Health checks that were made of it.",
        read: |scrape, out| count(scrape, out, |counters| counters.checks.value()),
    },
    Metric {
        name: "upstream_peer_check_failures_total",
        kind: MetricKind::Counter,
        labels: PEER,
        doc: "Health checks of it that failed.",
        read: |scrape, out| count(scrape, out, |counters| counters.check_fails.value()),
    },
    Metric {
        name: "upstream_peer_last_check_passed",
        kind: MetricKind::Gauge,
        labels: PEER,
        doc: "Whether the latest health check of it was passed: 1 or 0, nothing before the first one.",
        read: |scrape, out| {
            each(scrape, out, |peer, labels, out| {
                if let Some(passed) = peer.state().last_check() {
                    out.value(&labels, passed.into());
                }
            });
        },
    },
    Metric {
        name: "upstream_peer_unhealthy_total",
        kind: MetricKind::Counter,
        labels: PEER,
        doc: "How often health checks found it unhealthy.",
        read: |scrape, out| count(scrape, out, |counters| counters.unhealthy.value()),
    },
    Metric {
        name: "upstream_peer_sent_bytes_total",
        kind: MetricKind::Counter,
        labels: PEER,
        doc: "Bytes that were sent to it. Those of sessions grow while the sessions run.",
        read: |scrape, out| count(scrape, out, |counters| counters.sent.value()),
    },
    Metric {
        name: "upstream_peer_received_bytes_total",
        kind: MetricKind::Counter,
        labels: PEER,
        doc: "Bytes that it has sent. Those of sessions grow while the sessions run.",
        read: |scrape, out| count(scrape, out, |counters| counters.received.value()),
    },
    Metric {
        name: "upstream_peer_connect_seconds",
        kind: MetricKind::Histogram,
        labels: PEER,
        doc: "Time until a connection to it was there; none at all if one was kept.",
        read: |scrape, out| times(scrape, out, |counters| &counters.connect),
    },
    Metric {
        name: "upstream_peer_header_seconds",
        kind: MetricKind::Histogram,
        labels: PEER,
        doc: "Time until the head of its response, or the first byte of a session, was there.",
        read: |scrape, out| times(scrape, out, |counters| &counters.header),
    },
    Metric {
        name: "upstream_peer_response_seconds",
        kind: MetricKind::Histogram,
        labels: PEER,
        doc: "Time until the end of its response, or of a session with it.",
        read: |scrape, out| times(scrape, out, |counters| &counters.response),
    },
];

const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

const fn word(status: PeerStatus) -> &'static str {
    match status {
        PeerStatus::Up => "up",
        PeerStatus::Down => "down",
        PeerStatus::Draining => "draining",
        PeerStatus::Unavailable => "unavailable",
        PeerStatus::Unhealthy => "unhealthy",
        PeerStatus::Checking => "checking",
    }
}

/// Every group of the configuration, with its protocol.
fn groups<'a>(scrape: &Scrape<'a>) -> impl Iterator<Item = (&'a str, &'a Group)> {
    let all = scrape.config().shared_objects.of_type::<Group>();
    all.into_iter().map(|(name, group)| {
        let protocol = name.split(|byte| *byte == b'/').next().unwrap_or_default();
        (std::str::from_utf8(protocol).unwrap_or_default(), group)
    })
}

/// Writes samples of every peer.
fn each(
    scrape: &Scrape<'_>,
    out: &mut Samples<'_>,
    write: impl Fn(&Peer, [&str; PEER.len()], &mut Samples<'_>),
) {
    for (protocol, group) in groups(scrape) {
        for peer in group.list().peers() {
            let id = peer.id().0.to_string();
            write(peer, [protocol, group.name(), peer.text(), peer.name(), &id], out);
        }
    }
}

fn count(scrape: &Scrape<'_>, out: &mut Samples<'_>, of: fn(&PeerCounters) -> u64) {
    each(scrape, out, |peer, labels, out| out.value(&labels, of(&peer.state().counters)));
}

fn times(scrape: &Scrape<'_>, out: &mut Samples<'_>, of: fn(&PeerCounters) -> &Histogram) {
    each(scrape, out, |peer, labels, out| out.histogram(&labels, || of(&peer.state().counters).snapshot()));
}
