//! Sessions over UDP that go on in the next worker process, with their sockets: after a binary upgrade, and after the replacement of a worker
//! process; and those that cannot.

use std::net::{SocketAddr, UdpSocket};

use tw_testkit::{Server, Signal, wait};

use super::long_sessions::{datagram_socket, receive, serving, start_new_binary, upgrade};
use crate::support::metrics::metric;
use crate::support::process::{is_gone, kill, stat, worker};
use crate::support::reload::reload;
use crate::support::server;

const CLIENTS: usize = 40;

/// Metrics at the first address, the process that serves at the second one, sessions at the third one.
fn conf(main: &str, proxy: &str) -> String {
    format!(
        "{main} http {{ access_log off; server {{ listen 127.0.0.1:{{port}}; location = /metrics {{ metrics; }} }} }}
         stream {{
             log_format l '$status $bytes_received $bytes_sent $upstream_bytes_sent $upstream_bytes_received $pid';
             server {{ listen 127.0.0.1:{{port1}}; return $pid; }}
             server {{ listen 127.0.0.1:{{port2}} udp; {proxy} access_log logs/udp.log l; }}
         }}"
    )
}

/// Upstream server that answers with the port it was asked from: another session has another one.
fn port_teller() -> SocketAddr {
    let socket = datagram_socket();
    socket.set_read_timeout(None).unwrap();
    let addr = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        while let Ok((_, from)) = socket.recv_from(&mut [0; 64]) {
            let _ = socket.send_to(from.port().to_string().as_bytes(), from);
        }
    });
    addr
}

fn ask(client: &UdpSocket, server: &Server) -> String {
    client.send_to(b"x", server.addr_of(2)).unwrap();
    receive(client).0
}

fn clients() -> Vec<UdpSocket> {
    (0..CLIENTS).map(|_| datagram_socket()).collect()
}

/// Reloads with another environment, which no process can take over while it runs, and waits for the next process.
fn replace_worker(server: &mut Server, conf: &str) -> u32 {
    let before = worker(server);
    reload(server, conf);
    let is_new = || (0..8).all(|_| serving(server) != before);
    assert!(wait::until(wait::TIMEOUT, is_new), "{}", server.error_log());
    before
}

#[track_caller]
fn wait_metric(server: &Server, name: &str, expected: usize) {
    let is_expected = || metric(server, name) as usize == expected;
    assert!(wait::until(wait::TIMEOUT, is_expected), "{name}: {}", server.error_log());
}

#[test]
fn sessions_keep_their_ports_over_a_binary_upgrade() {
    let proxy = format!("proxy_pass {};", port_teller());
    let server = server().with_master().start(&conf("worker_processes 2;", &proxy)).unwrap();
    let clients = clients();
    let before = worker(&server);
    let ports: Vec<_> = clients.iter().map(|client| ask(client, &server)).collect();
    let old = upgrade(&server);
    wait_metric(&server, "udp_sessions_taken_over_total", CLIENTS);
    for _ in 0..3 {
        let after: Vec<_> = clients.iter().map(|client| ask(client, &server)).collect();
        assert_eq!(after, ports, "{}", server.error_log());
    }
    assert_eq!(metric(&server, "udp_sessions_not_taken_over_total"), 0);
    // The old processes end, because they have no sessions left.
    assert!(wait::until(wait::TIMEOUT, || is_gone(old) && is_gone(before)), "{}", server.error_log());
    let line = format!("{CLIENTS} sessions over UDP go on in the next worker process, 0 end in this one");
    server.wait_error_log(&line).unwrap();
}

#[test]
fn sessions_keep_their_ports_over_the_replacement_of_their_worker() {
    let proxy = format!("proxy_pass {};", port_teller());
    let mut server = server().with_master().start(&conf("worker_processes 2;", &proxy)).unwrap();
    let clients = clients();
    let ports: Vec<_> = clients.iter().map(|client| ask(client, &server)).collect();
    // With another number of loops, the kernel sends the datagrams of some clients to another loop.
    for main in ["worker_processes 2; env A=b;", "worker_processes 4;", "worker_processes 1; env A=b;"] {
        let before = replace_worker(&mut server, &conf(main, &proxy));
        wait_metric(&server, "udp_sessions_taken_over_total", CLIENTS);
        for _ in 0..3 {
            let after: Vec<_> = clients.iter().map(|client| ask(client, &server)).collect();
            assert_eq!(after, ports, "{main}: {}", server.error_log());
        }
        assert!(wait::until(wait::TIMEOUT, || is_gone(before)), "{}", server.error_log());
    }
}

#[test]
fn older_session_goes_on_when_both_binaries_have_one() {
    let proxy = format!("proxy_pass {};", port_teller());
    let server = server().with_master().start(&conf("", &proxy)).unwrap();
    let client = datagram_socket();
    let before = worker(&server);
    let port = ask(&client, &server);
    let old = start_new_binary(&server);
    // While the old worker process stands still, the new one receives.
    kill(before, Signal::STOP);
    let is_stopped = || stat(before).is_some_and(|stat| stat.state == b'T');
    assert!(wait::until(wait::TIMEOUT, is_stopped));
    let other = ask(&client, &server);
    kill(before, Signal::CONT);
    assert_ne!(other, port);
    kill(old, Signal::QUIT);
    wait_metric(&server, "udp_sessions_taken_over_total", 1);
    for _ in 0..3 {
        assert_eq!(ask(&client, &server), port, "{}", server.error_log());
    }
}

#[test]
fn session_with_a_wildcard_address_answers_from_the_address_that_was_asked() {
    let proxy = format!("proxy_pass {};", port_teller());
    // The specific addresses use the socket of the wildcard.
    let conf = |main: &str| {
        let conf = conf(main, &format!("listen [::]:{{port2}} udp; listen 127.0.0.5:{{port2}} udp; {proxy}"));
        conf.replace("listen 127.0.0.1:{port2} udp;", "listen {port2} udp;")
    };
    let mut server = server().with_master().start(&conf("worker_processes 2;")).unwrap();
    let hosts = ["127.0.0.2", "127.0.0.1", "127.0.0.5", "[::1]"];
    let clients =
        hosts.map(|host| UdpSocket::bind(if host == "[::1]" { "[::1]:0" } else { "127.0.0.1:0" }).unwrap());
    let ask = |server: &Server| {
        let answers = hosts.iter().zip(&clients).map(|(host, client)| {
            let to: SocketAddr = format!("{host}:{}", server.addr_of(2).port()).parse().unwrap();
            client.set_read_timeout(Some(wait::TIMEOUT)).unwrap();
            client.send_to(b"x", to).unwrap();
            let (text, from) = receive(client);
            assert_eq!(from, to);
            text
        });
        answers.collect::<Vec<_>>()
    };
    let ports = ask(&server);
    replace_worker(&mut server, &conf("worker_processes 2; env A=b;"));
    wait_metric(&server, "udp_sessions_taken_over_total", hosts.len());
    assert_eq!(ask(&server), ports);
    assert_eq!(ask(&server), ports);
}

#[test]
fn response_and_counts_go_on_in_the_next_worker() {
    let upstream = datagram_socket();
    let client = datagram_socket();
    let proxy =
        format!("proxy_pass {}; proxy_responses 2; proxy_requests 2;", upstream.local_addr().unwrap());
    let mut server = server().with_master().start(&conf("", &proxy)).unwrap();
    let to = server.addr_of(2);
    client.send_to(b"first", to).unwrap();
    let (_, session) = receive(&upstream);
    upstream.send_to(b"one", session).unwrap();
    assert_eq!(receive(&client), ("one".to_owned(), to));
    let before = replace_worker(&mut server, &conf("env A=b;", &proxy));
    assert!(wait::until(wait::TIMEOUT, || is_gone(before)), "{}", server.error_log());
    // Expected since before, and not asked for again.
    upstream.send_to(b"second", session).unwrap();
    assert_eq!(receive(&client), ("second".to_owned(), to));
    client.send_to(b"last", to).unwrap();
    assert_eq!(receive(&upstream), ("last".to_owned(), session));
    for _ in 0..2 {
        upstream.send_to(b"end", session).unwrap();
        assert_eq!(receive(&client).0, "end");
    }
    // The log has one session, which ends with the datagrams that belong to it.
    let after = worker(&server);
    assert_eq!(server.log("logs/udp.log", 1).unwrap(), [format!("200 9 15 9 15 {after}")]);
}

#[test]
fn sessions_with_a_server_of_a_group_go_on_where_they_were() {
    let one = port_teller();
    let other = port_teller();
    let group = |servers: &str| format!("stream {{ upstream group {{ zone z 64k; {servers} }}");
    let with_group =
        |main: &str, servers: &str| conf(main, "proxy_pass group;").replace("stream {", &group(servers));
    let both = format!("server {one}; server {other};");
    let mut server = server().with_master().start(&with_group("", &both)).unwrap();
    let clients = clients();
    let ports: Vec<_> = clients.iter().map(|client| ask(client, &server)).collect();
    // After one of the two servers is removed, half of the sessions are not taken over.
    replace_worker(&mut server, &with_group("env A=b;", &format!("server {other};")));
    wait_metric(&server, "udp_sessions_taken_over_total", CLIENTS / 2);
    wait_metric(&server, "udp_sessions_not_taken_over_total", CLIENTS / 2);
    let after: Vec<_> = clients.iter().map(|client| ask(client, &server)).collect();
    let same = after.iter().zip(&ports).filter(|(after, before)| after == before).count();
    assert_eq!(same, CLIENTS / 2);
    let line =
        format!("{0} sessions over UDP go on in the next worker process, {0} end in this one", CLIENTS / 2);
    server.wait_error_log(&line).unwrap();
}

#[test]
fn session_of_an_address_that_is_gone_ends_in_its_worker() {
    let upstream = datagram_socket();
    let client = datagram_socket();
    let proxy = format!("proxy_pass {}; proxy_responses 1;", upstream.local_addr().unwrap());
    let mut server = server().with_master().start(&conf("", &proxy)).unwrap();
    let to = server.addr_of(2);
    client.send_to(b"early", to).unwrap();
    let (_, session) = receive(&upstream);
    let without = conf("env A=b;", &proxy).replace("127.0.0.1:{port2} udp", "127.0.0.1:{port3} udp");
    let before = replace_worker(&mut server, &without);
    wait_metric(&server, "udp_sessions_not_taken_over_total", 1);
    assert!(!is_gone(before), "it waits for a response");
    upstream.send_to(b"late", session).unwrap();
    assert_eq!(receive(&client), ("late".to_owned(), to));
    assert!(wait::until(wait::TIMEOUT, || is_gone(before)), "{}", server.error_log());
    server.wait_error_log("0 sessions over UDP go on in the next worker process, 1 end in this one").unwrap();
    assert_eq!(server.log("logs/udp.log", 1).unwrap(), [format!("200 5 4 5 4 {before}")]);
}
