//! Named thread pools (`thread_pool NAME threads=N [max_queue=M]`): one queue, plain threads.

use crate::account::Account;
use crate::error::DiskError;
use crate::op::Op;
use crate::queue::{Queue, Ticket};
use crate::ring::Lane;
use crate::stats::{OpStats, PoolCounters, PoolStats};
use crate::task::{Cost, Desk, Job, Run, Task};
use rustix::io::Errno;
use std::cell::Cell;
use std::sync::{Arc, Condvar, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;
use tw_base::{Whole, WholeGuard};

/// Name of the pool that exists without a directive.
pub const DEFAULT_NAME: &str = "default";
/// Its threads.
pub const DEFAULT_THREADS: u32 = 32;
/// The most jobs that may wait in it.
pub const DEFAULT_MAX_QUEUE: usize = 65_536;

/// The pool that does what is left to do for pools that have ended.
static HEIR: OnceLock<Weak<Shared>> = OnceLock::new();

/// How long a thread that has worked waits for more before it lets go of its memory.
const REST: Duration = Duration::from_secs(2);

thread_local! {
    static IS_POOL_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread belongs to a pool, and may therefore wait.
pub(crate) fn is_pool_thread() -> bool {
    IS_POOL_THREAD.get()
}

/// A handle to a pool; clones are the same pool.
///
/// When the last handle (also inside a [`Disk`](crate::Disk)) is dropped, queued jobs are still done, then the threads
/// end; [`Pool::shutdown`] waits for that.
#[derive(Clone)]
pub struct Pool(Arc<Handle>);

struct Handle {
    shared: Arc<Shared>,
    /// The ring, once a door with [`Aio::Uring`](crate::Aio::Uring) asked for it.
    lane: OnceLock<Result<Arc<Lane>, Errno>>,
}

/// Something an operator should read once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// io_uring cannot be used here: the threads read instead.
    RingUnavailable(Errno),
    /// The kernel has taken io_uring away: the threads read from now on.
    RingLost(Errno),
    /// The kernel does not let more files be locked in memory than are.
    LockRefused {
        /// Why.
        errno: Errno,
        /// Bytes of them that are.
        kept: u64,
        /// `RLIMIT_MEMLOCK`, bytes, if there is one.
        limit: Option<u64>,
    },
}

impl std::fmt::Display for Notice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (what, errno) = match self {
            Self::RingUnavailable(errno) => ("is not available", errno),
            Self::RingLost(errno) => ("stopped working", errno),
            Self::LockRefused { errno, kept, limit } => {
                let (errno, size) = (tw_base::Errno::from(*errno), kept >> 10);
                write!(f, "mlock() of a file failed ({errno}), no more than {size} KB of files are locked")?;
                return match limit {
                    Some(limit) => write!(f, ", RLIMIT_MEMLOCK is {} KB", limit >> 10),
                    None => Ok(()),
                };
            }
        };
        write!(f, "io_uring {what} ({}), threads read instead", tw_base::Errno::from(*errno))
    }
}

type Listener = Box<dyn Fn(Notice) + Send + Sync>;

/// What the threads share with the handles.
pub(crate) struct Shared {
    name: Arc<str>,
    state: Whole<State>,
    wake: Condvar,
    listener: OnceLock<Listener>,
    pub(crate) counters: PoolCounters,
}

struct State {
    queue: Queue<Arc<dyn Run>>,
    live: u32,
    is_stopping: bool,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    /// Starts a pool of `threads` (at least 1) threads in which up to `max_queue` jobs may wait; with 0, only as many
    /// jobs as threads are accepted.
    ///
    /// Threads inherit the restrictions of the calling thread: never call this on a loop that is under the loop guard.
    ///
    /// # Errors
    /// The system's reason if not a single thread could be started.
    pub fn new(name: &str, threads: u32, max_queue: usize) -> Result<Self, Errno> {
        let shared = Arc::new(Shared {
            name: name.into(),
            state: Whole::new(State {
                queue: Queue::new(threads, max_queue),
                live: 0,
                is_stopping: false,
                threads: Vec::new(),
            }),
            wake: Condvar::new(),
            listener: OnceLock::new(),
            counters: PoolCounters::new(),
        });
        Shared::grow(&shared)?;
        Ok(Self(Arc::new(Handle { shared, lane: OnceLock::new() })))
    }

    /// The pool that exists without a directive.
    ///
    /// # Errors
    /// As [`Pool::new`].
    pub fn with_defaults() -> Result<Self, Errno> {
        Self::new(DEFAULT_NAME, DEFAULT_THREADS, DEFAULT_MAX_QUEUE)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.shared.name
    }

    /// Changes the number of threads and the length of the queue; no job is lost. Surplus threads end as they become
    /// idle. The warning of [`Pool::new`] about restricted threads holds here too.
    ///
    /// # Errors
    /// The system's reason if a thread could not be started; the pool then works with those it has.
    pub fn resize(&self, threads: u32, max_queue: usize) -> Result<(), Errno> {
        self.0.shared.state.lock().queue.resize(threads, max_queue);
        let result = Shared::grow(&self.0.shared);
        self.0.shared.wake.notify_all();
        if let Some(lane) = self.lane() {
            lane.set_max_queue(max_queue);
        }
        result
    }

    /// Sets who hears a [`Notice`]: once, before the first door with [`Aio::Uring`](crate::Aio::Uring). May be called from
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
    pub async fn run<T, W>(&self, by: &mut Account, work: W) -> Result<T, DiskError>
    where
        W: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        self.job(by, Op::Run, || Ok(work())).await
    }

    /// Counters and levels now. Takes the queue's lock for a moment.
    pub fn stats(&self) -> PoolStats {
        let shared = &self.0.shared;
        let c = &shared.counters;
        let ops = Op::ALL.iter().filter_map(|&op| {
            let counters = &c.ops[op.index()];
            let (queue, service) = (counters.queue.snapshot(), counters.service.snapshot());
            let (inline, jobs) = (c.inline.sum(op.index()), service.count());
            (inline + jobs > 0).then_some(OpStats { op, inline, jobs, queue, service })
        });
        let ops = ops.collect();
        let (lane_waiting, lane_running) = self.lane().map_or((0, 0), |lane| lane.levels());
        let state = shared.state.lock();
        PoolStats {
            name: shared.name.clone(),
            threads: state.queue.slots(),
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

    /// Waits until every queued job is done and every thread has ended. Blocks: for the end of a process, and tests.
    /// Other handles of this pool get [`DiskError::Cancelled`] from now on.
    pub fn shutdown(self) {
        let shared = self.0.shared.clone();
        if let Some(lane) = self.lane() {
            // First the ring: what it cannot read, the threads do.
            lane.stop();
            lane.join();
        }
        shared.stop();
        let threads = std::mem::take(&mut shared.state.lock().threads);
        let me = std::thread::current().id();
        for thread in threads.into_iter().filter(|thread| thread.thread().id() != me) {
            // A thread ends by panic only if a panic payload panics while dropped; there is nothing to do about it.
            let _ = thread.join();
        }
    }

    /// Makes this pool close the files of pools that have ended before them, whoever drops those files. For one that lives as
    /// long as the process; of several the first one stays.
    pub fn inherit(&self) {
        let _ = HEIR.set(Arc::downgrade(&self.0.shared));
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0.shared
    }

    /// The ring, if it was started and works.
    pub(crate) fn lane(&self) -> Option<&Arc<Lane>> {
        self.0.lane.get()?.as_ref().ok()
    }

    /// Starts the ring if nobody has; says once why there is none.
    pub(crate) fn start_lane(&self) {
        let shared = &self.0.shared;
        let mut is_first = false;
        let lane = self.0.lane.get_or_init(|| {
            is_first = true;
            let max_queue = shared.state.lock().queue.max_waiting();
            Lane::start(shared, max_queue)
        });
        if let (true, Err(errno)) = (is_first, lane) {
            shared.notify(Notice::RingUnavailable(*errno));
        }
    }

    pub(crate) async fn job<T, W>(&self, by: &mut Account, op: Op, work: W) -> Result<T, DiskError>
    where
        W: FnOnce() -> Result<T, DiskError> + Send + 'static,
        T: Send + 'static,
    {
        let job = Shared::submit(&self.0.shared, by, op, work)?;
        let done = job.await;
        by.charge(done.queue_ns, done.service_ns);
        done.result
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Some(Ok(lane)) = self.lane.get() {
            lane.stop();
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
    /// Starts threads until there is one per slot.
    fn grow(shared: &Arc<Shared>) -> Result<(), Errno> {
        let mut state = shared.state.lock();
        while state.live < state.queue.slots() && !state.is_stopping {
            let its = shared.clone();
            match std::thread::Builder::new().name(shared.name.to_string()).spawn(move || its.serve()) {
                Ok(thread) => {
                    state.live += 1;
                    state.threads.push(thread);
                }
                Err(error) => {
                    // Fewer slots than asked for: a job must never be started for a thread that does not exist.
                    let (live, max_waiting) = (state.live.max(1), state.queue.max_waiting());
                    state.queue.resize(live, max_waiting);
                    return Err(Errno::from_io_error(&error).unwrap_or(Errno::AGAIN));
                }
            }
        }
        state.threads.retain(|thread| !thread.is_finished());
        Ok(())
    }

    fn submit<T, W>(
        shared: &Arc<Shared>,
        by: &Account,
        op: Op,
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
            state.queue.push(by.class, by.source, task.clone() as Arc<dyn Run>, false)
        };
        match pushed {
            Ok(ticket) => {
                shared.wake.notify_one();
                Ok(Job::new(task, shared.clone(), ticket))
            }
            Err(full) => Err(shared.overflow(full.waiting)),
        }
    }

    /// Runs `work` on the pool whatever the queue's length, with nobody waiting for it; gives it back if the threads
    /// have ended.
    pub(crate) fn detach<W>(&self, by: &Account, op: Op, work: W) -> Option<Arc<dyn Run>>
    where
        W: FnOnce() -> Result<(), DiskError> + Send + 'static,
    {
        self.detach_task(by, Arc::new(Task::new(op, work)))
    }

    fn detach_task(&self, by: &Account, task: Arc<dyn Run>) -> Option<Arc<dyn Run>> {
        let left = {
            let mut state = self.state.lock();
            if state.live == 0 {
                Some(task)
            } else {
                state.queue.push(by.class, by.source, task, true).err().map(|full| full.job)
            }
        };
        if left.is_none() {
            self.wake.notify_one();
        }
        left
    }

    /// As [`detach`](Self::detach), on the heir if the threads of this pool have ended.
    pub(crate) fn detach_or_leave<W>(&self, by: &Account, op: Op, work: W) -> Option<Arc<dyn Run>>
    where
        W: FnOnce() -> Result<(), DiskError> + Send + 'static,
    {
        let left = self.detach(by, op, work)?;
        match HEIR.get().and_then(Weak::upgrade) {
            Some(heir) => heir.detach_task(by, left),
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
    fn serve(&self) {
        IS_POOL_THREAD.set(true);
        let mut last = None;
        while let Some((ticket, job)) = self.next(last) {
            // The slot is free before its result is known: whoever gets the result may start the next job at once.
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
    fn next(&self, last: Option<Ticket>) -> Option<(Ticket, Arc<dyn Run>)> {
        let mut state = self.state.lock();
        if let Some(ticket) = last {
            state.queue.done(ticket);
        }
        let mut has_worked = last.is_some();
        loop {
            if let Some(taken) = state.queue.take() {
                if state.queue.has_started() {
                    self.wake.notify_one();
                }
                return Some(taken);
            }
            let is_over = state.is_stopping && state.queue.waiting() == 0;
            if is_over || state.live > state.queue.slots() {
                state.live -= 1;
                drop(state);
                // Others may have waited for the last capped job to be taken.
                self.wake.notify_all();
                return None;
            }
            if !has_worked {
                state = WholeGuard::wait(state, &self.wake);
                continue;
            }
            let (locked, waited) = WholeGuard::wait_for(state, &self.wake, REST);
            state = locked;
            if waited.timed_out() {
                // What the jobs left behind was mostly freed by others, which nobody notices on a thread that rests.
                drop(state);
                tw_sys::heap::give_back();
                has_worked = false;
                state = self.state.lock();
            }
        }
    }

    fn stop(&self) {
        self.state.lock().is_stopping = true;
        self.wake.notify_all();
    }
}

impl Desk for Shared {
    fn cancel(&self, ticket: Ticket) {
        // The job ends when this function does, after the lock.
        let job = self.state.lock().queue.cancel(ticket);
        if job.is_some() {
            self.counters.cancellations.add(1);
            self.wake.notify_one();
        }
    }
}
