//! Requests over HTTP/2: the same content as over HTTP/1, one stream after the other on one connection.

use std::net::{Ipv4Addr, SocketAddr};
use std::thread;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Request};
use tw_testkit::http2::{self, Http2, Http2Response};

use crate::request::{self, Exchange, RequestBody};
use crate::response::{Fate, Reading, Response};

/// Fields that HTTP/2 does not have, or that the client writes itself.
const OMITTED: &[&str] =
    &["host", "connection", "keep-alive", "upgrade", "expect", "te", "transfer-encoding", "proxy-connection"];

/// Sends an exchange and reads its responses. No port is known; log lines are found by their order.
pub(crate) fn ask(port: u16, exchange: &Exchange) -> (u16, Reading) {
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    // A server that does not answer makes the client panic: that ends a thread and not the comparison.
    let reading = thread::scope(|scope| scope.spawn(|| read(addr, exchange)).join());
    let silent = || Reading { responses: Vec::new(), fate: Fate::Silent };
    (0, reading.unwrap_or_else(|_| silent()))
}

fn read(addr: SocketAddr, exchange: &Exchange) -> Reading {
    let mut reading = Reading { responses: Vec::new(), fate: Fate::Kept };
    let Ok(mut client) = Http2::connect(addr) else {
        reading.fate = Fate::Closed;
        return reading;
    };
    for request in &exchange.requests {
        let Some(head) = head(request) else { continue };
        let content = Bytes::from(content(&request.body));
        match client.run(|requests| http2::exchange(requests, head, content)) {
            Ok(response) => reading.responses.push(convert(&response)),
            Err(error) => {
                let reason = error.reason().map_or_else(|| "closed".to_owned(), |reason| reason.to_string());
                let status_line = format!("HTTP/2 000 {reason}");
                reading.responses.push(Response { status_line, ..Response::default() });
                reading.fate = Fate::Reset;
                return reading;
            }
        }
    }
    reading
}

/// Head of a request; `None` if HTTP/2 cannot carry it.
fn head(request: &request::Request) -> Option<Request<()>> {
    let host = request.fields.iter().find(|(name, _)| name.eq_ignore_ascii_case("host"));
    let host = host.map_or("a.test", |(_, host)| host.as_str());
    let mut head = Request::builder()
        .method(request.method.as_str())
        .uri(format!("http://{host}{}", request.target.strip_prefix('/').map(|path| format!("/{path}"))?));
    for (name, value) in &request.fields {
        let name = name.to_ascii_lowercase();
        if !OMITTED.contains(&name.as_str()) {
            head = head.header(HeaderName::from_bytes(name.as_bytes()).ok()?, value);
        }
    }
    head.body(()).ok()
}

fn content(body: &RequestBody) -> String {
    match body {
        RequestBody::Absent => String::new(),
        RequestBody::Sized(text) => text.clone(),
        RequestBody::Chunked(chunks) => chunks.concat(),
    }
}

fn convert(response: &Http2Response) -> Response {
    let mut fields = list(&response.fields, "");
    fields.extend(response.trailers.iter().flat_map(|trailers| list(trailers, "trailer ")));
    Response {
        status_line: format!("HTTP/2 {}", response.status),
        fields,
        body: response.body.clone(),
        framing: "stream",
    }
}

fn list(fields: &HeaderMap, prefix: &str) -> Vec<(String, String)> {
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    fields.iter().map(|(name, value)| (format!("{prefix}{name}"), text(value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str, target: &str, fields: &[(&str, &str)]) -> request::Request {
        request::Request {
            method: method.to_owned(),
            target: target.to_owned(),
            protocol: "HTTP/1.1".to_owned(),
            fields: fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            body: RequestBody::Chunked(vec!["ab".to_owned(), "c".to_owned()]),
        }
    }

    #[test]
    fn heads_have_the_fields_that_http2_allows() {
        let one = request("POST", "/a?b", &[("Host", "b.test"), ("Connection", "close"), ("X-A", "1")]);
        let head = head(&one).unwrap();
        assert_eq!(
            (head.method().as_str(), head.uri().to_string()),
            ("POST", "http://b.test/a?b".to_owned())
        );
        assert_eq!(list(head.headers(), ""), [("x-a".to_owned(), "1".to_owned())]);
        assert_eq!(content(&one.body), "abc");
    }

    #[test]
    fn requests_that_http2_cannot_carry_are_left_out() {
        for one in [
            request("GET", "a", &[]),
            request("GET", "/a b", &[]),
            request("G T", "/", &[]),
            request("GET", "/", &[("Host", "a/ b")]),
            request("GET", "/", &[("X A", "1")]),
        ] {
            assert!(head(&one).is_none(), "{one:?}");
        }
    }
}
