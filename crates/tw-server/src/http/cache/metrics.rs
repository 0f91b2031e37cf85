//! What is counted of each cache.

use tw_core::metrics::{Kind, Metric, Samples, Scrape};

use tw_cache::IndexCounts;

use super::facts::Status;
use super::zone::{Cache, Zone};

const CACHE: &[&str] = &["cache"];

pub(crate) const METRICS: &[Metric] = &[
    Metric {
        name: "cache_responses_total",
        kind: Kind::Counter,
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
        kind: Kind::Counter,
        labels: CACHE,
        doc: "Requests that got a response that another request had asked for, as it came.",
        read: |scrape, out| each(scrape, out, |zone| zone.counts.collapsed.value()),
    },
    Metric {
        name: "cache_stored_total",
        kind: Kind::Counter,
        labels: CACHE,
        doc: "Responses that were stored.",
        read: |scrape, out| each(scrape, out, |zone| zone.counts.stored.value()),
    },
    Metric {
        name: "cache_disk_failures_total",
        kind: Kind::Counter,
        labels: CACHE,
        doc: "Operations of its disk that failed; the requests went on without it.",
        read: |scrape, out| each(scrape, out, |zone| zone.counts.failed.value()),
    },
    Metric {
        name: "cache_damaged_total",
        kind: Kind::Counter,
        labels: CACHE,
        doc: "Files that were removed because they were damaged or cut off.",
        read: |scrape, out| each(scrape, out, |zone| zone.counts.damaged.value()),
    },
    Metric {
        name: "cache_removed_total",
        kind: Kind::Counter,
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
        kind: Kind::Gauge,
        labels: CACHE,
        doc: "Responses that it holds.",
        read: |scrape, out| each(scrape, out, |zone| known(zone).files),
    },
    Metric {
        name: "cache_bytes",
        kind: Kind::Gauge,
        labels: CACHE,
        doc: "Bytes that they take of its disk.",
        read: |scrape, out| each(scrape, out, |zone| known(zone).bytes),
    },
    Metric {
        name: "cache_limit_bytes",
        kind: Kind::Gauge,
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
        kind: Kind::Gauge,
        labels: CACHE,
        doc: "Bytes of memory for what it knows of them.",
        read: |scrape, out| each(scrape, out, |zone| known(zone).memory),
    },
    Metric {
        name: "cache_filling",
        kind: Kind::Gauge,
        labels: CACHE,
        doc: "Responses that are asked for or come.",
        read: |scrape, out| each(scrape, out, |zone| zone.filling() as u64),
    },
];

fn known(zone: &Zone) -> IndexCounts {
    let nothing = IndexCounts { entries: 0, files: 0, bytes: 0, memory: 0, entries_max: 0 };
    zone.held().map_or(nothing, |held| held.index.counts())
}

fn caches<'a>(scrape: &Scrape<'a>) -> impl Iterator<Item = (String, &'a Cache)> {
    let all = scrape.config().kept.of_type::<Cache>();
    all.into_iter().map(|(name, cache)| (String::from_utf8_lossy(name).into_owned(), cache))
}

fn each(scrape: &Scrape<'_>, out: &mut Samples<'_>, of: fn(&Zone) -> u64) {
    for (name, cache) in caches(scrape) {
        out.value(&[&name], of(&cache.zone));
    }
}
