//! The part of a request or session that a call brings along, so that most scripts need no further message.

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::bounded;

/// Subject of a call at its start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Snapshot {
    /// Request of HTTP.
    Http(Box<HttpSnapshot>),
    /// Session of stream.
    Stream(StreamSnapshot),
    /// No client: `js_periodic`.
    None,
}

/// A header field: name and value as they were received.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Field {
    /// Name, in the case of its sender.
    pub name: ByteBuf,
    /// Value.
    pub value: ByteBuf,
}

impl Field {
    /// A field of these bytes.
    pub fn new(name: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Self {
        Self { name: ByteBuf::from(name.into()), value: ByteBuf::from(value.into()) }
    }
}

/// A request of HTTP at the start of a call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpSnapshot {
    /// Method (`r.method`).
    pub method: ByteBuf,
    /// Normalized path (`r.uri`, `$uri`).
    pub uri: ByteBuf,
    /// Query without its question mark (`$args`); `r.args` is made of it.
    pub args: ByteBuf,
    /// Request line (`r.requestLine`).
    pub request_line: ByteBuf,
    /// `1.0`, `1.1`, `2.0`, `3.0`: `r.httpVersion`.
    pub http_version: ByteBuf,
    /// Address of the client (`r.remoteAddress`, `$remote_addr`).
    pub remote_address: ByteBuf,
    /// Set for an internal redirect and for subrequests (`r.internal`).
    pub is_internal: bool,
    /// Header fields of the request in their order (`r.headersIn`, `r.rawHeadersIn`).
    #[serde(deserialize_with = "bounded::list")]
    pub fields: Vec<Field>,
    /// Head of the response, if it is known at the start: for `js_header_filter` and `js_body_filter`. Without it, the process asks by
    /// [`Operation::ResponseHead`](crate::Operation::ResponseHead).
    pub response: Option<ResponseHead>,
}

/// Status and fields of a response, as filters see them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResponseHead {
    /// Status (`r.status`); 0 if none is set yet.
    pub status: u16,
    /// Header fields in their order (`r.headersOut`, `r.rawHeadersOut`), with `Content-Type`, `Content-Length` and the others that the
    /// server keeps apart.
    #[serde(deserialize_with = "bounded::list")]
    pub fields: Vec<Field>,
}

/// A session of stream at the start of a call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamSnapshot {
    /// Address of the client (`s.remoteAddress`).
    pub remote_address: ByteBuf,
    /// Status of the session (`s.status`); 0 while it runs.
    pub status: u16,
    /// Set for UDP: every event is one datagram.
    pub is_datagram: bool,
}
