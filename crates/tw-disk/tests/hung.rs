//! A device from which nothing comes back, on simulated disks: what waits for it is told, and nobody else notices.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use tw_disk::sim::Sim;
use tw_disk::{Account, Aio, Disk, DiskError, JobSource, Notice, Op, Pool, PoolSize, PoolStats};

const DEADLINE: Duration = Duration::from_secs(20);
const THREADS: u32 = 4;

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn wait(pool: &Pool, mut is_so: impl FnMut(&PoolStats) -> bool) {
    let start = Instant::now();
    while !is_so(&pool.stats()) {
        assert!(start.elapsed() < DEADLINE, "{:?}", pool.stats());
        std::thread::yield_now();
    }
}

fn pool(name: &str) -> (Pool, Receiver<Notice>) {
    let device_timeout = Duration::from_millis(500);
    let pool = Pool::sized(name, &PoolSize { device_timeout, ..PoolSize::new(THREADS, 100) }).unwrap();
    let (sender, notices) = channel();
    pool.on_notice(move |notice| sender.send(notice).unwrap());
    (pool, notices)
}

/// A disk of its own device, with a file `/f` on it.
fn disk(pool: &Pool, dev: u64) -> (Disk, Arc<Sim>) {
    let sim = Sim::on_device(dev, Some(dev));
    sim.put(c"/f", b"content").unwrap();
    (Disk::simulated(pool.clone(), Aio::Threads, sim.clone()), sim)
}

/// Sends `count` reads of `/f` at once and returns what becomes of them.
fn read(disk: &Disk, count: u64) -> Vec<Result<Vec<u8>, DiskError>> {
    block_on(async {
        let reads = (0..count).map(|at| {
            let disk = disk.clone();
            async move {
                let mut account = Account::hit(JobSource::new(at + 1));
                disk.read_whole(&mut account, c"/f", 100).await
            }
        });
        join_all(reads).await
    })
}

async fn join_all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.map(Box::pin).collect();
    let mut done: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(|cx| {
        for (future, done) in futures.iter_mut().zip(&mut done) {
            if done.is_none()
                && let std::task::Poll::Ready(output) = future.as_mut().poll(cx)
            {
                *done = Some(output);
            }
        }
        if done.iter().all(Option::is_some) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    done.into_iter().flatten().collect()
}

#[test]
fn jobs_of_a_hung_device_fail_and_others_keep_their_threads() {
    let (pool, notices) = pool("hung");
    let (slow, sim) = disk(&pool, 0xabc_0001);
    let (fast, _) = disk(&pool, 0xabc_0002);
    sim.evict();
    let stall = sim.stall(Op::Open);
    let all_sent = Arc::new(Barrier::new(2));
    let reader = {
        let slow = slow.clone();
        let all_sent = all_sent.clone();
        std::thread::spawn(move || {
            all_sent.wait();
            read(&slow, 60)
        })
    };
    all_sent.wait();
    stall.wait_for(THREADS as usize / 2).unwrap();
    // Half of the threads serve other devices before the device is known to hang.
    assert!(read(&fast, 20).iter().all(Result::is_ok));
    let refused = reader.join().unwrap();
    for result in &refused {
        let Err(error @ DiskError::Hung { mount, .. }) = result else { panic!("{result:?}") };
        assert!(error.is_passing() && mount.contains(':'), "{error}");
    }
    let stats = pool.stats();
    assert_eq!((stats.hung.len(), stats.device_threads, stats.waiting), (1, 2, 0));
    assert!(stats.hung[0].operations >= 2 && stats.hung_threads >= 2 && stats.refusals >= 60, "{stats:?}");
    assert!(matches!(notices.recv_timeout(DEADLINE).unwrap(), Notice::Hangs { operations: 2, .. }));
    // The device still hangs: it occupies a bounded number of threads, and every read gets an answer.
    while pool.stats().hung_threads < THREADS / 2 + 4 {
        assert!(read(&slow, 3).iter().all(Result::is_err));
    }
    assert!(read(&slow, 60).iter().all(Result::is_err));
    assert!(read(&fast, 60).iter().all(Result::is_ok));
    assert_eq!(pool.stats().hung_threads, THREADS / 2 + 4);
    assert!(notices.try_recv().is_err(), "told once");
    drop(stall);
    wait(&pool, |stats| stats.hung.is_empty() && stats.hung_threads == 0 && stats.running == 0);
    assert!(matches!(notices.recv_timeout(DEADLINE).unwrap(), Notice::Answers { .. }));
    assert!(read(&slow, 60).iter().all(Result::is_ok));
    pool.shutdown();
}

#[test]
fn the_end_of_a_pool_does_not_wait_for_threads_that_hang() {
    let (pool, notices) = pool("end");
    let (slow, sim) = disk(&pool, 0xabc_0003);
    sim.evict();
    let stall = sim.stall(Op::Open);
    let reader = std::thread::spawn(move || read(&slow, 10));
    stall.wait_for(1).unwrap();
    // Nor does it wait for jobs that are not known to hang yet, or for jobs behind them.
    let heir = pool.clone();
    pool.shutdown();
    assert!(reader.join().unwrap().iter().all(Result::is_err));
    assert!(heir.stats().hung_threads > 0);
    assert!(matches!(notices.recv_timeout(DEADLINE).unwrap(), Notice::Hangs { .. }));
    drop(stall);
    wait(&heir, |stats| stats.hung.is_empty());
}
