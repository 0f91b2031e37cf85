//! Bodies in both directions: large ones, trailers, expectations, limits, clients that go away or take nothing.

use std::io::Read;
use std::sync::mpsc;

use tw_http3::{ErrorCode, StreamError};
use tw_testkit::http2_origin::{http2_origin, trailers};
use tw_testkit::origin::{Conn, origin};
use tw_testkit::wait;

use crate::support::http3::{start_http3, start_http3_with};
use crate::support::server;

/// A body whose bytes tell their positions.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 / 7) as u8).collect()
}

/// Reads so many bytes.
fn read(conn: &mut Conn, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    conn.reader.read_exact(&mut bytes).unwrap();
    bytes
}

#[test]
fn large_file_arrives_whole() {
    let content = pattern(3_000_000);
    let server = start_http3_with(server().file("html/big", &content), "", "");
    let mut client = server.client();
    let response = client.get("/big");
    assert_eq!((response.status, response.field("content-length")), (200, Some("3000000")));
    assert!(response.body == content);
    let part = client.request("GET", "/big", &[("range", "bytes=1000000-1000099")], b"");
    assert_eq!((part.status, &part.body[..]), (206, &content[1_000_000..1_000_100]));
}

#[test]
fn parallel_downloads_arrive_whole() {
    let content = pattern(300_000);
    let server = start_http3_with(server().file("html/big", &content), "", "");
    let mut client = server.client();
    let ids: Vec<_> = (0..8).map(|_| client.begin("GET", "/big", &[], true)).collect();
    for id in ids {
        assert!(client.finish(id).unwrap().body == content);
    }
}

#[test]
fn request_body_reaches_the_upstream_server() {
    let origin = origin(|mut conn| {
        let head = conn.head().unwrap();
        let length: usize = head
            .lines()
            .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ").map(str::to_owned))
            .map_or(0, |length| length.parse().unwrap());
        let body = read(&mut conn, length);
        conn.answer("", body);
    });
    let server = start_http3(&format!(
        "client_max_body_size 10m; location / {{ proxy_pass http://{origin}; }}
         location /direct {{ proxy_pass http://{origin}; proxy_request_buffering off; }}"
    ));
    let mut client = server.client();
    let content = pattern(1_000_000);
    for path in ["/", "/direct"] {
        let length = content.len().to_string();
        let response = client.request("POST", path, &[("content-length", &length)], &content);
        assert_eq!(response.status, 200);
        assert!(response.body == content, "{path}");
    }
    // The request has no Content-Length.
    let response = client.request("POST", "/", &[], &content);
    assert!(response.body == content);
}

#[test]
fn trailers_of_a_request_end_it() {
    let server = start_http3("location / { proxy_pass http://127.0.0.1:1; } ");
    let mut client = server.client();
    let id = client.begin("POST", "/", &[], false);
    client.send(id, b"abc", false);
    client.send_trailers(id, "x-end", "1");
    // Nothing listens on that port, but the request was complete.
    assert_eq!(client.finish(id).unwrap().status, 502);
}

#[test]
fn trailers_of_a_response_are_sent() {
    let server = start_http3("location = /a.txt { add_trailer X-Sum '$status'; }");
    let mut client = server.client();
    let response = client.get("/a.txt");
    assert_eq!(response.text(), "hello");
    assert_eq!(response.trailers, [("x-sum".to_owned(), "200".to_owned())]);
}

/// HTTP/1.1 has no trailers after a body with a length, HTTP/2 and HTTP/3 have.
#[test]
fn trailers_of_an_upstream_response_with_a_length_are_sent() {
    let origin = http2_origin(h2::server::Builder::new(), |mut request| async move {
        let mut body = request.begin(200, &[("content-length", "5")]);
        body.send_data(bytes::Bytes::from_static(b"hello"), false).unwrap();
        body.send_trailers(trailers(&[("x-sum", "1")])).unwrap();
    });
    let server = start_http3(&format!(
        "location / {{ proxy_pass http://{origin}; proxy_http_version 2; proxy_pass_trailers on; }}"
    ));
    let response = server.client().get("/");
    assert_eq!(response.text(), "hello");
    assert_eq!(response.trailers, [("x-sum".to_owned(), "1".to_owned())]);
}

#[test]
fn expectation_is_answered_when_the_body_is_wanted() {
    let origin = origin(|mut conn| {
        conn.head().unwrap();
        conn.answer("", "taken");
    });
    let server = start_http3(&format!("location / {{ proxy_pass http://{origin}; }}"));
    let mut client = server.client();
    let id = client.begin("POST", "/", &[("expect", "100-continue"), ("content-length", "3")], false);
    assert_eq!(client.interim(id), 100);
    client.send(id, b"abc", true);
    let response = client.finish(id).unwrap();
    assert_eq!((response.status, response.text().as_str()), (200, "taken"));
}

#[test]
fn early_hints_are_passed_on() {
    let origin = origin(|mut conn| {
        conn.head().unwrap();
        conn.send("HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\n");
        conn.answer("", "late");
    });
    let server = start_http3(&format!("early_hints 1; location / {{ proxy_pass http://{origin}; }}"));
    let mut client = server.client();
    let id = client.begin("GET", "/", &[], true);
    let response = client.finish(id).unwrap();
    assert_eq!((response.status, &response.interim[..]), (200, &[103][..]));
}

#[test]
fn too_large_body_is_refused() {
    let server = start_http3("client_max_body_size 1k; location / { proxy_pass http://127.0.0.1:1; }");
    let mut client = server.client();
    for fields in [&[("content-length", "5000")][..], &[]] {
        let id = client.begin("POST", "/", fields, false);
        client.send(id, &[b'x'; 5000], true);
        assert_eq!(client.finish(id).unwrap().status, 413);
    }
    assert_eq!(client.get("/a.txt").status, 502, "the connection goes on");
}

#[test]
fn body_of_another_length_is_malformed() {
    let server = start_http3("location / { proxy_pass http://127.0.0.1:1; }");
    let mut client = server.client();
    for body in [&b"ab"[..], b"abcd"] {
        let id = client.begin("POST", "/", &[("content-length", "3")], false);
        client.send(id, body, true);
        assert_eq!(client.finish(id).unwrap().status, 400);
    }
}

#[test]
fn canceled_request_frees_its_upstream_connection() {
    let (sender, closed) = mpsc::channel();
    let sender = std::sync::Arc::new(std::sync::Mutex::new(sender));
    let origin = origin(move |mut conn| {
        conn.head().unwrap();
        let sender = sender.lock().unwrap();
        sender.send("came").unwrap();
        let _ = conn.reader.read_to_end(&mut Vec::new());
        sender.send("closed").unwrap();
    });
    let server = start_http3_with(
        server(),
        "log_format all '$request $status';",
        &format!("access_log logs/access.log all; location / {{ proxy_pass http://{origin}; }}"),
    );
    let mut client = server.client();
    let id = client.begin("GET", "/", &[], true);
    client.until(|_| closed.try_recv().ok()).unwrap();
    client.cancel(id);
    assert_eq!(client.until(|_| closed.try_recv().ok()).unwrap(), "closed");
    assert_eq!(server.server.access_log(1).unwrap(), ["GET / HTTP/3.0 499"]);
    let error = client.finish(id).unwrap_err();
    assert!(matches!(error, StreamError::Local(ErrorCode::REQUEST_CANCELLED, _)), "{error:?}");
}

#[test]
fn response_without_buffering_is_pulled_by_the_client() {
    // The server reads no more of the upstream server than the client takes.
    let (sender, sent) = mpsc::channel();
    let sender = std::sync::Arc::new(std::sync::Mutex::new(sender));
    let origin = origin(move |mut conn| {
        conn.head().unwrap();
        conn.send("HTTP/1.1 200 OK\r\n\r\n");
        let sender = sender.lock().unwrap();
        for _ in 0..64 {
            conn.send(vec![b'x'; 64 << 10]);
            let _ = sender.send(());
        }
    });
    let server = start_http3(&format!("proxy_buffering off; location / {{ proxy_pass http://{origin}; }}"));
    let mut client = server.client();
    let id = client.begin("GET", "/", &[], true);
    let response = client.finish(id).unwrap();
    assert_eq!(response.body.len(), 64 * (64 << 10));
    assert_eq!(sent.iter().take(64).count(), 64);
}

#[test]
fn client_that_takes_nothing_is_given_up() {
    let server = start_http3_with(
        server().file("html/big", vec![b'x'; 8 << 20]),
        "log_format all '$request $status';",
        "send_timeout 1s; access_log logs/access.log all;",
    );
    let mut client = server.client();
    client.begin("GET", "/big", &[], true);
    client.until(|_| Some(())).unwrap();
    // The client is silent: no acknowledgement, no window.
    let is_logged = || server.server.access_log(1).is_ok_and(|lines| lines == ["GET /big HTTP/3.0 200"]);
    assert!(wait::until(wait::TIMEOUT, is_logged));
    // The logs are written by threads of their own.
    assert!(wait::until(wait::TIMEOUT, || server.server.error_log().contains("client timed out")));
}

#[test]
fn client_that_takes_too_little_is_given_up() {
    let server = start_http3_with(
        server().file("html/big", vec![b'x'; 8 << 20]),
        "log_format all '$request $status';",
        "send_min_rate 1m grace=500ms; access_log logs/access.log all;",
    );
    let mut client = server.client();
    client.begin("GET", "/big", &[], true);
    client.until(|_| Some(())).unwrap();
    let is_logged = || server.server.access_log(1).is_ok_and(|lines| lines == ["GET /big HTTP/3.0 200"]);
    assert!(wait::until(wait::TIMEOUT, is_logged));
    server.server.wait_error_log("client is slower than \"send_min_rate\"").unwrap();
}
