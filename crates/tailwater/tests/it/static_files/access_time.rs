//! Access times: reads that would write one run in a pool, and our own files are opened with `O_NOATIME`.

use std::fs::{self, File, FileTimes};
use std::os::linux::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime};

use rustix::fs::StatVfsMountFlags;
use tw_testkit::disk::{Fault, Op};
use tw_testkit::{Lacks, Server, leave_out, wait};

use crate::support::metrics::metric_sum;
use crate::support::slow_ext4::SlowExt4;
use crate::support::{get, page, server};

/// Size larger than files kept in memory, so that each response reads it.
const SIZE: usize = 300_000;

/// Sets the times of a file as if it had been changed after it was last read.
fn make_due(path: &Path) {
    let read = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
    let times = FileTimes::new().set_accessed(read).set_modified(read + Duration::from_secs(1));
    File::options().write(true).open(path).unwrap().set_times(times).unwrap();
}

/// Reads that ran in a pool because of access times.
fn pool_reads(server: &Server) -> u64 {
    metric_sum(server, "device_access_time_reads_total")
}

#[test]
fn read_that_would_write_an_access_time_runs_in_a_pool() {
    let server = server()
        .with_master()
        .file("html/a", "x".repeat(SIZE))
        .file("html/b", "b")
        .start("http { server { listen 127.0.0.1:{port}; root html; location = /metrics { metrics; } } }")
        .unwrap();
    let path = server.prefix().join("html/a");
    let flags = rustix::fs::statvfs(&path).unwrap().f_flag;
    if !flags.contains(StatVfsMountFlags::RELATIME) {
        leave_out(Lacks::Machine, format_args!("{} is not mounted with relatime", path.display()));
        return;
    }
    // The device and its mount are known from here on.
    assert!(wait::until(wait::TIMEOUT, || {
        let before = pool_reads(&server);
        get(&server, "/b").status == 200 && pool_reads(&server) == before
    }));
    // The worker process of a root master is another user.
    let is_ours = !rustix::process::geteuid().is_root();
    for _ in 0..3 {
        make_due(&path);
        let before = pool_reads(&server);
        assert_eq!(get(&server, "/a").text().len(), SIZE);
        let read = fs::metadata(&path).unwrap().st_atime();
        let after = pool_reads(&server);
        if is_ours {
            assert_eq!((read, after), (1, before), "O_NOATIME");
            continue;
        }
        assert!(read > 2 && after > before, "{read} {before} {after}");
        // Once the access time is not due for an update, loops read the file themselves.
        assert!(wait::until(wait::TIMEOUT, || {
            let before = pool_reads(&server);
            get(&server, "/a").status == 200 && pool_reads(&server) == before
        }));
    }
}

#[test]
fn stalled_journal_blocks_only_requests_that_write_to_it() {
    let Some(journal) = SlowExt4::mount_or_skip() else { return };
    let path = journal.mount.join("a");
    fs::write(&path, vec![b'x'; SIZE]).unwrap();
    let server = server()
        .with_master()
        .file("html/fast.txt", "fast")
        .start(&format!(
            "http {{ server {{ listen 127.0.0.1:{{port}}; root html; location = /metrics {{ metrics; }}
             location /slow/ {{ alias {}/; }} }} }}",
            journal.mount.path().display()
        ))
        .unwrap();
    // Once the file is in memory and known to be, loops read it themselves.
    assert!(wait::until(wait::TIMEOUT, || {
        let before = pool_reads(&server);
        get(&server, "/slow/a").text().len() == SIZE && pool_reads(&server) == before
    }));
    let device = File::open(&path).unwrap();
    rustix::fs::syncfs(&device).unwrap();

    // The inode with the new access time is being written to the journal, whose writes stall.
    make_due(&path);
    let stall = journal.disk.on(Op::Write).inject(Fault::Stall);
    let sync = thread::spawn(move || rustix::fs::syncfs(&device));
    assert!(wait::until(wait::TIMEOUT, || stall.waiting() > 0));
    let mut waiting = server.connect().unwrap();
    waiting.send("GET /slow/a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    for _ in 0..20 {
        assert_eq!(page(&server, "/fast.txt"), (200, "fast".to_owned()));
    }
    assert!(stall.waiting() > 0);
    stall.lift();
    assert_eq!(waiting.read_response().unwrap().text().len(), SIZE);
    sync.join().unwrap().unwrap();
}
