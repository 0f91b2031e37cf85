//! Stalled and failing disks: only requests that need them are delayed or refused.

use std::time::Duration;

use tw_testkit::disk::{Fault, Op, SlowDisk};
use tw_testkit::wait;

use crate::support::{get, page, raw, server, start_server};

fn errno(number: i32) -> Fault {
    Fault::Error(rustix::io::Errno::from_raw_os_error(number))
}

const EIO: i32 = 5;
const EMFILE: i32 = 24;
const ENOMEM: i32 = 12;

#[test]
fn stalled_disk_delays_only_requests_that_need_it() {
    let Some(disk) = SlowDisk::mount_or_skip() else { return };
    disk.write("a", "slow content");
    let server = start_server(
        server().file("html/fast.txt", "fast"),
        &format!("location /slow/ {{ alias {}/; }}", disk.path().display()),
    );
    for op in [Op::Lookup, Op::Open, Op::Read] {
        let stall = disk.on(op).inject(Fault::Stall);
        let mut waiting = server.connect().unwrap();
        waiting.send("GET /slow/a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        assert!(wait::until(wait::TIMEOUT, || stall.waiting() > 0), "{op:?}");
        for _ in 0..20 {
            assert_eq!(page(&server, "/fast.txt"), (200, "fast".to_owned()), "{op:?}");
        }
        assert!(stall.waiting() > 0, "{op:?}");
        stall.lift();
        assert_eq!(waiting.read_response().unwrap().text(), "slow content", "{op:?}");
    }
}

#[test]
fn closed_client_connection_does_not_wait_for_the_disk() {
    let Some(disk) = SlowDisk::mount_or_skip() else { return };
    disk.write("a", "slow content");
    let server = start_server(
        server().file("html/fast.txt", "fast"),
        &format!("location /slow/ {{ alias {}/; }}", disk.path().display()),
    );
    let stall = disk.on(Op::Open).inject(Fault::Stall);
    let mut client = server.connect().unwrap();
    client.send("GET /slow/a HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    assert!(wait::until(wait::TIMEOUT, || stall.waiting() > 0));
    drop(client);
    assert_eq!(page(&server, "/fast.txt").0, 200);
    stall.lift();
    assert_eq!(page(&server, "/slow/a"), (200, "slow content".to_owned()));
}

#[test]
fn failing_operations_have_status_and_log_line() {
    let Some(disk) = SlowDisk::mount_or_skip() else { return };
    disk.write("a", "content");
    let slow = disk.path().display().to_string();
    let server = start_server(
        server().file("html/fast.txt", "fast").file("html/50x.html", "sorry"),
        &format!(
            "location /slow/ {{ alias {slow}/; error_page 500 503 /50x.html; }}
             location /listed/ {{ alias {slow}/; autoindex on; }}"
        ),
    );
    for (op, number, status, line) in [
        (Op::Open, EIO, 500, "open() \"{slow}/a\" failed (5: Input/output error)"),
        (Op::Open, EMFILE, 503, "open() \"{slow}/a\" failed (24: Too many open files)"),
        (Op::Open, ENOMEM, 503, "open() \"{slow}/a\" failed (12: Cannot allocate memory)"),
    ] {
        let fault = disk.on(op).name("a").inject(errno(number));
        assert_eq!(page(&server, "/slow/a"), (status, "sorry".to_owned()), "{op:?} {number}");
        assert_eq!(page(&server, "/fast.txt").0, 200);
        server.wait_error_log(&line.replace("{slow}", &slow)).unwrap();
        fault.lift();
        assert_eq!(page(&server, "/slow/a").0, 200, "{op:?} {number}: it goes on");
    }

    // A read fails after the head was sent: the connection is cut, so that the client sees an incomplete response.
    let fault = disk.on(Op::Read).inject(errno(EIO));
    let cut = raw(&server, "GET /slow/a HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(!cut.ends_with("content"), "{cut}");
    server.wait_error_log("read() failed (5: Input/output error)").unwrap();
    assert_eq!(page(&server, "/fast.txt").0, 200);
    fault.lift();

    let fault = disk.on(Op::Readdir).inject(errno(EIO));
    assert_eq!(get(&server, "/listed/").status, 500);
    fault.lift();
    assert_eq!(get(&server, "/listed/").status, 200);
}

#[test]
fn body_that_cannot_be_stored_is_refused_alone() {
    let Some(disk) = SlowDisk::mount_or_skip() else { return };
    let server = start_server(
        server().file("html/fast.txt", "fast"),
        &format!(
            "client_body_early_read 1; client_body_in_file_only clean; client_body_temp_path {}/tmp;
             location /body {{ return 200 'stored in $request_body_file'; }}",
            disk.path().display()
        ),
    );
    let post = "POST /body HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 4\r\n\r\nbody";
    for op in [Op::Create, Op::Write] {
        let full = disk.on(op).inject(errno(28));
        assert!(raw(&server, post).starts_with("HTTP/1.1 500 "), "{op:?}");
        server.wait_error_log("failed (28: No space left on device)").unwrap();
        assert_eq!(page(&server, "/fast.txt").0, 200);
        full.lift();
    }
    assert!(raw(&server, post).contains("stored in "));
}

#[test]
fn full_pool_queue_is_logged_and_spares_files_in_memory() {
    let Some(disk) = SlowDisk::mount_or_skip() else { return };
    for name in ["a", "b", "c"] {
        disk.write(name, "slow content");
    }
    let server = server()
        .file("html/fast.txt", "fast")
        .start(&format!(
            "thread_pool small threads=1 max_queue=0;
             http {{ server {{ listen 127.0.0.1:{{port}}; root html;
                 location /slow/ {{ alias {}/; aio threads=small; }} }} }}",
            disk.path().display()
        ))
        .unwrap();
    assert_eq!(page(&server, "/fast.txt").0, 200);
    let stall = disk.on(Op::Open).inject(Fault::Stall);
    let mut first = server.connect().unwrap();
    first.send("GET /slow/a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    assert!(wait::until(wait::TIMEOUT, || stall.waiting() > 0));
    let refused = get(&server, "/slow/b");
    assert_eq!((refused.status, refused.field("Retry-After").is_some()), (503, true));
    server.wait_error_log("thread pool \"small\" queue overflow").unwrap();
    assert_eq!(page(&server, "/fast.txt"), (200, "fast".to_owned()));
    stall.lift();
    assert_eq!(first.read_response().unwrap().status, 200);
    assert!(wait::until(Duration::from_secs(5), || get(&server, "/slow/b").status == 200));
}
