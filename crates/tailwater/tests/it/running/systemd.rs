//! Notifications to a service manager, and socket activation.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::Command;
use std::time::{Duration, Instant};

use tw_testkit::server::Builder;
use tw_testkit::{Lacks, Signal, TempDir, leave_out, wait};

use crate::support::reload::reload;
use crate::support::{page, server};

const HTTP: &str = "http { server { listen 127.0.0.1:{port}; return 200 served; } }";

/// The receiving end of `NOTIFY_SOCKET`.
struct Manager {
    socket: UnixDatagram,
    dir: TempDir,
}

impl Manager {
    fn new() -> Self {
        let dir = TempDir::new("manager").unwrap();
        let socket = UnixDatagram::bind(dir.join("notify")).unwrap();
        socket.set_read_timeout(Some(wait::TIMEOUT)).unwrap();
        Self { socket, dir }
    }

    /// A server that notifies this socket.
    fn server(&self) -> Builder {
        server().env("NOTIFY_SOCKET", self.dir.join("notify").to_string_lossy())
    }

    /// The next message.
    fn next(&self) -> io::Result<String> {
        let mut bytes = [0; 4096];
        let size = self.socket.recv(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes[..size]).into_owned())
    }

    /// Discards the messages so far.
    fn forget(&self) {
        self.socket.set_nonblocking(true).unwrap();
        while self.next().is_ok() {}
        self.socket.set_nonblocking(false).unwrap();
    }

    /// The next message that has this line, whatever comes before.
    fn wait_for(&self, line: &str) -> String {
        let end = Instant::now() + wait::TIMEOUT;
        while Instant::now() < end {
            let message = self.next().unwrap_or_else(|error| panic!("no {line}: {error}"));
            if message.lines().any(|candidate| candidate == line) {
                return message;
            }
        }
        panic!("no {line}");
    }
}

/// Servers in one process and with a master.
fn both(manager: &Manager) -> [Builder; 2] {
    [manager.server(), manager.server().with_master()]
}

#[test]
fn readiness_and_stopping_are_notified() {
    for (signal, expected) in [(Signal::QUIT, "EXTEND_TIMEOUT_USEC=14000000"), (Signal::TERM, "STOPPING=1")] {
        let manager = Manager::new();
        for builder in both(&manager) {
            let conf = format!("worker_shutdown_timeout 5s; {HTTP}");
            let mut server = builder.start(&conf).unwrap();
            assert!(manager.next().unwrap().starts_with("EXTEND_TIMEOUT_USEC="));
            let ready = manager.next().unwrap();
            assert_eq!(ready, format!("READY=1\nMAINPID={}\nSTATUS=Serving on 1 address", server.pid()));
            assert_eq!(page(&server, "/").1, "served");
            server.signal(signal).unwrap();
            manager.wait_for(expected);
            assert_eq!(server.wait_exit(wait::TIMEOUT).unwrap().code(), Some(0));
        }
    }
}

#[test]
fn failed_start_is_never_ready() {
    let manager = Manager::new();
    manager
        .server()
        .start("http { access_log /no/such/log; server { listen 127.0.0.1:{port}; } }")
        .unwrap_err();
    manager.socket.set_nonblocking(true).unwrap();
    while let Ok(message) = manager.next() {
        assert!(!message.contains("READY=1"), "{message}");
    }
}

#[test]
fn reload_is_notified_from_begin_to_end() {
    let manager = Manager::new();
    for builder in both(&manager) {
        let mut server = builder.start(HTTP).unwrap();
        manager.wait_for("READY=1");
        let two = "http { server { listen 127.0.0.1:{port}; listen 127.0.0.1:{port1}; return 200 two; } }";
        reload(&mut server, two);
        let begun = manager.wait_for("RELOADING=1");
        let micros = begun.lines().find_map(|line| line.strip_prefix("MONOTONIC_USEC=")).unwrap();
        assert!(micros.parse::<u64>().unwrap() > 0);
        let done = manager.wait_for("READY=1");
        assert!(done.ends_with("STATUS=Serving on 2 addresses"), "{done}");
        assert_eq!(page(&server, "/").1, "two");

        reload(&mut server, "http { servr {} }");
        manager.wait_for("RELOADING=1");
        let refused = manager.wait_for("READY=1");
        assert!(refused.contains("was refused: unknown directive \"servr\""), "{refused}");
        assert_eq!(page(&server, "/").1, "two");
        server.stop().unwrap();
    }
}

#[test]
fn watchdog_is_notified_while_loops_turn() {
    let manager = Manager::new();
    for builder in both(&manager) {
        let mut server = builder.env("WATCHDOG_USEC", "300000").start(HTTP).unwrap();
        manager.wait_for("READY=1");
        for _ in 0..3 {
            manager.wait_for("WATCHDOG=1");
        }
        // The watchdog has a longer timeout during a reload, and the usual one after it.
        reload(&mut server, HTTP);
        let begun = manager.wait_for("RELOADING=1");
        assert!(begun.contains("\nWATCHDOG_USEC=90300000"), "{begun}");
        let done = manager.wait_for("READY=1");
        assert!(done.contains("\nWATCHDOG_USEC=300000"), "{done}");
        manager.wait_for("WATCHDOG=1");
        server.stop().unwrap();
    }
}

#[test]
fn hung_loop_stops_watchdog_notifications() {
    if !cfg!(debug_assertions) {
        return leave_out(Lacks::Run, "a release has no traps");
    }
    let manager = Manager::new();
    for builder in both(&manager) {
        let hanging = "loop_watchdog 200ms; http { server { listen 127.0.0.1:{port};
            location /spin { trap spin; } } }";
        let server = builder.env("WATCHDOG_USEC", "300000").start(hanging).unwrap();
        manager.wait_for("WATCHDOG=1");
        let mut client = server.connect().unwrap();
        client.send("GET /spin HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        server.wait_error_log("has not turned for").unwrap();
        // One more notification may have been on its way. In the time of the silence, three would have been due.
        manager.forget();
        manager.socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let hungry = || manager.next().is_err();
        assert!(wait::until(wait::TIMEOUT, hungry));
        manager.socket.set_read_timeout(Some(wait::TIMEOUT)).unwrap();
    }
}

#[test]
fn new_binary_becomes_the_main_process_of_the_service() {
    let manager = Manager::new();
    let builder = manager.server().env("WATCHDOG_USEC", "300000").with_master();
    let server = builder.start(HTTP).unwrap();
    server.signal(Signal::USR2).unwrap();
    let line = server.wait_error_log("start new binary process ").unwrap();
    let new = line.rsplit(' ').next().unwrap();
    let owner = || std::fs::read_to_string(server.prefix().join("logs/server.pid")).unwrap_or_default();
    assert!(wait::until(wait::TIMEOUT, || owner().trim() == new), "{}", server.error_log());
    server.wait_error_log(&format!("{new}#{new}: start worker process ")).unwrap();
    server.signal(Signal::QUIT).unwrap();
    manager.wait_for(&format!("MAINPID={new}"));
    let old = format!("/proc/{}/stat", server.pid());
    let is_over = || std::fs::read_to_string(&old).is_ok_and(|stat| stat.contains(") Z "));
    assert!(wait::until(wait::TIMEOUT, is_over), "{}", server.error_log());
    manager.forget();
    manager.wait_for("WATCHDOG=1");
    assert_eq!(page(&server, "/").1, "served");
    server.signal(Signal::TERM).unwrap();
}

#[test]
fn socket_activation_starts_the_server() {
    const ACTIVATE: &str = "systemd-socket-activate";
    if !Command::new(ACTIVATE).arg("--version").output().is_ok_and(|run| run.status.success()) {
        return leave_out(Lacks::Machine, format_args!("there is no {ACTIVATE}"));
    }
    let dir = TempDir::new("activated").unwrap();
    let path = dir.join("socket");
    let name = path.to_string_lossy();
    for with_master in [true, false] {
        let builder = server().by(&[ACTIVATE, "--listen", &name]);
        let builder = if with_master { builder.with_master() } else { builder };
        let conf = format!("http {{ server {{ listen unix:{name}; return 200 served; }} }}");
        let mut server = builder.start(&conf).unwrap();
        // The first connection starts it, and is answered as well.
        let first = wait::some(wait::TIMEOUT, || UnixStream::connect(&path).ok());
        for stream in [first, UnixStream::connect(&path).ok()] {
            let mut stream = stream.unwrap();
            stream.set_read_timeout(Some(wait::TIMEOUT)).unwrap();
            stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert!(answer.ends_with("served"), "{answer}");
        }
        assert!(server.stop().unwrap().success());
        // Unlike under systemd, no other process holds the socket here, so its file may already be gone.
        let _ = std::fs::remove_file(&path);
    }
}

#[test]
fn watchdog_of_another_process_is_not_notified() {
    let manager = Manager::new();
    let builder = manager.server().env("WATCHDOG_USEC", "1000").env("WATCHDOG_PID", "1");
    let mut server = builder.start(HTTP).unwrap();
    assert_eq!(page(&server, "/").1, "served");
    server.stop().unwrap();
    manager.socket.set_nonblocking(true).unwrap();
    while let Ok(message) = manager.next() {
        assert!(!message.contains("WATCHDOG"), "{message}");
    }
}

#[test]
fn notify_service_stays_in_the_foreground() {
    let manager = Manager::new();
    let script = "SYSTEMD_EXEC_PID=$$ exec \"$0\" \"$@\"";
    let builder = manager.server().by(&["/bin/sh", "-c", script]).daemon_on().with_master();
    let mut server = builder.start(HTTP).unwrap();
    let ready = manager.wait_for("READY=1");
    assert!(ready.contains(&format!("MAINPID={}\n", server.pid())), "{ready}");
    server.wait_error_log("a service that reports when it is ready cannot go to the background").unwrap();
    assert!(server.stop().unwrap().success());
}
