//! Many short sessions: descriptors and memory return to what they were. `cargo xtask torture --sessions N` runs more of them.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;
use tw_testkit::{Lacks, Server, leave_out, wait};

use super::{echo, start, upstream};
use crate::support::env_number;

/// Sessions of each kind; a multiple of [`CLIENTS`].
const SESSIONS_DEFAULT: u64 = 4_000;
/// Clients at once.
const CLIENTS: u64 = 4;
/// Sessions that fill pools and buffers before the first look.
const WARM_COUNT: u64 = 2_000;
/// Memory that the allocator and buffers may keep of a busier moment. With the default number, 1 KiB of each session would be more.
const GROWTH_MAX: u64 = 4_000_000;

/// Open descriptors of a server.
pub(super) fn open_files(server: &Server) -> usize {
    fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap().count()
}

/// Bytes that the server has written to; `None` if the kernel does not tell.
fn memory(server: &Server) -> Option<u64> {
    let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", server.pid())).ok()?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Private_Dirty:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kb| kb * 1024)
}

/// End of the error log.
fn last_lines(server: &Server) -> String {
    let log = server.error_log();
    let lines: Vec<_> = log.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

/// Runs `session` so many times, by several clients at once; its argument is the number of the session of its client.
fn repeat(count: u64, session: impl Fn(u64) + Sync) {
    let session = &session;
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(move || (0..count / CLIENTS).for_each(session));
        }
    });
}

/// Runs sessions until pools are filled, looks, runs many more, and compares.
fn check_baseline(server: &Server, session: impl Fn(u64) + Sync) {
    let count = env_number("TAILWATER_SESSIONS", SESSIONS_DEFAULT);
    repeat(WARM_COUNT, &session);
    let rested = || {
        wait::some(wait::TIMEOUT, || {
            let now = open_files(server);
            wait::pause(Duration::from_millis(50));
            (open_files(server) == now).then_some(now)
        })
    };
    let files = rested().unwrap();
    let bytes = memory(server);
    repeat(count, &session);
    assert!(wait::until(wait::TIMEOUT, || open_files(server) <= files), "{} of {files}", open_files(server));
    let Some(bytes) = bytes else {
        return leave_out(Lacks::Machine, "the kernel does not tell how much memory a process has");
    };
    let is_back = || memory(server).is_some_and(|now| now <= bytes + GROWTH_MAX);
    assert!(
        wait::until(wait::TIMEOUT, is_back),
        "{:?} bytes instead of {bytes} after {count}",
        memory(server)
    );
}

fn connect(addr: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(addr).unwrap();
    socket.set_read_timeout(Some(wait::TIMEOUT)).unwrap();
    // The socket is reset on close, because TIME_WAIT of a million connections would use up the ports of the machine.
    set_socket_linger(&socket, Some(Duration::ZERO)).unwrap();
    socket
}

#[test]
fn sessions_over_tcp_leave_nothing_behind() {
    let addr = upstream(echo);
    let server = start(&format!(
        "server {{ listen 127.0.0.1:{{port}}; proxy_pass {addr}; error_log logs/error.log warn; }}"
    ));
    check_baseline(&server, |nth| {
        let mut socket = connect(server.addr());
        // Every second one is reset while its bytes are on their way.
        socket.write_all(b"x").unwrap();
        if nth % 2 == 0 {
            let read = socket.read_exact(&mut [0]);
            assert!(read.is_ok(), "session {nth}: {read:?}\n{}", last_lines(&server));
        }
    });
}

#[test]
fn sessions_without_a_server_leave_nothing_behind() {
    let server = start(
        "log_format l $status; access_log logs/access.log l buffer=64k;
         upstream u { server 127.0.0.1:9 max_fails=0; server 127.0.0.2:9 max_fails=0; }
         server { listen 127.0.0.1:{port}; proxy_pass u; error_log logs/error.log crit; }",
    );
    check_baseline(&server, |_| {
        let mut rest = Vec::new();
        let _ = connect(server.addr()).read_to_end(&mut rest);
        assert_eq!(rest, b"");
    });
}

#[test]
fn sessions_over_udp_leave_nothing_behind() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let addr = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..len], from);
        }
    });
    let server = start(&format!(
        "server {{ listen 127.0.0.1:{{port}} udp; proxy_pass {addr}; proxy_responses 1; proxy_timeout 2s; error_log logs/error.log crit; }}"
    ));
    check_baseline(&server, |nth| {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        socket.send_to(b"x", server.addr()).unwrap();
        // Every second client is gone when its answer comes. A datagram may be lost.
        if nth % 2 == 0 {
            let _ = socket.recv(&mut [0; 9]);
        }
    });
}
