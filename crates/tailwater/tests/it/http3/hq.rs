//! HTTP/0.9 over QUIC (`http3_hq`).

use std::sync::Arc;

use rustls::version::TLS13;
use tw_testkit::Signal;
use tw_testkit::quic::{ClientSettings, QuicClient, UdpClient};

use crate::support::http3::{
    Http3Server, closed, send_bidi, send_on, send_uni, start_http3, start_http3_with,
};
use crate::support::server;

/// Codes of HTTP/3, which nginx uses, too.
const NO_ERROR: u64 = 0x100;
const STREAM_CREATION_ERROR: u64 = 0x103;
const REQUEST_INCOMPLETE: u64 = 0x10d;
const MESSAGE_ERROR: u64 = 0x10e;

/// A client that offers these protocols (ALPN).
fn connect(server: &Http3Server, protocols: &[&str]) -> UdpClient {
    let mut tls = (*server.authority.client(&[&TLS13])).clone();
    tls.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    UdpClient::connect(&ClientSettings::new(Arc::new(tls), "localhost"), server.server.addr()).unwrap()
}

fn hq(server: &Http3Server) -> UdpClient {
    let mut udp = connect(server, &["hq-interop"]);
    udp.connected().unwrap();
    udp
}

/// Response on a stream; the error is the code of its reset.
fn response(udp: &mut UdpClient, stream: u64) -> Result<String, u64> {
    let end = udp.until(|client: &mut QuicClient| client.ended.get(&stream).copied()).unwrap();
    let body = udp.client.received.remove(&stream).unwrap_or_default();
    end.map_or_else(|| Ok(String::from_utf8(body).unwrap()), Err)
}

fn get(udp: &mut UdpClient, path: &str) -> String {
    let stream = send_bidi(udp, format!("GET {path}\r\n").as_bytes(), true);
    response(udp, stream).unwrap()
}

#[test]
fn response_is_the_body_alone() {
    let server = start_http3(
        "http3_hq on; add_header x y; add_trailer z $request_time;
         location /said { return 200 '$request|$server_protocol|$http3|$host|$https|$args|$connection_requests'; }
         location /early { return 204; } location = /moved { return 301 /; }",
    );
    let mut udp = hq(&server);
    assert_eq!(get(&mut udp, "/a.txt"), "hello");
    assert_eq!(get(&mut udp, "/said?x=1"), "GET /said?x=1||hq|localhost|on|x=1|2");
    assert_eq!(get(&mut udp, "/early"), "");
    assert!(get(&mut udp, "/moved").contains("301 Moved Permanently"));
    assert!(get(&mut udp, "/none").contains("404 Not Found"));
    // A line may end with LF, and the end of the stream is not waited for.
    let stream = send_bidi(&mut udp, b"GET /a.", false);
    send_on(&mut udp, stream, b"txt\nand more", false);
    assert_eq!(response(&mut udp, stream), Ok("hello".into()));
    let stopped = udp.until(|client| client.stopped.get(&stream).copied()).unwrap();
    assert_eq!(stopped, NO_ERROR);
}

#[test]
fn large_body_of_an_upstream_server_arrives_complete() {
    let big = "0123456789abcdef".repeat(1 << 16);
    let files = server().file("html/big.txt", big.as_str()).file("html/small.txt", "small");
    let server = start_http3_with(
        files,
        "",
        "http3_hq on; location /up/ { proxy_pass http://127.0.0.1:{port1}/; }
         } server { listen 127.0.0.1:{port1}; root html;",
    );
    let mut udp = hq(&server);
    let first = send_bidi(&mut udp, b"GET /big.txt\r\n", true);
    let second = send_bidi(&mut udp, b"GET /up/big.txt\r\n", true);
    assert_eq!(get(&mut udp, "/up/small.txt"), "small");
    assert!(response(&mut udp, first).unwrap() == big);
    assert!(response(&mut udp, second).unwrap() == big);
}

#[test]
fn protocol_is_negotiated_as_configured() {
    for (conf, protocols, opens_streams) in [
        ("", &["h3"][..], Some(true)),
        ("", &["hq-interop"], None),
        ("http3_hq on;", &["h3"], Some(true)),
        ("http3_hq on;", &["hq-interop"], Some(false)),
        ("http3_hq on;", &["hq-interop", "h3"], Some(true)),
        ("http3_hq on; http3 off;", &["h3"], None),
        ("http3_hq on; http3 off;", &["h3", "hq-interop"], Some(false)),
    ] {
        let server = start_http3(conf);
        let mut udp = connect(&server, protocols);
        let has_ended =
            |client: &mut QuicClient| (client.is_connected || client.lost.is_some()).then_some(());
        udp.until(has_ended).unwrap();
        assert_eq!(udp.client.is_connected, opens_streams.is_some(), "{conf} {protocols:?}");
        match opens_streams {
            Some(true) => udp.until(|client| (!client.opened.is_empty()).then_some(())).unwrap(),
            Some(false) => assert_eq!(get(&mut udp, "/a.txt"), "hello"),
            None => {}
        }
    }
}

#[test]
fn request_without_a_host_is_for_the_server_of_the_handshake() {
    let server = start_http3(
        "http3_hq on; location / { return 200 first; } }
         server { listen 127.0.0.1:{port} quic; server_name other; location / { return 200 second; }",
    );
    let mut udp = hq(&server);
    assert_eq!(get(&mut udp, "/"), "first");
    assert_eq!(get(&mut udp, "https://localhost/"), "first");
    // The other one does not speak it.
    assert!(get(&mut udp, "https://other/").contains("421 Misdirected Request"));
}

#[test]
fn malformed_lines_are_answered_with_an_error_page() {
    let server = start_http3("http3_hq on; large_client_header_buffers 2 1k;");
    let long = format!("GET /{}\r\n", "a".repeat(2000));
    let endless = format!("GET /{}", "a".repeat(40 << 10));
    for (line, expected, line_in_log) in [
        ("POST /a.txt\r\n", "400 Bad Request", "client sent invalid method in HTTP/0.9 request"),
        ("\r\n", "400 Bad Request", "client sent invalid request"),
        ("get /a.txt\r\n", "400 Bad Request", "client sent invalid method"),
        ("GET a.txt\r\n", "400 Bad Request", "client sent invalid request"),
        ("GET /a.txt HTTP/1.1\r\nHost: a\r\n\r\n", "400 Bad Request", "client sent invalid request"),
        ("GET /a.txt HTTP/3.0\r\n", "505 HTTP Version Not Supported", "client sent invalid version"),
        (&long, "414 Request-URI Too Large", "client sent too long URI"),
        (&endless, "414 Request-URI Too Large", "client sent too long URI"),
    ] {
        let mut udp = hq(&server);
        let stream = send_bidi(&mut udp, line.as_bytes(), false);
        let page = response(&mut udp, stream).unwrap();
        assert!(page.contains(expected), "{line:?}: {page}");
        let stopped = udp.until(|client| client.stopped.get(&stream).copied()).unwrap();
        assert_eq!(stopped, if expected.starts_with("400") { MESSAGE_ERROR } else { NO_ERROR });
        server.server.wait_error_log(&format!("{line_in_log} while reading client request line")).unwrap();
        assert_eq!(get(&mut udp, "/a.txt"), "hello", "other streams go on");
    }
}

#[test]
fn stream_without_a_line_is_reset() {
    let server = start_http3("http3_hq on; client_header_timeout 1s;");
    let mut udp = hq(&server);
    for (bytes, fin) in [(&b""[..], true), (b"GET /a.txt", true), (b"GET /a.txt", false)] {
        let stream = send_bidi(&mut udp, bytes, fin);
        assert_eq!(response(&mut udp, stream), Err(REQUEST_INCOMPLETE));
    }
    assert_eq!(get(&mut udp, "/a.txt"), "hello");
}

#[test]
fn unidirectional_stream_closes_the_connection() {
    let server = start_http3("http3_hq on;");
    let mut udp = hq(&server);
    send_uni(&mut udp, &[0, 4, 0]);
    assert_eq!(udp.until(|client| closed(client)).unwrap(), STREAM_CREATION_ERROR);
    server.server.wait_error_log("client opened a unidirectional stream in hq").unwrap();
}

#[test]
fn connection_is_closed_after_its_last_response() {
    let server = start_http3(
        "http3_hq on; keepalive_requests 3; location /slow { limit_rate 8; return 200 0123456789; }",
    );
    let mut udp = hq(&server);
    let slow = send_bidi(&mut udp, b"GET /slow\r\n", true);
    assert_eq!(get(&mut udp, "/a.txt"), "hello");
    assert_eq!(get(&mut udp, "/a.txt"), "hello");
    assert_eq!(response(&mut udp, slow), Ok("0123456789".into()));
    assert_eq!(udp.until(|client| closed(client)).unwrap(), NO_ERROR);
    assert!(udp.client.opened.is_empty(), "the server opens no stream");
}

#[test]
fn graceful_shutdown_finishes_responses() {
    let server = start_http3("http3_hq on; location /slow { limit_rate 8; return 200 0123456789; }");
    let mut udp = hq(&server);
    let slow = send_bidi(&mut udp, b"GET /slow\r\n", true);
    // This response shows that the slow one has begun.
    assert_eq!(get(&mut udp, "/a.txt"), "hello");
    server.server.signal(Signal::QUIT).unwrap();
    assert_eq!(response(&mut udp, slow), Ok("0123456789".into()));
    assert_eq!(udp.until(|client| closed(client)).unwrap(), NO_ERROR);
}

#[test]
fn access_log_and_limits_work_as_for_http3() {
    let server = start_http3_with(
        server().file("html/a.txt", "hello").file("html/b.txt", "ok"),
        "log_format all '$request|$status|$body_bytes_sent|$bytes_sent|$request_length|$http3'; \
         limit_req_zone $binary_remote_addr zone=one:1m rate=1r/m;",
        "http3_hq on; access_log logs/access.log all; location /b.txt { limit_req zone=one; }",
    );
    let mut udp = hq(&server);
    get(&mut udp, "/a.txt");
    get(&mut udp, "/b.txt");
    assert!(get(&mut udp, "/b.txt").contains("503"));
    let lines = server.server.access_log(3).unwrap();
    assert_eq!(lines[..2], ["GET /a.txt|200|5|5|12|hq", "GET /b.txt|200|2|2|12|hq"]);
    assert!(lines[2].starts_with("GET /b.txt|503|"), "{lines:?}");
}
