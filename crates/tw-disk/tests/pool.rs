//! The pool from outside: order, limits, cancellation, panics, reconfiguration and the end.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tw_disk::{Account, DiskError, JobClass, JobSource, Pool, PoolSize, PoolStats};

const DEADLINE: Duration = Duration::from_secs(20);

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// Polls once: enough to submit the job of a future.
fn poll_once<T>(future: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Waits until the pool looks as it should.
fn wait(pool: &Pool, mut is_so: impl FnMut(&PoolStats) -> bool) {
    let start = Instant::now();
    while !is_so(&pool.stats()) {
        assert!(start.elapsed() < DEADLINE, "{:?}", pool.stats());
        std::thread::yield_now();
    }
}

/// A job that says when it begins, and ends when told to.
struct Gate {
    has_begun: Receiver<()>,
    open: Sender<()>,
}

fn gate() -> (Gate, impl FnOnce() + Send + 'static) {
    let (begin, has_begun) = channel();
    let (open, is_open) = channel();
    let job = move || {
        begin.send(()).unwrap();
        let _ = is_open.recv();
    };
    (Gate { has_begun, open }, job)
}

impl Gate {
    fn wait(&self) {
        self.has_begun.recv_timeout(DEADLINE).unwrap();
    }
}

fn by(class: JobClass, source: u64) -> Account {
    Account::new(class, JobSource::new(source))
}

#[test]
fn runs_on_a_named_thread_and_charges_the_account() {
    let pool = Pool::new("disk1", 2, 10).unwrap();
    let mut account = by(JobClass::Hit, 1);
    let name = block_on(pool.run(&mut account, || std::thread::current().name().map(String::from)));
    assert_eq!(name.unwrap().as_deref(), Some("disk1"));
    assert_eq!((account.jobs(), account.is_inline()), (1, false));
    assert!(account.wait() >= account.queue());
    // The thread keeps its books after it has answered.
    wait(&pool, |stats| stats.ops.len() == 1);
    let stats = pool.stats();
    assert_eq!((&*stats.name, stats.threads, stats.max_queue), ("disk1", 2, 10));
    assert_eq!((stats.ops[0].jobs, stats.ops[0].inline), (1, 0));
    pool.shutdown();
}

#[test]
fn serves_classes_in_order() {
    let pool = Pool::new("order", 1, 100).unwrap();
    let (gate, job) = gate();
    let mut first = by(JobClass::Hit, 1);
    let mut first = pin!(pool.run(&mut first, job));
    assert!(poll_once(first.as_mut()).is_pending());
    gate.wait();
    let order = Arc::new(Mutex::new(Vec::new()));
    let classes = [JobClass::Scan, JobClass::Evict, JobClass::Fill, JobClass::Hit];
    let mut accounts = classes.map(|class| by(class, 2));
    let mut jobs: Vec<_> = accounts
        .iter_mut()
        .map(|account| {
            let order = order.clone();
            let class = account.class;
            let mut job = Box::pin(pool.run(account, move || order.lock().unwrap().push(class)));
            assert!(poll_once(job.as_mut()).is_pending());
            job
        })
        .collect();
    assert_eq!(pool.stats().waiting, 4);
    gate.open.send(()).unwrap();
    block_on(async {
        first.await.unwrap();
        for job in &mut jobs {
            job.await.unwrap();
        }
    });
    assert_eq!(*order.lock().unwrap(), [JobClass::Hit, JobClass::Fill, JobClass::Evict, JobClass::Scan]);
}

#[test]
fn one_source_cannot_occupy_the_pool() {
    let pool = Pool::new("fair", 4, 100).unwrap();
    let gates: Vec<_> = (0..6).map(|_| gate()).collect();
    let (gates, jobs): (Vec<_>, Vec<_>) = gates.into_iter().unzip();
    let mut accounts: Vec<_> = (0..6).map(|_| by(JobClass::Hit, 1)).collect();
    let mut greedy: Vec<_> = accounts
        .iter_mut()
        .zip(jobs)
        .map(|(account, job)| {
            let mut job = Box::pin(pool.run(account, job));
            assert!(poll_once(job.as_mut()).is_pending());
            job
        })
        .collect();
    gates[..3].iter().for_each(Gate::wait);
    let stats = pool.stats();
    assert_eq!((stats.running, stats.waiting), (3, 3));
    // Another source is served although six jobs of the greedy one were there before it.
    assert_eq!(block_on(pool.run(&mut by(JobClass::Scan, 2), || 7)), Ok(7));
    gates.iter().for_each(|gate| gate.open.send(()).unwrap());
    block_on(async {
        for job in &mut greedy {
            job.await.unwrap();
        }
    });
}

/// Number of threads of this process with this name.
fn threads_named(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|its| its.trim_end() == name).count()
}

#[test]
fn threads_are_started_when_jobs_need_them() {
    let is = |count: usize| {
        let start = Instant::now();
        while threads_named("lazy") != count {
            assert!(start.elapsed() < DEADLINE, "{} instead of {count}", threads_named("lazy"));
            std::thread::yield_now();
        }
    };
    let pool = Pool::new("lazy", 4, 10).unwrap();
    assert_eq!(pool.stats().threads, 4);
    is(1);
    let (gates, work): (Vec<_>, Vec<_>) = (0..6).map(|_| gate()).unzip();
    let mut accounts: Vec<_> = (0..6).map(|source| by(JobClass::Hit, 1 + source)).collect();
    let mut jobs = Vec::new();
    for (nth, (account, work)) in accounts.iter_mut().zip(work).enumerate() {
        let mut job = Box::pin(pool.run(account, work));
        assert!(poll_once(job.as_mut()).is_pending());
        jobs.push(job);
        if nth < 4 {
            gates[nth].wait();
            // The pool starts one idle thread in advance, for the next job.
            is((nth + 2).min(4));
        }
    }
    gates.iter().for_each(|gate| gate.open.send(()).unwrap());
    block_on(async {
        for job in jobs {
            job.await.unwrap();
        }
    });
    pool.shutdown();
    is(0);
}

#[test]
fn overflows_as_nginx_words_it() {
    for (threads, max_queue) in [(1, 2), (1, 0), (2, 0)] {
        let pool = Pool::new("small", threads, max_queue).unwrap();
        let accepted = threads as usize + max_queue;
        let gates: Vec<_> = (0..accepted).map(|_| gate()).collect();
        let (gates, work): (Vec<_>, Vec<_>) = gates.into_iter().unzip();
        let mut accounts: Vec<_> = (0..accepted as u64).map(|source| by(JobClass::Hit, 1 + source)).collect();
        let mut jobs = Vec::new();
        for (account, work) in accounts.iter_mut().zip(work) {
            let mut job = Box::pin(pool.run(account, work));
            assert!(poll_once(job.as_mut()).is_pending());
            jobs.push(job);
        }
        gates[..threads as usize].iter().for_each(Gate::wait);
        let error = block_on(pool.run(&mut by(JobClass::Hit, 99), || ())).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("thread pool \"small\" queue overflow: {max_queue} tasks waiting")
        );
        assert_eq!(pool.stats().overflows, 1);
        gates.iter().for_each(|gate| gate.open.send(()).unwrap());
        block_on(async {
            for job in jobs {
                job.await.unwrap();
            }
        });
    }
}

#[test]
fn panicking_job_fails_and_its_thread_survives() {
    let pool = Pool::new("panics", 1, 10).unwrap();
    let silent = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let result = block_on(pool.run(&mut by(JobClass::Hit, 1), || -> u8 { panic!("on purpose") }));
    std::panic::set_hook(silent);
    assert_eq!(result, Err(DiskError::Panicked));
    assert_eq!(block_on(pool.run(&mut by(JobClass::Hit, 1), || 3)), Ok(3));
    assert_eq!(pool.stats().panics, 1);
}

/// Says on which thread it ends.
struct Token(Sender<Option<String>>);

impl Drop for Token {
    fn drop(&mut self) {
        let _ = self.0.send(std::thread::current().name().map(String::from));
    }
}

#[test]
fn dropping_a_future_takes_back_a_job_that_waits() {
    let pool = Pool::new("cancel", 1, 10).unwrap();
    let (gate, work) = gate();
    let mut account = by(JobClass::Hit, 1);
    let mut running = pin!(pool.run(&mut account, work));
    assert!(poll_once(running.as_mut()).is_pending());
    gate.wait();
    let (ended, end) = channel();
    let token = Token(ended);
    let ran = Arc::new(AtomicUsize::new(0));
    let mut other = by(JobClass::Hit, 2);
    let mut waiting = Box::pin(pool.run(&mut other, {
        let ran = ran.clone();
        move || {
            ran.fetch_add(1, SeqCst);
            drop(token);
        }
    }));
    assert!(poll_once(waiting.as_mut()).is_pending());
    assert_eq!(pool.stats().waiting, 1);
    drop(waiting);
    // The values that the job owned were dropped at once, on this thread.
    assert_eq!(end.try_recv().unwrap().as_deref(), std::thread::current().name());
    let stats = pool.stats();
    assert_eq!((stats.waiting, stats.cancellations), (0, 1));
    gate.open.send(()).unwrap();
    block_on(running).unwrap();
    assert_eq!(ran.load(SeqCst), 0);
}

#[test]
fn dropping_a_future_lets_a_begun_job_finish() {
    let pool = Pool::new("begun", 1, 10).unwrap();
    let (gate, work) = gate();
    let (ended, end) = channel();
    let token = Token(ended);
    let mut account = by(JobClass::Hit, 1);
    let mut running = Box::pin(pool.run(&mut account, move || {
        work();
        token
    }));
    assert!(poll_once(running.as_mut()).is_pending());
    gate.wait();
    drop(running);
    assert!(end.try_recv().is_err(), "the job still owns it");
    gate.open.send(()).unwrap();
    assert_eq!(end.recv_timeout(DEADLINE).unwrap().as_deref(), Some("begun"));
    assert_eq!(pool.stats().cancellations, 0);
    wait(&pool, |stats| stats.running == 0);
}

#[test]
fn dropping_a_future_drops_an_unclaimed_result() {
    let pool = Pool::new("untaken", 1, 10).unwrap();
    let (ended, end) = channel();
    let token = Token(ended);
    let mut account = by(JobClass::Hit, 1);
    let mut done = Box::pin(pool.run(&mut account, move || token));
    assert!(poll_once(done.as_mut()).is_pending());
    // The slot is free before there is a result; the books come after it.
    wait(&pool, |stats| stats.ops.len() == 1);
    assert!(end.try_recv().is_err(), "the future still owns it");
    drop(done);
    assert!(end.try_recv().is_ok());
}

#[test]
fn dropping_futures_keeps_counters_consistent() {
    let pool = Pool::new("storm", 3, 1000).unwrap();
    let (ended, end) = channel();
    let live = Arc::new(());
    for round in 0..2000_u64 {
        let token = (Token(ended.clone()), live.clone());
        let mut account = by(JobClass::ALL[(round % 4) as usize], round % 5);
        let mut job = Box::pin(pool.run(&mut account, move || token));
        let polled = poll_once(job.as_mut());
        if round % 3 == 0 && polled.is_pending() {
            drop(block_on(job).unwrap());
        }
    }
    wait(&pool, |stats| stats.running == 0 && stats.waiting == 0);
    pool.shutdown();
    assert_eq!(end.try_iter().count(), 2000);
    assert_eq!(Arc::strong_count(&live), 1);
}

#[test]
fn resizing_a_pool_keeps_and_starts_queued_jobs() {
    let pool = Pool::new("grow", 1, 100).unwrap();
    let gates: Vec<_> = (0..3).map(|_| gate()).collect();
    let (gates, work): (Vec<_>, Vec<_>) = gates.into_iter().unzip();
    let mut accounts: Vec<_> = (1..4).map(|source| by(JobClass::Hit, source)).collect();
    let mut jobs = Vec::new();
    for (account, work) in accounts.iter_mut().zip(work) {
        let mut job = Box::pin(pool.run(account, work));
        assert!(poll_once(job.as_mut()).is_pending());
        jobs.push(job);
    }
    gates[0].wait();
    assert_eq!(pool.stats().waiting, 2);
    pool.resize(&PoolSize::new(3, 0)).unwrap();
    gates[1..].iter().for_each(Gate::wait);
    // Down to one thread while three jobs run: all of them end, and the pool goes on.
    pool.resize(&PoolSize::new(1, 5)).unwrap();
    gates.iter().for_each(|gate| gate.open.send(()).unwrap());
    block_on(async {
        for job in jobs {
            job.await.unwrap();
        }
    });
    for i in 0..10 {
        assert_eq!(block_on(pool.run(&mut by(JobClass::Hit, i), move || i)), Ok(i));
    }
    let stats = pool.stats();
    assert_eq!((stats.threads, stats.max_queue), (1, 5));
    pool.shutdown();
}

#[test]
fn pool_ends_after_queued_jobs() {
    for by_shutdown in [true, false] {
        let pool = Pool::new("end", 1, 100).unwrap();
        let (gate, work) = gate();
        let other = pool.clone();
        let done = Arc::new(AtomicUsize::new(0));
        let mut accounts: Vec<_> = (0..5).map(|source| by(JobClass::Scan, source)).collect();
        let mut first = by(JobClass::Hit, 9);
        let mut first = Box::pin({
            let pool = pool.clone();
            async move { pool.run(&mut first, work).await }
        });
        assert!(poll_once(first.as_mut()).is_pending());
        gate.wait();
        let mut jobs = Vec::new();
        for account in &mut accounts {
            let done = done.clone();
            let mut job = Box::pin(other.run(account, move || done.fetch_add(1, SeqCst)));
            assert!(poll_once(job.as_mut()).is_pending());
            jobs.push(job);
        }
        gate.open.send(()).unwrap();
        if by_shutdown {
            pool.shutdown();
            assert_eq!(done.load(SeqCst), 5);
        } else {
            drop(pool);
        }
        block_on(async {
            first.await.unwrap();
            for job in jobs {
                job.await.unwrap();
            }
        });
        let after = block_on(other.run(&mut by(JobClass::Hit, 1), || ()));
        assert_eq!(after, if by_shutdown { Err(DiskError::Cancelled) } else { Ok(()) });
    }
}

#[test]
fn a_handle_dropped_inside_its_own_job_does_not_deadlock() {
    let pool = Pool::new("inside", 2, 10).unwrap();
    let inner = pool.clone();
    let (dropped, is_dropped) = channel();
    let mut account = by(JobClass::Hit, 1);
    let mut job = Box::pin({
        let pool = pool.clone();
        async move {
            pool.run(&mut account, move || {
                is_dropped.recv_timeout(DEADLINE).unwrap();
                drop(inner);
                5
            })
            .await
        }
    });
    assert!(poll_once(job.as_mut()).is_pending());
    drop(pool);
    dropped.send(()).unwrap();
    assert_eq!(block_on(job), Ok(5));
}
