//! The head of a request, which was written in lines, as HTTP/2 says it: one list of fields, without those that are about a connection.

use bytes::Bytes;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use tw_http::{Known, hop};

use crate::http::gateway::fault::Fault;

/// Takes `head`, a request line and fields, apart.
///
/// # Errors
/// What cannot be said in HTTP/2.
pub(in crate::http::gateway) fn request(head: &Bytes, is_secured: bool) -> Result<Request<()>, Fault> {
    let unsayable =
        |what: &str| Fault::Unsayable(format!("the {what} of the request to the upstream is invalid").into());
    let mut lines = head.split(|&byte| byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let line = lines.next().unwrap_or_default();
    let mut words = line.split(|&byte| byte == b' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let method = Method::from_bytes(method).map_err(|_| unsayable("method"))?;
    let path = path(head, target).ok_or_else(|| unsayable("URI"))?;
    let (mut fields, mut host) = (HeaderMap::new(), None);
    for line in lines.take_while(|line| !line.is_empty()) {
        let Some(colon) = line.iter().position(|&byte| byte == b':') else { continue };
        let (name, value) = line.split_at(colon);
        // Blanks around it would make the request malformed (RFC 9113 section 8.2.1).
        let value = value.get(1..).unwrap_or_default().trim_ascii();
        let known = Known::find(name);
        match known {
            Some(Known::Host) => {
                host = Some(value);
                continue;
            }
            // The one thing that may be said of a connection (RFC 9113 section 8.2.2).
            Some(Known::Te) if value.eq_ignore_ascii_case(b"trailers") => {}
            Some(known) if hop::is_hop_by_hop(known) => continue,
            _ => {}
        }
        let name = HeaderName::from_bytes(name).map_err(|_| unsayable("name of a header"))?;
        let value = HeaderValue::from_maybe_shared(head.slice_ref(value));
        let value = value.map_err(|_| unsayable("value of a header"))?;
        fields.try_append(name, value).map_err(|_| unsayable("number of headers"))?;
    }
    let host = host.unwrap_or_default();
    let mut uri = http::uri::Parts::default();
    uri.scheme = Some(if is_secured { Scheme::HTTPS } else { Scheme::HTTP });
    uri.authority = Some(Authority::from_maybe_shared(head.slice_ref(host)).map_err(|_| unsayable("host"))?);
    uri.path_and_query = Some(path);
    let mut request = Request::new(());
    *request.method_mut() = method;
    *request.uri_mut() = Uri::from_parts(uri).map_err(|_| unsayable("URI"))?;
    *request.headers_mut() = fields;
    Ok(request)
}

// DIFF(nginx): what no URI has is escaped.
fn path(head: &Bytes, target: &[u8]) -> Option<PathAndQuery> {
    let is_unusual =
        |byte: &u8| matches!(byte, b'<' | b'>' | b'`' | b'\\' | b'^' | b'#' | b'|' | 0x80..=0xff);
    if !target.iter().any(is_unusual) {
        return PathAndQuery::from_maybe_shared(head.slice_ref(target)).ok();
    }
    let mut escaped = Vec::with_capacity(target.len() + 16);
    for byte in target {
        if is_unusual(byte) {
            const HEX: &[u8; 16] = b"0123456789ABCDEF";
            escaped.extend_from_slice(&[b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        } else {
            escaped.push(*byte);
        }
    }
    PathAndQuery::from_maybe_shared(Bytes::from(escaped)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_a_list() {
        let head = Bytes::from_static(
            b"POST /a?b=%20 HTTP/1.1\r\nHost: a.example:80\r\nX-One: 1\r\nConnection: close\r\nTE: trailers\r\nTransfer-Encoding: chunked\r\nx-one:  2 \r\nX-Empty: \r\n\r\n",
        );
        let request = request(&head, true).unwrap();
        assert_eq!(request.method(), "POST");
        assert_eq!(request.uri(), "https://a.example:80/a?b=%20");
        let fields: Vec<_> =
            request.headers().iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        assert_eq!(fields, [("x-one", "1"), ("x-one", "2"), ("te", "trailers"), ("x-empty", "")]);
    }

    #[test]
    fn what_can_be_said() {
        for (target, host, expected) in [
            ("/", "a", Some("http://a/")),
            ("*", "a", Some("http://a*")),
            ("/a<b>#c\\", "a", Some("http://a/a%3Cb%3E%23c%5C")),
            ("/\u{e9}", "a", Some("http://a/%C3%A9")),
            ("/\"{}", "a", Some("http://a/\"{}")),
            ("/", "a b", None),
            ("/", "", None),
        ] {
            let head = Bytes::from(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
            let found = request(&head, false).ok().map(|request| request.uri().to_string());
            assert_eq!(found.as_deref(), expected, "{target} {host}");
        }
    }
}
