//! Parts of a request that a script call brings along.

use tw_http::{HeaderName, date};
use tw_request::request::{Request, RequestOrigin};
use tw_script::{ByteBuf, Field, HttpSnapshot, ResponseHead, Snapshot};

/// Snapshot of `r`, with the head of its response for filters.
pub(crate) fn of_request(r: &Request, response: Option<ResponseHead>) -> Snapshot {
    Snapshot::Http(Box::new(http(r, response)))
}

/// Snapshot of `r`, which may be a subrequest.
pub(crate) fn http(r: &Request, response: Option<ResponseHead>) -> HttpSnapshot {
    let bytes = |bytes: &[u8]| ByteBuf::from(bytes);
    let protocol = r.head.protocol();
    HttpSnapshot {
        method: bytes(r.method_name()),
        uri: bytes(&r.uri.path),
        args: bytes(&r.uri.args),
        request_line: bytes(r.head.request_line()),
        http_version: bytes(protocol.strip_prefix(b"HTTP/").unwrap_or(protocol)),
        remote_address: bytes(r.client_text().as_bytes()),
        is_internal: r.state.origin == RequestOrigin::Internal,
        fields: r.head.fields().map(|(name, value)| Field::new(name, value)).collect(),
        response,
    }
}

/// Head of the response to `r`, with this status.
pub(crate) fn response_head(r: &Request, status: u16) -> ResponseHead {
    let response = &r.response;
    let mut fields = Vec::new();
    if !response.content_type.is_empty() {
        let mut value = response.content_type.to_vec();
        if !response.charset.is_empty() {
            value.extend_from_slice(b"; charset=");
            value.extend_from_slice(&response.charset);
        }
        fields.push(Field::new("Content-Type", value));
    }
    let writes = |line: HeaderName| !response.fields.has(line);
    if let Some(length) = response.content_length.filter(|_| writes(HeaderName::ContentLength)) {
        fields.push(Field::new("Content-Length", length.to_string()));
    }
    if let Some(seconds) = response.last_modified.filter(|_| writes(HeaderName::LastModified)) {
        fields.push(Field::new("Last-Modified", date::format(seconds)));
    }
    if !response.location.is_empty() {
        fields.push(Field::new("Location", &*response.location));
    }
    fields.extend(response.fields.iter().map(|(name, value)| Field::new(name, value)));
    ResponseHead { status, fields }
}
