//! Head of an upstream server's response, independent of the protocol that it came by. Codecs of the proxy fill it in, a cache
//! restores it from a stored entry, and the response to the client is made of it.

use bytes::Bytes;
use tw_http::Fields;
use tw_log::Level;

/// Response of an upstream server as far as it was read.
#[derive(Debug, Default)]
pub struct UpstreamResponse {
    /// Status.
    pub status: u16,
    /// Code and reason as they were sent, if the reason is not the usual one or the code is 204; else empty.
    pub status_line: Bytes,
    /// Announced length of the body in bytes, also if there is no body (HEAD, 304).
    pub content_length: Option<u64>,
    /// Fields as they were sent.
    pub fields: Fields,
    /// Trailer fields.
    pub trailers: Fields,
    /// Lines for the error log.
    pub warnings: Vec<Warning>,
}

/// Line about a response for the error log, without the action during which it came up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// Level of the line.
    pub level: Level,
    /// Text of the line.
    pub text: Box<str>,
}

impl Warning {
    /// Warning about a response that is used nevertheless.
    pub fn odd(text: impl Into<Box<str>>) -> Self {
        Self { level: Level::Warn, text: text.into() }
    }
}

impl UpstreamResponse {
    /// Clears all values and keeps the allocated memory.
    pub fn clear(&mut self) {
        self.status = 0;
        self.status_line = Bytes::new();
        self.content_length = None;
        self.fields.clear();
        self.trailers.clear();
        self.warnings.clear();
    }
}
