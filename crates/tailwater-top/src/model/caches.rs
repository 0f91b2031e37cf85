//! Caches.

use super::Change;
use super::change::share;

/// Statuses of responses that came from a cache.
const FROM_CACHE: [&str; 4] = ["HIT", "STALE", "UPDATING", "REVALIDATED"];

/// One cache.
#[derive(Debug, Clone, PartialEq)]
pub struct CacheRow {
    /// Name of its `keys_zone`.
    pub name: String,
    /// Stored responses.
    pub entries: Option<f64>,
    /// Bytes of its files.
    pub size: Option<f64>,
    /// Most bytes of its files; `None` without a limit.
    pub limit: Option<f64>,
    /// Requests a second.
    pub requests: Option<f64>,
    /// Share of responses that came from the cache.
    pub hit_ratio: Option<f64>,
    /// Share of such responses since the process began.
    pub total_hit_ratio: Option<f64>,
    /// Responses that are being fetched.
    pub filling: Option<f64>,
    /// Entries a second that were removed because there was no room.
    pub evicted: Option<f64>,
    /// Failures of its disk since the process began.
    pub failures: Option<f64>,
}

pub(super) fn rows(change: &Change<'_>) -> Vec<CacheRow> {
    change.new.values("cache_entries", "cache").into_iter().map(|name| row(change, name)).collect()
}

fn row(change: &Change<'_>, name: String) -> CacheRow {
    let of = [("cache", &*name)];
    let responses = "cache_responses_total";
    let requests = change.rate(responses, &of);
    let ratio =
        |hits: Option<f64>, all: Option<f64>| share(hits, all.zip(hits).map(|(all, hits)| all - hits));
    let hits = from_cache(&name, |labels| change.rate(responses, labels));
    let total_hits = from_cache(&name, |labels| change.level(responses, labels));
    CacheRow {
        entries: change.level("cache_entries", &of),
        size: change.level("cache_bytes", &of),
        limit: change.level("cache_limit_bytes", &of),
        requests,
        hit_ratio: ratio(hits, requests),
        total_hit_ratio: ratio(total_hits, change.level(responses, &of)),
        filling: change.level("cache_filling", &of),
        evicted: change.rate("cache_removed_total", &[("cache", &*name), ("reason", "evicted")]),
        failures: change.level("cache_disk_failures_total", &of),
        name,
    }
}

/// Sum of the numbers of responses that came from a cache, each found by its labels.
fn from_cache(cache: &str, read: impl Fn(&[(&str, &str)]) -> Option<f64>) -> Option<f64> {
    let numbers = FROM_CACHE.iter().filter_map(|status| read(&[("cache", cache), ("status", status)]));
    numbers.reduce(|sum, number| sum + number)
}
