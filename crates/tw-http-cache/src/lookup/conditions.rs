//! Conditions and ranges of requests with a cache: those of the client, and those that the cache sends to the upstream server.

use bytes::Bytes;
use tw_http::HeaderName;

use super::forward::Lookup;
use crate::fill::Continuation;
use crate::settings::CacheSettings;
use tw_request::request::Request;

/// Fields that make a request conditional or partial. A request whose response is to be stored goes to the upstream
/// server without these.
pub const CONDITIONAL: [HeaderName; 6] = [
    HeaderName::IfModifiedSince,
    HeaderName::IfUnmodifiedSince,
    HeaderName::IfNoneMatch,
    HeaderName::IfMatch,
    HeaderName::Range,
    HeaderName::IfRange,
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
        let report = &r.upstream.cache.report;
        Some(match settings.validates() {
            true => UpstreamConditions {
                since: report.last_modified.clone(),
                none_match: report.etag.clone(),
                ..UpstreamConditions::default()
            },
            false => UpstreamConditions::default(),
        })
    }
}
