//! Responses that begin before the end of the request, and reuse of both connections.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tw_testkit::origin::origin;
use tw_testkit::{Client, Server, wait};

use crate::support::{get, server, start};

/// An origin that answers `POST` as soon as it has its head: one half at once, the other when the test lets it. Other
/// requests are answered with the number of their connection.
fn early_origin() -> (SocketAddr, Sender<()>) {
    let (go_on, may) = channel();
    let may = Arc::new(Mutex::new(may));
    let addr = origin(move |mut conn| {
        while let Some(head) = conn.head() {
            let nth = conn.nth;
            if !head.starts_with("POST ") {
                conn.answer("", format!("connection {nth}"));
                continue;
            }
            conn.send("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf");
            if may.lock().unwrap().recv().is_err() {
                return;
            }
            conn.send("half");
        }
    });
    (addr, go_on)
}

fn start_proxy(addr: SocketAddr) -> Server {
    start(
        server(),
        &format!(
            "proxy_request_buffering off;
             server {{ listen 127.0.0.1:{{port}}; location / {{ proxy_pass http://{addr}; }} }}"
        ),
    )
}

/// A client that has half a response and whose request body is malformed from now on.
fn broken(server: &Server) -> Client {
    let mut client = server.connect().unwrap();
    client.send("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n").unwrap();
    assert_eq!(client.read_head().unwrap().status, 200);
    assert_eq!(client.read_bytes(4).unwrap(), b"half");
    client.send("no chunk\r\n").unwrap();
    client
}

#[test]
fn connection_of_an_incomplete_request_is_not_reused() {
    let (addr, _go_on) = early_origin();
    let server = start_proxy(addr);
    let mut client = broken(&server);
    assert_eq!(client.read_until_close().unwrap(), b"", "the response is cut");
    // The connection is not reused: the origin still expects the rest of the first body, and would take a new request
    // for it.
    assert_eq!(get(&server, "/").text(), "connection 1");
}

#[test]
fn malformed_body_closes_the_client_connection() {
    let (addr, _go_on) = early_origin();
    let server = start_proxy(addr);
    let mut client = broken(&server);
    // The connection is closed: the position of the next request after a malformed body is unknown.
    let _ = client.send("GET /next HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(client.read_until_close().unwrap_or_default(), b"");
    let log = server.wait_error_log("client sent").unwrap();
    assert!(!log.contains("/next"), "{log}");
}

#[test]
fn request_is_sent_while_the_client_reads_no_response() {
    // The size exceeds the socket buffers and the buffers of the proxy.
    const SIZE: usize = 16 << 20;
    let (done, is_done) = channel();
    let done = Arc::new(Mutex::new(done));
    let addr = origin(move |mut conn| {
        let _ = conn.head();
        conn.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n"));
        let mut writer = conn.reader.get_ref().try_clone().unwrap();
        let writing = thread::spawn(move || writer.write_all(&vec![b'x'; SIZE]));
        let mut body = [0; 10];
        conn.reader.read_exact(&mut body).unwrap();
        done.lock().unwrap().send(body).unwrap();
        let _ = writing.join();
    });
    for more in ["proxy_buffering off;", "proxy_max_temp_file_size 0;"] {
        let server = start(
            server(),
            &format!(
                "proxy_request_buffering off; {more}
                 server {{ listen 127.0.0.1:{{port}} sndbuf=16k; location / {{ proxy_pass http://{addr}; }} }}"
            ),
        );
        let mut client = server.connect().unwrap();
        client
            .send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\nConnection: close\r\n\r\n01234")
            .unwrap();
        assert_eq!(client.read_head().unwrap().status, 200);
        // The client reads nothing of the response before the server has the whole request.
        wait::pause(Duration::from_millis(200));
        client.send("56789").unwrap();
        assert_eq!(&is_done.recv_timeout(wait::TIMEOUT).unwrap(), b"0123456789", "{more}");
        assert_eq!(client.read_until_close().unwrap().len(), SIZE, "{more}");
    }
}
