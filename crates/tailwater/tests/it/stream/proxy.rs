//! Upstream servers: which of them a session is passed to, and what is said of those that fail.

use std::io::Write;

use tw_testkit::{Client, wait};

use super::{start, text, upstream};

#[test]
fn refused_connection_goes_to_the_next_server() {
    let addr = upstream(|mut stream| stream.write_all(b"second").unwrap());
    let server = start(&format!(
        "upstream u {{ server 127.0.0.1:9; server {addr}; }}
         log_format l '$status $upstream_addr $upstream_bytes_received';
         access_log logs/access.log l;
         server {{ listen 127.0.0.1:{{port}}; proxy_pass u; }}"
    ));
    assert_eq!(text(server.addr()), "second");
    assert_eq!(server.access_log(1).unwrap(), [format!("200 127.0.0.1:9, {addr} 0, 6")]);
    server
        .wait_error_log("connect() failed (111: Connection refused) while connecting to upstream, client: 127.0.0.1, server: ")
        .unwrap();
    server.wait_error_log("upstream server temporarily disabled while connecting to upstream").unwrap();
}

#[test]
fn session_without_a_server_ends_with_502() {
    let server = start(
        "log_format l '$status [$upstream_addr] $upstream_connect_time';
         access_log logs/access.log l;
         upstream u { server 127.0.0.1:9 down; }
         server { listen 127.0.0.1:{port}; proxy_pass 127.0.0.1:9; }
         server { listen 127.0.0.1:{port1}; proxy_pass u; }",
    );
    assert_eq!(text(server.addr()), "");
    assert_eq!(text(server.addr_of(1)), "");
    assert_eq!(server.access_log(2).unwrap(), ["502 [127.0.0.1:9] -", "502 [u] -"]);
    server
        .wait_error_log("no live upstreams while connecting to upstream, client: 127.0.0.1, server: ")
        .unwrap();
}

#[test]
fn proxy_next_upstream_off_ends_the_session() {
    let addr = upstream(|mut stream| stream.write_all(b"second").unwrap());
    let server = start(&format!(
        "upstream u {{ server 127.0.0.1:9; server {addr} backup; }}
         server {{ listen 127.0.0.1:{{port}}; proxy_pass u; proxy_next_upstream off; }}"
    ));
    assert_eq!(text(server.addr()), "");
}

#[test]
fn variables_name_the_server() {
    let [one, two] = [b"one", b"two"].map(|word| upstream(move |mut stream| stream.write_all(word).unwrap()));
    let server = start(&format!(
        "upstream first {{ server {one}; }}
         map $server_port $target {{ {{port}} first; {{port1}} {two}; default nowhere; }}
         server {{ listen 127.0.0.1:{{port}}; listen 127.0.0.1:{{port1}}; listen 127.0.0.1:{{port2}}; proxy_pass $target; }}"
    ));
    assert_eq!(text(server.addr()), "one");
    assert_eq!(text(server.addr_of(1)), "two");
    assert_eq!(text(server.addr_of(2)), "");
    server.wait_error_log("no port in upstream \"nowhere\", client: 127.0.0.1, server: ").unwrap();
}

#[test]
fn proxy_protocol_header_goes_first() {
    let server = start(
        "server { listen 127.0.0.1:{port}; proxy_pass 127.0.0.1:{port1}; proxy_protocol on; }
         server { listen 127.0.0.1:{port1} proxy_protocol; return '$proxy_protocol_addr $proxy_protocol_port $proxy_protocol_server_port'; }",
    );
    let mut client = server.connect().unwrap();
    let port = client.local_addr().unwrap().port();
    let expected = format!("127.0.0.1 {port} {}", server.addr().port());
    assert_eq!(String::from_utf8(client.read_until_close().unwrap()).unwrap(), expected);
}

#[test]
fn proxy_protocol_version_selects_the_header() {
    let addr = upstream(super::echo);
    let server = start(&format!(
        "proxy_protocol_version 2; proxy_protocol on;
         server {{ listen 127.0.0.1:{{port}}; proxy_pass {addr}; }}
         server {{ listen 127.0.0.1:{{port1}}; proxy_pass {addr}; proxy_protocol_version 1; }}
         server {{ listen 127.0.0.1:{{port2}}; proxy_pass {addr}; proxy_protocol_version 1; proxy_protocol v2; }}
         server {{ listen 127.0.0.1:{{port3}}; proxy_pass {addr}; proxy_protocol off; }}"
    ));
    let v2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
    for (nth, expected) in [(0, v2), (1, b"PROXY TCP4 127.0.0.1 "), (2, v2), (3, b"hello")] {
        let mut client = Client::connect(server.addr_of(nth)).unwrap();
        client.send("hello").unwrap();
        assert_eq!(client.read_bytes(expected.len()).unwrap(), expected, "{nth}");
    }
}

#[test]
fn bytes_behind_a_proxy_protocol_header_reach_the_server() {
    let addr = upstream(super::echo);
    let server = start(&format!("server {{ listen 127.0.0.1:{{port}} proxy_protocol; proxy_pass {addr}; }}"));
    let mut client = server.connect().unwrap();
    client.send("PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\nhello").unwrap();
    assert_eq!(client.read_bytes(5).unwrap(), b"hello");
}

#[test]
fn invalid_proxy_protocol_header_ends_the_session_with_400() {
    let server = start(
        "log_format l $status; access_log logs/access.log l;
         server { listen 127.0.0.1:{port} proxy_protocol; return x; }",
    );
    let mut client = server.connect().unwrap();
    client.send("GET / HTTP/1.1\r\n\r\n").unwrap();
    let _ = client.read_until_close();
    assert_eq!(server.access_log(1).unwrap(), ["400"]);
    server
        .wait_error_log("broken header: \"GET / HTTP/1.1\" while reading PROXY protocol, client: ")
        .unwrap();
}

#[test]
fn connect_timeout_is_logged() {
    // A listener with a full queue does not answer a SYN.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let mut fill = Vec::new();
    let is_full = || {
        match std::net::TcpStream::connect_timeout(&addr, std::time::Duration::from_millis(200)) {
            Ok(stream) => fill.push(stream),
            Err(_) => return true,
        }
        false
    };
    assert!(wait::until(wait::TIMEOUT, is_full), "the queue of the listener is never full");
    let server = start(&format!(
        "server {{ listen 127.0.0.1:{{port}}; proxy_pass {addr}; proxy_connect_timeout 300ms; }}"
    ));
    let mut client = Client::connect(server.addr()).unwrap();
    assert_eq!(client.read_until_close().unwrap(), b"");
    server
        .wait_error_log(
            "upstream timed out (110: Connection timed out) while connecting to upstream, client: ",
        )
        .unwrap();
}

#[test]
fn proxy_protocol_header_follows_a_passed_connection() {
    // Version 2 with the value of type 0xea that AWS sends.
    let tlv = [&[0xea, 0, 7, 1][..], b"vpce-1"].concat();
    let addresses = [192, 0, 2, 1, 192, 0, 2, 2, 0, 5, 0, 6];
    let length = u16::try_from(addresses.len() + tlv.len()).unwrap().to_be_bytes();
    let header = [&b"\r\n\r\n\0\r\nQUIT\n\x21\x11"[..], &length, &addresses, &tlv].concat();
    let facts = "$proxy_protocol_addr:$proxy_protocol_port $proxy_protocol_server_port $proxy_protocol_tlv_0xea \
                 $proxy_protocol_tlv_aws_vpce_id";
    let server = crate::support::server()
        .start(&format!(
            "http {{ server {{ listen 127.0.0.1:{{port2}}; return 200 '{facts}'; }} }}
             stream {{ server {{ listen 127.0.0.1:{{port}} proxy_protocol; pass 127.0.0.1:{{port1}}; }}
             server {{ listen 127.0.0.1:{{port1}}; return '{facts}'; }}
             server {{ listen 127.0.0.1:{{port3}} proxy_protocol; pass 127.0.0.1:{{port2}}; }} }}"
        ))
        .unwrap();
    let expected = "192.0.2.1:5 6 \u{1}vpce-1 vpce-1";
    let mut session = server.connect().unwrap();
    session.send(&header).unwrap();
    assert_eq!(String::from_utf8(session.read_until_close().unwrap()).unwrap(), expected);
    let mut client = Client::connect(server.addr_of(3)).unwrap();
    client.send([&header, &b"GET / HTTP/1.0\r\n\r\n"[..]].concat()).unwrap();
    let answer = String::from_utf8(client.read_until_close().unwrap()).unwrap();
    assert!(answer.ends_with(&format!("\r\n\r\n{expected}")), "{answer}");
}
