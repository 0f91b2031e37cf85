//! WebSockets on a stream of HTTP/3 (RFC 9220).

use std::io::Read;

use tw_testkit::origin::{Conn, origin};

use crate::support::http3::start_http3;

/// Directives of a location for WebSockets of HTTP/1.1.
const PASS: &str = "proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade;
    proxy_set_header Connection $http_connection;";
const SWITCHED: &str = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Accept: key\r\nSec-WebSocket-Protocol: chat\r\n\r\n";

fn connect(path: &str) -> [(&str, &str); 5] {
    [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "https"),
        (":authority", "localhost"),
        (":path", path),
    ]
}

/// Reads so many bytes.
fn read(conn: &mut Conn, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    conn.reader.read_exact(&mut bytes).unwrap();
    bytes
}

#[test]
fn websocket_over_h3_is_bidirectional() {
    let origin = origin(|mut conn| {
        let head = conn.head().unwrap().to_ascii_lowercase();
        assert!(head.starts_with("get /chat http/1.1") && head.contains("upgrade: websocket"), "{head}");
        conn.send(SWITCHED);
        conn.send("first");
        let said = read(&mut conn, 5);
        conn.send(said);
    });
    let server = start_http3(&format!("location /chat {{ proxy_pass http://{origin}; {PASS} }}"));
    let mut client = server.client();
    client.wait_settings();
    let id = client.begin_with(&connect("/chat"), false);
    assert_eq!(client.body(id, 5), b"first");
    client.send(id, b"hello", false);
    assert_eq!(client.body(id, 10), b"firsthello");
    let response = client.finish(id).unwrap();
    assert_eq!((response.status, response.field("sec-websocket-protocol")), (200, Some("chat")));
    assert_eq!(response.field("upgrade"), None);
    assert_eq!(client.get("/a.txt").status, 200);
}

#[test]
fn protocol_that_nobody_speaks_is_refused() {
    let server = start_http3("");
    let mut client = server.client();
    let mut fields = connect("/a.txt");
    let id = client.begin_with(&fields, false);
    assert_eq!(client.finish(id).unwrap().status, 501);
    fields[1].1 = "other";
    let id = client.begin_with(&fields, false);
    assert_eq!(client.finish(id).unwrap().status, 501);
}
