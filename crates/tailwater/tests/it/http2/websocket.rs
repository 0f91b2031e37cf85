//! WebSockets and tunnels on a stream of HTTP/2 (RFC 8441).

use bytes::Bytes;
use h2::ext::Protocol;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, Method, Request};
use tokio::sync::mpsc::unbounded_channel;
use tw_testkit::http2::{Http2, take};
use tw_testkit::origin::origin;
use tw_testkit::{Server, wait};

use crate::support::{server, start};

/// Directives of a location for WebSockets of HTTP/1.1.
const PASS: &str = "proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade;
    proxy_set_header Connection $http_connection;";
const SWITCHED: &str = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Accept: key\r\nSec-WebSocket-Protocol: chat\r\n\r\n";

fn start_proxy(origin: std::net::SocketAddr) -> Server {
    start(
        server().file("html/a.txt", "hello"),
        &format!(
            "log_format all '$request $status $body_bytes_sent'; access_log logs/access.log all; \
             server {{ listen 127.0.0.1:{{port}}; http2 on; root html; \
               location /chat {{ proxy_pass http://{origin}; {PASS} }} }}"
        ),
    )
}

/// A connection on which the settings of the server have arrived.
fn connect(server: &Server) -> Http2 {
    let mut client = Http2::connect(server.addr()).unwrap();
    assert_eq!(client.get("/a.txt").unwrap().text(), "hello");
    client
}

/// An extended CONNECT for `protocol` at a path.
fn extended_connect(path: &str, protocol: &'static str) -> Request<()> {
    let mut head = Request::builder().uri(format!("http://localhost{path}")).method(Method::CONNECT);
    head = head.extension(Protocol::from_static(protocol)).header("sec-websocket-version", "13");
    head.body(()).unwrap()
}

/// Status, fields and both directions of the stream that a request opens.
async fn open_stream(
    requests: h2::client::SendRequest<Bytes>,
    head: Request<()>,
) -> (u16, HeaderMap, SendStream<Bytes>, RecvStream) {
    let mut requests = requests.ready().await.unwrap();
    let (response, up) = requests.send_request(head, false).unwrap();
    let (parts, down) = response.await.unwrap().into_parts();
    (parts.status.as_u16(), parts.headers, up, down)
}

#[test]
fn websocket_over_h2_is_bidirectional() {
    let (sender, mut receiver) = unbounded_channel();
    let origin = origin(move |mut conn| {
        let head = conn.head().unwrap();
        sender.send(head).unwrap();
        conn.send(SWITCHED);
        conn.send("first");
        let mut said = [0; 4];
        while std::io::Read::read_exact(&mut conn.reader, &mut said).is_ok() {
            conn.send(said);
        }
        conn.send("bye");
    });
    let server = start_proxy(origin);
    let mut client = connect(&server);
    client.run(|requests| async move {
        let (status, fields, mut up, mut down) =
            open_stream(requests, extended_connect("/chat?a", "websocket")).await;
        assert_eq!(status, 200);
        assert_eq!(fields["sec-websocket-protocol"], "chat");
        for name in ["upgrade", "connection", "sec-websocket-accept", "content-length", "transfer-encoding"] {
            assert!(!fields.contains_key(name), "{name}");
        }
        let request = receiver.recv().await.unwrap();
        assert!(request.starts_with("GET /chat?a HTTP/1.1\r\n"), "{request}");
        let lines: Vec<_> = request.lines().map(str::to_ascii_lowercase).collect();
        for line in ["upgrade: websocket", "connection: upgrade", "sec-websocket-version: 13"] {
            assert!(lines.iter().any(|said| said == line), "{line}: {request}");
        }
        // 16 bytes in base64 (RFC 6455 section 4.1).
        let key = lines.iter().find_map(|line| line.strip_prefix("sec-websocket-key: ")).unwrap();
        assert_eq!((key.len(), &key[22..]), (24, "=="), "{request}");
        for word in ["ping", "pong", "over"] {
            up.send_data(Bytes::from(word), false).unwrap();
        }
        let mut said = Vec::new();
        while said.len() < "firstpingpongover".len() {
            said.extend_from_slice(&down.data().await.unwrap().unwrap());
        }
        assert_eq!(said, b"firstpingpongover");
        up.send_data(Bytes::new(), true).unwrap();
        assert_eq!(take(down).await.unwrap().0, b"bye");
    });
    assert_eq!(client.get("/a.txt").unwrap().text(), "hello", "the connection goes on");
    let lines = server.access_log(3).unwrap();
    assert_eq!(lines[1], "GET /chat?a HTTP/2.0 200 20");
}

#[test]
fn windows_are_kept_both_ways() {
    const SIZE: usize = 1_000_000;
    let origin = origin(move |mut conn| {
        conn.head().unwrap();
        conn.send(SWITCHED);
        let mut said = vec![0; SIZE];
        std::io::Read::read_exact(&mut conn.reader, &mut said).unwrap();
        conn.send(said);
    });
    let server = start_proxy(origin);
    let mut client = connect(&server);
    let sent: Vec<u8> = (0..SIZE).map(|at| (at % 251) as u8).collect();
    let expected = sent.clone();
    let came = client.run(|requests| async move {
        let (_, _, mut up, down) = open_stream(requests, extended_connect("/chat", "websocket")).await;
        // The crate sends it as the windows of the server have room.
        up.send_data(Bytes::from(sent), false).unwrap();
        take(down).await.unwrap().0
    });
    assert!(came == expected);
}

#[test]
fn closed_side_closes_the_other_side() {
    let (sender, mut receiver) = unbounded_channel();
    let origin = origin(move |mut conn| {
        conn.head().unwrap();
        conn.send(SWITCHED);
        // The read ends when the proxy closes the connection.
        let _ = conn.head();
        sender.send("left").unwrap();
    });
    let server = start_proxy(origin);
    let mut client = connect(&server);
    client.run(|requests| async move {
        let (status, _, mut up, down) = open_stream(requests, extended_connect("/chat", "websocket")).await;
        assert_eq!(status, 200);
        up.send_reset(Reason::CANCEL);
        drop(down);
        assert_eq!(receiver.recv().await, Some("left"));
    });
    assert_eq!(client.get("/a.txt").unwrap().text(), "hello");
}

#[test]
fn reset_upstream_resets_the_stream() {
    let origin = origin(move |mut conn| {
        conn.head().unwrap();
        conn.send(SWITCHED);
        conn.send("half");
        // Bytes that the origin has not read make the kernel reset the connection.
        let mut first = [0; 1];
        std::io::Read::read_exact(&mut conn.reader, &mut first).unwrap();
    });
    let server = start_proxy(origin);
    let mut client = connect(&server);
    let ended = client.run(|requests| async move {
        let (_, _, mut up, down) = open_stream(requests, extended_connect("/chat", "websocket")).await;
        up.send_data(Bytes::from_static(b"more than it reads"), false).unwrap();
        take(down).await
    });
    // The direction may have ended before the reset.
    assert!(matches!(&ended, Ok((said, _)) if said == b"half") || ended.unwrap_err().is_reset());
    assert_eq!(client.get("/a.txt").unwrap().text(), "hello");
}

#[test]
fn upstream_without_101_opens_no_websocket() {
    let origin = origin(move |mut conn| {
        while let Some(head) = conn.head() {
            if head.contains("/chat/no") {
                conn.send("HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno")
            } else {
                conn.answer("X-Secret: y\r\n", "a page")
            }
        }
    });
    let server = start_proxy(origin);
    let mut client = connect(&server);
    for (path, protocol, status, said) in [
        // 2xx would mean that the stream is a WebSocket now.
        ("/chat", "websocket", 501, ""),
        ("/a.txt", "websocket", 501, ""),
        ("/chat/no", "websocket", 403, "no"),
        ("/a.txt", "connect-udp", 501, "<html>"),
    ] {
        let (got, body) = client.run(|requests| async move {
            let (status, fields, _up, down) = open_stream(requests, extended_connect(path, protocol)).await;
            assert!(!fields.contains_key("x-secret"));
            (status, take(down).await.unwrap().0)
        });
        assert_eq!(got, status, "{path} {protocol}");
        assert!(String::from_utf8_lossy(&body).starts_with(said), "{path}: {body:?}");
    }
    assert!(wait::until(wait::TIMEOUT, || {
        server.error_log().contains("client asked for the protocol \"connect-udp\"")
    }));
}

/// A CONNECT request for a tunnel.
fn connect_request(to: &str) -> Request<()> {
    Request::builder().uri(to).method(Method::CONNECT).body(()).unwrap()
}

#[test]
fn connect_opens_a_tunnel() {
    let origin = origin(move |mut conn| {
        let mut said = [0; 4];
        while std::io::Read::read_exact(&mut conn.reader, &mut said).is_ok() {
            conn.send(said);
        }
        conn.send("bye");
    });
    let server = start(
        server().file("html/a.txt", "hello"),
        &format!(
            "log_format all '$request $status $upstream_addr $body_bytes_sent'; access_log logs/access.log all; \
             server {{ listen 127.0.0.1:{{port}}; http2 on; server_name localhost; root html; }} \
             server {{ listen 127.0.0.1:{{port}}; http2 on; server_name {}; tunnel_pass; }} \
             server {{ listen 127.0.0.1:{{port}}; http2 on; server_name elsewhere; tunnel_pass; deny all; }}",
            origin.ip()
        ),
    );
    let mut client = connect(&server);
    let to = origin.to_string();
    client.run(|requests| async move {
        let (status, fields, mut up, mut down) = open_stream(requests, connect_request(&to)).await;
        assert_eq!((status, fields.contains_key("content-length")), (200, false));
        up.send_data(Bytes::from("pingpong"), false).unwrap();
        let mut said = Vec::new();
        while said.len() < 8 {
            said.extend_from_slice(&down.data().await.unwrap().unwrap());
        }
        up.send_data(Bytes::new(), true).unwrap();
        assert_eq!((&said[..], take(down).await.unwrap().0), (&b"pingpong"[..], b"bye".to_vec()));
    });
    let lines = server.access_log(2).unwrap();
    assert_eq!(lines[1], format!("CONNECT {origin} HTTP/2.0 200 {origin} 11"));
    for (to, expected) in [("localhost:80", 405), ("elsewhere:80", 403), ("elsewhere", 400)] {
        let status = client.run(|requests| async move { open_stream(requests, connect_request(to)).await.0 });
        assert_eq!(status, expected, "{to}");
    }
}

#[test]
fn connect_without_protocol_is_405() {
    let server = start_proxy("127.0.0.1:1".parse().unwrap());
    let mut client = connect(&server);
    let status = client.run(|requests| async move {
        let head = Request::builder().uri("localhost:80").method(Method::CONNECT).body(()).unwrap();
        open_stream(requests, head).await.0
    });
    assert_eq!(status, 405);
}
