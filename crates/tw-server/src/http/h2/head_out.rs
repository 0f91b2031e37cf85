//! The head of a response as HTTP/2 sends it.

use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use tw_http::response::list_fields;
use tw_http::{ConnectionField, EncodeContext, Fields};

use crate::http::request::Request;
use crate::http::respond;
use crate::http::special;

/// Fields of a usual head.
const FIELDS_USUAL: usize = 12;

/// The head of the response to `r`, and its size: bytes of names and values before they are compressed. `None` if no head can
/// have such a status.
pub(super) fn encode(r: &Request) -> Option<(Response<()>, usize)> {
    let status = StatusCode::from_u16(r.out.status).ok().filter(|status| !status.is_informational())?;
    let server = special::server_name(r);
    let mut address = Vec::new();
    let context = EncodeContext {
        now: tw_rt::clock::unix().secs,
        dates: &r.client().home.app.dates,
        server: &server,
        connection: ConnectionField::Close,
        chunked: false,
        location_base: respond::location_base(r, &mut address),
        vary_accept_encoding: r.out.varies_by_coding && r.plan().core.compression.vary,
    };
    let mut list = List { map: HeaderMap::with_capacity(FIELDS_USUAL), size: 0 };
    r.out.list(&context, &mut |name, value| list.push(name, value));
    let mut head = Response::new(());
    *head.status_mut() = status;
    *head.headers_mut() = list.map;
    Some((head, list.size))
}

/// These fields alone, of a head before the response or of trailers; `None` if there are none.
pub(super) fn fields(fields: &Fields) -> Option<HeaderMap> {
    let mut list = List { map: HeaderMap::with_capacity(fields.len()), size: 0 };
    list_fields(fields, &mut |name, value| list.push(name, value));
    (!list.map.is_empty()).then_some(list.map)
}

struct List {
    map: HeaderMap,
    size: usize,
}

impl List {
    fn push(&mut self, name: &[u8], value: &[u8]) {
        // What is no name has no way to be said.
        let Ok(name) = HeaderName::from_bytes(name) else { return };
        let value = HeaderValue::from_bytes(value).unwrap_or_else(|_| harmless(value));
        self.size += name.as_str().len() + value.len();
        // More fields than there can be are left out.
        let _ = self.map.try_append(name, value);
    }
}

// DIFF(nginx): CR, LF and other control characters of a value become spaces, as RFC 9110 section 5.5 has it.
fn harmless(value: &[u8]) -> HeaderValue {
    let is_harmless = |byte: u8| byte == b'\t' || byte >= b' ' && byte != 0x7f;
    let value: Vec<u8> = value.iter().map(|&byte| if is_harmless(byte) { byte } else { b' ' }).collect();
    HeaderValue::from_bytes(&value).unwrap_or(HeaderValue::from_static(""))
}
