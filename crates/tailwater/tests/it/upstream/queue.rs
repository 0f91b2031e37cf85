//! `queue`: requests wait for a free server of the group.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use tw_testkit::{Client, Server, wait};

use crate::support::{get, server, start};
use tw_testkit::origin::origin;

/// An origin that reports each request, and answers when the test lets it.
struct SlowOrigin {
    addr: SocketAddr,
    came: Receiver<()>,
    answer: Sender<()>,
}

fn slow_origin() -> SlowOrigin {
    slow_origin_unless("no target")
}

/// [`slow_origin`] that does not answer requests with `fails` in their first line.
fn slow_origin_unless(fails: &'static str) -> SlowOrigin {
    let (arrived, came) = channel();
    let (answer, may) = channel();
    let arrived = Arc::new(Mutex::new(arrived));
    let may = Arc::new(Mutex::new(may));
    let addr = origin(move |mut conn| {
        while let Some(head) = conn.head() {
            if head.contains(fails) {
                return;
            }
            arrived.lock().unwrap().send(()).unwrap();
            if may.lock().unwrap().recv().is_err() {
                return;
            }
            conn.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
    });
    SlowOrigin { addr, came, answer }
}

fn send(server: &Server, target: &str) -> Client {
    let mut client = server.connect().unwrap();
    client.send(format!("GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")).unwrap();
    client
}

#[test]
fn queue_holds_as_many_requests_as_configured() {
    let slow = slow_origin();
    let addr = slow.addr;
    let server = start(
        server(),
        &format!(
            "log_format up '$status $upstream_addr $upstream_queue_time'; access_log logs/access.log up;
             upstream u {{ server {addr} max_conns=1; queue 1; }}
             server {{ listen 127.0.0.1:{{port}}; location / {{ proxy_pass http://u; }} }}"
        ),
    );
    let mut first = send(&server, "/");
    slow.came.recv_timeout(wait::TIMEOUT).unwrap();
    // One of these requests waits, and the other has no place in the queue.
    let mut others = [send(&server, "/"), send(&server, "/")];
    server.wait_error_log("upstream queue is full while connecting to upstream").unwrap();
    assert!(slow.came.try_recv().is_err(), "nobody else is at the server");
    slow.answer.send(()).unwrap();
    assert_eq!(first.read_response().unwrap().text(), "ok");
    slow.came.recv_timeout(wait::TIMEOUT).unwrap();
    slow.answer.send(()).unwrap();
    let mut statuses = others.each_mut().map(|client| client.read_response().unwrap().status);
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 502]);
    // The request that waited has a queue time, the others have none.
    let mut lines = server.access_log(3).unwrap();
    lines.sort();
    let waited = format!("200 {addr} ");
    let times = [format!("200 {addr} -"), "502 u -".to_owned()];
    let time = lines[1].strip_prefix(&*waited).and_then(|time| time.split_once('.'));
    assert!(time.is_some_and(|(secs, millis)| secs.parse::<u8>().is_ok() && millis.len() == 3), "{lines:?}");
    assert_eq!([&lines[0], &lines[2]], [&times[0], &times[1]]);
}

#[test]
fn queue_timeout_is_502_and_a_closed_client_connection_leaves_the_queue() {
    let slow = slow_origin();
    let addr = slow.addr;
    let server = start(
        server(),
        &format!(
            "upstream brief {{ server {addr} down; server {addr} down; queue 1 timeout=20ms; }}
             upstream u {{ server {addr} max_conns=1; queue 1; }}
             server {{ listen 127.0.0.1:{{port}}; location / {{ proxy_pass http://u; }}
                 location /brief {{ proxy_pass http://brief; }} }}"
        ),
    );
    assert_eq!(get(&server, "/brief").status, 502);
    server.wait_error_log("upstream queue timed out while connecting to upstream").unwrap();
    let mut first = send(&server, "/");
    slow.came.recv_timeout(wait::TIMEOUT).unwrap();
    // The waiting request fills the queue, so the next one has no place; when it leaves, there is a place again.
    let waiting = send(&server, "/waiting");
    assert!(wait::until(wait::TIMEOUT, || {
        let mut probe = send(&server, "/probe");
        !probe.silent_for(std::time::Duration::from_millis(50)).unwrap()
            && probe.read_response().unwrap().status == 502
    }));
    drop(waiting);
    server.wait_error_log("request: \"GET /waiting").unwrap();
    slow.answer.send(()).unwrap();
    assert_eq!(first.read_response().unwrap().text(), "ok");
}

#[test]
fn failed_server_is_retried_from_the_queue_after_fail_timeout() {
    let failing = origin(|mut conn| {
        let nth = conn.nth;
        while conn.head().is_some() {
            // The first connection is closed without an answer.
            if nth == 0 {
                return;
            }
            conn.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
    });
    let server = start(
        server(),
        &format!(
            "upstream u {{ server {failing} fail_timeout=1s; server 127.0.0.1:1 down; queue 5; }}
             server {{ listen 127.0.0.1:{{port}}; location / {{ proxy_pass http://u; }} }}"
        ),
    );
    assert_eq!(get(&server, "/").status, 502);
    // No peer is available and no request ends, so only the retry time wakes the queue.
    assert_eq!(get(&server, "/").text(), "ok");
}

#[test]
fn request_that_failed_at_the_free_server_lets_the_next_one_pass() {
    let failing = slow_origin_unless("/fails ");
    let other = slow_origin();
    let server = start(
        server(),
        &format!(
            "upstream u {{ server {} max_conns=1 max_fails=0; server {} max_conns=1; queue 2; }}
             server {{ listen 127.0.0.1:{{port}}; location / {{ proxy_pass http://u; }} }}",
            failing.addr, other.addr
        ),
    );
    // The request `/fails` fails at the first server and then waits, because the other server is busy.
    let mut first = send(&server, "/");
    failing.came.recv_timeout(wait::TIMEOUT).unwrap();
    let mut second = send(&server, "/");
    other.came.recv_timeout(wait::TIMEOUT).unwrap();
    failing.answer.send(()).unwrap();
    assert_eq!(first.read_response().unwrap().text(), "ok");
    let mut fails = send(&server, "/fails");
    server.wait_error_log("upstream prematurely closed connection").unwrap();
    let mut third = send(&server, "/");
    failing.came.recv_timeout(wait::TIMEOUT).unwrap();
    // One of these requests waits behind `/fails`, and the other has no place.
    let mut others = [send(&server, "/"), send(&server, "/")];
    server.wait_error_log("upstream queue is full").unwrap();
    failing.answer.send(()).unwrap();
    assert_eq!(third.read_response().unwrap().text(), "ok");
    failing.came.recv_timeout(wait::TIMEOUT).expect("the next one has gone there");
    failing.answer.send(()).unwrap();
    let mut statuses = others.each_mut().map(|client| client.read_response().unwrap().status);
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 502]);
    other.answer.send(()).unwrap();
    assert_eq!(second.read_response().unwrap().text(), "ok");
    other.came.recv_timeout(wait::TIMEOUT).unwrap();
    other.answer.send(()).unwrap();
    assert_eq!(fails.read_response().unwrap().text(), "ok");
}
