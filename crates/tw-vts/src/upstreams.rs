//! Upstream servers and caches, which the server counts in any case.

use std::fmt::Write as _;

use tw_connect::upstream_block::{configured_groups, shared_groups};
use tw_core::metrics::json_string;
use tw_core::shared_objects::SharedObjects;
use tw_http_cache::{Cache, CacheSnapshot};
use tw_request::protocol::Http;
use tw_rt::clock;
use tw_upstream::{Group, Peer, PeerStatus};

use super::node::{Bucket, CACHE_WORDS, CLASS_WORDS, write_buckets, write_members};

/// Name of the servers that stand in no `upstream` block.
pub(super) const ALONE: &str = "::nogroups";

/// Number of times that a counter has overflowed: never, with 64 bits.
const OVER_COUNTS: &str = r#"{"maxIntegerSize":18446744073709551615,"requestCounter":0,"inBytes":0,"outBytes":0,"1xx":0,"2xx":0,"3xx":0,"4xx":0,"5xx":0,"requestMsecCounter":0,"responseMsecCounter":0}"#;

/// Counters of one upstream server.
pub(super) struct UpstreamView {
    /// Address of the server.
    pub(super) server: Box<str>,
    pub(super) received: u64,
    pub(super) sent: u64,
    pub(super) classes: [u64; CLASS_WORDS.len()],
    /// Sum of the times of its responses in milliseconds.
    pub(super) time_ms: u64,
    /// Average of recent ones.
    pub(super) average_ms: u64,
    pub(super) buckets: Vec<Bucket>,
    /// Requests that were sent to it.
    pub(super) requests: u64,
    weight: u32,
    max_fails: u32,
    fail_timeout_ms: u64,
    is_backup: bool,
    is_down: bool,
}

/// Groups of `upstream` blocks by name, then the servers that stand in none.
pub(super) fn groups(objects: &SharedObjects) -> Vec<(&str, Vec<&Group>)> {
    let named = configured_groups::<Http>(objects);
    let is_named = |group: &&Group| named.as_ref().is_some_and(|named| named.find(group.name()).is_some());
    let (in_blocks, alone): (Vec<_>, Vec<_>) = shared_groups::<Http>(objects).partition(is_named);
    let mut all: Vec<_> = in_blocks.into_iter().map(|group| (&**group.name(), vec![group])).collect();
    if !alone.is_empty() {
        all.push((ALONE, alone));
    }
    all
}

/// Counters of all servers of some groups, with a histogram of these bounds in milliseconds.
pub(super) fn servers(groups: &[&Group], bounds: &[u64]) -> Vec<UpstreamView> {
    let lists = groups.iter().map(|group| group.list());
    lists
        .flat_map(|list| list.peers().map(|peer| UpstreamView::of(peer, bounds)).collect::<Vec<_>>())
        .collect()
}

impl UpstreamView {
    fn of(peer: &Peer, bounds: &[u64]) -> Self {
        let now = peer.snapshot(clock::millis());
        let times = peer.state().counters.response.snapshot();
        let bucket = |bound_ms: &u64| {
            let count = times.count_at_most(bound_ms.saturating_mul(1_000_000));
            Bucket { bound_ms: *bound_ms, count }
        };
        Self {
            server: now.addr,
            received: now.received,
            sent: now.sent,
            classes: now.responses,
            time_ms: times.sum_ns / 1_000_000,
            average_ms: now.response_ms,
            buckets: bounds.iter().map(bucket).collect(),
            requests: now.requests,
            weight: now.params.weight,
            max_fails: now.params.max_fails,
            fail_timeout_ms: now.params.fail_timeout_ms,
            is_backup: now.params.backup,
            is_down: matches!(now.status, PeerStatus::Down | PeerStatus::Unavailable | PeerStatus::Unhealthy),
        }
    }

    /// Appends it as JSON. The time of a request with this server is that of its response.
    pub(super) fn write_json(&self, out: &mut String) {
        let Self { requests, received, sent, time_ms, average_ms, weight, max_fails, .. } = self;
        out.push_str(r#"{"server":"#);
        json_string(&self.server, out);
        let _ = write!(out, r#","requestCounter":{requests},"inBytes":{received},"outBytes":{sent}"#);
        out.push_str(r#","responses":{"#);
        write_members(CLASS_WORDS.iter().zip(&self.classes), out);
        out.push('}');
        for time in ["request", "response"] {
            let _ = write!(out, r#","{time}MsecCounter":{time_ms},"{time}Msec":{average_ms}"#);
            let _ = write!(out, r#","{time}Msecs":{{"times":[],"msecs":[]}},"{time}Buckets":"#);
            write_buckets(&self.buckets, out);
        }
        let timeout = self.fail_timeout_ms / 1000;
        let backup = self.is_backup;
        let down = self.is_down;
        let _ = write!(
            out,
            r#","weight":{weight},"maxFails":{max_fails},"failTimeout":{timeout},"backup":{backup},"down":{down},"overCounts":{OVER_COUNTS}}}"#
        );
    }
}

/// Counters of one cache.
pub(super) struct CacheView {
    pub(super) name: String,
    pub(super) max_size: u64,
    pub(super) used_size: u64,
    /// Bytes of the bodies of responses.
    pub(super) sent: u64,
    pub(super) responses: [u64; CACHE_WORDS.len()],
}

/// All caches by name.
pub(super) fn caches(objects: &SharedObjects) -> Vec<CacheView> {
    let all = objects.of_type::<Cache>().into_iter();
    all.map(|(name, cache)| CacheView::of(String::from_utf8_lossy(name).into_owned(), &cache.snapshot()))
        .collect()
}

impl CacheView {
    fn of(name: String, look: &CacheSnapshot) -> Self {
        let mut responses = [0; CACHE_WORDS.len()];
        for (count, totals) in responses.iter_mut().zip(&look.by_status) {
            *count = totals.responses;
        }
        Self {
            name,
            // nginx writes the largest offset for a cache without `max_size`.
            max_size: look.max_size.unwrap_or(i64::MAX.unsigned_abs()),
            used_size: look.size,
            sent: look.by_status.iter().map(|totals| totals.bytes).sum(),
            responses,
        }
    }

    /// Appends it as a member of a JSON object. Nothing is received from a cache.
    pub(super) fn write_member(&self, out: &mut String) {
        let Self { max_size, used_size, sent, .. } = self;
        json_string(&self.name, out);
        let _ =
            write!(out, r#":{{"maxSize":{max_size},"usedSize":{used_size},"inBytes":0,"outBytes":{sent}"#);
        out.push_str(r#","responses":{"#);
        write_members(CACHE_WORDS.iter().zip(&self.responses), out);
        let _ = write!(out, r#"}},"overCounts":{{"maxIntegerSize":{}"#, u64::MAX);
        for word in ["inBytes", "outBytes"].iter().chain(&CACHE_WORDS) {
            let _ = write!(out, r#","{word}":0"#);
        }
        out.push_str("}}");
    }
}
