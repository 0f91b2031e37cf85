//! Metrics of each cache.

pub(crate) mod fleet;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tw_core::metrics::{Metric, MetricKind, Samples, Scrape};

use tw_base::hist::Snapshot;
use tw_cache::IndexCounts;

use super::cache_path::MemberPath;
use super::guard::background::FetchPurpose;
use super::guard::hedge::HedgeOutcome;
use super::member_group::state::{MemberSnapshot, MemberState};
use super::zone::{Cache, CacheZone};
use tw_request::cache_info::{HitFrom, UpstreamCacheStatus};

const CACHE: &[&str] = &["cache"];
const MEMBER: &[&str] = &["cache", "member"];

/// Metrics of caches.
pub const METRICS: &[Metric] = &[
    Metric {
        name: "cache_responses_total",
        kind: MetricKind::Counter,
        labels: &["cache", "status"],
        doc: "Requests by what a cache had for them ($upstream_cache_status).",
        read: |scrape, out| {
            for (name, cache) in caches(scrape) {
                for status in UpstreamCacheStatus::ALL {
                    let count = |zone: &CacheZone| zone.counts.by_status[status as usize].value();
                    out.value(&[&name, status.word()], sum(cache, count));
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
                    out.value(&[&name, status.word()], sum(cache, |zone| zone.stats.bytes(status)));
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
                    out.histogram(&[&name, from.word()], || {
                        let mut times = Snapshot::empty();
                        cache.parts().for_each(|part| times.merge(&part.zone.stats.times(from)));
                        times
                    });
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
        doc: "Entries that were removed: inactive (nobody asked for them), evicted (there was no room), purged, quota (others of the same owner are newer).",
        read: |scrape, out| {
            for (name, cache) in caches(scrape) {
                out.value(&[&name, "inactive"], sum(cache, |zone| zone.counts.inactive.value()));
                out.value(&[&name, "evicted"], sum(cache, |zone| zone.counts.evicted.value()));
                out.value(&[&name, "purged"], sum(cache, |zone| zone.counts.purged.value()));
                out.value(&[&name, "quota"], sum(cache, |zone| zone.quotas.evicted.value()));
            }
        },
    },
    Metric {
        name: "cache_quota_owners",
        kind: MetricKind::Gauge,
        labels: CACHE,
        doc: "Values of the variable of `cache_quota` that have responses; with members, the sum over these.",
        read: |scrape, out| each(scrape, out, |zone| zone.quotas.owners()),
    },
    Metric {
        name: "cache_quota_above",
        kind: MetricKind::Gauge,
        labels: CACHE,
        doc: "Those of them whose responses take more than their quota now.",
        read: |scrape, out| each(scrape, out, |zone| zone.quotas.above()),
    },
    Metric {
        name: "cache_entries",
        kind: MetricKind::Gauge,
        labels: CACHE,
        doc: "Responses that it holds.",
        read: |scrape, out| each(scrape, out, |zone| index_counts(zone).files),
    },
    Metric {
        name: "cache_bytes",
        kind: MetricKind::Gauge,
        labels: CACHE,
        doc: "Bytes that they take of its disk.",
        read: |scrape, out| each(scrape, out, |zone| zone.bytes_on_disk()),
    },
    Metric {
        name: "cache_limit_bytes",
        kind: MetricKind::Gauge,
        labels: CACHE,
        doc: "Bytes that they may take (`max_size`); nothing if there is no limit.",
        read: |scrape, out| {
            for (name, cache) in caches(scrape) {
                if let Some(max_size) = cache.max_size() {
                    out.value(&[&name], max_size);
                }
            }
        },
    },
    Metric {
        name: "cache_memory_bytes",
        kind: MetricKind::Gauge,
        labels: CACHE,
        doc: "Bytes of memory for what it knows of them.",
        read: |scrape, out| each(scrape, out, |zone| index_counts(zone).memory),
    },
    Metric {
        name: "cache_disk_admitted_ratio",
        kind: MetricKind::Gauge,
        labels: CACHE,
        doc: "Share of the keys that are looked up on the disk and stored: less than 1 while the disk is slow or fails (`slow=`).",
        read: |scrape, out| {
            for (name, cache) in caches(scrape) {
                let shares = cache.parts().map(Cache::admitted_ratio);
                out.float(&[&name], shares.sum::<f64>() / cache.parts().count().max(1) as f64);
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
                    out.value(&[&name, outcome.word()], sum(cache, |zone| zone.hedges.count(outcome)));
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
    Metric {
        name: "cache_member_up",
        kind: MetricKind::Gauge,
        labels: MEMBER,
        doc: "For each directory of a cache that has several (`member=`): 1 if it is used, and 0 if it is left out.",
        read: |scrape, out| each_member(scrape, out, |member| u64::from(member.is_in_use())),
    },
    Metric {
        name: "cache_member_admitted_ratio",
        kind: MetricKind::Gauge,
        labels: MEMBER,
        doc: "Share of its keys that are looked up on the disk of a member and stored: less than 1 while it is slow or fails.",
        read: |scrape, out| {
            for (name, cache) in caches(scrape).filter(|(_, cache)| cache.members.is_some()) {
                for member in cache.parts() {
                    out.float(&[&name, &member.path_text()], member.admitted_ratio());
                }
            }
        },
    },
    Metric {
        name: "cache_member_entries",
        kind: MetricKind::Gauge,
        labels: MEMBER,
        doc: "Responses that a member holds.",
        read: |scrape, out| each_member(scrape, out, |member| index_counts(&member.zone).files),
    },
    Metric {
        name: "cache_member_bytes",
        kind: MetricKind::Gauge,
        labels: MEMBER,
        doc: "Bytes that they take of its disk.",
        read: |scrape, out| each_member(scrape, out, |member| member.zone.bytes_on_disk()),
    },
    Metric {
        name: "cache_member_limit_bytes",
        kind: MetricKind::Gauge,
        labels: MEMBER,
        doc: "Bytes that they may take; nothing if there is no limit.",
        read: |scrape, out| {
            each_member_snapshot(scrape, |name, member| {
                if let Some(max_size) = member.max_size {
                    out.value(&[name, &member.path], max_size);
                }
            });
        },
    },
    Metric {
        name: "cache_member_share_ratio",
        kind: MetricKind::Gauge,
        labels: MEMBER,
        doc: "Share of the keys that a member stores, by its weight; 0 while it is drained.",
        read: |scrape, out| {
            each_member_snapshot(scrape, |name, member| out.float(&[name, &member.path], member.share));
        },
    },
    Metric {
        name: "cache_member_state",
        kind: MetricKind::Gauge,
        labels: &["cache", "member", "state"],
        doc: "1 for the state of a member: `up`, `draining`, `read-only`, `probing`, `failing`, `missing` or `unused`.",
        read: |scrape, out| {
            each_member_snapshot(scrape, |name, member| {
                out.value(&[name, &member.path, member.state.word()], 1);
            });
        },
    },
    Metric {
        name: "cache_member_device_info",
        kind: MetricKind::Gauge,
        labels: &["cache", "member", "device"],
        doc: "1 for the device that has the segments of a member (`member=path:device=path`).",
        read: |scrape, out| {
            each_member_snapshot(scrape, |name, member| {
                if let Some(device) = &member.device {
                    out.value(&[name, &member.path, device], 1);
                }
            });
        },
    },
    Metric {
        name: "cache_member_disk_failures_total",
        kind: MetricKind::Counter,
        labels: MEMBER,
        doc: "Operations of the disk of a member that failed.",
        read: |scrape, out| each_member(scrape, out, |member| member.zone.counts.failed.value()),
    },
];

/// Snapshot of a cache's numbers.
#[derive(Debug, Clone, PartialEq)]
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
    /// Directories, if there are several.
    pub members: Vec<MemberSnapshot>,
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
        CacheSnapshot {
            entries: sum(self, |zone| index_counts(zone).files),
            size: sum(self, CacheZone::bytes_on_disk),
            max_size: self.max_size(),
            is_cold: self.parts().any(|part| !part.zone.is_loaded.load(Relaxed)),
            filling: sum(self, |zone| zone.filling() as u64),
            stored: sum(self, |zone| zone.counts.stored.value()),
            by_status: UpstreamCacheStatus::ALL.map(|status| ResponseTotals {
                responses: sum(self, |zone| zone.counts.by_status[status as usize].value()),
                bytes: sum(self, |zone| zone.stats.bytes(status)),
            }),
            collapsed: ResponseTotals {
                responses: sum(self, |zone| zone.counts.collapsed.value()),
                bytes: sum(self, |zone| zone.stats.collapsed_bytes()),
            },
            members: self.member_snapshots(),
        }
    }

    fn member_snapshots(&self) -> Vec<MemberSnapshot> {
        let Some(members) = &self.members else { return Vec::new() };
        let sum: u128 = self.place.members.iter().map(|path| u128::from(path.weight)).sum();
        let of = |(member, path): (&Arc<Self>, &MemberPath)| MemberSnapshot {
            path: member.path_text(),
            device: path.device.as_ref().map(|device| device.path.to_string_lossy().into_owned()),
            state: member.member_state(path.weight == 0),
            entries: index_counts(&member.zone).files,
            size: member.zone.bytes_on_disk(),
            max_size: member.max_size(),
            share: path.weight as f64 / sum.max(1) as f64,
        };
        members.list.iter().zip(&self.place.members).map(of).collect()
    }

    fn member_state(&self, is_draining: bool) -> MemberState {
        let zone = &self.zone;
        match zone.breaker.admitted() {
            _ if zone.loaded().is_none() && zone.member.is_missing() => MemberState::Missing,
            _ if zone.loaded().is_none() => MemberState::Unused,
            0 => MemberState::Failing,
            _ if !zone.breaker.admits_all() => MemberState::Probing,
            _ if is_draining => MemberState::Draining,
            _ if !zone.member.store_breaker.admits_all() => MemberState::ReadOnly,
            _ => MemberState::Up,
        }
    }

    /// Path of the directory, for people.
    fn path_text(&self) -> String {
        self.place.dir.to_string_lossy().into_owned()
    }

    /// Share of the keys that are looked up on the disk.
    fn admitted_ratio(&self) -> f64 {
        match self.zone.member.is_missing() {
            true => 0.0,
            false => f64::from(self.zone.breaker.admitted()) / 16.0,
        }
    }

    /// Limit of the size, if there is one for each directory.
    fn max_size(&self) -> Option<u64> {
        let limit = |part: &Self| Some(part.place.max_size).filter(|max| *max < u64::MAX);
        self.parts().map(limit).try_fold(0_u64, |sum, limit| Some(sum.saturating_add(limit?)))
    }
}

/// Sum over all directories of a cache.
fn sum(cache: &Cache, of: impl Fn(&CacheZone) -> u64) -> u64 {
    cache.parts().map(|part| of(&part.zone)).sum()
}

fn each_member(scrape: &Scrape<'_>, out: &mut Samples<'_>, of: fn(&Cache) -> u64) {
    for (name, cache) in caches(scrape).filter(|(_, cache)| cache.members.is_some()) {
        for member in cache.parts() {
            out.value(&[&name, &member.path_text()], of(member));
        }
    }
}

/// Calls `see` with the name of each cache that has members, and each of them.
fn each_member_snapshot(scrape: &Scrape<'_>, mut see: impl FnMut(&str, &MemberSnapshot)) {
    for (name, cache) in caches(scrape) {
        cache.member_snapshots().iter().for_each(|member| see(&name, member));
    }
}

fn index_counts(zone: &CacheZone) -> IndexCounts {
    let nothing = IndexCounts { entries: 0, files: 0, bytes: 0, memory: 0, entries_max: 0 };
    zone.loaded().map_or(nothing, |zone_index| zone_index.index.counts())
}

fn caches<'a>(scrape: &Scrape<'a>) -> impl Iterator<Item = (String, &'a Cache)> {
    let all = scrape.config().shared_objects.of_type::<Cache>();
    all.into_iter().map(|(name, cache)| (String::from_utf8_lossy(name).into_owned(), cache))
}

fn each(scrape: &Scrape<'_>, out: &mut Samples<'_>, of: fn(&CacheZone) -> u64) {
    for (name, cache) in caches(scrape) {
        out.value(&[&name], sum(cache, of));
    }
}

fn each_purpose(scrape: &Scrape<'_>, out: &mut Samples<'_>, of: fn(&CacheZone, FetchPurpose) -> u64) {
    for (name, cache) in caches(scrape) {
        for purpose in FetchPurpose::ALL {
            out.value(&[&name, purpose.word()], sum(cache, |zone| of(zone, purpose)));
        }
    }
}
