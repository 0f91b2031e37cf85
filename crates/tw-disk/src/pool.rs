//! Named thread pools (`thread_pool NAME threads=N [max_queue=M] [device_threads=K] [device_timeout=T]`): one queue for each
//! device, plain threads.
//!
//! A pool begins with one thread. A thread that takes a job while no other is idle starts the next one, outside of the lock, so that a
//! job finds a thread as long as there is a slot: each takes 45 KB of memory, and most servers need a few.
//!
//! A thread may never come back from a device. Then it no longer counts: another one is started in its place, and whoever
//! waits for it gets [`DiskError::Hung`] (`tick`, called by `watch`).

mod threads;

use self::threads::{PendingThread, Thread};
use crate::account::Account;
use crate::device::{self, Device};
use crate::error::DiskError;
use crate::idle_threads::{Idle, IdleThreads};
use crate::notice::Notice;
use crate::op::Op;
use crate::pool_size::{DEFAULT_MAX_QUEUE, DEFAULT_NAME, DEFAULT_THREADS, PoolSize};
use crate::queue::{Overdue, Queue, Runner, Ticket};
use crate::ring::UringQueue;
use crate::stats::{OpStats, PoolCounters, PoolStats};
use crate::task::{CancelQueue, Cost, Job, Run, Task};
use crate::watch::{self, HungDevices, RefusedJobs, Watched};
use rustix::io::Errno;
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Condvar, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;
use tw_base::{FatalMutex, FatalMutexGuard};

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Threads of one pool that hang on a device and are replaced by others.
    ///
    /// Each device is good for half of the threads and a few at most.
    const HUNG_THREADS_MAX: u32 = 256, count, "further ones that hang count as threads of the pool until they end";
}

/// The pool that does what is left to do for pools that have ended.
static DRAINING_POOL: OnceLock<Weak<Shared>> = OnceLock::new();

/// Time for which a thread that has worked waits for more before it lets go of its memory.
const REST: Duration = Duration::from_secs(2);

thread_local! {
    static IS_POOL_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Returns true if this thread belongs to a pool, and may therefore wait.
pub(crate) fn is_pool_thread() -> bool {
    IS_POOL_THREAD.get()
}

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

type Listener = Box<dyn Fn(Notice) + Send + Sync>;

/// State that the threads share with the handles.
pub(crate) struct Shared {
    name: Arc<str>,
    state: FatalMutex<State>,
    /// Told when a thread ends or may end.
    ended: Condvar,
    listener: OnceLock<Listener>,
    pub(crate) counters: PoolCounters,
}

struct State {
    queue: Queue<Arc<dyn Run>>,
    idle: IdleThreads,
    live: u32,
    is_stopping: bool,
    threads: Vec<Thread>,
    /// Steps of the threads, by number.
    steps: Vec<Arc<AtomicU32>>,
    /// Numbers of threads that have ended.
    free_numbers: Vec<u32>,
    /// `device_timeout`, in ticks.
    timeout: u64,
    hung: HungDevices,
}

/// Job that a thread has taken.
struct Taken {
    ticket: Ticket,
    job: Arc<dyn Run>,
    /// Thread to start before it is run.
    pending_thread: Option<PendingThread>,
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
        if let Some(left) = self.0.shared.detach_or_leave(account, Op::Run, None, work) {
            // All pools have ended, and so has the service: waiting here delays nothing.
            left.run(&|| ());
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

impl Shared {
    /// Starts a thread if no thread is idle and there may be more. The others are started by threads.
    fn grow(state: &mut State, shared: &Arc<Shared>) -> Result<(), Errno> {
        if state.needs_thread()
            && let Err(errno) = Self::start_thread(state, shared)
        {
            state.limit_slots();
            return Err(errno);
        }
        state.threads.retain(|thread| !thread.handle.is_finished());
        Ok(())
    }

    fn start_thread(state: &mut State, shared: &Arc<Shared>) -> Result<(), Errno> {
        let pending_thread = state.announce();
        let started = Self::spawn(shared, &pending_thread);
        state.settle(pending_thread, started)
    }

    /// Starts the thread that was announced, for later jobs. Called without the lock, for which loops would wait.
    fn start_announced(self: &Arc<Self>, pending_thread: PendingThread) {
        let started = Self::spawn(self, &pending_thread);
        let mut state = self.state.lock();
        if state.settle(pending_thread, started).is_err() {
            state.limit_slots();
        }
    }

    fn spawn(shared: &Arc<Shared>, pending_thread: &PendingThread) -> std::io::Result<JoinHandle<()>> {
        let its = shared.clone();
        let number = pending_thread.number;
        let steps = pending_thread.steps.clone();
        let thread = std::thread::Builder::new().name(shared.name.to_string());
        thread.spawn(move || its.serve(number, steps))
    }

    fn submit<T, W>(
        shared: &Arc<Shared>,
        account: &Account,
        op: Op,
        device: Option<&'static Device>,
        work: W,
    ) -> Result<Job<W, T, Shared>, DiskError>
    where
        W: FnOnce() -> Result<T, DiskError> + Send + 'static,
        T: Send + 'static,
    {
        let task = Arc::new(Task::new(op, work));
        let pushed = {
            let mut state = shared.state.lock();
            if state.is_stopping {
                return Err(DiskError::Cancelled);
            }
            let number = device::number_of(device);
            if state.queue.is_vain(number) {
                shared.counters.refusals.add(1);
                return Err(DiskError::Hung { op, mount: state.hung.mount(number) });
            }
            let pushed =
                state.queue.push(account.class, account.source, number, task.clone() as Arc<dyn Run>, false);
            pushed.map(|ticket| (ticket, state.idle.take()))
        };
        match pushed {
            Ok((ticket, idle)) => {
                idle.wake();
                watch::wake(device);
                Ok(Job::new(task, shared.clone(), ticket))
            }
            Err(full) => Err(shared.overflow(full.waiting)),
        }
    }

    /// Runs `work` on the pool whatever the queue's length, with nobody waiting for it; gives it back if the threads
    /// have ended.
    pub(crate) fn detach<W>(
        &self,
        account: &Account,
        op: Op,
        device: Option<&'static Device>,
        work: W,
    ) -> Option<Arc<dyn Run>>
    where
        W: FnOnce() -> Result<(), DiskError> + Send + 'static,
    {
        self.detach_task(account, device, Arc::new(Task::new(op, work)))
    }

    pub(crate) fn detach_task(
        &self,
        account: &Account,
        device: Option<&'static Device>,
        task: Arc<dyn Run>,
    ) -> Option<Arc<dyn Run>> {
        let (left, idle) = {
            let mut state = self.state.lock();
            let number = device::number_of(device);
            let is_over = state.live <= state.queue.hung();
            if is_over && state.queue.hung_on(number) > 0 {
                // No thread may wait for this device, not even at shutdown: the task is leaked, and the process closes
                // its files when it ends.
                std::mem::forget(task);
                return None;
            }
            if is_over {
                return Some(task);
            }
            let refused = state.queue.push(account.class, account.source, number, task, true).err();
            (refused.map(|full| full.job), state.idle.take())
        };
        idle.wake();
        watch::wake(device);
        left
    }

    /// As [`detach`](Self::detach), on the heir if the threads of this pool have ended.
    pub(crate) fn detach_or_leave<W>(
        &self,
        account: &Account,
        op: Op,
        device: Option<&'static Device>,
        work: W,
    ) -> Option<Arc<dyn Run>>
    where
        W: FnOnce() -> Result<(), DiskError> + Send + 'static,
    {
        let left = self.detach(account, op, device, work)?;
        match DRAINING_POOL.get().and_then(Weak::upgrade) {
            Some(heir) => heir.detach_task(account, device, left),
            None => Some(left),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn notify(&self, notice: Notice) {
        if let Some(listener) = self.listener.get() {
            listener(notice);
        }
    }

    /// Counts a refused job.
    pub(crate) fn overflow(&self, waiting: usize) -> DiskError {
        self.counters.overflows.add(1);
        DiskError::QueueFull { pool: self.name.clone(), waiting }
    }

    pub(crate) fn record(&self, cost: &Cost) {
        let counters = &self.counters.ops[cost.op.index()];
        counters.queue.record_ns(cost.queue_ns);
        counters.service.record_ns(cost.service_ns);
        if let Some(device) = cost.device {
            device.queue.record_ns(cost.queue_ns);
            device.service.record_ns(cost.service_ns);
        }
        if cost.has_panicked {
            self.counters.panics.add(1);
        }
    }

    /// The life of a thread.
    fn serve(self: &Arc<Self>, number: u32, steps: Arc<AtomicU32>) {
        IS_POOL_THREAD.set(true);
        device::count_steps(steps.clone());
        let mut last = None;
        let bell = Arc::default();
        while let Some(Taken { ticket, job, pending_thread }) = self.next(last, number, &steps, &bell) {
            if let Some(pending_thread) = pending_thread {
                self.start_announced(pending_thread);
            }
            // The slot is free before the result is visible, so that the receiver of the result may start the next job
            // at once.
            let done = || self.state.lock().queue.done(ticket);
            if let Some(cost) = job.run(&done) {
                self.record(&cost);
            }
            // The last reference to an abandoned result may be this one: it ends outside the lock.
            drop(job);
            last = Some(ticket);
        }
    }

    /// Gives back the slot of the last job and waits for the next one; `None` ends the thread.
    fn next(
        &self,
        last: Option<Ticket>,
        number: u32,
        steps: &AtomicU32,
        bell: &Arc<Condvar>,
    ) -> Option<Taken> {
        let mut state = self.state.lock();
        if let Some(ticket) = last {
            state.queue.done(ticket);
        }
        let mut has_worked = last.is_some();
        loop {
            if let Some((ticket, job)) = state.queue.take(Runner { number, steps: steps.load(Relaxed) }) {
                let pending_thread = state.needs_thread().then(|| state.announce());
                if state.queue.has_started() {
                    state.idle.take().wake();
                }
                return Some(Taken { ticket, job, pending_thread });
            }
            // Jobs that wait for a hung device do not keep a stopping pool alive.
            let is_over = state.is_stopping && state.queue.waiting() == state.queue.waiting_in_vain();
            if is_over || state.live > state.queue.slots() + state.queue.replaced() {
                state.live -= 1;
                state.free_numbers.push(number);
                // Other threads may have waited for the last capped job to be taken.
                state.idle.wake_all();
                drop(state);
                self.ended.notify_all();
                return None;
            }
            state.idle.add(bell);
            if !has_worked {
                state = FatalMutexGuard::wait(state, bell);
                state.idle.remove(bell);
                continue;
            }
            let (locked, waited) = FatalMutexGuard::wait_for(state, bell, REST);
            state = locked;
            if state.idle.remove(bell) && waited.timed_out() {
                // Most memory that the jobs allocated was freed by other threads, and the allocator does not notice
                // that while this thread rests.
                drop(state);
                tw_sys::heap::purge();
                has_worked = false;
                state = self.state.lock();
            }
        }
    }

    fn stop(&self) {
        let mut state = self.state.lock();
        state.is_stopping = true;
        state.idle.wake_all();
    }
}

impl Watched for Shared {
    fn tick(self: Arc<Self>) -> bool {
        let mut refused = RefusedJobs::default();
        let is_busy = {
            let mut state = self.state.lock();
            let State { queue, steps, timeout, .. } = &mut *state;
            queue.tick();
            let overdue = queue.overdue(*timeout, |number| steps[number as usize].load(Relaxed));
            for Overdue { ticket, device } in overdue {
                let is_replaced = state.queue.replaced() < HUNG_THREADS_MAX
                    && Self::start_thread(&mut state, &self).is_ok();
                let job = state.queue.hang(ticket, is_replaced);
                let timeout = state.timeout;
                let mount = state.hung.begin(device, timeout);
                refused.jobs.extend(job.map(|job| (job, mount)));
            }
            let State { queue, hung, idle, .. } = &mut *state;
            hung.check(queue, &self.name, &mut refused);
            if !refused.jobs.is_empty() {
                // Slots are free.
                idle.wake_all();
            }
            queue.has_taken() || !hung.is_empty()
        };
        if !refused.jobs.is_empty() {
            // The end of fewer threads has to be waited for.
            self.ended.notify_all();
        }
        self.counters.refusals.add(refused.jobs.len() as u64);
        refused.report(|notice| self.notify(notice));
        is_busy
    }
}

impl CancelQueue for Shared {
    fn cancel(&self, ticket: Ticket) {
        // The job ends when this function does, after the lock.
        let (job, idle) = {
            let mut state = self.state.lock();
            let job = state.queue.cancel(ticket);
            // The slot of a job that was started is free now.
            let idle = if state.queue.has_started() { state.idle.take() } else { Idle::NONE };
            (job, idle)
        };
        idle.wake();
        if job.is_some() {
            self.counters.cancellations.add(1);
        }
    }
}
