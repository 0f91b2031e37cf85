//! What is counted of each cache.

use std::sync::atomic::Ordering::Relaxed;

use tw_core::metrics::{Metric, MetricKind, Samples, Scrape};

use tw_cache::IndexCounts;

use super::Status;
use super::times::HitFrom;
use super::zone::{Cache, Zone};

const CACHE: &[&str] = &["cache"];

pub(crate) const METRICS: &[Metric] = &[
    Metric {
        name: "cache_responses_total",
        kind: MetricKind::Counter,
        labels: &["cache", "status"],
        doc: "Requests by what a cache had for them ($upstream_cache_status).",
        read: |scrape, out| {
            for (name, cache) in caches(scrape) {
                for (status, count) in Status::ALL.iter().zip(&cache.zone.counts.by_status) {
                    out.value(&[&name, status.word()], count.value());
                }
            }
        },
    },
    Metric {
        name: "cache_collapsed_total",
        kind: MetricKind::Counter,
        labels: CACHE,
        doc: "Requests that got a response that another request had asked for, as it came.",
        read: |scrape, out| each(scrape, out, |zone| zone.counts.collapsed.value()),
    },
    Metric {
        name: "cache_sent_bytes_total",
        kind: MetricKind::Counter,
        labels: &["cache", "status"],
        doc: "Bytes of bodies that were sent to clients, by what a cache had for their requests.",
        read: |scrape, out| {
            for (name, cache) in caches(scrape) {
                for status in Status::ALL {
                    out.value(&[&name, status.word()], cache.zone.noted.bytes(status));
                }
            }
        },
    },
    Metric {
        name: "cache_collapsed_bytes_total",
        kind: MetricKind::Counter,
        labels: CACHE,
        doc: "Bytes that were sent of responses that another request had asked for, as they came.",
        read: |scrape, out| each(scrape, out, |zone| zone.noted.collapsed_bytes()),
    },
    Metric {
        name: "cache_hit_seconds",
        kind: MetricKind::Histogram,
        labels: &["cache", "from"],
        doc: "Time from the turn of the loop in which a cache was asked until the first byte of a hit went out: inline (from \
              memory), or from the disk, for which a thread of a pool had to wait.",
        read: |scrape, out| {
            for (name, cache) in caches(scrape) {
                for from in HitFrom::ALL {
                    out.histogram(&[&name, from.word()], || cache.zone.noted.times(from));
                }
            }
        },
    },
    Metric {
        name: "cache_stored_total",
        kind: MetricKind::Counter,
        labels: CACHE,
        doc: "Responses that were stored.",
        read: |scrape, out| each(scrape, out, |zone| zone.counts.stored.value()),
    },
    Metric {
        name: "cache_disk_failures_total",
        kind: MetricKind::Counter,
        labels: CACHE,
        doc: "Operations of its disk that failed; the requests went on without it.",
        read: |scrape, out| each(scrape, out, |zone| zone.counts.failed.value()),
    },
    Metric {
        name: "cache_damaged_total",
        kind: MetricKind::Counter,
        labels: CACHE,
        doc: "Files that were removed because they were damaged or cut off.",
        read: |scrape, out| each(scrape, out, |zone| zone.counts.damaged.value()),
    },
    Metric {
        name: "cache_removed_total",
        kind: MetricKind::Counter,
        labels: &["cache", "reason"],
        doc: "Entries that were removed: inactive (nobody asked for them), evicted (there was no room), purged.",
        read: |scrape, out| {
            for (name, cache) in caches(scrape) {
                let counts = &cache.zone.counts;
                out.value(&[&name, "inactive"], counts.inactive.value());
                out.value(&[&name, "evicted"], counts.evicted.value());
                out.value(&[&name, "purged"], counts.purged.value());
            }
        },
    },
    Metric {
        name: "cache_entries",
        kind: MetricKind::Gauge,
        labels: CACHE,
        doc: "Responses that it holds.",
        read: |scrape, out| each(scrape, out, |zone| known(zone).files),
    },
    Metric {
        name: "cache_bytes",
        kind: MetricKind::Gauge,
        labels: CACHE,
        doc: "Bytes that they take of its disk.",
        read: |scrape, out| each(scrape, out, |zone| known(zone).bytes),
    },
    Metric {
        name: "cache_limit_bytes",
        kind: MetricKind::Gauge,
        labels: CACHE,
        doc: "Bytes that they may take (`max_size`); nothing if there is no limit.",
        read: |scrape, out| {
            for (name, cache) in caches(scrape).filter(|(_, cache)| cache.place.max_size < u64::MAX) {
                out.value(&[&name], cache.place.max_size);
            }
        },
    },
    Metric {
        name: "cache_memory_bytes",
        kind: MetricKind::Gauge,
        labels: CACHE,
        doc: "Bytes of memory for what it knows of them.",
        read: |scrape, out| each(scrape, out, |zone| known(zone).memory),
    },
    Metric {
        name: "cache_filling",
        kind: MetricKind::Gauge,
        labels: CACHE,
        doc: "Responses that are asked for or come.",
        read: |scrape, out| each(scrape, out, |zone| zone.filling() as u64),
    },
];

/// What is known of a cache at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    /// Responses that it holds.
    pub entries: u64,
    /// Bytes that they take of its disk.
    pub size: u64,
    /// Bytes that they may take, if there is a limit.
    pub max_size: Option<u64>,
    /// Whether it has not found all yet that is on its disk.
    pub is_cold: bool,
    /// Responses that are asked for or come.
    pub filling: u64,
    /// Responses that were stored.
    pub stored: u64,
    /// What was answered, by what it had, in the order of [`Status::ALL`].
    pub by_status: [Sum; Status::ALL.len()],
    /// What was answered by responses that other requests had asked for.
    pub collapsed: Sum,
}

/// So many responses, of so many bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sum {
    /// Responses.
    pub responses: u64,
    /// Bytes of their bodies that were sent.
    pub bytes: u64,
}

impl Cache {
    /// What is known of it now.
    pub fn look(&self) -> Look {
        let (zone, found) = (&self.zone, known(&self.zone));
        Look {
            entries: found.files,
            size: found.bytes,
            max_size: Some(self.place.max_size).filter(|max| *max < u64::MAX),
            is_cold: !zone.is_loaded.load(Relaxed),
            filling: zone.filling() as u64,
            stored: zone.counts.stored.value(),
            by_status: Status::ALL.map(|status| Sum {
                responses: zone.counts.by_status[status as usize].value(),
                bytes: zone.noted.bytes(status),
            }),
            collapsed: Sum { responses: zone.counts.collapsed.value(), bytes: zone.noted.collapsed_bytes() },
        }
    }
}

fn known(zone: &Zone) -> IndexCounts {
    let nothing = IndexCounts { entries: 0, files: 0, bytes: 0, memory: 0, entries_max: 0 };
    zone.held().map_or(nothing, |held| held.index.counts())
}

fn caches<'a>(scrape: &Scrape<'a>) -> impl Iterator<Item = (String, &'a Cache)> {
    let all = scrape.config().shared_objects.of_type::<Cache>();
    all.into_iter().map(|(name, cache)| (String::from_utf8_lossy(name).into_owned(), cache))
}

fn each(scrape: &Scrape<'_>, out: &mut Samples<'_>, of: fn(&Zone) -> u64) {
    for (name, cache) in caches(scrape) {
        out.value(&[&name], of(&cache.zone));
    }
}
