//! Datagrams from sources that nobody sends from, to servers that do not listen, and for clients that are gone.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use tw_testkit::ports::Port;
use tw_testkit::wait;

use super::short_sessions::open_files;
use super::start;
use crate::support::count_in_error_log;
use crate::support::server;

fn client_at(address: Ipv4Addr) -> UdpSocket {
    let socket = UdpSocket::bind((address, 0)).unwrap();
    socket.set_read_timeout(Some(wait::TIMEOUT)).unwrap();
    socket
}

/// Upstream server that sends each datagram back so many times.
fn echo(times: usize) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let addr = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut buffer = vec![0; 65_536];
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            for _ in 0..times {
                let _ = socket.send_to(&buffer[..len], from);
            }
        }
    });
    addr
}

/// Sends a datagram and returns the answer.
fn ask(client: &UdpSocket, server: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    client.send_to(bytes, server).unwrap();
    let mut buffer = vec![0; 65_536];
    let (len, _) = client.recv_from(&mut buffer).unwrap();
    buffer.truncate(len);
    buffer
}

/// Addresses of the loopback interface, which has sixteen million.
fn sources() -> impl Iterator<Item = Ipv4Addr> {
    (0_u32..).map(|nth| Ipv4Addr::from(0x7f01_0001 + nth))
}

#[test]
fn sources_without_number_take_a_limited_number_of_sessions() {
    let addr = echo(1);
    let server = server()
        .start(&format!(
            "events {{ worker_connections 100; }}
             stream {{ error_log logs/error.log warn;
             server {{ listen 0.0.0.0:{{port}} udp; proxy_pass {addr}; proxy_timeout 1h; }}
             server {{ listen 127.0.0.1:{{port1}} udp; proxy_pass {addr}; }} }}"
        ))
        .unwrap();
    // A client asks again if its session had to make room before the answer came.
    let regular = client_at(Ipv4Addr::LOCALHOST);
    regular.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let is_served = || {
        regular.send_to(b"regular", server.addr_of(1)).unwrap();
        regular.recv(&mut [0; 9]).is_ok()
    };
    assert!(is_served());
    let before = open_files(&server);
    let to = server.addr();
    let mut most = 0;
    for (nth, source) in sources().take(3_000).enumerate() {
        // The source is gone when the answer comes.
        client_at(source).send_to(b"x", to).unwrap();
        if nth % 100 == 0 {
            most = most.max(open_files(&server));
            assert!(wait::until(wait::TIMEOUT, is_served), "{}", server.error_log());
        }
    }
    assert!(most <= before + 50, "{most} descriptors, {before} before");
    server.wait_error_log("are not enough (worker_connections), reusing the longest idle").unwrap();
    // Reported once a second, however many there are.
    assert!(count_in_error_log(&server, "reusing the longest idle") < 60);
    assert_eq!(count_in_error_log(&server, "[alert]") + count_in_error_log(&server, "[crit]"), 0);
}

#[test]
fn source_gets_no_more_answers_than_are_configured() {
    let addr = echo(50);
    let server = start(&format!(
        "log_format l '$bytes_received $bytes_sent'; access_log logs/access.log l;
         server {{ listen 127.0.0.1:{{port}} udp; proxy_pass {addr}; proxy_responses 1; }}"
    ));
    for (nth, source) in sources().take(20).enumerate() {
        let victim = client_at(source);
        assert_eq!(ask(&victim, server.addr(), &[b'x'; 100]).len(), 100);
        assert_eq!(server.access_log(nth + 1).unwrap()[nth], "100 100");
        victim.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        assert!(victim.recv(&mut [0; 9]).is_err());
    }
}

#[test]
fn client_that_is_gone_disturbs_nobody() {
    let addr = echo(3);
    let server = start(&format!(
        "log_format l $status; access_log logs/access.log l;
         server {{ listen 127.0.0.1:{{port}} udp; proxy_pass {addr}; proxy_timeout 500ms; }}
         server {{ listen 127.0.0.1:{{port1}} udp; return answer; }}"
    ));
    let stays = client_at(Ipv4Addr::LOCALHOST);
    // Each client has an address of its own, because the port of a closed socket may be used again.
    for source in sources().take(100) {
        client_at(source).send_to(b"x", server.addr()).unwrap();
        client_at(source).send_to(b"x", server.addr_of(1)).unwrap();
        assert_eq!(ask(&stays, server.addr_of(1), b"y"), b"answer");
    }
    assert_eq!(ask(&stays, server.addr(), b"echo"), b"echo");
    // Errors that the network reports for those that are gone end no session of others.
    let lines = server.access_log(301).unwrap();
    assert!(lines.iter().all(|line| line == "200"), "{lines:?}");
}

#[test]
fn servers_that_are_all_down_get_a_new_chance() {
    let ports = [(); 2].map(|()| Port::reserve().unwrap());
    let [one, two] = ports.each_ref().map(|port| SocketAddr::from(([127, 0, 0, 1], port.number())));
    let server = start(&format!(
        "log_format l '$status [$upstream_addr]'; access_log logs/access.log l;
         upstream u {{ server {one} fail_timeout=1s; server {two} fail_timeout=1s; }}
         server {{ listen 127.0.0.1:{{port}} udp; proxy_pass u; proxy_timeout 2s; }}"
    ));
    // The network reports that the port is closed; the client gets no datagram.
    for nth in 1..=3 {
        client_at(Ipv4Addr::LOCALHOST).send_to(b"x", server.addr()).unwrap();
        server.access_log(nth).unwrap();
    }
    let lines = server.access_log(3).unwrap();
    assert!(lines.iter().all(|line| line.starts_with("502 [")), "{lines:?}");
    assert_eq!(lines[2], "502 [u]");
    let socket = UdpSocket::bind(one).unwrap();
    thread::spawn(move || {
        while let Ok((_, from)) = socket.recv_from(&mut [0; 100]) {
            let _ = socket.send_to(b"back", from);
        }
    });
    let is_back = || {
        let client = client_at(Ipv4Addr::LOCALHOST);
        client.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        client.send_to(b"x", server.addr()).unwrap();
        client.recv(&mut [0; 9]).is_ok_and(|len| len == 4)
    };
    assert!(wait::until(wait::TIMEOUT, is_back), "{}", server.error_log());
}

#[test]
fn datagrams_with_errors_of_the_network_end_only_their_session() {
    let addr = echo(1);
    let nobody = Port::reserve().unwrap();
    let server = start(&format!(
        "log_format l '$server_port $status'; access_log logs/access.log l;
         server {{ listen 127.0.0.1:{{port}} udp; proxy_pass 127.0.0.1:{}; }}
         server {{ listen 127.0.0.1:{{port1}} udp; proxy_pass {addr}; }}",
        nobody.number()
    ));
    let stays = client_at(Ipv4Addr::LOCALHOST);
    for (nth, source) in sources().take(50).enumerate() {
        client_at(source).send_to(&vec![b'x'; nth * 1000], server.addr()).unwrap();
        assert_eq!(ask(&stays, server.addr_of(1), b"y"), b"y");
    }
    let port = server.addr().port();
    let lines = server.access_log(50).unwrap();
    assert!(lines.iter().all(|line| *line == format!("{port} 502")), "{lines:?}");
}
