//! Named thread pools (`thread_pool NAME threads=N [max_queue=M] [device_threads=K] [device_timeout=T]`): one queue for each
//! device, plain threads.
//!
//! A pool begins with one thread. A thread that takes a job while no other is idle starts the next one, outside of the lock, so that a
//! job finds a thread as long as there is a slot: each takes 45 KB of memory, and most servers need a few.
//!
//! A thread may never come back from a device. Then it no longer counts: another one is started in its place, and whoever
//! waits for it gets [`DiskError::Hung`] (`tick`, called by `watch`).

mod shared;
mod threads;

use self::shared::{DRAINING_POOL, REST, State};
use crate::account::Account;
use crate::device::Device;
use crate::error::DiskError;
use crate::idle_threads::IdleThreads;
use crate::notice::Notice;
use crate::op::Op;
use crate::pool_size::{DEFAULT_MAX_QUEUE, DEFAULT_NAME, DEFAULT_THREADS, PoolSize};
use crate::queue::Queue;
use crate::ring::UringQueue;
use crate::stats::{OpStats, PoolCounters, PoolStats};
use crate::watch::{self, HungDevices};
use rustix::io::Errno;
use std::sync::{Arc, Condvar, OnceLock};
use tw_base::{FatalMutex, FatalMutexGuard};

pub(crate) use self::shared::{LIMITS, Shared, is_pool_thread};

/// A handle to a pool; clones are the same pool.
///
/// Dropping the last handle (also inside a [`Disk`](crate::Disk)) lets queued jobs finish, then the threads
/// end; [`Pool::shutdown`] waits for that.
#[derive(Clone)]
pub struct Pool(Arc<Handle>);

struct Handle {
    shared: Arc<Shared>,
    /// The ring, once a door with [`Aio::Uring`](crate::Aio::Uring) asked for it.
    uring_queue: OnceLock<Result<Arc<UringQueue>, Errno>>,
}

impl Pool {
    /// Starts a pool of at most `threads` (at least 1) threads in which up to `max_queue` jobs may wait for each device; with 0, only
    /// as many jobs as threads are accepted.
    ///
    /// # Errors
    /// As [`Pool::sized`].
    pub fn new(name: &str, threads: u32, max_queue: usize) -> Result<Self, Errno> {
        Self::sized(name, &PoolSize::new(threads, max_queue))
    }

    /// Starts a pool of this size, with its first thread.
    ///
    /// Threads inherit the restrictions of the calling thread: never call this on a loop that is under the loop guard.
    ///
    /// # Errors
    /// The system's reason if not a single thread could be started.
    pub fn sized(name: &str, size: &PoolSize) -> Result<Self, Errno> {
        let shared = Arc::new(Shared {
            name: name.into(),
            state: FatalMutex::new(State {
                queue: Queue::new(size.threads, size.max_queue, size.device_threads),
                idle: IdleThreads::default(),
                live: 0,
                is_stopping: false,
                threads: Vec::new(),
                steps: Vec::new(),
                free_numbers: Vec::new(),
                timeout: watch::ticks(size.device_timeout),
                hung: HungDevices::default(),
            }),
            ended: Condvar::new(),
            listener: OnceLock::new(),
            counters: PoolCounters::new(),
        });
        watch::start()?;
        Shared::grow(&mut shared.state.lock(), &shared)?;
        watch::over(&shared);
        Ok(Self(Arc::new(Handle { shared, uring_queue: OnceLock::new() })))
    }

    /// The pool that exists without a directive.
    ///
    /// # Errors
    /// As [`Pool::new`].
    pub fn with_defaults() -> Result<Self, Errno> {
        Self::new(DEFAULT_NAME, DEFAULT_THREADS, DEFAULT_MAX_QUEUE)
    }

    /// Name of the pool.
    pub fn name(&self) -> &str {
        &self.0.shared.name
    }

    /// Changes its size; no job is lost. Surplus threads end as they become
    /// idle. The warning of [`Pool::sized`] about restricted threads holds here too.
    ///
    /// # Errors
    /// The system's reason if a thread could not be started; the pool then works with those it has.
    pub fn resize(&self, size: &PoolSize) -> Result<(), Errno> {
        let result = {
            let mut state = self.0.shared.state.lock();
            // Every reload comes here, mostly with the same size: no thread has to look.
            if state.queue.resize(size.threads, size.max_queue, size.device_threads) {
                state.idle.wake_all();
            }
            state.timeout = watch::ticks(size.device_timeout);
            Shared::grow(&mut state, &self.0.shared)
        };
        if let Some(uring_queue) = self.uring_queue() {
            uring_queue.resize(size.max_queue, size.device_timeout);
        }
        result
    }

    /// Sets the listener of [`Notice`]s: once, before the first door with [`Aio::Uring`](crate::Aio::Uring). May be called from
    /// any thread; a second listener is ignored.
    pub fn on_notice(&self, listener: impl Fn(Notice) + Send + Sync + 'static) {
        let _ = self.0.shared.listener.set(Box::new(listener));
    }

    /// Runs a closure on the pool: the door for blocking libraries and long computations.
    ///
    /// Dropping the future takes the closure back if no thread has begun it.
    ///
    /// # Errors
    /// [`DiskError::QueueFull`]; [`DiskError::Panicked`]; [`DiskError::Cancelled`] if the pool ended first.
    pub async fn run<T, W>(&self, account: &mut Account, work: W) -> Result<T, DiskError>
    where
        W: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        self.job(account, Op::Run, None, || Ok(work())).await
    }

    /// Runs a closure on the pool whatever the queue's length, without a result: for values whose drop may wait, such as open files.
    pub fn run_detached(&self, account: &Account, work: impl FnOnce() + Send + 'static) {
        let work = move || {
            work();
            Ok::<(), DiskError>(())
        };
        if let Some(job) = self.0.shared.detach_or_leave(account, Op::Run, None, work) {
            // All pools have ended, and so has the service: waiting here delays nothing.
            job.run(&|| ());
        }
    }

    /// Counters and levels now. Takes the queue's lock for a moment.
    pub fn stats(&self) -> PoolStats {
        let shared = &self.0.shared;
        let c = &shared.counters;
        let ops = Op::ALL.iter().filter_map(|&op| {
            let counters = &c.ops[op.index()];
            let queue = counters.queue.snapshot();
            let service = counters.service.snapshot();
            let inline = c.inline.sum(op.index());
            let jobs = service.count();
            (inline + jobs > 0).then_some(OpStats { op, inline, jobs, queue, service })
        });
        let ops = ops.collect();
        let (lane_waiting, lane_running) =
            self.uring_queue().map_or((0, 0), |uring_queue| uring_queue.levels());
        let mut hung = self.uring_queue().map_or_else(Vec::new, |uring_queue| uring_queue.hung());
        let state = shared.state.lock();
        state.hung.add_to(&mut hung, |device| state.queue.hung_on(device));
        PoolStats {
            name: shared.name.clone(),
            threads: state.queue.slots(),
            device_threads: state.queue.device_share(),
            hung,
            hung_threads: state.queue.replaced(),
            refusals: c.refusals.value(),
            max_queue: state.queue.max_waiting(),
            waiting: state.queue.waiting() + lane_waiting,
            running: state.queue.running() + lane_running,
            overflows: c.overflows.value(),
            ring_reads: c.ring_reads.value(),
            cancellations: c.cancellations.value(),
            panics: c.panics.value(),
            ops,
        }
    }

    /// Waits until every queued job is done and every thread has ended, except those that hang. Blocks: for the end of a
    /// process, and tests. Other handles of this pool get [`DiskError::Cancelled`] from now on.
    pub fn shutdown(self) {
        let shared = self.0.shared.clone();
        if let Some(uring_queue) = self.uring_queue() {
            // The ring ends first, because the threads run the jobs that it cannot.
            uring_queue.stop();
            uring_queue.join();
        }
        shared.stop();
        let me = std::thread::current().id();
        let (threads, hung) = {
            let mut state = shared.state.lock();
            let is_own = state.threads.iter().any(|thread| thread.handle.thread().id() == me);
            while state.live > state.queue.hung() + u32::from(is_own) {
                state = FatalMutexGuard::wait_for(state, &shared.ended, REST).0;
            }
            (std::mem::take(&mut state.threads), state.queue.hung_runners())
        };
        let ended = threads.into_iter().filter(|thread| !hung.contains(&thread.number));
        for thread in ended.map(|thread| thread.handle).filter(|thread| thread.thread().id() != me) {
            // A thread ends by panic only if a panic payload panics while dropped; there is nothing to do about it.
            let _ = thread.join();
        }
    }

    /// Makes this pool close the files of pools that have ended before them, whoever drops those files. For one that lives as
    /// long as the process; of several the first one stays.
    pub fn inherit(&self) {
        let _ = DRAINING_POOL.set(Arc::downgrade(&self.0.shared));
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0.shared
    }

    /// The ring, if it was started and works.
    pub(crate) fn uring_queue(&self) -> Option<&Arc<UringQueue>> {
        self.0.uring_queue.get()?.as_ref().ok()
    }

    /// Starts the ring on first use; reports once if there is none.
    pub(crate) fn start_lane(&self) {
        let shared = &self.0.shared;
        let mut is_first = false;
        let uring_queue = self.0.uring_queue.get_or_init(|| {
            is_first = true;
            let (max_queue, timeout) = {
                let state = shared.state.lock();
                (state.queue.max_waiting(), state.timeout)
            };
            UringQueue::start(shared, max_queue, timeout)
        });
        if let (true, Err(errno)) = (is_first, uring_queue) {
            shared.notify(Notice::RingUnavailable(*errno));
        }
    }

    /// Has a thread do `work`, which counts for `device`.
    pub(crate) async fn job<T, W>(
        &self,
        account: &mut Account,
        op: Op,
        device: Option<&'static Device>,
        work: W,
    ) -> Result<T, DiskError>
    where
        W: FnOnce() -> Result<T, DiskError> + Send + 'static,
        T: Send + 'static,
    {
        let job = Shared::submit(&self.0.shared, account, op, device, work)?;
        let done = job.await;
        account.charge(op, done.queued, done.queue_ns, done.service_ns);
        done.result
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Some(Ok(uring_queue)) = self.uring_queue.get() {
            uring_queue.stop();
        }
        self.shared.stop();
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("name", &self.0.shared.name).finish_non_exhaustive()
    }
}
