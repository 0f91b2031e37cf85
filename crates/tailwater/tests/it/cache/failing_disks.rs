//! Full, failing and stalled disks under a cache.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use tw_testkit::disk::{Fault, Injected, Op, SlowDisk};
use tw_testkit::origin::counting;
use tw_testkit::{Client, Errno, Response, Server, Signal, wait};

use crate::support::get;
use crate::support::metrics::metric;
use crate::support::metrics::try_metric;
use crate::support::{server, start};

/// An origin that answers with the number of the request, and a long tail if the path says so.
fn numbering_origin() -> (SocketAddr, Arc<AtomicUsize>) {
    counting(|conn, head, nth| {
        let tail = if head.contains("/large") { 2 << 20 } else { 0 };
        conn.answer("", format!("{nth} {}", "x".repeat(tail)));
    })
}

fn cached_on(disk: &SlowDisk, addr: SocketAddr) -> Server {
    start(
        server(),
        &format!(
            "proxy_cache_path {}/cache levels=1:2 keys_zone=one:1m;
             map $request_method $purge {{ PURGE 1; }}
             server {{ listen 127.0.0.1:{{port}}; add_header X-Cache $upstream_cache_status;
                 location / {{ proxy_pass http://{addr}; proxy_cache one; proxy_cache_valid 1h;
                     proxy_cache_purge $purge; }}
                 location /plain {{ proxy_pass http://{addr}; }}
                 location = /metrics {{ metrics; }} }}",
            disk.path().display()
        ),
    )
}

/// Sends a request for `/a` and does not wait for the response.
fn request(server: &Server, method: &str) -> Client {
    let mut client = server.connect().unwrap();
    client.send(format!("{method} /a HTTP/1.1\r\nHost: localhost\r\n\r\n")).unwrap();
    client
}

fn number(response: &Response) -> usize {
    response.text().split(' ').next().unwrap().parse().unwrap()
}

/// Waits until no fill is in progress.
fn wait_for_fills(server: &Server) {
    assert!(wait::until(wait::TIMEOUT, || metric(server, "cache_filling") == 0), "{}", server.error_log());
}

#[test]
fn full_disk_loses_entries_only() {
    let Some(disk) = SlowDisk::mount_or_skip() else { return };
    let (addr, request_count) = numbering_origin();
    let server = cached_on(&disk, addr);
    wait_for_fills(&server);
    for path in ["/small", "/large"] {
        for op in [Op::Create, Op::Write, Op::Rename] {
            for errno in [Errno::NOSPC, Errno::DQUOT, Errno::IO, Errno::ROFS] {
                let before = request_count.load(SeqCst);
                let fault = disk.on(op).inject(Fault::Error(errno));
                let first = get(&server, path);
                assert_eq!((first.status, number(&first)), (200, before), "{path} {op:?} {errno}");
                wait_for_fills(&server);
                assert!(fault.hits() > 0, "{path} {op:?} {errno}");
                // The response was not stored.
                assert_eq!(number(&get(&server, path)), before + 1, "{path} {op:?} {errno}");
                wait_for_fills(&server);
                fault.lift();
            }
        }
    }
    assert!(metric(&server, "cache_disk_failures_total") >= 24);
    let lines = server.error_log().lines().filter(|line| line.contains("while storing a response")).count();
    assert!((1..=3).contains(&lines), "one a minute: {lines}");
    // The failed fills left no files, and free space is used again.
    let last = number(&get(&server, "/small"));
    wait_for_fills(&server);
    assert_eq!(number(&get(&server, "/small")), last);
    assert_eq!(metric(&server, "cache_stored_total"), 1);
}

/// A restarted server that has not loaded its cache (`/a`, the number 0) and looks on the disk, until the fault is
/// lifted.
fn start_again(disk: &SlowDisk) -> (Server, Injected) {
    let (addr, _) = numbering_origin();
    let mut server = cached_on(disk, addr);
    assert_eq!(number(&get(&server, "/a")), 0);
    wait_for_fills(&server);
    server.stop().unwrap();
    let list = disk.on(Op::Readdir).inject(Fault::Stall);
    (cached_on(disk, addr), list)
}

#[test]
fn entry_found_during_its_purge_stays_purged() {
    let Some(disk) = SlowDisk::mount_or_skip() else { return };
    let (server, list) = start_again(&disk);
    let unlink = disk.on(Op::Unlink).inject(Fault::Stall);
    let mut purge = request(&server, "PURGE");
    assert!(wait::until(wait::TIMEOUT, || unlink.waiting() > 0), "{}", server.error_log());
    let read = disk.on(Op::Read).inject(Fault::Stall);
    let mut before = request(&server, "GET");
    assert!(wait::until(wait::TIMEOUT, || read.waiting() > 0), "{}", server.error_log());
    unlink.lift();
    assert_eq!(purge.read_response().unwrap().status, 204);
    // Only the request that came before the purge gets the earlier response.
    read.lift();
    assert_eq!(number(&before.read_response().unwrap()), 0);
    assert_eq!(number(&get(&server, "/a")), 1);
    list.lift();
}

#[test]
fn successor_of_a_purged_entry_does_not_restore_it() {
    let Some(disk) = SlowDisk::mount_or_skip() else { return };
    let (server, list) = start_again(&disk);
    // Has opened the first one, and reads it until two are purged.
    let read = disk.on(Op::Read).inject(Fault::Stall);
    let mut late = request(&server, "GET");
    assert!(wait::until(wait::TIMEOUT, || read.waiting() > 0), "{}", server.error_log());
    assert_eq!(request(&server, "PURGE").read_response().unwrap().status, 204);
    assert_eq!(number(&get(&server, "/a")), 1);
    wait_for_fills(&server);
    // The second one has left the index, and its file is still there.
    let unlink = disk.on(Op::Unlink).inject(Fault::Stall);
    let mut purge = request(&server, "PURGE");
    assert!(wait::until(wait::TIMEOUT, || unlink.waiting() > 0), "{}", server.error_log());
    read.lift();
    assert_eq!(number(&late.read_response().unwrap()), 0);
    assert_eq!(number(&get(&server, "/a")), 1);
    unlink.lift();
    assert_eq!(purge.read_response().unwrap().status, 204);
    assert_eq!(number(&get(&server, "/a")), 2);
    list.lift();
}

#[test]
fn late_client_of_a_fill_without_a_file_gets_its_own_fetch() {
    const HALF: usize = 1 << 20;
    let (go, wait_for_go) = channel::<()>();
    let gate = Arc::new(Mutex::new(wait_for_go));
    let (addr, _) = counting(move |conn, _, nth| {
        let letter = b'a' + nth as u8;
        conn.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 2 * HALF));
        conn.send(vec![letter; HALF]);
        if nth == 0 {
            gate.lock().unwrap().recv_timeout(wait::TIMEOUT).unwrap();
        }
        conn.send(vec![letter; HALF]);
    });
    let server = start(
        server(),
        &format!(
            "proxy_cache_path cache keys_zone=one:1m;
             server {{ listen 127.0.0.1:{{port}};
                 location / {{ proxy_pass http://{addr}; proxy_cache one; proxy_cache_valid 1h;
                     proxy_cache_lock on; }}
                 location = /metrics {{ metrics; }} }}"
        ),
    );
    server.wait_error_log(" files, ").unwrap();
    // A file in place of the directory makes every creation of a file fail.
    let dir = server.prefix().join("cache");
    std::fs::remove_dir_all(&dir).unwrap();
    std::fs::write(&dir, "").unwrap();
    let request = || {
        let mut client = server.connect().unwrap().timeout(wait::TIMEOUT);
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        client
    };
    let mut first = request();
    assert_eq!(first.read_head().unwrap().status, 200);
    assert_eq!(first.read_bytes(HALF).unwrap(), vec![b'a'; HALF]);
    // The fill has given up its file, so the first half is kept nowhere else; or the failed create has not been counted
    // yet.
    let created = || {
        try_metric(&server, "disk_jobs_total{pool=\"default\",operation=\"create\"}")
            .is_some_and(|count: u64| count > 0)
    };
    assert!(wait::until(wait::TIMEOUT, created), "{}", server.error_log());
    let mut others = [(); 3].map(|()| request());
    let letters: Vec<u8> = others
        .iter_mut()
        .map(|other| {
            assert_eq!(other.read_head().unwrap().status, 200);
            let half = other.read_bytes(HALF).unwrap();
            assert_eq!(half, vec![half[0]; HALF]);
            half[0]
        })
        .collect();
    go.send(()).unwrap();
    assert_eq!(first.read_bytes(HALF).unwrap(), vec![b'a'; HALF]);
    for (other, letter) in others.iter_mut().zip(letters) {
        assert_eq!(other.read_bytes(HALF).unwrap(), vec![letter; HALF]);
    }
}

#[test]
fn unreadable_entry_is_fetched_again() {
    let Some(disk) = SlowDisk::mount_or_skip() else { return };
    let (addr, request_count) = numbering_origin();
    let server = cached_on(&disk, addr);
    wait_for_fills(&server);
    for op in [Op::Open, Op::Read] {
        for errno in [Errno::IO, Errno::MFILE, Errno::ACCESS] {
            get(&server, "/a");
            wait_for_fills(&server);
            // SIGUSR1 closes open files, so that this one is opened anew.
            server.signal(Signal::USR1).unwrap();
            let fault = disk.on(op).inject(Fault::Error(errno));
            let before = request_count.load(SeqCst);
            let is_asked = || {
                let response = get(&server, "/a");
                assert_eq!(response.status, 200, "{op:?} {errno}");
                request_count.load(SeqCst) > before
            };
            assert!(wait::until(wait::TIMEOUT, is_asked), "{op:?} {errno}");
            fault.lift();
            wait_for_fills(&server);
        }
    }
}

#[test]
fn hits_in_memory_and_fills_do_not_wait_for_the_disk() {
    let Some(disk) = SlowDisk::mount_or_skip() else { return };
    let (addr, _) = numbering_origin();
    let server = cached_on(&disk, addr);
    let hot = number(&get(&server, "/hot"));
    wait_for_fills(&server);
    for op in [Op::Create, Op::Write, Op::Rename, Op::Open, Op::Read] {
        let stall = disk.on(op).inject(Fault::Stall);
        // The response comes as fast as the origin sends it, whatever the disk does. A client that falls behind reads
        // from the file.
        let size = if op == Op::Read { "small" } else { "large" };
        let path = format!("/{size}/{op:?}");
        let first = get(&server, &path);
        assert_eq!(first.status, 200, "{op:?}");
        if matches!(op, Op::Create | Op::Write | Op::Rename) {
            assert!(wait::until(wait::TIMEOUT, || stall.waiting() > 0), "{op:?}");
        }
        for _ in 0..20 {
            assert_eq!(number(&get(&server, "/hot")), hot, "{op:?}");
            assert_eq!(get(&server, "/plain").status, 200, "{op:?}");
        }
        // A second request for the same does not wait for the disk, either: the response is still in memory, or the
        // origin is asked.
        assert_eq!(get(&server, &format!("/new/{op:?}")).status, 200, "{op:?}");
        stall.lift();
        wait_for_fills(&server);
    }
    let text = get(&server, "/metrics").text();
    let turns = |bound: &str| -> u64 {
        // Time that a turn waits for a processor depends on the machine only.
        let series = "tailwater_event_loop_part_seconds_bucket{worker=\"0\",cause=\"kernel\",le=";
        let series = format!("{series}\"{bound}\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&*series)).unwrap().parse().unwrap()
    };
    assert_eq!(turns("+Inf") - turns("1"), 0);
}
