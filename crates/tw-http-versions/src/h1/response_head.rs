//! The head of a response in HTTP/1, and how the end of its body is marked (RFC 9112 section 6).

use std::time::Duration;

use bytes::Bytes;
use tw_http::{ConnectionField, EncodeContext, HeaderName, Method, Version};

use super::Http1Connection;
use tw_phases::{error_response, prepare_response, user_agent};
use tw_request::body::Body;
use tw_request::request::{After, Request};

/// Delimiter of a response body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Delimiter {
    /// There is no body.
    None,
    /// `Content-Length`
    Length,
    /// Chunked.
    Chunked,
    /// The connection ends with it.
    Close,
}

/// Decides how the end of the body is marked.
pub(super) fn frame(r: &mut Request, body: Body) -> (Delimiter, Body) {
    // Only a chunked body can have trailers. The response to HEAD has the fields of a response without trailers.
    if r.response.trailers.is_some() && may_be_chunked(r) && r.method() != Method::Head {
        r.response.content_length = None;
    }
    let delimiter = delimiter(r);
    match delimiter {
        // DIFF(nginx): a response without content has no length, whoever made it.
        Delimiter::None => {
            r.response.content_length = None;
            return (delimiter, Body::Empty);
        }
        Delimiter::Close => r.state.after = After::Close,
        Delimiter::Length | Delimiter::Chunked => {}
    }
    if r.method() == Method::Head { (delimiter, Body::Empty) } else { (delimiter, body) }
}

/// Delimiter of a body of this length.
pub(super) fn delimiter(r: &Request) -> Delimiter {
    match r.response.content_length {
        _ if matches!(r.response.status, 100..=199 | 204 | 304) => Delimiter::None,
        Some(_) => Delimiter::Length,
        // RFC 9112 section 6.1 allows to leave `Transfer-Encoding` out of a response to HEAD, as nginx does. The
        // framing of a GET would depend on its content.
        None if r.method() == Method::Head => Delimiter::None,
        None if may_be_chunked(r) => Delimiter::Chunked,
        None => Delimiter::Close,
    }
}

fn may_be_chunked(r: &Request) -> bool {
    r.head.version() >= Version::HTTP_11 && r.plan().core.chunked_transfer_encoding
}

/// Writes the head into the loop's buffer and returns its length.
pub(super) fn encode(conn: &Http1Connection, r: &mut Request, delimiter: Delimiter) -> usize {
    let connection = connection_field(conn, r);
    let server =
        if r.response.fields.has(HeaderName::Server) { Bytes::new() } else { error_response::server_name(r) };
    let mut address = Vec::new();
    let location_base = prepare_response::location_base(r, &mut address);
    let context = EncodeContext {
        now: tw_rt::clock::unix().secs,
        dates: &conn.client.event_loop.dates,
        server: &server,
        connection,
        chunked: delimiter == Delimiter::Chunked,
        location_base,
        vary_accept_encoding: r.response.varies_by_coding && r.plan().core.compression.vary,
    };
    let mut out = conn.client.event_loop.buffers.head_out.borrow_mut();
    out.clear();
    r.response.encode_h1(&context, &mut out);
    out.len()
}

/// Decides whether the connection stays, and says so.
fn connection_field(conn: &Http1Connection, r: &mut Request) -> ConnectionField {
    if r.response.status == 101 {
        return ConnectionField::Upgrade;
    }
    let keep = r.plan().core.keepalive;
    let client = &conn.client;
    let over = keep.timeout.is_zero()
        || client.requests.get() >= keep.requests
        || tw_rt::clock::now().saturating_duration_since(client.accepted) > keep.time
        || client.event_loop.connections.is_stopping() && keep.min_timeout.is_zero()
        || r.body.may_not_come()
        || user_agent::keepalive_is_disabled(r);
    if over && r.state.after == After::KeepAlive {
        r.state.after = After::Close;
    }
    match r.state.after {
        After::KeepAlive => ConnectionField::KeepAlive(keep.header.as_ref().map(Duration::as_secs)),
        After::Close | After::Abort => ConnectionField::Close,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tw_http_testkit::with_request;

    const GET: &str = "GET / HTTP/1.1";
    const HEAD: &str = "HEAD / HTTP/1.1";

    fn framed(conf: &str, request: &str, prepare: fn(&mut Request)) -> (Delimiter, After, Option<u64>) {
        with_request(conf, &format!("{request}\r\nHost: a\r\n\r\n"), move |r| {
            r.response.reset(200);
            prepare(r);
            let (delimiter, _) = frame(r, Body::Bytes("hello".into()));
            (delimiter, r.state.after, r.response.content_length)
        })
    }

    #[test]
    fn end_of_a_body_is_marked_as_its_version_allows() {
        let plain = "server { }";
        let with_length: fn(&mut Request) = |r| r.response.content_length = Some(5);
        let nothing: fn(&mut Request) = |_| {};
        for (conf, request, prepare, expected) in [
            (plain, GET, with_length, (Delimiter::Length, After::KeepAlive, Some(5))),
            (plain, GET, nothing, (Delimiter::Chunked, After::KeepAlive, None)),
            (plain, "GET / HTTP/1.0", nothing, (Delimiter::Close, After::Close, None)),
            (
                "server { chunked_transfer_encoding off; }",
                GET,
                nothing,
                (Delimiter::Close, After::Close, None),
            ),
            (plain, HEAD, with_length, (Delimiter::Length, After::KeepAlive, Some(5))),
            (plain, HEAD, nothing, (Delimiter::None, After::KeepAlive, None)),
        ] {
            assert_eq!(framed(conf, request, prepare), expected, "{conf} {request}");
        }
    }

    #[test]
    fn status_without_a_body_has_no_length() {
        for status in [101, 204, 304] {
            let outcome = with_request("server { }", &format!("{GET}\r\nHost: a\r\n\r\n"), move |r| {
                r.response.reset(status);
                r.response.content_length = Some(5);
                let (delimiter, body) = frame(r, Body::Bytes("hello".into()));
                (delimiter, body.is_empty(), r.response.content_length)
            });
            assert_eq!(outcome, (Delimiter::None, true, None));
        }
    }

    #[test]
    fn trailers_need_a_chunked_body() {
        let with_trailers: fn(&mut Request) = |r| {
            r.response.content_length = Some(5);
            r.response.trailers = Some(tw_http::Fields::default());
        };
        let plain = "server { }";
        assert_eq!(framed(plain, GET, with_trailers), (Delimiter::Chunked, After::KeepAlive, None));
        assert_eq!(framed(plain, HEAD, with_trailers), (Delimiter::Length, After::KeepAlive, Some(5)));
    }
}
