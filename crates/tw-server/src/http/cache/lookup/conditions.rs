//! Conditions and ranges of requests with a cache: those of the client, and those that the cache sends to the upstream server.

use bytes::Bytes;
use tw_http::Known;

use super::Lookup;
use crate::http::cache::fill::Continuation;
use crate::http::cache::settings::CacheSettings;
use crate::http::request::Request;

/// Fields that make a request conditional or partial. A request whose response is to be stored goes to the upstream
/// server without these.
pub const CONDITIONAL: [Known; 6] = [
    Known::IfModifiedSince,
    Known::IfUnmodifiedSince,
    Known::IfNoneMatch,
    Known::IfMatch,
    Known::Range,
    Known::IfRange,
];

/// Conditions of a cache's own request: validation of a stored response, or a range request for the rest of one. Empty values
/// are not sent.
#[derive(Default)]
pub struct UpstreamConditions {
    since: Bytes,
    none_match: Bytes,
    range: Bytes,
    if_range: Bytes,
}

impl UpstreamConditions {
    /// Returns the fields with their values; empty ones are not sent.
    pub fn fields(&self) -> [(&'static [u8], &[u8]); 4] {
        [
            (b"If-Modified-Since", &self.since),
            (b"If-None-Match", &self.none_match),
            (b"Range", &self.range),
            (b"If-Range", &self.if_range),
        ]
    }
}

impl Lookup {
    /// Conditions that replace the client's in the forwarded request. `None` if the client's own conditions and ranges are
    /// forwarded.
    pub fn conditions(&self, r: &Request, settings: &CacheSettings) -> Option<UpstreamConditions> {
        if !self.leads() {
            return None;
        }
        if let Some(Continuation { from, validator, .. }) = &self.continuation {
            let range = Bytes::from(format!("bytes={from}-"));
            return Some(UpstreamConditions {
                range,
                if_range: validator.clone(),
                ..UpstreamConditions::default()
            });
        }
        let facts = &r.upstream.cache;
        Some(match settings.validates() {
            true => UpstreamConditions {
                since: facts.last_modified.clone(),
                none_match: facts.etag.clone(),
                ..UpstreamConditions::default()
            },
            false => UpstreamConditions::default(),
        })
    }
}

/// Returns true if a range begins behind `max`, or counts from the end (nginx: ngx_http_upstream_cache_check_range).
pub(crate) fn begins_behind(range: &[u8], max: u64) -> bool {
    let Some((unit, rest)) = range.split_at_checked(6) else { return false };
    if !unit.eq_ignore_ascii_case(b"bytes=") {
        return false;
    }
    let rest = rest.trim_ascii_start();
    if rest.first() == Some(&b'-') {
        return true;
    }
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    tw_http::num::parse(&rest[..digits]).is_none_or(|start| start >= max)
}
