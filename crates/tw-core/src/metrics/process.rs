//! The process itself: version, configuration, memory, age.

use super::{Metric, MetricKind};

pub(super) const METRICS: &[Metric] = &[
    Metric {
        name: "build_info",
        kind: MetricKind::Gauge,
        labels: &["version", "nginx"],
        doc: "Always 1: the version of Tailwater, and of nginx whose configuration it reads.",
        read: |_, out| out.value(&[env!("CARGO_PKG_VERSION"), crate::NGINX_VERSION], 1),
    },
    Metric {
        name: "generation",
        kind: MetricKind::Gauge,
        labels: &[],
        doc: "Number of the configuration: 1 after the start, one more with every reload that succeeded.",
        read: |scrape, out| out.value(&[], scrape.generation),
    },
    Metric {
        name: "uptime_seconds",
        kind: MetricKind::Gauge,
        labels: &[],
        doc: "Time since the start.",
        read: |scrape, out| {
            let started = scrape.counts().started.at;
            out.float(&[], tw_rt::clock::now().saturating_duration_since(started).as_secs_f64());
        },
    },
    Metric {
        name: "process_start_time_seconds",
        kind: MetricKind::Gauge,
        labels: &[],
        doc: "When it was started, in seconds since 1970.",
        read: |scrape, out| {
            let started = scrape.counts().started.wall;
            out.float(&[], started.secs as f64 + f64::from(started.msec) / 1e3);
        },
    },
    Metric {
        name: "process_resident_memory_bytes",
        kind: MetricKind::Gauge,
        labels: &[],
        doc: "Memory of the process that is in RAM. Missing when no thread of a pool was free to ask.",
        read: |scrape, out| {
            if let Some(bytes) = scrape.resident_bytes {
                out.value(&[], bytes);
            }
        },
    },
    Metric {
        name: "panics_total",
        kind: MetricKind::Counter,
        labels: &[],
        doc: "Panics: bugs in Tailwater. The error log has a line with the stack for each.",
        read: |scrape, out| out.value(&[], scrape.counts().panics.value()),
    },
    Metric {
        name: "workers",
        kind: MetricKind::Gauge,
        labels: &[],
        doc: "Event loops that run, those included that only finish what they have begun.",
        read: |scrape, out| out.value(&[], scrape.counts().loops().len() as u64),
    },
];
