//! Event loops: was one ever blocked, and what part of the work does each do?

use tw_rt::{Cause, LoopStats, PartStats};

use super::metric::{Metric, MetricKind, Samples, Scrape, seconds};
use crate::event_loop::Sibling;

pub(super) const METRICS: &[Metric] = &[
    Metric {
        name: "event_loop_blocked_seconds",
        kind: MetricKind::Histogram,
        labels: &["worker"],
        doc: "Length of every turn of an event loop: how long an event may have had to wait for others.",
        read: |scrape, out| {
            turns(scrape, |worker, stats| out.histogram(&[worker], || stats.blocked.snapshot()))
        },
    },
    Metric {
        name: "event_loop_part_seconds",
        kind: MetricKind::Histogram,
        labels: &["worker", "cause"],
        doc: "Parts of every turn: running (on a processor), processor (waiting for one), kernel (asleep in the kernel, for a \
            disk, memory or a lock: what must not be).",
        read: |scrape, out| {
            parts(scrape, |labels, part| out.histogram(labels, || part.spans.snapshot()));
        },
    },
    Metric {
        name: "event_loop_blocked_max_seconds",
        kind: MetricKind::Gauge,
        labels: &["worker"],
        doc: "The longest turn of an event loop since it began.",
        read: |scrape, out| turns(scrape, |worker, stats| out.float(&[worker], seconds(stats.longest.ns()))),
    },
    Metric {
        name: "event_loop_stalls_total",
        kind: MetricKind::Counter,
        labels: &["worker", "cause"],
        doc: "Turns longer than stall_threshold, by what made them long (see event_loop_part_seconds). The error log and the \
            status page name who took the time.",
        read: |scrape, out| parts(scrape, |labels, part| out.value(labels, part.stalls.value())),
    },
    Metric {
        name: "loop_major_faults_total",
        kind: MetricKind::Counter,
        labels: &["worker"],
        doc: "Pages that an event loop had to wait for a disk for: code that was not in memory, or data that was swapped out.",
        read: |scrape, out| turns(scrape, |worker, stats| out.value(&[worker], stats.major_faults.value())),
    },
    Metric {
        name: "event_loop_busy_seconds_total",
        kind: MetricKind::Counter,
        labels: &["worker"],
        doc: "Time an event loop was not waiting for events.",
        read: |scrape, out| {
            let now = tw_rt::clock::now();
            each_loop(scrape, |worker, sibling| out.float(&[worker], seconds(sibling.stats.busy.until(now))));
        },
    },
    Metric {
        name: "event_loop_connections_open",
        kind: MetricKind::Gauge,
        labels: &["worker"],
        doc: "Connections that an event loop has open now.",
        read: |scrape, out| values(scrape, out, |sibling| sibling.tally.open.value()),
    },
    Metric {
        name: "event_loop_connections_total",
        kind: MetricKind::Counter,
        labels: &["worker"],
        doc: "Connections that an event loop began to serve, whichever loop had accepted them.",
        read: |scrape, out| values(scrape, out, |sibling| sibling.tally.accepted.value()),
    },
    Metric {
        name: "event_loop_connections_passed_on_total",
        kind: MetricKind::Counter,
        labels: &["worker"],
        doc: "Connections that an event loop accepted and another one serves, because it did less (connection_balance).",
        read: |scrape, out| values(scrape, out, |sibling| sibling.tally.passed_on.value()),
    },
];

/// Calls `add_sample` with the turn statistics of each loop and its number as text.
fn turns(scrape: &Scrape<'_>, mut add_sample: impl FnMut(&str, &LoopStats)) {
    for (index, stats) in scrape.counts().loops().iter().enumerate() {
        add_sample(&index.to_string(), stats);
    }
}

/// Calls `add_sample` with the statistics of each part of the turns of each loop, labelled with the loop's number and the
/// cause.
fn parts(scrape: &Scrape<'_>, mut add_sample: impl FnMut(&[&str], &PartStats)) {
    turns(scrape, |worker, stats| {
        Cause::ALL.into_iter().for_each(|cause| add_sample(&[worker, cause.word()], stats.part(cause)));
    });
}

/// Calls `add_sample` with the counters of each accepting loop and its number as text.
pub fn each_loop(scrape: &Scrape<'_>, mut add_sample: impl FnMut(&str, &Sibling)) {
    for sibling in scrape.counts().siblings() {
        add_sample(&sibling.index.to_string(), &sibling);
    }
}

fn values(scrape: &Scrape<'_>, out: &mut Samples<'_>, of: impl Fn(&Sibling) -> u64) {
    each_loop(scrape, |worker, sibling| out.value(&[worker], of(sibling)));
}
