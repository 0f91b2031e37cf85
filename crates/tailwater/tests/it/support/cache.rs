//! Servers with a cache, whose metrics are at `/metrics`.

use std::net::SocketAddr;
use std::path::Path;

use tw_testkit::origin::origin;
use tw_testkit::{Response, Server, wait};

use super::metrics::metric;

/// `X-Cache` of a response, which the configuration sets to `$upstream_cache_status`; empty if there is none.
pub(crate) fn cache_status(response: &Response) -> &str {
    response.field("X-Cache").unwrap_or_default()
}

/// Waits until the only cache of a server has stored exactly so many responses: a request before that is passed to the origin,
/// too, and its response may replace the first one.
pub(crate) fn wait_stored(server: &Server, count: usize) {
    let is = || metric(server, "cache_stored_total") == count as u64;
    assert!(wait::until(wait::TIMEOUT, is), "{}", server.error_log());
}

/// Number of records in the snapshot in the directory of a cache.
pub(crate) fn records_in_snapshot(dir: &Path) -> u64 {
    let file = std::fs::read(dir.join("pages")).unwrap_or_default();
    file.get(48..56).map_or(0, |number| u64::from_le_bytes(number.try_into().unwrap()))
}

/// An origin that sends bodies of as many bytes as the path says.
pub(crate) fn sizes() -> SocketAddr {
    origin(|mut conn| {
        while let Some(head) = conn.head() {
            let size = head.split(['/', ' ']).nth(2).and_then(|size| size.parse().ok()).unwrap_or(1);
            conn.answer("", sized_body(size));
        }
    })
}

/// Body of that origin.
pub(crate) fn sized_body(size: usize) -> Vec<u8> {
    (0..size).map(|at| (at * 31 + size) as u8).collect()
}
