//! `proxy_http_version 2`: HTTP/2 to upstream servers, with buffers, caches, retries, health checks and trailers as in
//! HTTP/1.1.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use bytes::Bytes;
use h2::server::Builder as Settings;
use rustls::ALL_VERSIONS;
use tw_testkit::http2::{END_HEADERS, END_STREAM, Http2, frame, hpack, kind, take};
use tw_testkit::http2_origin::{OriginRequest, frames_origin, http2_origin, secured_http2_origin, trailers};
use tw_testkit::tls::Authority;
use tw_testkit::{Client, Server, wait};

use crate::support::cache::wait_stored;
use crate::support::{page, request, server, start, start_server};

fn origin<F: Future<Output = ()> + Send + 'static>(
    answer: impl Fn(OriginRequest) -> F + Send + Sync + 'static,
) -> SocketAddr {
    http2_origin(Settings::new(), answer)
}

fn start_proxy(addr: SocketAddr, more: &str) -> Server {
    start_server(
        server(),
        &format!("location / {{ proxy_pass http://{addr}; proxy_http_version 2; {more} }}"),
    )
}

/// Answers with the request.
async fn mirror(mut request: OriginRequest) {
    let mut said = format!("{} {}\n", request.head.method(), request.head.uri());
    for (name, value) in request.head.headers() {
        said.push_str(&format!("{name}: {}\n", value.to_str().unwrap()));
    }
    let (content, _) = take(request.body).await.unwrap();
    said.push_str(&format!("{} bytes", content.len()));
    let mut answer = request.respond.send_response(http::Response::new(()), false).unwrap();
    answer.send_data(said.into(), true).unwrap();
}

#[test]
fn request_fields_are_sent_as_one_list() {
    let addr = origin(mirror);
    let server =
        start_proxy(addr, "proxy_set_header X-Real $remote_addr; proxy_set_header Connection upgrade;");
    let response = request(
        &server,
        "POST /a%20b?c",
        &["X-Case: 1", "TE: trailers", "Upgrade: websocket", "Content-Length: 3\r\n\r\nabc"],
    );
    let expected =
        format!("POST http://{addr}/a%20b?c\nx-real: 127.0.0.1\ncontent-length: 3\nx-case: 1\n3 bytes");
    assert_eq!((response.status, response.text()), (200, expected));
    let chunked = request(&server, "POST /", &["Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"]);
    assert_eq!(chunked.text(), format!("POST http://{addr}/\nx-real: 127.0.0.1\ncontent-length: 3\n3 bytes"));
}

#[test]
fn responses_with_and_without_length_pass() {
    let addr = origin(|mut request| async move {
        match request.head.uri().path() {
            "/none" => request.empty(204, &[]),
            "/head" => request.empty(200, &[("content-length", "10")]),
            "/length" => request.answer(&[("content-length", "5")], "hello"),
            "/moved" => request.empty(302, &[("location", "/there"), ("set-cookie", "a=1; path=/")]),
            _ => request.answer(&[("x-one", "1"), ("x-one", "2")], "hello"),
        }
    });
    let server = start_proxy(addr, "");
    assert_eq!(request(&server, "GET /none", &[]).status, 204);
    let head = request(&server, "HEAD /head", &[]);
    assert_eq!((head.status, head.field("Content-Length")), (200, Some("10")));
    let length = request(&server, "GET /length", &[]);
    assert_eq!((length.field("Content-Length"), length.text().as_str()), (Some("5"), "hello"));
    let whole = request(&server, "GET /", &[]);
    assert_eq!(whole.values("x-one").collect::<Vec<_>>(), ["1", "2"]);
    assert_eq!(whole.text(), "hello");
    let moved = request(&server, "GET /moved", &[]);
    assert_eq!((moved.status, moved.field("Location")), (302, Some("/there")));
}

#[test]
fn slow_client_does_not_hold_the_server() {
    const SIZE: usize = 4 << 20;
    let sent = Arc::new(tokio::sync::Semaphore::new(0));
    let all_sent = sent.clone();
    let addr = origin(move |mut request| {
        let all_sent = all_sent.clone();
        async move {
            let mut body = request.begin(200, &[]);
            let mut remaining = SIZE;
            while remaining > 0 {
                body.reserve_capacity(remaining);
                let Some(Ok(room)) = std::future::poll_fn(|cx| body.poll_capacity(cx)).await else { return };
                let now = room.min(remaining);
                remaining -= now;
                body.send_data(vec![b'x'; now].into(), remaining == 0).unwrap();
            }
            all_sent.add_permits(1);
        }
    });
    let server = start_proxy(addr, "");
    let mut client = Client::connect(server.addr()).unwrap();
    client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    assert!(wait::until(wait::TIMEOUT, || sent.available_permits() == 1));
    let all = client.read_until_close().unwrap();
    assert_eq!(all.iter().filter(|byte| **byte == b'x').count(), SIZE);
}

#[test]
fn windows_follow_the_reading_of_the_client() {
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    let addr = origin(move |mut request| {
        let sender = sender.clone();
        async move {
            let mut body = request.begin(200, &[]);
            let mut sent = 0;
            loop {
                body.reserve_capacity(64 << 10);
                match std::future::poll_fn(|cx| body.poll_capacity(cx)).await {
                    Some(Ok(room)) => {
                        sent += room;
                        body.send_data(vec![b'x'; room].into(), false).unwrap();
                        sender.send(sent).unwrap();
                    }
                    _ => return,
                }
            }
        }
    });
    let server = start_proxy(addr, "proxy_buffering off;");
    let mut client = Client::connect(server.addr()).unwrap();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    client.read_head().unwrap();
    // The origin sends until windows and sockets are full, which is when it makes no progress for a while.
    let mut last = wait::some(wait::TIMEOUT, || receiver.try_recv().ok()).unwrap();
    while let Ok(sent) = receiver.try_recv().or_else(|_| {
        let next = || receiver.try_recv().ok();
        wait::some(std::time::Duration::from_millis(500), next).ok_or(())
    }) {
        last = sent;
        assert!(last < 64 << 20, "it is never held up");
    }
    assert!(last > 0);
}

#[test]
fn cache_stores_http2_responses() {
    let count = Arc::new(AtomicUsize::new(0));
    let addr = origin(move |mut request| {
        let nth = count.fetch_add(1, SeqCst);
        async move { request.answer(&[("cache-control", "max-age=60")], nth.to_string()) }
    });
    let server = start(
        server(),
        &format!(
            "proxy_cache_path cache keys_zone=z:1m;
             server {{ listen 127.0.0.1:{{port}}; location = /metrics {{ metrics; }}
                 location / {{ proxy_pass http://{addr}; proxy_http_version 2; proxy_cache z; }} }}"
        ),
    );
    assert_eq!(page(&server, "/a"), (200, "0".to_owned()));
    wait_stored(&server, 1);
    assert_eq!(page(&server, "/a"), (200, "0".to_owned()));
    assert_eq!(page(&server, "/b"), (200, "1".to_owned()));
}

#[test]
fn trailers_are_passed_if_configured() {
    let addr = origin(|mut request| async move {
        let mut body = request.begin(200, &[]);
        body.send_data(Bytes::from_static(b"hello"), false).unwrap();
        body.send_trailers(trailers(&[("x-sum", "1"), ("x-secret", "2")])).unwrap();
    });
    for (on, expected) in [("on", "5\r\nhello\r\n0\r\nx-sum: 1\r\n\r\n"), ("off", "\r\nhello")] {
        let server = start_proxy(addr, &format!("proxy_pass_trailers {on}; proxy_hide_header X-Secret;"));
        let mut client = Client::connect(server.addr()).unwrap();
        client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
        let text = String::from_utf8(client.read_until_close().unwrap()).unwrap();
        assert!(text.ends_with(&format!("\r\n{expected}")), "{text}");
    }
}

#[test]
fn http1_trailers_are_passed_if_configured() {
    let addr = tw_testkit::origin::origin(|mut conn| {
        while conn.head().is_some() {
            conn.send(
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n",
            );
        }
    });
    let server = start_server(
        server(),
        &format!("http2 on; location / {{ proxy_pass http://{addr}; proxy_pass_trailers on; }}"),
    );
    let answer = Http2::connect(server.addr()).unwrap().get("/").unwrap();
    assert_eq!((answer.text().as_str(), answer.trailers.unwrap()["x-sum"].to_str().unwrap()), ("hello", "1"));
    let mut client = Client::connect(server.addr()).unwrap();
    client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    let text = String::from_utf8(client.read_until_close().unwrap()).unwrap();
    assert!(text.ends_with("\r\n5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n"), "{text}");
}

#[test]
fn early_hints_precede_the_response() {
    let addr = frames_origin(|mut frames, _| {
        while let Ok(Some(request)) = frames.wait(kind::HEADERS) {
            let hints = hpack(&[(":status", "103"), ("link", "</a.css>; rel=preload")]);
            frames.send(frame(kind::HEADERS, END_HEADERS, request.stream, &hints)).unwrap();
            let head = hpack(&[(":status", "200")]);
            frames.send(frame(kind::HEADERS, END_HEADERS | END_STREAM, request.stream, &head)).unwrap();
        }
    });
    let server = start_proxy(addr, "early_hints 1;");
    let mut client = Client::connect(server.addr()).unwrap();
    client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    let text = String::from_utf8(client.read_until_close().unwrap()).unwrap();
    assert!(
        text.starts_with(
            "HTTP/1.1 103 Early Hints\r\nlink: </a.css>; rel=preload\r\n\r\nHTTP/1.1 200 OK\r\n"
        ),
        "{text}"
    );
}

#[test]
fn wrong_content_length_is_an_error() {
    let addr = frames_origin(|mut frames, _| {
        while let Ok(Some(request)) = frames.wait(kind::HEADERS) {
            let head = hpack(&[(":status", "200"), ("content-length", "10")]);
            frames.send(frame(kind::HEADERS, END_HEADERS, request.stream, &head)).unwrap();
            frames.send(frame(kind::DATA, END_STREAM, request.stream, b"short")).unwrap();
        }
    });
    let server = start_proxy(addr, "");
    let mut client = Client::connect(server.addr()).unwrap();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let got = String::from_utf8(client.read_until_close().unwrap()).unwrap();
    assert!(!got.starts_with("HTTP/1.1 200") || got.contains("Content-Length: 10"), "{got}");
    server.wait_error_log("upstream prematurely closed stream while reading").unwrap();
}

#[test]
fn health_checks_use_http2() {
    let fine = origin(|mut request| async move { request.answer(&[], "fine") });
    let sick = origin(|mut request| async move { request.empty(500, &[]) });
    let server = start(
        server(),
        &format!(
            "upstream u {{ zone u 64k; server {fine}; server {sick}; }}
             server {{ listen 127.0.0.1:{{port}};
                 location / {{ proxy_pass http://u; proxy_http_version 2; health_check interval=100ms mandatory; }} }}"
        ),
    );
    server.wait_error_log("peer is unhealthy: status 500").unwrap();
    assert!(wait::until(wait::TIMEOUT, || page(&server, "/").0 == 200));
    assert_eq!(page(&server, "/"), (200, "fine".to_owned()));
}

#[test]
fn tls_negotiates_h2_by_alpn() {
    let authority = Authority::new();
    let made = authority.certify(&["localhost"]);
    let mut config = rustls::ServerConfig::clone(&Authority::server(ALL_VERSIONS, &made));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let addr = secured_http2_origin(Arc::new(config), |mut request| async move {
        request.answer(&[], format!("{} {}", request.conn, request.head.uri().scheme_str().unwrap_or("-")));
    });
    let server =
        start_server(server(), &format!("location / {{ proxy_pass https://{addr}; proxy_http_version 2; }}"));
    assert_eq!(page(&server, "/"), (200, "0 https".to_owned()));
    assert_eq!(page(&server, "/"), (200, "1 https".to_owned()));
}

/// Servers close connections with many resets, and with them the requests of other clients.
#[test]
fn abandoned_requests_move_new_ones_to_another_connection() {
    let addr = origin(|mut request| async move {
        let conn = request.conn.to_string();
        if request.head.uri().path() != "/endless" {
            return request.answer(&[], conn);
        }
        let mut body = request.begin(200, &[]);
        body.send_data("begin".into(), false).unwrap();
        std::future::pending().await
    });
    let server = start(
        server(),
        &format!(
            "upstream u {{ server {addr}; }}
             server {{ listen 127.0.0.1:{{port}}; location / {{ proxy_pass http://u; proxy_http_version 2; proxy_buffering off; }} }}"
        ),
    );
    assert_eq!(page(&server, "/").1, "0");
    for _ in 0..60 {
        let mut client = server.connect().unwrap();
        client.send("GET /endless HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        assert_eq!(client.read_head().unwrap().status, 200);
    }
    let is_moved = || page(&server, "/").1 == "1";
    assert!(wait::until(wait::TIMEOUT, is_moved), "{}", server.error_log());
}

#[test]
fn connections_belong_to_one_loop_and_are_closed_with_it() {
    let addr = origin(|mut request| async move {
        let said = request.conn.to_string();
        request.answer(&[], said);
    });
    let server = start(
        server(),
        &format!(
            "upstream u {{ server {addr}; keepalive 4; keepalive_requests 2; }}
             server {{ listen 127.0.0.1:{{port}}; location / {{ proxy_pass http://u; proxy_http_version 2; }} }}"
        ),
    );
    let conns: Vec<_> = (0..4).map(|_| page(&server, "/").1).collect();
    assert_eq!(conns, ["0", "0", "1", "1"]);
}
