//! Many reloads: nothing is leaked or lost, and the last configuration is in use.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use tw_testkit::disk::{Fault, Op, SlowDisk};
use tw_testkit::{Client, Server, Signal, wait};

use crate::support::process::worker;
use crate::support::reload::reload;
use crate::support::server;

/// Resources that a reload could leak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct HeldResources {
    descriptors: usize,
    threads: usize,
    resident_kb: u64,
}

impl HeldResources {
    fn of(pid: u32) -> Self {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let number = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim_start_matches(':').trim().split(' ').next().unwrap().parse::<u64>().unwrap()
        };
        Self {
            descriptors: fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count(),
            threads: number("Threads") as usize,
            resident_kb: number("VmRSS"),
        }
    }
}

/// Configuration with some of everything, and the number of the turn. Every other turn has another pool, address, zone
/// and log.
fn some_of_everything(turn: usize) -> String {
    let [pool, listen, zone, log] = match turn % 2 {
        0 => [
            "thread_pool other threads=2 max_queue=8;",
            "listen 127.0.0.1:{port1};",
            "limit_req_zone $uri zone=uri:64k rate=1000r/s;",
            "access_log logs/even.log;",
        ],
        _ => ["", "", "limit_conn_zone $uri zone=uri:64k;", "access_log logs/odd.log;"],
    };
    format!(
        "user root; worker_processes 2; thread_pool default threads=4; {pool}
        http {{
            map $uri $mapped {{ default no; ~^/(?<word>[a-z]+)$ yes; /x x; }}
            geo $place {{ default far; 127.0.0.0/8 near; }}
            split_clients $remote_addr $part {{ 50% a; * b; }}
            limit_req_zone $binary_remote_addr zone=clients:128k rate=100000r/s;
            {zone}
            log_format wide '$remote_addr $mapped $place $part $request_time';
            access_log logs/access.log wide buffer=4k flush=1s;
            server {{
                listen 127.0.0.1:{{port}} reuseport; {listen}
                server_name localhost ~^(?<sub>.+)\\.example$;
                error_log logs/server.log info; {log}
                limit_req zone=clients burst=100000 nodelay;
                gzip on; ssi on; open_file_cache max=10;
                location = /named {{ access_log logs/named-$host.log; return 204; }}
                location = /turn {{ return 200 {turn}; }}
                location / {{ root html; rewrite ^/old/(.*)$ /$1 last; if ($arg_a) {{ return 204; }} }}
            }}
        }}"
    )
}

/// Reloads, and waits for a response of the new configuration.
fn reload_turn(server: &mut Server, turn: usize) {
    reload(server, &some_of_everything(turn));
    let is_new =
        || Client::get(server.addr(), "/turn").is_ok_and(|response| response.text() == turn.to_string());
    assert!(wait::until(wait::TIMEOUT, is_new), "turn {turn}: {}", server.error_log());
}

#[test]
fn error_log_in_use_has_a_line_for_each_reload() {
    let conf = |log: &str, answer: &str| {
        format!(
            "user root; error_log logs/{log}.log notice; http {{ server {{ listen 127.0.0.1:{{port}}; return 200 {answer}; }} }}"
        )
    };
    for builder in [server(), server().with_master()] {
        let mut server = builder.start(&conf("first", "0")).unwrap();
        let lines = |server: &Server, name: &str, text: &str| {
            let log = fs::read_to_string(server.prefix().join(name)).unwrap_or_default();
            log.lines().filter(|line| line.contains(text)).map(str::to_owned).collect::<Vec<_>>()
        };
        let mut reload = |conf: &str, name: &str, text: &str| {
            reload(&mut server, conf);
            let said = wait::until(wait::TIMEOUT, || !lines(&server, name, text).is_empty());
            assert!(said, "{}", server.error_log());
            lines(&server, name, text)
        };
        let taken = "the configuration is taken over, serving on 1 address";
        // The reason is logged to the error log of the configuration that stays in effect.
        let refused =
            reload(&conf("second", "1; nonsense on"), "logs/first.log", "unknown directive \"nonsense\"");
        assert!(refused.len() == 1 && refused[0].contains("[emerg]"), "{refused:?}");
        assert_eq!(reload(&conf("third", "2"), "logs/third.log", taken).len(), 1);
        server.wait_error_log(taken).unwrap();
        for (name, count) in [("logs/first.log", 0), ("logs/second.log", 0), ("logs/error.log", 1)] {
            assert_eq!(lines(&server, name, taken).len(), count, "{name}");
        }
        assert_eq!(Client::get(server.addr(), "/").unwrap().text(), "2");
    }
}

#[test]
fn thousand_reloads_leak_nothing() {
    const TURNS: usize = 1_000;
    /// Turns after which every buffer and table has reached its size.
    const WARM: usize = 100;
    /// Pages that allocators of a few threads may keep. A configuration of this test has more than a megabyte: one that is
    /// left behind in ten turns would be far more.
    const SLACK_KB: u64 = 8 << 10;
    /// Threads that pools of the configuration may have: they are started when there is work for them.
    const POOL_THREADS: usize = 6;
    let builder = server().file("html/page", "a page").with_master();
    let mut server = builder.start(&some_of_everything(0)).unwrap();
    let mut kept = server.connect().unwrap();
    let mut then = None;
    for number in 1..=TURNS {
        reload_turn(&mut server, number);
        kept.send("GET /page HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        assert_eq!(kept.read_response().unwrap().text(), "a page", "a connection outlives all reloads");
        if number == WARM || number == TURNS {
            let worker = worker(&server);
            let now = [server.pid(), worker].map(HeldResources::of);
            println!("after {number} reloads: master {:?}, worker process {:?}", now[0], now[1]);
            let then = *then.get_or_insert(now);
            // Descriptors and memory are released a moment later, by another thread.
            let is_flat = || {
                [server.pid(), worker].map(HeldResources::of).iter().zip(then).all(|(now, then)| {
                    now.descriptors <= then.descriptors
                        && now.threads <= then.threads + POOL_THREADS
                        && now.resident_kb <= then.resident_kb + SLACK_KB
                })
            };
            assert!(wait::until(wait::TIMEOUT, is_flat), "after {WARM}: {then:?}, after {TURNS}: {now:?}");
        }
    }
    assert!(server.stop().unwrap().success());
}

/// A client that sends requests on one connection; each response must be complete. It reconnects after a response that
/// closes the connection.
fn request_until_stopped(
    addr: std::net::SocketAddr,
    stop: &AtomicBool,
    mut next: impl FnMut() -> (String, Vec<u8>),
) -> usize {
    let mut client = None;
    let mut answers = 0;
    while !stop.load(Relaxed) {
        let mut connection = client.take().unwrap_or_else(|| Client::connect(addr).unwrap());
        let (target, body) = next();
        connection.send(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n")).unwrap();
        let response = connection.read_response().unwrap_or_else(|error| panic!("{target}: {error}"));
        assert_eq!(response.status, 200, "{target}");
        assert!(body.is_empty() || response.body == body, "{target}: {} bytes", response.body.len());
        answers += 1;
        if response.field("Connection") != Some("close") {
            client = Some(connection);
        }
    }
    answers
}

#[test]
fn last_of_many_concurrent_reloads_is_used() {
    let conf = |turn: usize| {
        format!(
            "user root; worker_processes 2; http {{ server {{ listen 127.0.0.1:{{port}}; return 200 {turn}; }} }}"
        )
    };
    let mut server = server().with_master().start(&conf(0)).unwrap();
    let addr = server.addr();
    let stop = AtomicBool::new(false);
    let answers = thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| request_until_stopped(addr, &stop, || ("/".to_owned(), Vec::new()))))
            .collect();
        for storm in 1..=3 {
            for _ in 0..100 {
                server.signal(Signal::HUP).unwrap();
            }
            // While the first of them are obeyed.
            server.write_conf(&conf(storm)).unwrap();
            for _ in 0..100 {
                server.signal(Signal::HUP).unwrap();
            }
            let is_last = || (0..8).all(|_| Client::get(addr, "/").unwrap().text() == storm.to_string());
            assert!(wait::until(wait::TIMEOUT, is_last), "{}", server.error_log());
        }
        stop.store(true, Relaxed);
        clients.into_iter().map(|client| client.join().unwrap()).sum::<usize>()
    });
    assert!(answers > 0);
    // Signals that wait together are one.
    let reloads = server.error_log().matches(", reconfiguring\n").count();
    assert!((3..600).contains(&reloads), "{reloads}");
    assert!(server.stop().unwrap().success());
}

#[test]
fn reload_changes_loops_and_pools_while_clients_wait_for_a_disk() {
    const FILES: usize = 16;
    const SIZE: usize = 100_000;
    const CLIENTS: usize = 12;
    let Some(disk) = SlowDisk::mount_or_skip() else { return };
    let content = |file: usize| vec![b'a' + file as u8; SIZE + file];
    (0..FILES).for_each(|file| disk.write(file.to_string(), content(file)));
    let slow = [Op::Open, Op::Read].map(|op| disk.on(op).inject(Fault::Delay(Duration::from_millis(5))));

    let conf = |turn: usize, main: &str, aio: &str| {
        format!(
            "user root; {main} http {{ server {{ listen 127.0.0.1:{{port}}; location = /turn {{ return 200 {turn}; }}
            location / {{ root {}; aio {aio}; keepalive_requests 1000000; }} }} }}",
            disk.path().display()
        )
    };
    let changes = [
        ("worker_processes 4; thread_pool default threads=1; thread_pool other threads=2;", "threads=other"),
        (
            "worker_processes 2; thread_pool default threads=8 max_queue=64; thread_pool renamed threads=3;",
            "threads=renamed",
        ),
        ("worker_processes 1; thread_pool default threads=2;", "threads"),
        ("worker_processes 3; thread_pool other threads=1 max_queue=1000;", "threads=other"),
    ];
    let mut server = server().with_master().start(&conf(0, changes[2].0, changes[2].1)).unwrap();
    let addr = server.addr();
    let stop = AtomicBool::new(false);
    let answered = AtomicUsize::new(0);
    let total = thread::scope(|scope| {
        let answered = &answered;
        let stop = &stop;
        let content = &content;
        let request = |client: usize| {
            let mut file = client;
            request_until_stopped(addr, stop, || {
                answered.fetch_add(1, Relaxed);
                file = (file * 5 + 1) % FILES;
                (format!("/{file}"), content(file))
            })
        };
        let clients: Vec<_> = (0..CLIENTS).map(|client| scope.spawn(move || request(client))).collect();
        for turn in 1..=2 * changes.len() {
            let before = answered.load(Relaxed);
            let (main, aio) = changes[turn % changes.len()];
            reload(&mut server, &conf(turn, main, aio));
            let is_new =
                || Client::get(addr, "/turn").is_ok_and(|response| response.text() == turn.to_string());
            assert!(wait::until(wait::TIMEOUT, is_new), "turn {turn}: {}", server.error_log());
            let has_failed = || clients.iter().any(|client| client.is_finished());
            let go_on = || has_failed() || answered.load(Relaxed) >= before + 4 * CLIENTS;
            assert!(wait::until(wait::TIMEOUT, go_on), "turn {turn}: {}", server.error_log());
        }
        stop.store(true, Relaxed);
        clients.into_iter().map(|client| client.join().unwrap()).sum::<usize>()
    });
    assert!(total >= 8 * changes.len() * CLIENTS, "{total}");
    assert!(slow.iter().all(|fault| fault.hits() > 0), "the disk was slow");
    drop(slow);
    assert!(server.stop().unwrap().success());
}
