//! `listen`: several addresses on one port, Unix sockets.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;

use tw_testkit::Client;

use crate::support::{server, start};

fn text(addr: SocketAddr) -> String {
    Client::get(addr, "/").expect("it answers").text()
}

#[test]
fn address_beside_a_wildcard_has_its_own_servers() {
    let server = start(
        server(),
        "server { listen {port}; return 200 any; } \
         server { listen 127.0.0.2:{port}; listen [::1]:{port}; return 200 one; } \
         server { listen 127.0.0.3:{port} default_server; return 200 default; } \
         server { listen 127.0.0.3:{port}; server_name localhost; return 200 named; }",
    );
    let port = server.addr().port();
    for (last, expected) in [(1, "any"), (2, "one"), (3, "named"), (4, "any")] {
        assert_eq!(text(([127, 0, 0, last], port).into()), expected, "127.0.0.{last}");
    }
    assert_eq!(text((std::net::Ipv6Addr::LOCALHOST, port).into()), "one");
}

#[test]
fn every_loop_of_a_reuseport_socket_answers() {
    let server = server()
        .start("worker_processes 3; http { server { listen 127.0.0.1:{port} reuseport; return 200 here; } }")
        .unwrap();
    // The kernel chooses by a hash of both ends: enough connections meet every socket.
    for _ in 0..32 {
        assert_eq!(text(server.addr()), "here");
    }
}

#[test]
fn unix_socket_is_served() {
    let mut server =
        start(server(), "server { listen unix:{prefix}/socket; listen 127.0.0.1:{port}; return 200 here; }");
    let mut client = UnixStream::connect(server.prefix().join("socket")).unwrap();
    client.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nhere"), "{answer}");
    assert!(server.stop().unwrap().success());
}
