//! State that the threads of a pool share with its handles: its queue, the life of a thread, and threads that hang.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Condvar, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::io::Errno;
use tw_base::{FatalMutex, FatalMutexGuard};

use super::threads::{PendingThread, Thread};
use crate::account::Account;
use crate::device::{self, Device};
use crate::error::DiskError;
use crate::idle_threads::{Idle, IdleThreads};
use crate::notice::Notice;
use crate::op::Op;
use crate::queue::{Overdue, Queue, Runner, Ticket};
use crate::stats::PoolCounters;
use crate::task::{CancelQueue, Cost, Job, Run, Task};
use crate::watch::{self, HungDevices, RefusedJobs, Watched};

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Threads of one pool that hang on a device and are replaced by others.
    ///
    /// Each device is good for half of the threads and a few at most.
    const HUNG_THREADS_MAX: u32 = 256, count, "further ones that hang count as threads of the pool until they end";
}

/// Time for which a thread that has worked waits for more before it lets go of its memory.
pub(super) const REST: Duration = Duration::from_secs(2);

/// The pool that does what is left to do for pools that have ended.
pub(super) static DRAINING_POOL: OnceLock<Weak<Shared>> = OnceLock::new();

thread_local! {
    static IS_POOL_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Returns true if this thread belongs to a pool, and may therefore wait.
pub(crate) fn is_pool_thread() -> bool {
    IS_POOL_THREAD.get()
}

type Listener = Box<dyn Fn(Notice) + Send + Sync>;

/// State that the threads share with the handles.
pub(crate) struct Shared {
    pub(super) name: Arc<str>,
    pub(super) state: FatalMutex<State>,
    /// Told when a thread ends or may end.
    pub(super) ended: Condvar,
    pub(super) listener: OnceLock<Listener>,
    pub(crate) counters: PoolCounters,
}

pub(super) struct State {
    pub(super) queue: Queue<Arc<dyn Run>>,
    pub(super) idle: IdleThreads,
    pub(super) live: u32,
    pub(super) is_stopping: bool,
    pub(super) threads: Vec<Thread>,
    /// Steps of the threads, by number.
    pub(super) steps: Vec<Arc<AtomicU32>>,
    /// Numbers of threads that have ended.
    pub(super) free_numbers: Vec<u32>,
    /// `device_timeout`, in ticks.
    pub(super) timeout: u64,
    pub(super) hung: HungDevices,
}

/// Job that a thread has taken.
struct Taken {
    ticket: Ticket,
    job: Arc<dyn Run>,
    /// Thread to start before it is run.
    pending_thread: Option<PendingThread>,
}

impl Shared {
    /// Starts a thread if no thread is idle and there may be more. The others are started by threads.
    pub(super) fn grow(state: &mut State, shared: &Arc<Shared>) -> Result<(), Errno> {
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

    pub(super) fn submit<T, W>(
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
        let (leftover_task, idle) = {
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
        leftover_task
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
        let task = self.detach(account, op, device, work)?;
        match DRAINING_POOL.get().and_then(Weak::upgrade) {
            Some(heir) => heir.detach_task(account, device, task),
            None => Some(task),
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

    pub(super) fn stop(&self) {
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
