//! Byte counts of upstream servers, whatever the end of a request.

use std::io::Read;
use std::sync::mpsc::channel;

use tw_testkit::origin::origin;
use tw_testkit::{Server, wait};

use crate::support::{get, server, start};

/// Bytes sent and received of each server of group `u`, by the API.
fn counted(server: &Server) -> Vec<(u64, u64)> {
    let text = get(server, "/api/http/upstreams/u").text();
    let number = |peer: &str, name: &str| {
        let rest = peer.split(&format!("\"{name}\":")).nth(1).unwrap_or_else(|| panic!("{peer}"));
        rest.split(',').next().unwrap().parse().unwrap()
    };
    text.split("\"server\":").skip(1).map(|peer| (number(peer, "sent"), number(peer, "received"))).collect()
}

const LOG: &str =
    "log_format up '$status $upstream_bytes_sent $upstream_bytes_received'; access_log logs/access.log up;";

#[test]
fn failed_servers_have_their_byte_counts() {
    const REFUSAL: &str = "HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnone";
    const ANSWER: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let [refuses, closes, answers] = [REFUSAL, "HTTP/1", ANSWER].map(|said| {
        origin(move |mut conn| {
            let _ = conn.head();
            conn.send(said);
        })
    });
    let server = start(
        server(),
        &format!(
            "{LOG} upstream u {{ server {refuses}; server {closes}; server {answers}; }}
             server {{ listen 127.0.0.1:{{port}}; proxy_next_upstream error http_404; proxy_set_header Host h;
                 location / {{ proxy_pass http://u; }} location /api/ {{ access_log off; api; }} }}"
        ),
    );
    assert_eq!(get(&server, "/").text(), "ok");
    let sent = "GET / HTTP/1.1\r\nHost: h\r\n\r\n".len() as u64;
    let received = [REFUSAL.len(), "HTTP/1".len(), ANSWER.len()];
    let [first, second, third] = received;
    assert_eq!(
        server.access_log(1).unwrap(),
        [format!("200 {sent}, {sent}, {sent} {first}, {second}, {third}")]
    );
    assert_eq!(counted(&server), received.map(|received| (sent, received as u64)));
}

#[test]
fn abandoned_response_has_its_byte_counts() {
    let addr = origin(|mut conn| {
        let _ = conn.head();
        conn.send("HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n");
        conn.send(vec![b'x'; 10_000]);
        let _ = conn.head();
    });
    let server = start(
        server(),
        &format!(
            "{LOG} upstream u {{ server {addr}; }}
             server {{ listen 127.0.0.1:{{port}}; location / {{ proxy_pass http://u; }}
                 location /api/ {{ access_log off; api; }} }}"
        ),
    );
    let mut client = server.connect().unwrap();
    client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    assert_eq!(client.read_head().unwrap().status, 200);
    client.read_bytes(10_000).unwrap();
    drop(client);
    let line = server.access_log(1).unwrap().remove(0);
    let received: u64 = line.rsplit(' ').next().unwrap().parse().unwrap();
    assert!(received > 10_000, "{line}");
    assert!(wait::until(wait::TIMEOUT, || counted(&server)[0].1 == received), "{:?}", counted(&server));
}

#[test]
fn request_of_a_gone_client_has_its_byte_counts() {
    let (request_size, arrived) = channel();
    let addr = origin(move |mut conn| {
        while let Some(head) = conn.head() {
            let is_long = head.contains("Content-Length: 5\r\n");
            let mut body = vec![0; if is_long { 5 } else { 0 }];
            conn.reader.read_exact(&mut body).unwrap();
            request_size.send((head.len() + body.len()) as u64).unwrap();
        }
    });
    let server = start(
        server(),
        &format!(
            "log_format up '$status $request_length $upstream_bytes_sent $upstream_bytes_received';
             access_log logs/access.log up; upstream u {{ server {addr}; }}
             server {{ listen 127.0.0.1:{{port}};
                 location / {{ proxy_pass http://u; }}
                 location /unbuffered {{ proxy_pass http://u; proxy_request_buffering off; }}
                 location /api/ {{ access_log off; api; }} }}"
        ),
    );
    let mut all = 0;
    for (nth, request) in [
        "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
        "POST /unbuffered HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
    ]
    .into_iter()
    .enumerate()
    {
        let mut client = server.connect().unwrap();
        client.send(request).unwrap();
        let sent = arrived.recv_timeout(wait::TIMEOUT).unwrap();
        drop(client);
        let lines = server.access_log(nth + 1).unwrap();
        assert_eq!(lines[nth], format!("499 {} {sent} 0", request.len()), "{request}");
        all += sent;
        assert!(wait::until(wait::TIMEOUT, || counted(&server) == [(all, 0)]), "{:?}", counted(&server));
    }
}

#[test]
fn tunnel_counts_its_heads_once() {
    const HEAD: &str = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: upgrade\r\n\r\n";
    let addr = origin(|mut conn| {
        let _ = conn.head();
        conn.send(format!("{HEAD}hello"));
        let _ = conn.head();
        conn.send("bye");
    });
    let server = start(
        server(),
        &format!(
            "{LOG} upstream u {{ server {addr}; }}
             server {{ listen 127.0.0.1:{{port}};
                 location / {{ proxy_pass http://u; proxy_set_header Host h; proxy_set_header Upgrade $http_upgrade;
                     proxy_set_header Connection upgrade; }}
                 location /api/ {{ access_log off; api; }} }}"
        ),
    );
    let mut client = server.connect().unwrap();
    client.send("GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n").unwrap();
    assert_eq!(client.read_head().unwrap().status, 101);
    assert_eq!(client.read_bytes(5).unwrap(), b"hello");
    client.send("more\r\n\r\n").unwrap();
    assert_eq!(client.read_until_close().unwrap(), b"bye");
    drop(client);
    let sent =
        "GET / HTTP/1.1\r\nHost: h\r\nUpgrade: echo\r\nConnection: upgrade\r\n\r\nmore\r\n\r\n".len() as u64;
    let received = (HEAD.len() + "hellobye".len()) as u64;
    assert_eq!(server.access_log(1).unwrap(), [format!("101 {sent} {received}")]);
    assert_eq!(counted(&server), [(sent, received)]);
}
