//! Memory of fills: they are written back while they arrive, and responses requested once do not stay in memory.

use std::fs::File;
use std::io::IoSliceMut;
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

use rustix::io::{Errno, ReadWriteFlags, preadv2};
use tw_testkit::origin::counting;
use tw_testkit::{Client, Lacks, Server, leave_out, wait};

use crate::support::cache::wait_stored;
use crate::support::files::files_below;
use crate::support::metrics::metric;
use crate::support::server;

/// Bytes of a response, and of its first half, which comes before the other one may.
const SIZE: usize = 8 << 20;
const HALF: usize = SIZE / 2;

/// A server with a cache, in front of one that stops in the middle of each large response until it is told to go on.
fn cached() -> (Server, Sender<()>) {
    let (go, wait_for_go) = channel();
    let gate = Arc::new(Mutex::new(wait_for_go));
    let (addr, _) = counting(move |conn, head, _| {
        if !head.contains("/large") {
            return conn.answer("", vec![b'x'; 500_000]);
        }
        conn.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n"));
        conn.send(vec![b'a'; HALF]);
        gate.lock().unwrap().recv_timeout(wait::TIMEOUT).unwrap();
        conn.send(vec![b'b'; HALF]);
    });
    let conf = format!(
        "worker_processes 1; thread_pool own threads=4;
         http {{ proxy_cache_path cache levels=1:2 keys_zone=one:1m thread_pool=own;
             server {{ listen 127.0.0.1:{{port}};
                 location / {{ proxy_pass http://{addr}; proxy_cache one; proxy_cache_valid 1h;
                     proxy_cache_lock on; proxy_cache_lock_timeout 1h; proxy_cache_lock_age 1h; }}
                 location = /metrics {{ metrics; }} }} }}"
    );
    let server = server().start(&conf).unwrap();
    server.wait_error_log(" files, ").unwrap();
    (server, go)
}

fn write_backs(server: &Server) -> u64 {
    metric(server, "disk_jobs_total{pool=\"own\",operation=\"write_back\"}")
}

fn request(server: &Server, path: &str) -> Client {
    let mut client = server.connect().unwrap().timeout(wait::TIMEOUT);
    client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")).unwrap();
    client
}

/// Reads so many bytes, all of this value.
fn read(client: &mut Client, count: usize, byte: u8) {
    for _ in 0..count >> 16 {
        assert!(client.read_bytes(1 << 16).unwrap().iter().all(|candidate| *candidate == byte));
    }
}

/// Number of the given pages in the first half of a file that are in memory; `None` if the kernel does not tell.
fn in_memory(path: &Path) -> Option<usize> {
    let file = File::open(path).unwrap();
    let mut found_value = 0;
    for nth in 0..8 {
        let mut byte = [0];
        match preadv2(
            &file,
            &mut [IoSliceMut::new(&mut byte)],
            nth * (HALF as u64 / 8),
            ReadWriteFlags::NOWAIT,
        ) {
            Ok(1) => found_value += 1,
            Err(Errno::AGAIN) => {}
            Err(Errno::OPNOTSUPP) => return None,
            other => panic!("{other:?}"),
        }
    }
    Some(found_value)
}

#[test]
fn fill_is_written_back_while_it_arrives() {
    let (server, go) = cached();
    let mut client = request(&server, "/large");
    assert_eq!(client.read_head().unwrap().status, 200);
    read(&mut client, HALF, b'a');
    // The response has not ended, and part of it is on the disk. At most half of it is written at once.
    assert!(wait::until(wait::TIMEOUT, || write_backs(&server) > 0), "{}", server.error_log());
    go.send(()).unwrap();
    read(&mut client, HALF, b'b');
    wait_stored(&server, 1);
    // The thread counts a job only after it has woken the waiting request, so the counter may lag.
    assert!(wait::until(wait::TIMEOUT, || write_backs(&server) >= 2), "{}", write_backs(&server));
    // The file was not read again before it got its name, so its pages have not come back.
    let [file] = &files_below(&server.prefix().join("cache"))[..] else { panic!("one file") };
    match in_memory(file) {
        Some(pages) => assert!(pages <= 4, "{pages} of 8"),
        None => leave_out(Lacks::Machine, "no look into memory on this file system"),
    }
    // Small files are left to the kernel.
    let all = write_backs(&server);
    Client::get(server.addr(), "/small").unwrap();
    wait_stored(&server, 2);
    assert_eq!(write_backs(&server), all);
    // The stored response is complete.
    let mut client = request(&server, "/large");
    assert_eq!(client.read_head().unwrap().status, 200);
    read(&mut client, HALF, b'a');
    read(&mut client, HALF, b'b');
}

#[test]
fn response_requested_twice_stays_in_memory() {
    let (server, go) = cached();
    let mut clients = [(); 2].map(|()| request(&server, "/large"));
    for client in &mut clients {
        assert_eq!(client.read_head().unwrap().status, 200);
        read(client, HALF, b'a');
    }
    go.send(()).unwrap();
    for client in &mut clients {
        read(client, HALF, b'b');
    }
    wait_stored(&server, 1);
    assert!(wait::until(wait::TIMEOUT, || write_backs(&server) >= 2), "{}", write_backs(&server));
    let [file] = &files_below(&server.prefix().join("cache"))[..] else { panic!("one file") };
    match in_memory(file) {
        Some(pages) => assert!(pages > 4, "{pages} of 8"),
        None => leave_out(Lacks::Machine, "no look into memory on this file system"),
    }
}
