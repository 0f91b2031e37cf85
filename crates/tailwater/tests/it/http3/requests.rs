//! Requests and responses of HTTP/3, their logs and variables, and the end of connections.

use tw_testkit::origin::origin;
use tw_testkit::{Client, Signal, wait};

use crate::support::http3::{send_on, start_http3, start_http3_with};
use crate::support::metrics::metric_in;
use crate::support::server;

/// `H3_NO_ERROR`
const NO_ERROR: u64 = 0x100;

#[test]
fn requests_look_like_http1_to_handlers() {
    let server = start_http3(
        "location /said { return 200 \"$request|$server_protocol|$http3|$http2|$host|$http_host|$scheme|$https|$request_uri|$http_cookie|$connection_requests|$ssl_protocol|$ssl_server_name\"; }",
    );
    let mut client = server.client();
    let response = client.get("/a.txt");
    assert_eq!((response.status, response.text().as_str()), (200, "hello"));
    assert_eq!(response.field("content-length"), Some("5"));
    assert_eq!(response.field("content-type"), Some("text/plain"));
    assert!(response.field("etag").is_some() && response.field("connection").is_none());
    let cookies = [("cookie", "a=1"), ("cookie", "b=2")];
    let said = client.request("GET", "/said?x", &cookies, b"").text();
    let expected =
        "GET /said?x HTTP/3.0|HTTP/3.0|h3||localhost|localhost|https|on|/said?x|a=1; b=2|2|TLSv1.3|localhost";
    assert_eq!(said, expected);
    assert_eq!(client.get("/none").status, 404);
}

#[test]
fn access_log_has_a_line_for_each_request() {
    let server = start_http3_with(
        server().file("html/a.txt", "hello"),
        "log_format all '$request $status $body_bytes_sent $http3 $connection_requests $remote_addr';",
        "access_log logs/access.log all;",
    );
    let mut client = server.client();
    client.get("/a.txt");
    client.get("/none");
    let lines = server.server.access_log(2).unwrap();
    assert_eq!(lines[0], "GET /a.txt HTTP/3.0 200 5 h3 1 127.0.0.1");
    assert!(lines[1].starts_with("GET /none HTTP/3.0 404 "), "{lines:?}");
}

#[test]
fn metrics_count_connections_and_requests_by_protocol() {
    let server = start_http3(
        "quic_retry on; } server { listen 127.0.0.1:{port1}; location /metrics { metrics; } location /status { status_page; }",
    );
    let page = || Client::get(server.server.addr_of(1), "/metrics").unwrap().text();
    let history = || Client::get(server.server.addr_of(1), "/status?format=history").unwrap().text();
    let mut client = server.client();
    assert_eq!((client.get("/a.txt").status, client.get("/none").status), (200, 404));
    let text = page();
    for (series, expected) in [
        ("requests_by_protocol_total{protocol=\"HTTP/1\"}", 1),
        ("requests_by_protocol_total{protocol=\"HTTP/2\"}", 0),
        ("requests_by_protocol_total{protocol=\"HTTP/3\"}", 2),
        ("quic_connections_open", 1),
        ("quic_connections_accepted_total", 1),
        ("quic_retries_total", 1),
        ("quic_resets_total", 0),
    ] {
        assert_eq!(metric_in(&text, series), expected, "{series}: {text}");
    }
    assert!(wait::until(wait::TIMEOUT, || history().contains("\"traffic/quic\":[[")), "{}", history());
    client.udp.client.close(0x100, std::time::Instant::now());
    client.udp.until(|_| Some(())).unwrap();
    assert!(wait::until(wait::TIMEOUT, || metric_in(&page(), "quic_connections_open") == 0));
}

#[test]
fn client_that_moves_has_its_new_address_in_later_requests() {
    let server = start_http3(
        "set_real_ip_from 127.0.0.0/8; real_ip_header X-Is;
         location /addr { return 200 $remote_addr:$remote_port|$realip_remote_addr:$realip_remote_port; }
         location /proxied { return 200 $remote_addr|$realip_remote_addr:$realip_remote_port; }",
    );
    let mut client = server.client();
    let old = client.udp.local_addr().unwrap();
    assert_eq!(client.get("/addr").text(), format!("{old}|{old}"));
    client.udp.rebind().unwrap();
    let new = client.udp.local_addr().unwrap();
    // Requests that come before the new path is validated have the old address.
    let moved = wait::until(wait::TIMEOUT, || {
        let text = client.get("/addr").text();
        assert!(text == format!("{old}|{old}") || text == format!("{new}|{new}"), "{text}");
        text == format!("{new}|{new}")
    });
    assert!(moved);
    let proxied = client.request("GET", "/proxied", &[("x-is", "192.0.2.1")], b"").text();
    assert_eq!(proxied, format!("192.0.2.1|{new}"));
}

#[test]
fn log_lines_of_a_client_that_has_moved_have_its_new_address() {
    let server = start_http3("client_header_timeout 2s; location /addr { return 200 $remote_addr; }");
    let mut client = server.client();
    client.udp.rebind_to([127, 0, 0, 2].into()).unwrap();
    assert!(wait::until(wait::TIMEOUT, || client.get("/addr").text() == "127.0.0.2"));
    client.get("/none");
    server
        .server
        .wait_error_log("html/none\" failed (2: No such file or directory), client: 127.0.0.2,")
        .unwrap();
    // A request without a complete head is logged as an error of its connection.
    let stream = client.open().unwrap();
    send_on(&mut client.udp, stream, &[1, 9], false);
    client.udp.until(|client| client.ended.get(&stream).copied()).unwrap();
    let line = "while reading client request headers, client: 127.0.0.2, server: 127.0.0.1:";
    server.server.wait_error_log(line).unwrap();
}

#[test]
fn reset_ends_a_request_whose_body_is_not_read() {
    let server = start_http3_with(
        server().file("html/a.txt", "hello"),
        "limit_req_zone $server_name zone=one:1m rate=1r/m; log_format status '$request_method $status';",
        "access_log logs/access.log status; location / { limit_req zone=one burst=5; } location /ok { return 204; }",
    );
    let mut client = server.client();
    assert_eq!(client.get("/a.txt").status, 200);
    let delayed = client.begin("POST", "/a.txt", &[], false);
    assert_eq!(client.get("/ok").status, 204, "the one before has arrived");
    client.udp.client.reset(delayed, 0x10c);
    assert!(client.finish(delayed).is_err());
    let lines = server.server.access_log(3).unwrap();
    assert!(lines.contains(&"POST 499".to_owned()), "{lines:?}");
}

#[test]
fn many_requests_share_a_connection() {
    let server = start_http3("location /n { return 200 $arg_n; }");
    let mut client = server.client();
    for _ in 0..5 {
        let ids: Vec<_> = (0..60)
            .map(|n| client.begin("GET", &format!("/n?n={n}"), &[("x-n", "long enough to count")], true))
            .collect();
        for (n, id) in ids.into_iter().enumerate() {
            assert_eq!(client.finish(id).unwrap().text(), n.to_string());
        }
    }
}

#[test]
fn head_204_and_304_have_no_body() {
    let server = start_http3("location /none { return 204; } location /there { return 301 /here; }");
    let mut client = server.client();
    let first = client.get("/a.txt");
    let head_only = client.request("HEAD", "/a.txt", &[], b"");
    assert_eq!((head_only.status, head_only.body.len()), (200, 0));
    assert_eq!(head_only.field("content-length"), Some("5"));
    let fresh = client.request("GET", "/a.txt", &[("if-none-match", first.field("etag").unwrap())], b"");
    assert_eq!((fresh.status, fresh.body.len(), fresh.field("content-length")), (304, 0, None));
    let none = client.get("/none");
    assert_eq!((none.status, none.body.len(), none.field("content-length")), (204, 0, None));
    let there = client.get("/there");
    let location = there.field("location").unwrap();
    assert!(location.starts_with("https://localhost") && location.ends_with("/here"), "{location}");
}

#[test]
fn server_without_http3_refuses_the_handshake_protocol() {
    let server = start_http3("http3 off;");
    let mut udp = server.raw_unconnected();
    let lost = udp.until(|client| client.lost.clone()).unwrap();
    assert!(lost.to_string().contains("120") || format!("{lost:?}").contains("120"), "{lost:?}");
}

#[test]
fn last_request_of_a_connection_is_answered() {
    let server = start_http3("keepalive_requests 2;");
    let mut client = server.client();
    assert_eq!(client.get("/a.txt").status, 200);
    assert!(!client.is_leaving());
    assert_eq!(client.get("/a.txt").status, 200);
    assert_eq!(client.closed(), NO_ERROR);
    assert!(client.is_leaving(), "GOAWAY came before");
}

#[test]
fn idle_connection_is_closed_without_error() {
    let server = start_http3("keepalive_timeout 1s;");
    let mut client = server.client();
    assert_eq!(client.get("/a.txt").status, 200);
    assert_eq!(client.closed(), NO_ERROR);
}

#[test]
fn graceful_quit_answers_open_requests() {
    let (begun, waiting) = std::sync::mpsc::channel();
    let begun = std::sync::Mutex::new(begun);
    let (go, gate) = std::sync::mpsc::channel::<()>();
    let gate = std::sync::Arc::new(std::sync::Mutex::new(gate));
    let begun = std::sync::Arc::new(begun);
    let origin = origin(move |mut conn| {
        conn.head().unwrap();
        begun.lock().unwrap().send(()).unwrap();
        gate.lock().unwrap().recv().unwrap();
        conn.answer("", "late");
    });
    let mut server = start_http3(&format!("location /slow {{ proxy_pass http://{origin}; }}"));
    let mut client = server.client();
    let id = client.begin("GET", "/slow", &[], true);
    client.until(|_| waiting.try_recv().ok()).unwrap();
    server.server.signal(Signal::QUIT).unwrap();
    server.server.wait_error_log("gracefully shutting down").unwrap();
    go.send(()).unwrap();
    let response = client.finish(id).unwrap();
    assert_eq!((response.status, response.text().as_str()), (200, "late"));
    client.until_leaving();
    assert_eq!(client.closed(), NO_ERROR);
    assert!(server.server.wait_exit(wait::TIMEOUT).unwrap().success());
}

#[test]
fn reload_keeps_connections() {
    let server = start_http3("location /said { return 200 old; }");
    let mut client = server.client();
    assert_eq!(client.get("/said").text(), "old");
    let conf = std::fs::read_to_string(server.server.prefix().join("conf/nginx.conf")).unwrap();
    std::fs::write(server.server.prefix().join("conf/nginx.conf"), conf.replace("200 old", "200 new"))
        .unwrap();
    server.server.signal(Signal::HUP).unwrap();
    let renewed = || client.get("/said").text() == "new";
    assert!(wait::until(wait::TIMEOUT, renewed));
}

#[test]
fn connections_are_counted_as_those_of_their_protocol() {
    let server = start_http3("location = /metrics { metrics; }");
    let mut client = server.client();
    let text = client.get("/metrics").text();
    for (protocol, expected) in [("http/1", 0), ("http/3", 1)] {
        let sample = format!("\ntailwater_protocol_connections_open{{protocol=\"{protocol}\"}} {expected}\n");
        assert!(text.contains(&sample), "{sample} is not in: {text}");
    }
}
