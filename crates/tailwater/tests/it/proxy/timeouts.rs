//! `proxy_read_timeout`: late upstream servers and late clients.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tw_testkit::origin::origin;
use tw_testkit::wait;

use crate::support::{get, server, start};

/// True if a client that starts to read after the last byte of its server gets the whole response; `None` if the server
/// paused for too long meanwhile, as on a stalled machine.
fn slow_client_gets_all() -> Option<bool> {
    // The first half exceeds the socket buffers, so the server waits for the client from then on.
    const FIRST: usize = 8 << 20;
    const PIECES: usize = 40;
    let (done, is_done) = channel();
    let done = Arc::new(Mutex::new(done));
    let addr = origin(move |mut conn| {
        let _ = conn.head();
        conn.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", FIRST + PIECES));
        conn.send(vec![b'x'; FIRST]);
        let mut said = Instant::now();
        let mut longest = Duration::ZERO;
        for _ in 0..PIECES {
            // The pauses are twice the timeout in total, and each of them is far below it.
            wait::pause(Duration::from_millis(50));
            conn.send("y");
            longest = longest.max(said.elapsed());
            said = Instant::now();
        }
        done.lock().unwrap().send(longest).unwrap();
        let _ = conn.head();
    });
    let server = start(
        server(),
        &format!(
            "proxy_read_timeout 1s; proxy_buffers 4 16k; proxy_buffer_size 16k;
             server {{ listen 127.0.0.1:{{port}} sndbuf=16k; location / {{ proxy_pass http://{addr}; }} }}"
        ),
    );
    let mut client = server.connect().unwrap();
    client.send("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    assert_eq!(client.read_head().unwrap().status, 200);
    let longest = is_done.recv_timeout(wait::TIMEOUT).expect("the server has sent all of it");
    let has_all = client.read_until_close().is_ok_and(|all| all.len() == FIRST + PIECES);
    (has_all || longest < Duration::from_millis(500)).then_some(has_all)
}

#[test]
fn slow_client_does_not_time_out_its_server() {
    assert_eq!((0..5).find_map(|_| slow_client_gets_all()), Some(true));
}

#[test]
fn stopped_server_times_out_at_any_rate() {
    let addr = origin(|mut conn| {
        let _ = conn.head();
        conn.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf");
        let _ = conn.head();
    });
    let server = start(
        server(),
        &format!(
            "proxy_read_timeout 500ms;
             server {{ listen 127.0.0.1:{{port}};
                 location / {{ proxy_pass http://{addr}; proxy_limit_rate $arg_rate; }} }}"
        ),
    );
    for target in ["/", "/?rate=1", "/?rate=1000"] {
        let mut client = server.connect().unwrap();
        client.send(format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n")).unwrap();
        assert_eq!(client.read_head().unwrap().status, 200);
        assert_eq!(client.read_until_close().unwrap(), b"half", "{target}");
    }
    server.wait_error_log("upstream timed out (110: Connection timed out) while reading upstream").unwrap();
}

#[test]
fn dripping_head_times_out() {
    let addr = origin(|mut conn| {
        let _ = conn.head();
        conn.send("HTTP/1.1 200 OK\r\n");
        for _ in 0..400 {
            conn.send("X: y\r\n");
            wait::pause(Duration::from_millis(50));
        }
    });
    let server = start(
        server(),
        &format!(
            "proxy_read_timeout 1s; proxy_buffer_size 64k;
             server {{ listen 127.0.0.1:{{port}}; location / {{ proxy_pass http://{addr}; }} }}"
        ),
    );
    assert_eq!(get(&server, "/").status, 504);
    server
        .wait_error_log(
            "upstream timed out (110: Connection timed out) while reading response header from upstream",
        )
        .unwrap();
}
