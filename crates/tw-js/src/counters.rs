//! Counters of scripts, which outlive configurations.

use tw_base::Counter;
use tw_core::metrics::{Metric, MetricKind};

use crate::process_links;

/// Name of the counters among the shared objects.
pub(crate) const NAME: &[u8] = b"js";

/// Counters of all scripts.
#[derive(Debug)]
pub(crate) struct Counters {
    pub(crate) calls: Counter,
    pub(crate) exceptions: Counter,
    pub(crate) limits: Counter,
}

impl Counters {
    pub(crate) fn new() -> Self {
        Self { calls: Counter::new(), exceptions: Counter::new(), limits: Counter::new() }
    }
}

/// Metrics of scripts.
pub(crate) const METRICS: &[Metric] = &[
    Metric {
        name: "js_processes",
        kind: MetricKind::Gauge,
        labels: &[],
        doc: "Script processes that serve event loops.",
        read: |scrape, out| {
            if scrape.shared_objects::<Counters>().next().is_some() {
                out.value(&[], process_links::counts().running);
            }
        },
    },
    Metric {
        name: "js_processes_started_total",
        kind: MetricKind::Counter,
        labels: &[],
        doc: "Script processes that were started.",
        read: |scrape, out| {
            if scrape.shared_objects::<Counters>().next().is_some() {
                out.value(&[], process_links::counts().started);
            }
        },
    },
    Metric {
        name: "js_processes_replaced_total",
        kind: MetricKind::Counter,
        labels: &[],
        doc: "Script processes that have ended because of a limit, a fault or silence, and were replaced.",
        read: |scrape, out| {
            if scrape.shared_objects::<Counters>().next().is_some() {
                out.value(&[], process_links::counts().replaced);
            }
        },
    },
    Metric {
        name: "js_calls_total",
        kind: MetricKind::Counter,
        labels: &[],
        doc: "Calls of functions of scripts.",
        read: |scrape, out| {
            for counters in scrape.shared_objects::<Counters>() {
                out.value(&[], counters.calls.value());
            }
        },
    },
    Metric {
        name: "js_exceptions_total",
        kind: MetricKind::Counter,
        labels: &[],
        doc: "Calls of functions of scripts that have ended with an exception.",
        read: |scrape, out| {
            for counters in scrape.shared_objects::<Counters>() {
                out.value(&[], counters.exceptions.value());
            }
        },
    },
    Metric {
        name: "js_limits_total",
        kind: MetricKind::Counter,
        labels: &[],
        doc: "Calls of functions of scripts that were ended because they have used too much time or memory.",
        read: |scrape, out| {
            for counters in scrape.shared_objects::<Counters>() {
                out.value(&[], counters.limits.value());
            }
        },
    },
];
