//! Many reads at once: what a loop may still do itself while a device is busy. A process of its own, because what is known
//! about a device is shared by all tests of a process; and one test after the other.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use rustix::fs::{Advice, fadvise};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::mpsc::channel;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use tw_disk::{
    Account, Aio, CreateOptions, Disk, DiskError, Durable, File, JobClass, JobSource, Now, OpenOptions, Pool,
    Reads,
};
use tw_testkit::{Lacks, leave_out};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn poll_once<T>(future: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn new_account(source: u64) -> Account {
    Account::new(JobClass::Hit, JobSource::new(source))
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

/// A new file with this content, in memory and on the disk.
async fn put(disk: &Disk, name: &str, content: &[u8]) -> File {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("busy-{}-{name}", std::process::id()));
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let mut account = new_account(1);
    let file = disk.create(&mut account, &path, &CreateOptions::NEW).await.unwrap();
    disk.write(&mut account, &file, 0, content.to_vec()).await.unwrap();
    disk.fsync(&mut account, &file, Durable::All).await.unwrap();
    drop(file);
    let file = disk.open(&mut account, &path, &OpenOptions::READ).await.unwrap();
    disk.unlink(&mut account, &path).await.unwrap();
    file
}

fn reads_of(file: &File) -> Reads {
    let dev = Some(file.meta().dev);
    tw_disk::devices().into_iter().find(|device| device.dev == dev).unwrap().reads
}

#[test]
fn busy_device_restricts_inline_reads_to_recently_hot_data() {
    let _alone = alone();
    let pool = Pool::new("busy", 1, 100).unwrap();
    let disk = Disk::new(pool.clone(), Aio::Threads);
    block_on(async {
        let hot = put(&disk, "hot", &bytes(200_000)).await;
        let unknown = put(&disk, "unknown", &bytes(4096)).await;
        if reads_of(&hot) != Reads::NoWait {
            return leave_out(Lacks::Machine, format_args!("this device reads by {:?}", reads_of(&hot)));
        }
        let mut buf = vec![0; 200_000];
        assert_eq!(disk.read_now(&hot, 0, &mut buf[..100_000]), Now::Ready(Ok(100_000)));
        // A job that does not end keeps the reads behind it waiting: the device is busy.
        let (open, is_open) = channel::<()>();
        let mut gate_account = new_account(2);
        let (begin, has_begun) = channel();
        let mut gate = Box::pin(pool.run(&mut gate_account, move || {
            begin.send(()).unwrap();
            is_open.recv().is_err()
        }));
        assert!(poll_once(gate.as_mut()).is_pending());
        // Otherwise a read could be taken before the gate.
        has_begun.recv().unwrap();
        let mut accounts: Vec<_> = (0..8).map(|_| new_account(3)).collect();
        let mut queued = Vec::new();
        for account in &mut accounts {
            let mut read = Box::pin(disk.read_cold(account, &unknown, 0, vec![0; 10]));
            assert!(poll_once(read.as_mut()).is_pending());
            queued.push(read);
        }
        // Known to be in memory up to the end of the 64 KiB region that was read; not behind it, although that is in
        // memory, too.
        assert_eq!(disk.read_now(&hot, 50_000, &mut buf), Now::Ready(Ok(131_072 - 50_000)));
        assert_eq!(disk.read_now(&hot, 131_072, &mut buf), Now::Cold);
        assert_eq!(disk.read_now(&unknown, 0, &mut buf), Now::Cold);
        // A read that is given up makes the device less busy.
        drop(queued.pop());
        assert!(matches!(disk.read_now(&hot, 131_072, &mut buf), Now::Ready(Ok(_))));
        let mut last_by = new_account(3);
        let mut last = Box::pin(disk.read_cold(&mut last_by, &unknown, 0, vec![0; 10]));
        assert!(poll_once(last.as_mut()).is_pending());
        assert_eq!(disk.read_now(&unknown, 0, &mut buf), Now::Cold);
        // The loop may read data that the pool found in memory from then on.
        drop(open);
        assert!(gate.await.unwrap());
        let first = queued.remove(0).await.unwrap();
        assert_eq!(first, bytes(10));
        assert_eq!(disk.read_now(&unknown, 0, &mut buf[..10]), Now::Ready(Ok(10)));
    });
}

#[test]
fn many_cold_reads_at_once_and_some_given_up() {
    let _alone = alone();
    for aio in [Aio::Threads, Aio::Uring] {
        let pool = Pool::new("many", 4, 100).unwrap();
        let disk = Disk::new(pool.clone(), aio);
        let content = bytes(1 << 20);
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap().block_on(async {
            let file = put(&disk, "many", &content).await;
            let _ = fadvise(file.fd().unwrap(), 0, None, Advice::DontNeed);
            let mut reads = Vec::new();
            for i in 0..200_usize {
                let disk = disk.clone();
                let file = file.clone();
                let at = (i * 37 % 250) * 4096;
                let read = tokio::spawn(async move {
                    (at, disk.read(&mut new_account(i as u64 % 7), &file, at as u64, vec![0; 4096]).await)
                });
                if i % 3 == 0 {
                    read.abort();
                }
                reads.push(read);
            }
            for read in reads {
                match read.await {
                    Ok((at, Ok(read))) => assert_eq!(read, content[at..at + read.len()]),
                    Ok((_, Err(error))) => assert!(matches!(error, DiskError::QueueFull { .. }), "{error}"),
                    Err(error) => assert!(error.is_cancelled()),
                }
            }
        });
        drop(disk);
        pool.shutdown();
    }
}
