//! Sessions that outlive a binary upgrade or their worker process, and what ends them.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use tw_testkit::{Client, Server, Signal, wait};

use super::{echo, text, upstream};
use crate::support::metrics::metric;
use crate::support::process::{is_gone, worker};
use crate::support::reload::reload;
use crate::support::{server, upgrade};

/// A server with a relay on its first address, and a session with it. Its second address tells the process that serves it.
fn with_session(main: &str) -> (Server, Client) {
    let addr = upstream(echo);
    let server = server().with_master().start(&conf(main, addr)).unwrap();
    let mut session = server.connect().unwrap();
    say(&mut session, "before");
    (server, session)
}

fn conf(main: &str, upstream: SocketAddr) -> String {
    format!(
        "{main} stream {{ log_format l '$status $bytes_sent $pid'; access_log logs/access.log l;
         server {{ listen 127.0.0.1:{{port}}; proxy_pass {upstream}; access_log logs/relay.log l; }}
         server {{ listen 127.0.0.1:{{port1}}; return $pid; }} }}"
    )
}

/// Sends a text and waits for the same.
fn say(session: &mut Client, words: &str) {
    session.send(words).unwrap();
    assert_eq!(session.read_bytes(words.len()).unwrap(), words.as_bytes());
}

/// The process that serves a new session.
pub(super) fn serving(server: &Server) -> u32 {
    text(server.addr_of(1)).parse().unwrap_or_default()
}

/// Starts the new binary, waits until it serves some of the new sessions, and returns the old one.
pub(super) fn start_new_binary(server: &Server) -> u32 {
    upgrade::start_new_binary(server, || serving(server)).0
}

/// Starts the new binary, tells the old one to quit, and waits until all new sessions come to the new one.
pub(super) fn upgrade(server: &Server) -> u32 {
    upgrade::upgrade(server, || serving(server)).0
}

#[test]
fn session_survives_a_binary_upgrade() {
    let (server, mut session) = with_session("worker_processes 2;");
    let before = worker(&server);
    let old = upgrade(&server);
    for words in ["after", "and after"] {
        say(&mut session, words);
    }
    assert!(!is_gone(before) && !is_gone(old), "they serve what is left");
    drop(session);
    assert!(wait::until(wait::TIMEOUT, || is_gone(old)), "{}", server.error_log());
    assert_eq!(server.log("logs/relay.log", 1).unwrap(), [format!("200 20 {before}")]);
}

#[test]
fn worker_shutdown_timeout_ends_sessions_of_the_old_binary() {
    let (server, mut session) = with_session("worker_shutdown_timeout 500ms;");
    let begin = Instant::now();
    let old = upgrade(&server);
    assert_eq!(session.read_until_close().unwrap_or_default(), b"");
    assert!(wait::until(wait::TIMEOUT, || is_gone(old)), "{}", server.error_log());
    assert!(begin.elapsed() >= Duration::from_millis(400), "{:?}", begin.elapsed());
    let mut next = server.connect().unwrap();
    say(&mut next, "next");
}

#[test]
fn session_survives_the_replacement_of_its_worker() {
    let addr = upstream(echo);
    let mut server = server().with_master().start(&conf("", addr)).unwrap();
    let mut session = server.connect().unwrap();
    say(&mut session, "before");
    let before = worker(&server);
    // The environment of a process cannot change while it runs.
    reload(&mut server, &conf("env A=b;", addr));
    let is_new = || (0..8).all(|_| serving(&server) != before);
    assert!(wait::until(wait::TIMEOUT, is_new), "{}", server.error_log());
    say(&mut session, "after");
    assert!(!is_gone(before));
    drop(session);
    assert!(wait::until(wait::TIMEOUT, || is_gone(before)), "{}", server.error_log());
    assert_eq!(server.log("logs/relay.log", 1).unwrap(), [format!("200 11 {before}")]);
}

/// A datagram socket whose reads give up.
pub(super) fn datagram_socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(wait::TIMEOUT)).unwrap();
    socket
}

pub(super) fn receive(socket: &UdpSocket) -> (String, SocketAddr) {
    let mut buffer = [0; 64];
    let (len, from) = socket.recv_from(&mut buffer).unwrap();
    (String::from_utf8_lossy(&buffer[..len]).into_owned(), from)
}

fn udp_conf(main: &str, upstream: SocketAddr) -> String {
    format!(
        "{main} stream {{ server {{ listen 127.0.0.1:{{port}} udp; proxy_pass {upstream}; proxy_responses 1; }}
         server {{ listen 127.0.0.1:{{port1}} udp; return $pid; }} }}"
    )
}

#[test]
fn old_worker_delivers_the_responses_of_its_datagrams() {
    // The next worker process does not take over a session with a server that it does not have.
    let upstream = datagram_socket();
    let other = datagram_socket();
    let client = datagram_socket();
    let [addr, other_addr] = [&upstream, &other].map(|socket| socket.local_addr().unwrap());
    let mut server = server().with_master().start(&udp_conf("", addr)).unwrap();
    client.send_to(b"early", server.addr()).unwrap();
    let (_, session) = receive(&upstream);
    let before = worker(&server);
    reload(&mut server, &udp_conf("env A=b;", other_addr));
    // A worker that stops may not answer a datagram that begins a session.
    let is_new = || {
        let other = datagram_socket();
        let mut buffer = [0; 64];
        other.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        other.send_to(b"who", server.addr_of(1)).unwrap();
        other.recv(&mut buffer).is_ok_and(|len| buffer[..len] != *before.to_string().as_bytes())
    };
    assert!(wait::until(wait::TIMEOUT, || (0..8).all(|_| is_new())), "{}", server.error_log());
    assert!(!is_gone(before), "it waits for a response");
    client.send_to(b"next", server.addr()).unwrap();
    let (words, next) = receive(&other);
    assert!(words == "next" && next != session, "another session");
    other.send_to(b"reply", next).unwrap();
    assert_eq!(receive(&client), ("reply".to_owned(), server.addr()));
    upstream.send_to(b"late", session).unwrap();
    assert_eq!(receive(&client), ("late".to_owned(), server.addr()));
    assert!(wait::until(wait::TIMEOUT, || is_gone(before)), "{}", server.error_log());
}

#[test]
fn worker_shutdown_timeout_ends_sessions_over_datagrams() {
    let upstream = datagram_socket();
    let client = datagram_socket();
    let conf = udp_conf("worker_shutdown_timeout 300ms;", upstream.local_addr().unwrap());
    let mut server = server().start(&conf).unwrap();
    client.send_to(b"never answered", server.addr()).unwrap();
    receive(&upstream);
    let begin = Instant::now();
    server.signal(Signal::QUIT).unwrap();
    assert!(server.wait_exit(wait::TIMEOUT).unwrap().success());
    assert!(begin.elapsed() >= Duration::from_millis(250), "{:?}", begin.elapsed());
}

#[test]
fn sessions_keep_their_loop_when_a_reload_adds_loops() {
    const CLIENTS: usize = 48;
    let upstream = datagram_socket();
    let addr = upstream.local_addr().unwrap();
    // The port that a datagram comes from: another session has another one.
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((_, from)) = upstream.recv_from(&mut buffer) {
            let _ = upstream.send_to(from.port().to_string().as_bytes(), from);
        }
    });
    let conf = |loops: usize| {
        format!(
            "worker_processes {loops};
             http {{ server {{ listen 127.0.0.1:{{port}}; location = /metrics {{ metrics; }} }} }}
             stream {{ server {{ listen 127.0.0.1:{{port1}} udp; proxy_pass {addr}; proxy_timeout 20s; }}
             server {{ listen 127.0.0.1:{{port2}} udp; return {loops}; }} }}"
        )
    };
    let mut server = server().with_master().start(&conf(1)).unwrap();
    let to = server.addr_of(1);
    let ask = |client: &UdpSocket| {
        client.send_to(b"x", to).unwrap();
        receive(client).0
    };
    let clients: Vec<_> = (0..CLIENTS).map(|_| datagram_socket()).collect();
    let ports: Vec<_> = clients.iter().map(ask).collect();
    for loops in [3, 4] {
        reload(&mut server, &conf(loops));
        let is_new = || {
            (0..16).all(|_| {
                let other = datagram_socket();
                other.send_to(b"x", server.addr_of(2)).unwrap();
                receive(&other).0 == loops.to_string()
            })
        };
        assert!(wait::until(wait::TIMEOUT, is_new), "{}", server.error_log());
        for _ in 0..3 {
            assert_eq!(clients.iter().map(ask).collect::<Vec<_>>(), ports, "{loops}");
        }
    }
    let forwarded = metric(&server, "udp_datagrams_forwarded_total");
    assert!(forwarded > 0, "the kernel has sent some to other loops");
    assert_eq!(metric(&server, "udp_datagrams_dropped_total"), 0);
    // A new client has a session as well, on whichever loop.
    let new: Vec<_> = (0..CLIENTS).map(|_| datagram_socket()).collect();
    let new_ports: Vec<_> = new.iter().map(ask).collect();
    assert_eq!(new.iter().map(ask).collect::<Vec<_>>(), new_ports);
}

#[test]
fn session_without_a_descriptor_takes_that_of_the_longest_idle_one() {
    const LIMIT: usize = 80;
    let upstream = datagram_socket();
    let addr = upstream.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((len, from)) = upstream.recv_from(&mut buffer) {
            let _ = upstream.send_to(&buffer[..len], from);
        }
    });
    let server = server()
        .with_master()
        .start(&format!(
            "worker_rlimit_nofile {LIMIT}; events {{ worker_connections 1000; }}
             http {{ access_log off; server {{ listen 127.0.0.1:{{port}}; location = /metrics {{ metrics; }} }} }}
             stream {{ log_format l $status; access_log logs/access.log l;
             server {{ listen 127.0.0.1:{{port1}} udp; proxy_pass {addr}; }} }}"
        ))
        .unwrap();
    let clients: Vec<_> = (0..2 * LIMIT).map(|_| datagram_socket()).collect();
    for (at, client) in clients.iter().enumerate() {
        client.send_to(at.to_string().as_bytes(), server.addr_of(1)).unwrap();
        assert_eq!(receive(client).0, at.to_string(), "{}", server.error_log());
    }
    let evicted = metric(&server, "udp_sessions_evicted_total");
    assert!(evicted as usize >= LIMIT, "{evicted}");
    assert!(server.access_log(LIMIT).unwrap().iter().all(|status| status == "503"));
    // The last ones are there: the others have made room for them.
    for (at, client) in clients.iter().enumerate().rev().take(8) {
        client.send_to(at.to_string().as_bytes(), server.addr_of(1)).unwrap();
        assert_eq!(receive(client).0, at.to_string());
    }
}
