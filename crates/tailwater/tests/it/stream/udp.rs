//! Sessions over datagrams: which datagram belongs to which, what ends them, and where answers come from.

use std::collections::HashSet;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::thread;
use std::time::{Duration, Instant};

use tw_testkit::{Signal, wait};

use super::start;
use crate::support::reload::reload;
use crate::support::{refusal_of, server};

/// A client whose reads give up.
fn client() -> UdpSocket {
    client_at("127.0.0.1:0")
}

fn client_at(address: &str) -> UdpSocket {
    let socket = UdpSocket::bind(address).unwrap();
    socket.set_read_timeout(Some(wait::TIMEOUT)).unwrap();
    socket
}

/// Upstream server that answers each datagram with what `answers` makes of it and of its sender.
fn upstream(answers: impl Fn(&[u8], SocketAddr) -> Vec<Vec<u8>> + Send + 'static) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let addr = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut buffer = vec![0; 65_536];
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            for answer in answers(&buffer[..len], from) {
                let _ = socket.send_to(&answer, from);
            }
        }
    });
    addr
}

fn echo() -> SocketAddr {
    upstream(|bytes, _| vec![bytes.to_vec()])
}

/// Upstream server that answers with the port it was asked from: another session has another one.
fn port_teller() -> SocketAddr {
    upstream(|_, from| vec![from.port().to_string().into_bytes()])
}

fn ask(client: &UdpSocket, server: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    client.send_to(bytes, server).unwrap();
    receive(client)
}

fn receive(client: &UdpSocket) -> Vec<u8> {
    let mut buffer = vec![0; 65_536];
    let (len, _) = client.recv_from(&mut buffer).unwrap();
    buffer.truncate(len);
    buffer
}

/// Asserts that nothing more comes.
fn assert_silent(client: &UdpSocket) {
    client.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(client.recv_from(&mut [0; 9]).is_err());
    client.set_read_timeout(Some(wait::TIMEOUT)).unwrap();
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

#[test]
fn tcp_and_udp_on_one_port_are_two_servers() {
    let server = start(
        "server { listen 127.0.0.1:{port}; return '$protocol'; }
         server { listen 127.0.0.1:{port} udp; return '$protocol $remote_addr $server_port $bytes_received'; }",
    );
    assert_eq!(super::text(server.addr()), "TCP");
    let answer = text(ask(&client(), server.addr(), b"hello"));
    assert_eq!(answer, format!("UDP 127.0.0.1 {} 5", server.addr().port()));
}

#[test]
fn http_over_tcp_and_a_session_over_udp_share_a_port() {
    let server = server()
        .start(
            "http { server { listen 127.0.0.1:{port}; return 200 page; } }
             stream { server { listen 127.0.0.1:{port} udp; return datagram; } }",
        )
        .unwrap();
    assert_eq!(tw_testkit::Client::get(server.addr(), "/").unwrap().text(), "page");
    assert_eq!(ask(&client(), server.addr(), b"x"), b"datagram");
}

#[test]
fn every_datagram_is_a_session_of_return() {
    let server = start(
        "log_format l '$status $bytes_received $bytes_sent'; access_log logs/access.log l;
         server { listen 127.0.0.1:{port} udp; return $connection; }",
    );
    let client = client();
    for _ in 0..20 {
        client.send_to(b"ab", server.addr()).unwrap();
    }
    let numbers: HashSet<_> = (0..20).map(|_| receive(&client)).collect();
    assert_eq!(numbers.len(), 20);
    let lines = server.access_log(20).unwrap();
    assert!(lines.iter().all(|line| line.starts_with("200 2 ")), "{lines:?}");
}

#[test]
fn many_clients_have_a_session_and_a_port_each() {
    let addr = echo();
    let ports = port_teller();
    let server = start(&format!(
        "server {{ listen 127.0.0.1:{{port}} udp; proxy_pass {addr}; }}
         server {{ listen 127.0.0.1:{{port1}} udp; proxy_pass {ports}; }}"
    ));
    let clients: Vec<_> = (0..40).map(|_| client()).collect();
    for round in 0..3 {
        for (at, client) in clients.iter().enumerate() {
            client.send_to(format!("{round} {at}").as_bytes(), server.addr()).unwrap();
        }
        for (at, client) in clients.iter().enumerate() {
            assert_eq!(text(receive(client)), format!("{round} {at}"));
        }
    }
    let ask_port = |client| text(ask(client, server.addr_of(1), b"x"));
    let first: Vec<_> = clients.iter().map(ask_port).collect();
    assert_eq!(first.iter().collect::<HashSet<_>>().len(), clients.len());
    assert_eq!(clients.iter().map(ask_port).collect::<Vec<_>>(), first);
}

#[test]
fn datagrams_of_any_size_keep_their_borders() {
    let addr = echo();
    let server = start(&format!("server {{ listen 127.0.0.1:{{port}} udp; proxy_pass {addr}; }}"));
    let client = client();
    let large: Vec<_> = (0..65_507).map(|at| at as u8).collect();
    for bytes in [&b""[..], b"x", &large, b"", &large[..9000]] {
        assert!(ask(&client, server.addr(), bytes) == bytes, "{}", bytes.len());
    }
    // Some datagrams of a burst may be dropped, but none is split or merged.
    for at in 0..32 {
        client.send_to(&vec![at; 100 + usize::from(at)], server.addr()).unwrap();
    }
    for _ in 0..32 {
        let bytes = receive(&client);
        assert!(bytes.len() == 100 + usize::from(bytes[0]) && bytes.iter().all(|byte| *byte == bytes[0]));
    }
}

#[test]
fn burst_of_a_server_arrives_as_datagrams() {
    let addr = upstream(|_, _| (0..40).map(|at| vec![at; 1000]).collect());
    let server = start(&format!("server {{ listen 127.0.0.1:{{port}} udp; proxy_pass {addr}; }}"));
    let client = client();
    client.send_to(b"x", server.addr()).unwrap();
    for at in 0..40 {
        assert!(receive(&client) == vec![at; 1000]);
    }
}

#[test]
fn proxy_responses_ends_the_session_and_is_the_most_that_comes() {
    let addr = upstream(|_, from| (0..3).map(|at| format!("{at} {}", from.port()).into_bytes()).collect());
    let server = start(&format!(
        "log_format l '$server_port $status $bytes_sent'; access_log logs/access.log l;
         server {{ listen 127.0.0.1:{{port}} udp; proxy_pass {addr}; proxy_responses 0; }}
         server {{ listen 127.0.0.1:{{port1}} udp; proxy_pass {addr}; proxy_responses 1; }}
         server {{ listen 127.0.0.1:{{port2}} udp; proxy_pass {addr}; proxy_responses 2; }}"
    ));
    for (index, count) in [(0, 0), (1, 1), (2, 2)] {
        let client = client();
        client.send_to(b"x", server.addr_of(index)).unwrap();
        let answers: Vec<_> = (0..count).map(|_| text(receive(&client))).collect();
        assert!(answers.iter().enumerate().all(|(at, answer)| answer.starts_with(&format!("{at} "))));
        assert_silent(&client);
        let lines = server.access_log(index + 1).unwrap();
        let expected = format!("{} 200 ", server.addr_of(index).port());
        assert!(lines.iter().any(|line| line.starts_with(&expected)), "{lines:?}");
    }
    server.wait_error_log("udp done, packets from/to client:1/2, bytes from/to client:1/").unwrap();
}

#[test]
fn proxy_requests_ends_what_belongs_to_a_session() {
    let addr = port_teller();
    let server = start(&format!(
        "log_format l $status; access_log logs/access.log l;
         server {{ listen 127.0.0.1:{{port}} udp; proxy_pass {addr}; proxy_requests 2; proxy_responses 1; }}"
    ));
    let client = client();
    for _ in 0..5 {
        client.send_to(b"x", server.addr()).unwrap();
    }
    let mut counts = std::collections::HashMap::new();
    (0..5).for_each(|_| *counts.entry(receive(&client)).or_insert(0) += 1);
    let mut counts: Vec<_> = counts.into_values().collect();
    counts.sort_unstable();
    assert_eq!(counts, [1, 2, 2]);
    assert_eq!(server.access_log(2).unwrap(), ["200", "200"]);
}

#[test]
fn silence_ends_a_session() {
    let addr = port_teller();
    let mute = upstream(|_, _| Vec::new());
    let server = start(&format!(
        "log_format l '$status $bytes_received $bytes_sent $upstream_addr'; access_log logs/access.log l;
         proxy_timeout 300ms;
         server {{ listen 127.0.0.1:{{port}} udp; proxy_pass {addr}; }}
         server {{ listen 127.0.0.1:{{port1}} udp; proxy_pass {mute}; proxy_responses 1; }}"
    ));
    let client = client();
    let first = ask(&client, server.addr(), b"x");
    assert_eq!(ask(&client, server.addr(), b"x"), first);
    let len = first.len() * 2;
    assert_eq!(server.access_log(1).unwrap(), [format!("200 2 {len} {addr}")]);
    server.wait_error_log("udp timed out, packets from/to client:2/2, bytes from/to client:2/").unwrap();
    assert_ne!(ask(&client, server.addr(), b"x"), first);
    client.send_to(b"x", server.addr_of(1)).unwrap();
    server
        .wait_error_log("upstream timed out (110: Connection timed out) while proxying connection, udp client: 127.0.0.1, server: ")
        .unwrap();
    let is_failed = |line: &String| *line == format!("502 1 0 {mute}");
    assert!(wait::until(wait::TIMEOUT, || server.access_log(2).unwrap().iter().any(is_failed)));
}

#[test]
fn refused_datagram_disables_the_server_for_the_next_session() {
    let addr = echo();
    let nobody = tw_testkit::ports::Port::reserve().unwrap();
    let server = start(&format!(
        "upstream u {{ server 127.0.0.1:{}; server {addr}; }}
         log_format l $status; access_log logs/access.log l;
         server {{ listen 127.0.0.1:{{port}} udp; proxy_pass u; }}",
        nobody.number()
    ));
    let client = client();
    client.send_to(b"one", server.addr()).unwrap();
    assert_eq!(server.access_log(1).unwrap(), ["502"]);
    server
        .wait_error_log(
            "recv() failed (111: Connection refused) while proxying and reading from upstream, udp client: ",
        )
        .unwrap();
    server.wait_error_log("upstream server temporarily disabled while proxying connection").unwrap();
    for _ in 0..4 {
        assert_eq!(ask(&client_at("127.0.0.1:0"), server.addr(), b"two"), b"two");
    }
}

#[test]
fn loops_keep_the_sessions_of_their_clients() {
    let addr = port_teller();
    let server = server()
        .start(&format!(
            "worker_processes 3;
             stream {{ log_format l '$worker'; access_log logs/access.log l;
             server {{ listen 127.0.0.1:{{port}} udp; proxy_pass {addr}; proxy_timeout 2s; }} }}"
        ))
        .unwrap();
    let clients: Vec<_> = (0..48).map(|_| client()).collect();
    let first: Vec<_> = clients.iter().map(|client| ask(client, server.addr(), b"x")).collect();
    for _ in 0..3 {
        for (client, port) in clients.iter().zip(&first) {
            assert_eq!(ask(client, server.addr(), b"x"), *port);
        }
    }
    let loops: HashSet<_> = server.access_log(48).unwrap().into_iter().collect();
    assert_eq!(loops.len(), 3, "the kernel spreads clients over all loops");
}

#[test]
fn reload_changes_the_number_of_loops() {
    let addr = echo();
    let conf = |loops: usize| {
        format!(
            "worker_processes {loops}; stream {{ server {{ listen 127.0.0.1:{{port}} udp; proxy_pass {addr}; }}
             server {{ listen 127.0.0.1:{{port1}} udp; return {loops}; }} }}"
        )
    };
    let mut server = server().with_master().start(&conf(1)).unwrap();
    for loops in [3, 1, 2] {
        reload(&mut server, &conf(loops));
        // A socket that no loop reads any more would leave some clients without an answer.
        let is_new =
            || (0..16).all(|_| ask(&client(), server.addr_of(1), b"x") == loops.to_string().into_bytes());
        assert!(wait::until(wait::TIMEOUT, is_new), "{}", server.error_log());
        assert!((0..16).all(|_| ask(&client(), server.addr(), b"x") == b"x"));
    }
}

#[test]
fn wildcard_listen_answers_from_the_address_that_was_asked() {
    let addr = echo();
    let server = start(&format!(
        "server {{ listen {{port}} udp; listen [::]:{{port}} udp; proxy_pass {addr}; }}
         server {{ listen {{port1}} udp; return $server_addr; }}
         server {{ listen 127.0.0.5:{{port1}} udp; return five; }}"
    ));
    for host in ["127.0.0.2", "127.0.0.1", "127.0.0.3", "[::1]"] {
        let client = client_at(if host == "[::1]" { "[::1]:0" } else { "127.0.0.1:0" });
        let to: SocketAddr = format!("{host}:{}", server.addr().port()).parse().unwrap();
        client.send_to(b"x", to).unwrap();
        assert_eq!(client.recv_from(&mut [0; 9]).unwrap().1, to);
    }
    let one = client();
    for (host, expected) in [("127.0.0.2", "127.0.0.2"), ("127.0.0.1", "127.0.0.1"), ("127.0.0.5", "five")] {
        let to: SocketAddr = format!("{host}:{}", server.addr_of(1).port()).parse().unwrap();
        assert_eq!(text(ask(&one, to, b"x")), expected, "one client has a session for each address");
    }
}

#[test]
fn session_goes_on_over_a_reload() {
    let addr = port_teller();
    let conf = |text: &str| {
        format!(
            "stream {{ log_format l '{text} $status'; access_log logs/access.log l; proxy_timeout 1s;
             server {{ listen 127.0.0.1:{{port}} udp; proxy_pass {addr}; }}
             server {{ listen 127.0.0.1:{{port1}} udp; return {text}; }} }}"
        )
    };
    let mut server = server().start(&conf("old")).unwrap();
    let session = client();
    let port = ask(&session, server.addr(), b"x");
    reload(&mut server, &conf("new"));
    let to = server.addr_of(1);
    assert!(wait::until(wait::TIMEOUT, || ask(&client(), to, b"x") == b"new"));
    assert_eq!(ask(&session, server.addr(), b"x"), port);
    let is_logged = || {
        let log = std::fs::read_to_string(server.prefix().join("logs/access.log")).unwrap_or_default();
        log.lines().any(|line| line == "old 200" && log.contains("new 200"))
    };
    assert!(wait::until(wait::TIMEOUT, is_logged));
}

#[test]
fn address_that_a_reload_takes_away_ends_its_sessions_and_is_free() {
    let addr = echo();
    let kept = "server { listen 127.0.0.1:{port1}; return kept; }";
    let conf = |udp: &str| format!("stream {{ {kept} {udp} }}");
    let udp = format!("server {{ listen 127.0.0.1:{{port}} udp; proxy_pass {addr}; }}");
    let mut server = server().start(&conf(&udp)).unwrap();
    let session = client();
    assert_eq!(ask(&session, server.addr(), b"x"), b"x");
    reload(&mut server, &conf(""));
    server.wait_error_log("listening socket closed, packets from/to client:1/1").unwrap();
    let to = server.addr();
    assert!(wait::until(wait::TIMEOUT, || UdpSocket::bind(to).is_ok()));
    reload(&mut server, &conf(&udp));
    let answers = || {
        let other = client();
        other.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        other.send_to(b"y", to).is_ok() && other.recv_from(&mut [0; 9]).is_ok()
    };
    assert!(wait::until(wait::TIMEOUT, answers), "{}", server.error_log());
}

#[test]
fn quit_lets_expected_responses_arrive_and_waits_for_no_others() {
    let slow = upstream(|bytes, _| {
        // The test sends the signal meanwhile.
        assert!(!wait::until(Duration::from_millis(700), || false));
        vec![bytes.to_vec()]
    });
    let mut server = start(&format!(
        "server {{ listen 127.0.0.1:{{port}} udp; proxy_pass {slow}; proxy_responses 1; }}
         server {{ listen 127.0.0.1:{{port1}} udp; proxy_pass {}; }}",
        echo()
    ));
    let waiting = client();
    let idle = client();
    assert_eq!(ask(&idle, server.addr_of(1), b"x"), b"x");
    waiting.send_to(b"late", server.addr()).unwrap();
    server.wait_error_log(&format!("connected to {slow}")).unwrap();
    let begin = Instant::now();
    server.signal(Signal::QUIT).unwrap();
    assert_eq!(receive(&waiting), b"late");
    assert!(server.wait_exit(wait::TIMEOUT).unwrap().success());
    assert!(begin.elapsed() < Duration::from_secs(8), "a silent session does not keep the process");
}

#[test]
fn too_many_sessions_end_the_longest_idle_one() {
    let addr = port_teller();
    let server = server()
        .start(&format!(
            "events {{ worker_connections 40; }}
             stream {{ log_format l $status; access_log logs/access.log l;
             server {{ listen 127.0.0.1:{{port}} udp; proxy_pass {addr}; }} }}"
        ))
        .unwrap();
    let clients: Vec<_> = (0..30).map(|_| client()).collect();
    let favourite = client();
    let port = ask(&favourite, server.addr(), b"x");
    for client in &clients {
        ask(client, server.addr(), b"x");
        assert_eq!(ask(&favourite, server.addr(), b"x"), port, "a session in use stays");
    }
    assert!(server.access_log(11).unwrap().iter().all(|line| line == "503"));
    server
        .wait_error_log("sessions over UDP are not enough (worker_connections), reusing the longest idle")
        .unwrap();
}

#[test]
fn access_rules_and_limits_hold_for_datagrams() {
    let addr = echo();
    let server = start(&format!(
        "limit_conn_zone $binary_remote_addr zone=z:32k;
         log_format l '$protocol $status'; access_log logs/access.log l;
         server {{ listen 127.0.0.1:{{port}} udp; deny all; proxy_pass {addr}; }}
         server {{ listen 127.0.0.1:{{port1}} udp; limit_conn z 1; proxy_pass {addr}; }}"
    ));
    let one = client();
    one.send_to(b"x", server.addr()).unwrap();
    assert_eq!(server.access_log(1).unwrap(), ["UDP 403"]);
    server.wait_error_log("access forbidden by rule, udp client: 127.0.0.1, server: 127.0.0.1:").unwrap();
    assert_eq!(ask(&one, server.addr_of(1), b"x"), b"x");
    client().send_to(b"x", server.addr_of(1)).unwrap();
    assert_eq!(server.access_log(2).unwrap()[1], "UDP 503");
    assert_eq!(ask(&one, server.addr_of(1), b"y"), b"y");
}

#[test]
fn proxy_protocol_header_stands_in_front_of_the_first_datagram() {
    let addr = echo();
    let server =
        start(&format!("server {{ listen 127.0.0.1:{{port}} udp; proxy_pass {addr}; proxy_protocol on; }}"));
    let client = client();
    let from = client.local_addr().unwrap().port();
    let to = server.addr().port();
    let header = format!("PROXY TCP4 127.0.0.1 127.0.0.1 {from} {to}\r\none");
    assert_eq!(text(ask(&client, server.addr(), b"one")), header);
    assert_eq!(ask(&client, server.addr(), b"two"), b"two");
}

#[test]
fn rates_hold_datagrams_back() {
    let addr = echo();
    let server = start(&format!(
        "server {{ listen 127.0.0.1:{{port}} udp; proxy_pass {addr}; proxy_upload_rate 500; }}
         server {{ listen 127.0.0.1:{{port1}} udp; proxy_pass {addr}; proxy_download_rate 500; }}"
    ));
    for index in 0..2 {
        let client = client();
        let begin = Instant::now();
        assert_eq!(ask(&client, server.addr_of(index), &[b'x'; 1000]).len(), 1000);
        assert_eq!(ask(&client, server.addr_of(index), b"y"), b"y");
        assert!(begin.elapsed() >= Duration::from_secs(1), "{:?}", begin.elapsed());
    }
}

#[test]
fn unix_socket_takes_datagrams() {
    let server = start(
        "server { listen 127.0.0.1:{port}; listen unix:{prefix}/d udp; return '$protocol $remote_addr'; }",
    );
    let client = std::os::unix::net::UnixDatagram::bind(server.prefix().join("c")).unwrap();
    // The worker process is another user.
    std::fs::set_permissions(server.prefix().join("c"), std::fs::Permissions::from_mode(0o777)).unwrap();
    client.set_read_timeout(Some(wait::TIMEOUT)).unwrap();
    client.send_to(b"x", server.prefix().join("d")).unwrap();
    let mut buffer = [0; 64];
    let len = client.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..len], b"UDP unix:");
}

#[test]
fn parameters_of_connections_are_refused() {
    for name in
        ["ssl", "proxy_protocol", "fastopen=3", "backlog=5", "deferred", "multipath", "so_keepalive=on"]
    {
        let refused =
            refusal_of(&format!("stream {{ server {{ listen 127.0.0.1:{{port}} {name} udp; return x; }} }}"));
        let shown = name.split('=').next().unwrap();
        let expected = format!("\"listen\" directive \"{shown}\" parameter is incompatible with \"udp\"");
        assert!(refused.contains(&expected), "{refused}");
    }
    let twice = "server { listen 127.0.0.1:{port} udp; return x; }";
    let refused = refusal_of(&format!(
        "stream {{ {twice} server {{ listen 127.0.0.1:{{port}} udp; listen 127.0.0.1:{{port}} udp; }} }}"
    ));
    assert!(refused.contains("a duplicate listen 127.0.0.1:"), "{refused}");
}
