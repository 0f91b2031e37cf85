//! Files that are open when their pool ends are closed by another one, not by whoever drops them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use tw_disk::{Account, Aio, Disk, JobClass, JobSource, Op, OpenOptions, Pool};

const DEADLINE: Duration = Duration::from_secs(10);

fn wait(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < DEADLINE, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn files_of_an_ended_pool_are_closed_by_its_heir() {
    let path = std::env::temp_dir().join(format!("tw-disk-{}-heir", std::process::id()));
    std::fs::write(&path, "x").unwrap();
    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    let heir = Pool::new("heir", 1, 8).unwrap();
    heir.inherit();
    let pool = Pool::new("short", 1, 8).unwrap();
    let disk = Disk::new(pool.clone(), Aio::Threads);
    let mut account = Account::new(JobClass::Hit, JobSource::NONE);
    let file = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(disk.open_cold(&mut account, &name, &OpenOptions::READ))
        .unwrap();
    // A close that frees blocks may wait.
    std::fs::remove_file(&path).unwrap();
    drop(disk);
    pool.shutdown();
    let closed = || heir.stats().ops.iter().filter(|op| op.op == Op::Close).map(|op| op.jobs).sum::<u64>();
    assert_eq!(closed(), 0);
    drop(file);
    wait("the heir closes it", || closed() == 1);
}
