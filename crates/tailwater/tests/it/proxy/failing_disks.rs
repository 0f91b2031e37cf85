//! Full and stalled disks under buffered upstream responses.

use std::net::SocketAddr;

use tw_testkit::disk::{Fault, Op, SlowDisk};
use tw_testkit::origin::origin;
use tw_testkit::{Client, Errno, Random, Server, wait};

use crate::support::count_in_error_log;
use crate::support::metrics::{metric, metric_in, metrics_text};
use crate::support::{page, server, start};

/// Size beyond socket buffers and the memory of a backlog.
const SIZE: usize = 6 << 20;
/// Bytes that `proxy_buffers` and `proxy_buffer_size` hold in memory.
const MEMORY: usize = 5 * (16 << 10);

fn body() -> Vec<u8> {
    Random::new(11).bytes(SIZE)
}

/// An origin with one large page and small ones.
fn large_origin() -> SocketAddr {
    let body = body();
    origin(move |mut conn| {
        while let Some(head) = conn.head() {
            if head.starts_with("GET /large ") { conn.answer("", &body) } else { conn.answer("", "small") }
        }
    })
}

/// A server that buffers responses for slow clients on `disk`.
fn buffering_on(disk: &SlowDisk) -> Server {
    start(
        server().file("html/static", "static"),
        &format!(
            "proxy_temp_path {}; proxy_buffers 4 16k; proxy_buffer_size 16k;
             server {{ listen 127.0.0.1:{{port}} sndbuf=16k; root html;
                 location / {{ proxy_pass http://{}; }}
                 location = /static {{ }} location = /metrics {{ metrics; }} }}",
            disk.path().display(),
            large_origin()
        ),
    )
}

/// A client that has requested the large page and reads only when the test reads.
fn slow_client(server: &Server) -> Client {
    let mut client = server.connect().unwrap();
    client.send("GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    client
}

#[test]
fn response_is_passed_unbuffered_when_the_disk_is_full() {
    const UNBUFFERED: &str = "while buffering upstream response, which goes on unbuffered";
    let Some(disk) = SlowDisk::mount_or_skip() else { return };
    let server = buffering_on(&disk);
    let body = body();
    let faults = [(Op::Create, 0), (Op::Write, 0), (Op::Write, 1), (Op::Write, 7), (Op::Write, 15)];
    for (count, (op, skip)) in faults.into_iter().enumerate() {
        let full = disk.on(op).skip(skip).inject(Fault::Error(Errno::NOSPC));
        let mut client = slow_client(&server);
        assert!(wait::until(wait::TIMEOUT, || full.hits() > 0), "{op:?} {skip}");
        // The client takes nothing before the server knows.
        assert!(wait::until(wait::TIMEOUT, || metric(&server, "pool_running{pool=\"default\"}") == 0));
        let response = client.read_response().unwrap();
        assert!(response.status == 200 && response.body == body, "{op:?} {skip}");
        let line = server.wait_error_log(UNBUFFERED).unwrap();
        assert!(line.contains("(28: No space left on device)"), "{line}");
        assert!(
            wait::until(wait::TIMEOUT, || count_in_error_log(&server, UNBUFFERED) == count + 1),
            "{op:?} {skip}"
        );
    }
    // Space that is free again is used again.
    let before = disk.count(Op::Write);
    let mut client = slow_client(&server);
    assert!(wait::until(wait::TIMEOUT, || disk.count(Op::Write) > before));
    assert!(client.read_response().unwrap().body == body);
    assert_eq!(count_in_error_log(&server, UNBUFFERED), faults.len());
}

#[test]
fn stalled_disk_of_a_slow_client_delays_no_other_client() {
    let Some(disk) = SlowDisk::mount_or_skip() else { return };
    let server = buffering_on(&disk);
    let body = body();
    for op in [Op::Create, Op::Write] {
        let stall = disk.on(op).inject(Fault::Stall);
        let mut client = slow_client(&server);
        assert!(wait::until(wait::TIMEOUT, || stall.waiting() > 0), "{op:?}");
        for _ in 0..20 {
            assert_eq!(page(&server, "/"), (200, "small".to_owned()), "{op:?}");
            assert_eq!(page(&server, "/static"), (200, "static".to_owned()), "{op:?}");
        }
        // Bytes that are being written can be sent, too.
        assert_eq!(client.read_head().unwrap().status, 200);
        let (first, rest) = body.split_at(MEMORY);
        assert!(client.read_bytes(MEMORY).unwrap() == first && stall.waiting() > 0, "{op:?}");
        stall.lift();
        assert!(client.read_until_close().unwrap() == rest, "{op:?}");
    }
}

#[test]
fn slow_disk_does_not_block_the_loop() {
    let Some(disk) = SlowDisk::mount_or_skip() else { return };
    let server = buffering_on(&disk);
    let body = body();
    let slow = disk.on(Op::Write).inject(Fault::Delay(std::time::Duration::from_secs(1)));
    let mut client = slow_client(&server);
    assert!(wait::until(wait::TIMEOUT, || {
        assert_eq!(page(&server, "/"), (200, "small".to_owned()));
        slow.hits() > 2
    }));
    // Bytes that the client takes meanwhile do not wait for the disk.
    assert!(client.read_response().unwrap().body == body);
    let metrics = metrics_text(&server);
    let turns = |bound: &str| {
        let series = format!("event_loop_blocked_seconds_bucket{{worker=\"0\",le=\"{bound}\"}}");
        metric_in(&metrics, &series)
    };
    // A stalled write in a loop would be such a turn each time. One is tolerated, because the machine itself may pause.
    assert!(turns("+Inf") - turns("1") < 2, "{metrics}");
}
