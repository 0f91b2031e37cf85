//! The simulated twin keeps its own promises, and code written against the door can rely on them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ffi::{CStr, CString};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tw_disk::sim::{Faults, Loss, Sim};
use tw_disk::{
    Account, Aio, CreateOptions, Disk, DiskError, Errno, Existing, File, FileKind, JobClass, JobSource,
    Links, Listing, Now, Op, OpenOptions, Pool, TempOptions,
};

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn poll_once<T>(future: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn door(sim: &Arc<Sim>, aio: Aio, threads: u32) -> Disk {
    Disk::simulated(Pool::new("sim", threads, 100).unwrap(), aio, sim.clone())
}

fn new_account() -> Account {
    Account::new(JobClass::Hit, JobSource::NONE)
}

async fn read_all(disk: &Disk, file: &File, step: usize) -> Result<Vec<u8>, DiskError> {
    let mut content = Vec::new();
    loop {
        let read = disk.read(&mut new_account(), file, content.len() as u64, vec![0; step]).await?;
        if read.is_empty() {
            return Ok(content);
        }
        content.extend(read);
    }
}

/// Replaces a file and does not see to it that the content is there before the name.
async fn replace_carelessly(disk: &Disk, path: &CStr, content: Vec<u8>) -> Result<(), DiskError> {
    let mut account = new_account();
    let temp = disk.create_temp(&mut account, c"/tmp", &TempOptions::NAMED).await?;
    disk.write(&mut account, temp.file(), 0, content).await?;
    disk.rename(&mut account, temp.path().expect("a named file has a name"), path).await?;
    temp.keep();
    disk.sync_dir(&mut account, c"/store").await
}

fn old() -> Vec<u8> {
    vec![1; 3000]
}

fn new() -> Vec<u8> {
    vec![2; 5000]
}

#[test]
fn a_power_failure_at_any_operation_leaves_the_old_or_the_new_version() {
    let mut olds = 0;
    let mut news = 0;
    for seed in 0..200 {
        for at in 0..8 {
            let sim = Sim::new(seed);
            sim.put(c"/store/f", &old()).unwrap();
            let disk = door(&sim, Aio::Off, 1);
            sim.fail_power_after(at);
            let result = block_on(disk.replace(&mut new_account(), c"/store/f", 0o644, new()));
            sim.reboot();
            let rest = sim.content(c"/store/f").expect("one version survives");
            assert!(rest == old() || rest == new(), "seed {seed}, operation {at}");
            assert!(result.is_err() || rest == new(), "done means safe");
            *(if rest == old() { &mut olds } else { &mut news }) += 1;
        }
    }
    assert!(olds > 0 && news > 0);
}

#[test]
fn without_fsync_some_power_failure_tears_the_file() {
    let is_torn = (0..100).any(|seed| {
        let sim = Sim::new(seed);
        sim.put(c"/store/f", &old()).unwrap();
        sim.put(c"/tmp/keep", b"").unwrap();
        block_on(replace_carelessly(&door(&sim, Aio::Off, 1), c"/store/f", new())).unwrap();
        sim.reboot();
        let rest = sim.content(c"/store/f").unwrap();
        rest != old() && rest != new()
    });
    assert!(is_torn, "a twin that forgives everything finds nothing");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let sim = Sim::new(seed);
        sim.put(c"/store/keep", b"").unwrap();
        sim.put(c"/tmp/keep", b"").unwrap();
        sim.set_faults(Faults::MANY);
        let disk = door(&sim, Aio::Off, 1);
        let mut log = Vec::new();
        for i in 0..50_u8 {
            let path = CString::new(format!("/store/{}", i % 7)).unwrap();
            log.push(block_on(disk.replace(&mut new_account(), &path, 0o644, vec![i; 700])).err());
        }
        sim.reboot();
        let contents: Vec<_> = sim.paths().iter().map(|path| sim.content(path)).collect();
        (log, sim.calls(), contents.len(), contents)
    };
    assert_eq!(run(7).0.len(), 50);
    assert!(run(7).0 == run(7).0 && run(7).1 == run(7).1);
    assert_ne!(run(7).0, run(8).0);
}

#[test]
fn results_under_random_faults_are_correct_or_errors() {
    let content: Vec<u8> = (0..20_000_u32).map(|i| (i * 31) as u8).collect();
    let mut rights = 0;
    let mut wrongs = 0;
    let mut shorts = 0;
    for seed in 0..100 {
        let sim = Sim::new(seed);
        sim.put(c"/f", &content).unwrap();
        sim.set_faults(Faults::MANY);
        let disk = door(&sim, Aio::Threads, 1);
        let result: Result<Vec<u8>, DiskError> = block_on(async {
            let file = disk.open(&mut new_account(), c"/f", &OpenOptions::READ).await?;
            let mut buf = [0; 100];
            if let Now::Ready(Ok(n)) = disk.read_now(&file, 50, &mut buf) {
                assert_eq!(buf[..n], content[50..50 + n]);
                shorts += u32::from(n < 100);
            }
            read_all(&disk, &file, 4096).await
        });
        match result {
            Ok(read) => {
                assert_eq!(read, content);
                rights += 1;
            }
            Err(error) => {
                let errno = error.errno().unwrap();
                assert!(matches!(errno, Errno::IO | Errno::NOMEM | Errno::MFILE), "{error}");
                wrongs += 1;
            }
        }
    }
    assert!(rights > 0 && wrongs > 0 && shorts > 0, "{rights} {wrongs} {shorts}");
}

#[test]
fn short_writes_keep_the_order_of_parts() {
    // More parts than one call takes, some of them empty.
    let parts: Vec<Vec<u8>> = (0..300_usize).map(|n| vec![n as u8; n % 7 * 10]).collect();
    let whole = parts.concat();
    for (seed, faults) in [(1, Faults::NONE), (2, Faults { short: 900, ..Faults::NONE })] {
        let sim = Sim::new(seed);
        sim.put(c"/tmp/keep", b"").unwrap();
        sim.set_faults(faults);
        let disk = door(&sim, Aio::Threads, 1);
        block_on(async {
            let mut account = new_account();
            let temp = disk
                .create_temp_with(&mut account, c"/tmp", &TempOptions::NAMED, parts.clone())
                .await
                .unwrap();
            disk.write_parts(&mut account, temp.file(), whole.len() as u64, parts.clone()).await.unwrap();
            disk.write_parts(&mut account, temp.file(), 0, Vec::<&[u8]>::new()).await.unwrap();
            assert_eq!(sim.content(temp.path().unwrap()).unwrap(), whole.repeat(2));
        });
    }
    // A temporary file that cannot be written is removed.
    let sim = Sim::new(3);
    sim.put(c"/tmp/keep", b"").unwrap();
    sim.set_capacity(100);
    let disk = door(&sim, Aio::Threads, 1);
    let error =
        block_on(disk.create_temp_with(&mut new_account(), c"/tmp", &TempOptions::NAMED, parts)).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::NOSPC));
    assert_eq!(sim.paths(), [c"/tmp/keep".to_owned()]);
}

#[test]
fn full_disk_refuses_writes_and_keeps_earlier_bytes() {
    let sim = Sim::new(1);
    sim.put(c"/a", &[1; 1000]).unwrap();
    sim.set_capacity(4096);
    let disk = door(&sim, Aio::Threads, 1);
    block_on(async {
        let mut account = new_account();
        let file = disk.create(&mut account, c"/b", &CreateOptions::NEW).await.unwrap();
        let error = disk.write(&mut account, &file, 0, vec![2; 5000]).await.unwrap_err();
        assert_eq!(error.on(c"/b").to_string(), "pwrite() \"/b\" failed (28: No space left on device)");
        let space = disk.space(&mut account, c"/").await.unwrap();
        assert_eq!((space.total, space.free), (4096, 0));
        drop(file);
        disk.unlink(&mut account, c"/b").await.unwrap();
        assert_eq!(disk.space(&mut account, c"/").await.unwrap().free, 3072);
    });
}

#[test]
fn a_stalled_disk_stops_no_answer_from_memory_and_futures_can_be_dropped() {
    let sim = Sim::new(1);
    sim.put(c"/cold", b"cold").unwrap();
    sim.put(c"/hot", b"hot").unwrap();
    let disk = door(&sim, Aio::Threads, 2);
    block_on(async {
        let mut account = new_account();
        let cold = disk.open(&mut account, c"/cold", &OpenOptions::READ).await.unwrap();
        let stall = sim.stall(Op::Read);
        let mut first = new_account();
        let mut second = new_account();
        let mut third = new_account();
        let mut begun = Box::pin(disk.read(&mut first, &cold, 0, vec![0; 9]));
        let mut dropped = Box::pin(disk.read(&mut second, &cold, 0, vec![0; 9]));
        let mut waiting = Box::pin(disk.read(&mut third, &cold, 0, vec![0; 9]));
        assert!(poll_once(begun.as_mut()).is_pending());
        assert!(poll_once(dropped.as_mut()).is_pending());
        stall.wait_for(2).unwrap();
        assert!(poll_once(waiting.as_mut()).is_pending());
        assert_eq!(disk.pool().stats().waiting, 1);
        // Names are in memory, whatever the disk does.
        assert!(matches!(disk.open_now(c"/hot", &OpenOptions::READ), Now::Ready(Ok(_))));
        assert!(matches!(disk.probe_now(c"/gone"), Now::Ready(Err(Errno::NOENT))));
        drop(waiting);
        drop(dropped);
        assert_eq!(disk.pool().stats().waiting, 0);
        drop(stall);
        assert_eq!(begun.await.unwrap(), b"cold");
        assert_eq!(disk.read(&mut account, &cold, 1, vec![0; 2]).await.unwrap(), b"ol");
    });
}

#[test]
fn evicted_content_is_cold_once() {
    let sim = Sim::new(1);
    sim.put(c"/f", b"content").unwrap();
    let disk = door(&sim, Aio::Threads, 1);
    block_on(async {
        let mut account = new_account();
        let file = disk.open(&mut account, c"/f", &OpenOptions::READ).await.unwrap();
        assert!(account.is_inline());
        sim.evict();
        assert_eq!(disk.read_now(&file, 0, &mut [0; 4]), Now::Cold);
        assert!(matches!(disk.open_now(c"/f", &OpenOptions::READ), Now::Cold));
        disk.read(&mut account, &file, 0, vec![0; 4]).await.unwrap();
        assert_eq!(account.jobs(), 1);
        assert_eq!(disk.read_now(&file, 0, &mut [0; 4]), Now::Ready(Ok(4)));
        assert!(matches!(disk.open_now(c"/f", &OpenOptions::READ), Now::Ready(Ok(_))));
    });
}

#[test]
fn behaves_like_a_file_system() {
    let sim = Sim::new(1);
    let disk = door(&sim, Aio::Off, 1);
    block_on(async {
        let mut account = new_account();
        disk.mkdir_all(&mut account, c"/a/b/c", 0o755).await.unwrap();
        let truncate = CreateOptions { existing: Existing::Truncate, ..CreateOptions::NEW };
        let file = disk.create(&mut account, c"/a/f", &truncate).await.unwrap();
        disk.write(&mut account, &file, 2, b"xyz").await.unwrap();
        let errno = |result: Result<(), DiskError>| result.err().and_then(|error| error.errno());
        assert_eq!(errno(disk.mkdir(&mut account, c"/a/f", 0).await), Some(Errno::EXIST));
        assert_eq!(errno(disk.mkdir(&mut account, c"/a/f/g", 0).await), Some(Errno::NOTDIR));
        assert_eq!(errno(disk.rename(&mut account, c"/a/f", c"/a/b").await), Some(Errno::ISDIR));
        assert_eq!(errno(disk.rename(&mut account, c"/a/b", c"/a/f").await), Some(Errno::NOTDIR));
        assert_eq!(errno(disk.rmdir(&mut account, c"/a/b").await), Some(Errno::NOTEMPTY));
        assert_eq!(errno(disk.unlink(&mut account, c"/a/b").await), Some(Errno::ISDIR));
        assert_eq!(errno(disk.link(&mut account, c"/a/b", c"/l").await), Some(Errno::PERM));
        disk.link(&mut account, c"/a/f", c"/a/b/l").await.unwrap();
        disk.unlink(&mut account, c"/a/f").await.unwrap();
        assert_eq!(disk.stat(&mut account, c"/a/b/l").await.unwrap().nlink, 1);
        assert_eq!(disk.read_whole(&mut account, c"/a/b/l", 10).await.unwrap(), b"\0\0xyz");
        disk.unlink(&mut account, c"/a/b/l").await.unwrap();
        assert_eq!(disk.read(&mut account, &file, 3, vec![0; 9]).await.unwrap(), b"yz", "open files stay");

        sim.put(c"/t/f", b"t").unwrap();
        sim.put_link(c"/link", c"/t", 5).unwrap();
        sim.put_link(c"/loop", c"loop", 0).unwrap();
        let cases = [
            (c"/link/f", Links::Follow, None),
            (c"/link/f", Links::Refuse { from: 0 }, Some(Errno::LOOP)),
            (c"/link/f", Links::Refuse { from: 5 }, None),
            (c"/link/f", Links::SameOwner { from: 0 }, Some(Errno::LOOP)),
            (c"/loop", Links::Follow, Some(Errno::LOOP)),
            (c"/t/f", Links::Refuse { from: 0 }, None),
            (c"/t/f/", Links::Follow, Some(Errno::NOTDIR)),
        ];
        for (path, links, expected) in cases {
            let opened = disk.open(&mut account, path, &OpenOptions { links, ..OpenOptions::READ }).await;
            assert_eq!(opened.err().and_then(|error| error.errno()), expected, "{path:?} {links:?}");
        }
        assert_eq!(disk.realpath(&mut account, c"/link/f").await.unwrap().as_c_str(), c"/t/f");
        assert_eq!(disk.readlink(&mut account, c"/link").await.unwrap().as_c_str(), c"/t");
        assert_eq!(disk.stat_link(&mut account, c"/link").await.unwrap().kind, FileKind::Symlink);
        let listing = disk.list(&mut account, c"/", 3).await.unwrap();
        assert!(listing.truncated && listing.entries.len() == 3);
        let kind = |listing: Listing| {
            listing.entries.iter().find(|e| e.name.as_c_str() == c"link").map(|e| e.meta.kind)
        };
        assert_eq!(kind(disk.list(&mut account, c"/", 100).await.unwrap()), Some(FileKind::Directory));
        assert_eq!(kind(disk.list_links(&mut account, c"/", 100, 0).await.unwrap()), Some(FileKind::Symlink));
        for from in [0, 1] {
            let refused = Some(Errno::LOOP);
            let listed = disk.list_links(&mut account, c"/link", 100, from).await;
            assert_eq!(listed.err().and_then(|error| error.errno()), refused, "{from}");
            let removed = disk.unlink_below(&mut account, c"/link/f", from).await;
            assert_eq!(removed.err().and_then(|error| error.errno()), refused, "{from}");
            let removed = disk.rmdir_below(&mut account, c"/link/f", from).await;
            assert_eq!(removed.err().and_then(|error| error.errno()), refused, "{from}");
        }
        assert!(sim.paths().iter().any(|path| path.as_c_str() == c"/t/f"));
    });
}

#[test]
fn files_opened_before_a_power_failure_are_gone() {
    let sim = Sim::new(3);
    sim.put(c"/f", b"x").unwrap();
    let disk = door(&sim, Aio::Threads, 1);
    block_on(async {
        let file = disk.open(&mut new_account(), c"/f", &OpenOptions::READ).await.unwrap();
        sim.reboot();
        let error = disk.read(&mut new_account(), &file, 0, vec![0; 1]).await.unwrap_err();
        assert_eq!(error.errno(), Some(Errno::IO));
        drop(file);
        assert!(disk.open(&mut new_account(), c"/f", &OpenOptions::READ).await.is_ok());
    });
}

#[test]
fn ordered_disk_loses_only_tails_and_a_kill_loses_nothing() {
    let mut lengths = std::collections::HashSet::new();
    for seed in 0..50 {
        let sim = Sim::new(seed);
        let disk = door(&sim, Aio::Off, 1);
        sim.put(c"/store/there", b"").unwrap();
        let file = block_on(disk.create(&mut new_account(), c"/store/new", &CreateOptions::NEW)).unwrap();
        block_on(disk.write(&mut new_account(), &file, 0, new())).unwrap();
        block_on(disk.sync_dir(&mut new_account(), c"/store")).unwrap();
        sim.restart(Loss::Nothing);
        assert_eq!(sim.content(c"/store/new"), Some(new()));
        block_on(disk.write(&mut new_account(), &file, 0, new())).expect_err("it was opened before");
        sim.restart(Loss::Ordered);
        let rest = sim.content(c"/store/new").unwrap();
        assert!(new().starts_with(&rest), "seed {seed}: {}", rest.len());
        lengths.insert(rest.len());
    }
    assert!(lengths.len() > 10, "{lengths:?}");
}

#[test]
fn futures_dropped_in_a_storm_of_faults_lose_nothing() {
    for seed in 0..20 {
        let sim = Sim::new(seed);
        sim.put(c"/f", &[7; 10_000]).unwrap();
        let disk = door(&sim, Aio::Threads, 3);
        sim.set_faults(Faults { cold: 900, ..Faults::MANY });
        let file = loop {
            if let Ok(file) = block_on(disk.open(&mut new_account(), c"/f", &OpenOptions::READ)) {
                break file;
            }
        };
        block_on(async {
            for i in 0..200_u64 {
                let mut account = Account::new(JobClass::Hit, JobSource::new(i % 3));
                let mut read = pin!(disk.read(&mut account, &file, i, vec![0; 100]));
                if poll_once(read.as_mut()).is_pending()
                    && i % 4 == 0
                    && let Ok(content) = read.await
                {
                    assert!(!content.is_empty() && content.iter().all(|&byte| byte == 7));
                }
            }
        });
        let start = Instant::now();
        loop {
            let stats = disk.pool().stats();
            if stats.running == 0 && stats.waiting == 0 {
                break;
            }
            assert!(start.elapsed() < Duration::from_secs(20));
            std::thread::yield_now();
        }
        disk.pool().clone().shutdown();
    }
}
