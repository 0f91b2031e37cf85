//! Metrics of each cache.

use std::sync::atomic::Ordering::Relaxed;

use tw_core::metrics::{Metric, MetricKind, Samples, Scrape};

use tw_cache::IndexCounts;

use super::background::FetchPurpose;
use super::hedge::HedgeOutcome;
use super::zone::{Cache, CacheZone};
use crate::http::cache_info::{HitFrom, UpstreamCacheStatus};

const CACHE: &[&str] = &["cache"];

pub(crate) const METRICS: &[Metric] = &[
    Metric {
        name: "cache_responses_total",
        kind: MetricKind::Counter,
        labels: &["cache", "status"],
        doc: "Requests by what a cache had for them ($upstream_cache_status).",
        read: |scrape, out| {
            for (name, cache) in caches(scrape) {
                for (status, count) in UpstreamCacheStatus::ALL.iter().zip(&cache.zone.counts.by_status) {
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
                for status in UpstreamCacheStatus::ALL {
                    out.value(&[&name, status.word()], cache.zone.stats.bytes(status));
                }
            }
        },
    },
    Metric {
        name: "cache_collapsed_bytes_total",
        kind: MetricKind::Counter,
        labels: CACHE,
        doc: "Bytes that were sent of responses that another request had asked for, as they came.",
        read: |scrape, out| each(scrape, out, |zone| zone.stats.collapsed_bytes()),
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
                    out.histogram(&[&name, from.word()], || cache.zone.stats.times(from));
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
        doc: "Files that were removed because they were damaged (their checksums) or cut off.",
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
        name: "cache_disk_admitted_ratio",
        kind: MetricKind::Gauge,
        labels: CACHE,
        doc: "Share of the keys that are looked up on the disk and stored: less than 1 while the disk is slow or fails (`slow=`).",
        read: |scrape, out| {
            for (name, cache) in caches(scrape) {
                out.float(&[&name], f64::from(cache.zone.breaker.admitted()) / 16.0);
            }
        },
    },
    Metric {
        name: "cache_breaker_trips_total",
        kind: MetricKind::Counter,
        labels: CACHE,
        doc: "Times at which the disk of a cache was left alone because it was slow or failed (`slow=`).",
        read: |scrape, out| each(scrape, out, |zone| zone.breaker.trips.value()),
    },
    Metric {
        name: "cache_background_fetches_total",
        kind: MetricKind::Counter,
        labels: &["cache", "reason"],
        doc: "Responses that were requested from the upstream server beside the requests of clients: update (of a stale one), \
              refresh-ahead (of one that is about to be stale), hedge (because the disk was slow).",
        read: |scrape, out| each_purpose(scrape, out, |zone, purpose| zone.background.started(purpose)),
    },
    Metric {
        name: "cache_background_refused_total",
        kind: MetricKind::Counter,
        labels: &["cache", "reason"],
        doc: "Such requests that were not started because of `cache_background_max`.",
        read: |scrape, out| each_purpose(scrape, out, |zone, purpose| zone.background.refused(purpose)),
    },
    Metric {
        name: "cache_background_running",
        kind: MetricKind::Gauge,
        labels: CACHE,
        doc: "Such requests in progress.",
        read: |scrape, out| each(scrape, out, |zone| zone.background.running().into()),
    },
    Metric {
        name: "cache_hedged_lookups_total",
        kind: MetricKind::Counter,
        labels: &["cache", "winner"],
        doc: "Lookups that the disk kept waiting for longer than the delay of `hedge=`, by what answered first: origin or disk; \
              refused if the upstream server was not asked because of `hedge_max=` or `cache_background_max`.",
        read: |scrape, out| {
            for (name, cache) in caches(scrape) {
                for outcome in HedgeOutcome::ALL {
                    out.value(&[&name, outcome.word()], cache.zone.hedges.count(outcome));
                }
            }
        },
    },
    Metric {
        name: "cache_filling",
        kind: MetricKind::Gauge,
        labels: CACHE,
        doc: "Responses that are asked for or come.",
        read: |scrape, out| each(scrape, out, |zone| zone.filling() as u64),
    },
];

/// Snapshot of a cache's numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheSnapshot {
    /// Number of stored responses.
    pub entries: u64,
    /// Size of the stored responses on the disk, in bytes.
    pub size: u64,
    /// Limit of that size, if there is one.
    pub max_size: Option<u64>,
    /// True until the index is loaded from the disk.
    pub is_cold: bool,
    /// Number of fills in progress.
    pub filling: u64,
    /// Number of responses stored since the start.
    pub stored: u64,
    /// Responses by cache status, in the order of [`UpstreamCacheStatus::ALL`].
    pub by_status: [ResponseTotals; UpstreamCacheStatus::ALL.len()],
    /// Responses of collapsed requests.
    pub collapsed: ResponseTotals,
}

/// Number of responses and of their body bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponseTotals {
    /// Number of responses.
    pub responses: u64,
    /// Body bytes sent.
    pub bytes: u64,
}

impl Cache {
    /// Returns a snapshot of the cache's numbers.
    pub fn snapshot(&self) -> CacheSnapshot {
        let (zone, found) = (&self.zone, known(&self.zone));
        CacheSnapshot {
            entries: found.files,
            size: found.bytes,
            max_size: Some(self.place.max_size).filter(|max| *max < u64::MAX),
            is_cold: !zone.is_loaded.load(Relaxed),
            filling: zone.filling() as u64,
            stored: zone.counts.stored.value(),
            by_status: UpstreamCacheStatus::ALL.map(|status| ResponseTotals {
                responses: zone.counts.by_status[status as usize].value(),
                bytes: zone.stats.bytes(status),
            }),
            collapsed: ResponseTotals {
                responses: zone.counts.collapsed.value(),
                bytes: zone.stats.collapsed_bytes(),
            },
        }
    }
}

fn known(zone: &CacheZone) -> IndexCounts {
    let nothing = IndexCounts { entries: 0, files: 0, bytes: 0, memory: 0, entries_max: 0 };
    zone.loaded().map_or(nothing, |held| held.index.counts())
}

fn caches<'a>(scrape: &Scrape<'a>) -> impl Iterator<Item = (String, &'a Cache)> {
    let all = scrape.config().shared_objects.of_type::<Cache>();
    all.into_iter().map(|(name, cache)| (String::from_utf8_lossy(name).into_owned(), cache))
}

fn each(scrape: &Scrape<'_>, out: &mut Samples<'_>, of: fn(&CacheZone) -> u64) {
    for (name, cache) in caches(scrape) {
        out.value(&[&name], of(&cache.zone));
    }
}

fn each_purpose(scrape: &Scrape<'_>, out: &mut Samples<'_>, of: fn(&CacheZone, FetchPurpose) -> u64) {
    for (name, cache) in caches(scrape) {
        for purpose in FetchPurpose::ALL {
            out.value(&[&name, purpose.word()], of(&cache.zone, purpose));
        }
    }
}
