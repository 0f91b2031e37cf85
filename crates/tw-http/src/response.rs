//! The head of a response and its HTTP/1 form, in the order nginx writes it.

use bytes::Bytes;

use crate::fields::{Fields, Value};
use crate::known::Known;

/// The head of a response. Lines that the server writes itself have their own place; everything else is a field.
#[derive(Clone, Debug, Default)]
pub struct ResponseHead {
    /// The status code.
    pub status: u16,
    /// Replaces code and reason of the status line when not empty, e.g. `404 Nothing Here` from an upstream.
    pub status_line: Bytes,
    /// The media type; empty means no `Content-Type`.
    pub content_type: Bytes,
    /// Appended to the media type as `; charset=…` when not empty.
    pub charset: Bytes,
    /// Bytes of the body; None means unknown or none.
    pub content_length: Option<u64>,
    /// Seconds since 1970; written only with 200, 206 and 304, as nginx does.
    pub last_modified: Option<i64>,
    /// The target of a redirect; empty means no `Location`.
    pub location: Bytes,
    /// All other fields, in the order they were added; `ETag` is one of them.
    pub fields: Fields,
}

/// What `Connection` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionField {
    /// `keep-alive`, and `Keep-Alive: timeout=N` if seconds are given (`keepalive_timeout`'s second value).
    KeepAlive(Option<u64>),
    /// `close`
    Close,
    /// `upgrade`, with 101.
    Upgrade,
}

/// Scheme, host and port in front of a `Location` that is a path (`absolute_redirect on`).
#[derive(Clone, Copy, Debug)]
pub struct LocationBase<'a> {
    /// Whether the client came over TLS.
    pub https: bool,
    /// Host of the request, or the server's name.
    pub host: &'a [u8],
    /// The port, unless it is the scheme's own or `port_in_redirect` is off.
    pub port: Option<u16>,
}

/// What the encoder needs besides the head.
#[derive(Clone, Copy, Debug)]
pub struct EncodeContext<'a> {
    /// The current time, see `date::format`.
    pub date: &'a [u8; 29],
    /// The value of `Server`; empty means no such line.
    pub server: &'a [u8],
    /// `Connection` and `Keep-Alive`.
    pub connection: ConnectionField,
    /// Whether the body is sent chunked.
    pub chunked: bool,
    /// Makes a `Location` that starts with `/` absolute.
    pub location_base: Option<LocationBase<'a>>,
    /// Whether to write `Vary: Accept-Encoding` (`gzip_vary`).
    pub vary_accept_encoding: bool,
}

impl ResponseHead {
    /// A head with this status and nothing else.
    pub fn new(status: u16) -> Self {
        ResponseHead { status, ..ResponseHead::default() }
    }

    /// Back to an empty head with this status; keeps the memory of the fields.
    pub fn reset(&mut self, status: u16) {
        let mut fields = std::mem::take(&mut self.fields);
        fields.clear();
        *self = ResponseHead { status, fields, ..ResponseHead::default() };
    }

    /// The entity tag.
    pub fn etag(&self) -> Option<&[u8]> {
        self.fields.get_known(Known::ETag)
    }

    /// Sets the entity tag, quotes included.
    pub fn set_etag<'a>(&mut self, etag: impl Into<Value<'a>>) {
        self.fields.set(Known::ETag, etag);
    }

    /// Appends the HTTP/1 form to `out`. Cost: no allocation besides `out`.
    pub fn encode_h1(&self, context: &EncodeContext<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(b"HTTP/1.1 ");
        out.extend_from_slice(context.server);
    }
}
