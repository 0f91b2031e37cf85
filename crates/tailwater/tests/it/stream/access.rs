//! Modules of every protocol in `stream`: access rules, limits, logs, variables.

use std::net::{SocketAddr, TcpStream};

use tw_testkit::wait;

use super::{echo, start, text, upstream};

#[test]
fn denied_client_gets_nothing() {
    let server = start(
        "log_format l '$remote_addr $status'; access_log logs/access.log l;
         server { listen 127.0.0.1:{port}; deny 127.0.0.1; return hidden; }
         server { listen 127.0.0.1:{port1}; allow 127.0.0.1; deny all; return shown; }",
    );
    assert_eq!(text(server.addr()), "");
    assert_eq!(text(server.addr_of(1)), "shown");
    assert_eq!(server.access_log(2).unwrap(), ["127.0.0.1 403", "127.0.0.1 200"]);
    server.wait_error_log("access forbidden by rule, client: 127.0.0.1, server: 127.0.0.1:").unwrap();
}

#[test]
fn limit_conn_refuses_the_session_that_is_one_too_many() {
    let addr = upstream(echo);
    let server = start(&format!(
        "limit_conn_zone $binary_remote_addr zone=one:32k;
         log_format l '$status $limit_conn_status'; access_log logs/access.log l;
         server {{ listen 127.0.0.1:{{port}}; limit_conn one 1; proxy_pass {addr}; }}"
    ));
    let mut first = server.connect().unwrap();
    first.send("x").unwrap();
    assert_eq!(first.read_bytes(1).unwrap(), b"x");
    assert_eq!(text(server.addr()), "");
    assert_eq!(server.access_log(1).unwrap(), ["503 REJECTED"]);
    server.wait_error_log("limiting connections by zone \"one\", client: 127.0.0.1").unwrap();
    drop(first);
    assert_eq!(server.access_log(2).unwrap()[1], "200 PASSED");
    let mut next = server.connect().unwrap();
    next.send("y").unwrap();
    assert_eq!(next.read_bytes(1).unwrap(), b"y");
}

#[test]
fn return_sends_text_with_variables() {
    let server = start(
        "geo $where { default elsewhere; 127.0.0.0/8 here; }
         split_clients $remote_addr $part { * all; }
         server { listen 127.0.0.1:{port}; set $word $where; return '$protocol $remote_addr $word $part $server_port $connection'; }",
    );
    let expected = format!("TCP 127.0.0.1 here all {} ", server.addr().port());
    assert!(text(server.addr()).starts_with(&expected));
}

#[test]
fn access_log_has_the_bytes_and_times_of_both_sides() {
    let addr = upstream(echo);
    let server = start(&format!(
        "log_format l '$bytes_received $bytes_sent $upstream_addr $upstream_bytes_sent $upstream_bytes_received $session_time $upstream_session_time $upstream_connect_time $upstream_first_byte_time';
         access_log logs/access.log l;
         server {{ listen 127.0.0.1:{{port}}; proxy_pass {addr}; }}"
    ));
    let mut client = server.connect().unwrap();
    client.send("12345").unwrap();
    assert_eq!(client.read_bytes(5).unwrap(), b"12345");
    drop(client);
    let lines = server.access_log(1).unwrap();
    let words: Vec<_> = lines[0].split(' ').collect();
    assert_eq!(words[..5], ["5", "5", &addr.to_string(), "5", "5"]);
    assert!(words[5..].iter().all(|time| time.parse::<f64>().is_ok()), "{lines:?}");
}

#[test]
fn client_that_leaves_at_once_is_no_error() {
    let addr = upstream(echo);
    let server = start(&format!(
        "log_format l '$status'; access_log logs/access.log l;
         server {{ listen 127.0.0.1:{{port}}; proxy_pass {addr}; }}
         server {{ listen 127.0.0.1:{{port1}} proxy_protocol; proxy_pass {addr}; }}"
    ));
    let leave = |addr: SocketAddr| drop(TcpStream::connect(addr).unwrap());
    (0..20).for_each(|_| leave(server.addr()));
    (0..20).for_each(|_| leave(server.addr_of(1)));
    let lines = server.access_log(40).unwrap();
    assert!(lines.iter().all(|line| matches!(&**line, "200" | "400")), "{lines:?}");
    assert!(wait::until(wait::TIMEOUT, || !server.error_log().contains("[alert]")));
}
