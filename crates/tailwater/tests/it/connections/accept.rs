//! Accepting: shared and `reuseport` sockets, `accept_mutex`, balance between loops, and reloads.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;

use tw_testkit::{Server, Signal, wait};

use crate::support::metrics::{metric, metric_values, metrics_text};
use crate::support::reload::reload;
use crate::support::server;

/// Body of the response to one request on a connection of its own.
fn short(addr: SocketAddr) -> std::io::Result<String> {
    let mut client = TcpStream::connect(addr)?;
    client.set_read_timeout(Some(wait::TIMEOUT))?;
    client.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    client.read_to_string(&mut answer)?;
    Ok(answer.rsplit("\r\n").next().unwrap_or_default().to_owned())
}

#[test]
fn reloads_of_loops_and_sockets_lose_no_connection() {
    let conf = |loops: u32, reuseport: &str, text: u32| {
        let turns = if text % 3 == 2 { "on" } else { "off" };
        format!(
            "user root; worker_processes {loops}; events {{ accept_mutex {turns}; accept_mutex_delay 10ms; }} \
             http {{ server {{ listen 127.0.0.1:{{port}} {reuseport}; return 200 {text}; }} }}"
        )
    };
    let mut server = server().start(&conf(4, "reuseport", 0)).unwrap();
    let addr = server.addr();
    let over = AtomicBool::new(false);
    let served = AtomicU64::new(0);
    thread::scope(|scope| {
        let clients = [(); 4].map(|()| {
            scope.spawn(|| {
                while !over.load(Relaxed) {
                    let text = short(addr)?;
                    assert!(text.parse::<u32>().is_ok(), "{text:?}");
                    served.fetch_add(1, Relaxed);
                }
                std::io::Result::Ok(())
            })
        });
        let changes =
            [(1, "reuseport"), (3, "reuseport"), (2, ""), (4, "reuseport"), (1, ""), (2, "reuseport")];
        for (text, (loops, reuseport)) in (1..).zip(changes.into_iter().cycle().take(18)) {
            reload(&mut server, &conf(loops, reuseport, text));
            let expected = text.to_string();
            let is_new = || (0..8).all(|_| short(addr).is_ok_and(|text| text == expected));
            assert!(wait::until(wait::TIMEOUT, is_new), "{}", server.error_log());
        }
        over.store(true, Relaxed);
        for client in clients {
            client.join().unwrap().expect("no connection is refused or reset");
        }
    });
    assert!(served.load(Relaxed) > 0);
}

/// Values of a metric, one for each loop.
fn of_loops<T: std::str::FromStr<Err: std::fmt::Debug>>(server: &Server, name: &str) -> Vec<T> {
    metric_values(&metrics_text(server), &format!("event_loop_{name}"))
}

fn with_events(loops: u32, events: &str) -> Server {
    let http = "http { server { listen 127.0.0.1:{port}; location / { return 200 here; } \
                location = /metrics { metrics; } } }";
    server().start(&format!("worker_processes {loops}; events {{ {events} }} {http}")).unwrap()
}

#[test]
fn accept_mutex_holder_accepts_alone() {
    let server = with_events(3, "accept_mutex on; accept_mutex_delay 1h; connection_balance off;");
    // While loops begin, each that comes tries to get the turn.
    let all_begun =
        || of_loops::<f64>(&server, "busy_seconds_total").iter().filter(|busy| **busy > 0.0).count() == 3;
    assert!(wait::until(wait::TIMEOUT, all_begun));
    let clients: Vec<_> = (0..30).map(|_| server.connect().unwrap()).collect();
    let all_open = || of_loops::<u64>(&server, "connections_open").iter().sum::<u64>() > clients.len() as u64;
    assert!(wait::until(wait::TIMEOUT, all_open));
    // Requests for metrics may be served by another loop; each makes its loop try to take the mutex.
    let with_all =
        || of_loops::<u64>(&server, "connections_open").iter().any(|open| *open >= clients.len() as u64);
    assert!(wait::until(wait::TIMEOUT, with_all), "{:?}", of_loops::<u64>(&server, "connections_open"));
}

#[test]
fn nearly_full_loop_releases_the_accept_mutex() {
    let events = "accept_mutex on; accept_mutex_delay 10ms; connection_balance off; worker_connections 16;";
    let server = with_events(2, events);
    let clients: Vec<_> = (0..20).map(|_| server.connect().unwrap()).collect();
    let all_open = || of_loops::<u64>(&server, "connections_open").iter().sum::<u64>() > clients.len() as u64;
    assert!(wait::until(wait::TIMEOUT, all_open));
    let open = of_loops::<u64>(&server, "connections_open");
    assert!(open.iter().all(|open| *open >= 4), "{open:?}");
}

#[test]
fn connections_go_to_less_busy_loops() {
    // Mostly one loop accepts.
    let mut server = with_events(2, "accept_mutex on; accept_mutex_delay 1h; worker_connections 4096;");
    let mut clients = Vec::new();
    let were_passed_on = || {
        clients.extend((0..8).map(|_| server.connect().unwrap()));
        let passed_on = of_loops::<u64>(&server, "connections_passed_on_total");
        let open = of_loops::<u64>(&server, "connections_open");
        passed_on.iter().any(|passed_on| *passed_on > 0) && open.len() == 2 && !open.contains(&0)
    };
    assert!(wait::until(wait::TIMEOUT, were_passed_on));
    for client in &mut clients {
        client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        assert_eq!(client.read_response().unwrap().text(), "here");
    }
    assert!(server.stop().unwrap().success());
}

/// Size of a sparse file that no client reads to its end.
const LARGE: u64 = 1 << 40;
const READERS: usize = 24;
const CROWD: usize = 200;

#[test]
fn busy_loop_accepts_many_connections_in_a_turn() {
    let conf = "user root; worker_processes 1; events { worker_connections 1024; }
         http { server { listen 127.0.0.1:{port}; root html; location = /ok { return 200 ok; }
                         location = /metrics { metrics; } } }";
    let server = server().file("html/large", "").start(conf).unwrap();
    File::options().write(true).open(server.prefix().join("html/large")).unwrap().set_len(LARGE).unwrap();
    let is_over = AtomicBool::new(false);
    let turns = || metric(&server, "event_loop_blocked_seconds_count{worker=\"0\"}");
    // Number of turns until all clients of a crowd are answered: as many as there are clients, if each turn accepts
    // one.
    let crowd = || {
        let before = turns();
        // The process is stopped, so that all clients are in the queue when the loop accepts, however long they take to
        // connect.
        server.signal(Signal::STOP).unwrap();
        let clients: Vec<TcpStream> = (0..CROWD)
            .map(|_| {
                let mut client = TcpStream::connect(server.addr()).unwrap();
                client.write_all(b"GET /ok HTTP/1.0\r\n\r\n").unwrap();
                client
            })
            .collect();
        server.signal(Signal::CONT).unwrap();
        for mut client in clients {
            let mut answer = String::new();
            client.read_to_string(&mut answer).unwrap();
            assert!(answer.ends_with("ok"), "{answer}");
        }
        turns() - before
    };
    let mut fewest = u64::MAX;
    let is_fair = thread::scope(|scope| {
        scope.spawn(|| read_all(server.addr(), &is_over));
        // While they are too slow, the loop has rests, and need not hurry.
        let is_fair = wait::until(wait::TIMEOUT, || {
            fewest = fewest.min(crowd());
            fewest < CROWD as u64 / 2
        });
        is_over.store(true, Relaxed);
        is_fair
    });
    assert!(is_fair, "{fewest}");
}

/// Many clients that read without end, until `is_over`.
fn read_all(addr: SocketAddr, is_over: &AtomicBool) {
    let mut readers: Vec<TcpStream> = (0..READERS)
        .map(|_| {
            let mut reader = TcpStream::connect(addr).unwrap();
            reader.write_all(b"GET /large HTTP/1.0\r\n\r\n").unwrap();
            reader.set_nonblocking(true).unwrap();
            reader
        })
        .collect();
    let mut some = vec![0; 1 << 20];
    while !is_over.load(Relaxed) {
        for reader in &mut readers {
            // The read fails if no data has arrived.
            let _ = reader.read(&mut some);
        }
    }
}
