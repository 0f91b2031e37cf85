//! Killed and stopped worker processes and masters, and floods of signals: nothing else is lost.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::process::{Pid, kill_process};
use tw_testkit::{Client, Server, Signal, wait};

use super::master::{builder, conf, new_location, start, started};
use crate::support::download::{LARGE, begin_download};
use crate::support::page;
use crate::support::process::{children, is_gone, kill, worker};
use crate::support::reload::{reload, reload_until};

/// Clients that send requests on connections of their own, until `stop`: they count those that could not connect, and
/// those that got no response.
struct Load {
    addr: SocketAddr,
    unix: PathBuf,
    stop: AtomicBool,
    refused: AtomicU32,
    broken: AtomicU32,
    answered: AtomicU32,
}

impl Load {
    /// Load of the first address of a server, and of the socket `socket` in its prefix.
    fn of(server: &Server) -> Self {
        let [refused, broken, answered] = [const { AtomicU32::new(0) }; 3];
        let unix = server.prefix().join("socket");
        let stop = AtomicBool::new(false);
        Self { addr: server.addr(), unix, stop, refused, broken, answered }
    }

    fn run(&self, is_unix: bool) {
        while !self.stop.load(Ordering::Relaxed) {
            let count = match self.request(is_unix) {
                Ok(true) => &self.answered,
                Ok(false) => &self.broken,
                Err(_) => &self.refused,
            };
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns true for errors of `connect`.
    fn request(&self, is_unix: bool) -> std::io::Result<bool> {
        if is_unix {
            UnixStream::connect(&self.unix).map(exchange)
        } else {
            TcpStream::connect(self.addr).map(exchange)
        }
    }
}

fn exchange(mut stream: impl Read + Write) -> bool {
    let mut answer = String::new();
    let sent = stream.write_all(b"GET /old HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    sent.is_ok() && stream.read_to_string(&mut answer).is_ok() && answer.ends_with("old")
}

#[test]
fn killed_worker_loses_its_connections_only() {
    const CONNECTIONS: u32 = 64;
    for options in ["", "reuseport"] {
        let text = format!(
            "worker_processes 3; http {{ access_log off; server {{ listen 127.0.0.1:{{port}} {options}; \
             listen unix:{{prefix}}/socket; location /old {{ return 200 old; }} }} }}"
        );
        let mut server = start(builder(), &text);
        let load = Load::of(&server);
        let before = worker(&server);
        std::thread::scope(|scope| {
            for number in 0..CONNECTIONS {
                let load = &load;
                scope.spawn(move || load.run(number % 4 == 0));
            }
            let more =
                |than: u32| wait::until(wait::TIMEOUT, || load.answered.load(Ordering::Relaxed) > than);
            let is_busy = more(500);
            kill(before, Signal::KILL);
            let respawned =
                wait::until(wait::TIMEOUT, || children(server.pid()).iter().any(|pid| *pid != before));
            let goes_on = more(load.answered.load(Ordering::Relaxed) + 500);
            load.stop.store(true, Ordering::Relaxed);
            assert!(is_busy && respawned && goes_on, "{}", server.error_log());
        });
        assert_eq!(load.refused.load(Ordering::Relaxed), 0, "{options}");
        let broken = load.broken.load(Ordering::Relaxed);
        assert!(broken <= CONNECTIONS, "{options}: {broken} of {CONNECTIONS}");
        let line = server.wait_error_log(&format!("worker process {before} exited on signal 9")).unwrap();
        assert!(line.contains("[alert]"), "{line}");
        assert!(server.stop().unwrap().success());
    }
}

#[test]
fn ignored_sigchld_is_not_inherited() {
    let careless = ["sh", "-c", "trap '' CHLD; exec \"$@\"", "sh"];
    let mut server = start(builder().by(&careless), &conf("", ""));
    let before = worker(&server);
    kill(before, Signal::KILL);
    server.wait_error_log(&format!("worker process {before} exited on signal 9")).unwrap();
    assert!(wait::until(wait::TIMEOUT, || page(&server, "/old").0 == 200));
    assert!(server.stop().unwrap().success());
}

#[test]
fn crashing_workers_do_not_keep_the_master_busy() {
    let mut server = started("");
    // Each worker is killed as soon as it exists. A killed one may be gone before the second signal.
    let killed = || {
        for pid in children(server.pid()) {
            let _ = kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL);
        }
        server.error_log().matches("exited on signal 9\n").count() > 2
    };
    assert!(wait::until(wait::TIMEOUT, killed), "{}", server.error_log());
    // The master can be reloaded, which starts a worker, and stopped.
    reload_until(&mut server, &conf("", &new_location("new")), "/new", "new");
    assert!(server.stop().unwrap().success());
}

#[test]
fn stopped_worker_does_not_block_the_master() {
    let mut server = started("");
    let worker = worker(&server);
    kill(worker, Signal::STOP);
    server.signal(Signal::HUP).unwrap();
    server.wait_error_log("reconfiguring").unwrap();
    server.signal(Signal::USR1).unwrap();
    server.signal(Signal::TERM).unwrap();
    // While the master waits for the worker process, which will be ended by force.
    let line = server.wait_error_log("while a worker process was loading the configuration").unwrap();
    assert!(line.contains("[warn]") && line.contains("signal 15 (SIGTERM) received from "), "{line}");
    // The worker process may already have been killed.
    let _ = kill_process(Pid::from_raw(worker.cast_signed()).unwrap(), Signal::CONT);
    assert_eq!(server.wait_exit(wait::TIMEOUT).unwrap().code(), Some(0));
    assert!(is_gone(worker), "{}", server.error_log());
}

#[test]
fn signals_during_a_load_are_obeyed_after_it() {
    let mut server = started("");
    let worker = worker(&server);
    kill(worker, Signal::STOP);
    reload(&mut server, &conf("", &new_location("first")));
    server.wait_error_log("reconfiguring").unwrap();
    server.write_conf(&conf("", &new_location("second"))).unwrap();
    let log = server.prefix().join("logs/access.log");
    fs::rename(&log, server.prefix().join("logs/access.1")).unwrap();
    for signal in [Signal::HUP, Signal::USR1, Signal::HUP, Signal::CHILD] {
        server.signal(signal).unwrap();
    }
    kill(worker, Signal::CONT);
    let is_second = || page(&server, "/new").1 == "second";
    assert!(wait::until(wait::TIMEOUT, is_second), "{}", server.error_log());
    assert!(wait::until(wait::TIMEOUT, || log.exists()));
    assert_eq!(self::worker(&server), worker);
    assert!(server.stop().unwrap().success());
}

#[test]
fn worker_of_a_killed_master_finishes_and_exits() {
    let server = started("");
    let port = server.addr().port();
    let worker = worker(&server);
    let mut download = begin_download(&server);
    server.signal(Signal::KILL).unwrap();
    server.wait_error_log("the master process has ended, shutting down").unwrap();

    // Another server can start at once on the same port.
    let conf = format!(
        "http {{ server {{ listen 127.0.0.1:{port}; listen 127.0.0.1:{{port}}; return 200 other; }} }}"
    );
    let mut other = builder().start(&conf).unwrap();
    let addr = server.addr();
    assert!(wait::until(wait::TIMEOUT, || Client::get(addr, "/").is_ok_and(|page| page.text() == "other")));
    assert!(!is_gone(worker));
    assert_eq!(download.read_bytes(LARGE).unwrap().len(), LARGE);
    assert!(wait::until(wait::TIMEOUT, || is_gone(worker)), "{}", server.error_log());
    assert!(server.error_log().ends_with(": exit\n"), "{}", server.error_log());
    assert!(other.stop().unwrap().success());
}

#[test]
fn many_signals_lose_nothing() {
    let mut server = started("worker_processes 2;");
    let load = Load::of(&server);
    let mut download = begin_download(&server);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| load.run(false));
        }
        for number in 0..100 {
            for signal in [Signal::HUP, Signal::USR1, Signal::CHILD] {
                server.signal(signal).unwrap();
            }
            let goal = load.answered.load(Ordering::Relaxed) + number % 5;
            assert!(wait::until(wait::TIMEOUT, || load.answered.load(Ordering::Relaxed) >= goal));
        }
        load.stop.store(true, Ordering::Relaxed);
    });
    assert_eq!((load.refused.into_inner(), load.broken.into_inner()), (0, 0), "{}", server.error_log());
    assert_eq!(download.read_bytes(LARGE).unwrap().len(), LARGE);
    for _ in 0..100 {
        server.signal(Signal::HUP).unwrap();
    }
    assert!(server.stop().unwrap().success());
    assert!(
        !server.error_log().contains("[alert]") && !server.error_log().contains("[emerg]"),
        "{}",
        server.error_log()
    );
}
