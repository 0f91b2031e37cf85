//! The thread on which configurations are loaded and freed.
//!
//! Either takes many milliseconds for a configuration of many servers, which no loop has. Both happen on one thread, because
//! the allocator gives memory back best where it was taken. Where processors are scarce, the thread lets loops have theirs
//! every millisecond. What a large configuration frees goes back to the system at once, and everything else every two seconds: no
//! loop has the time for that, and the allocator leaves it to this thread. As often, and more often when it is short, it reads how much
//! memory is available ([`available_memory`]), for users that take less of it then.

use std::cell::Cell;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use tw_base::memory;
use tw_rt::available_memory;

/// Stack size: loading recurses a few calls for each nested block, so the thread has as much as the main thread.
const STACK_SIZE: usize = 8 << 20;

/// Time for which the thread keeps a processor that others want. Without yielding, the kernel would take it away only
/// at the next timer tick: a loop would have to wait for 4 ms.
const STINT: Duration = Duration::from_millis(1);

/// Interval at which freed memory is returned to the system. A pass without any costs microseconds.
const GIVE_BACK_EVERY: Duration = Duration::from_secs(2);

/// Length of a job after which memory goes back at once. A shorter one, of a configuration of some hundred lines, leaves less
/// than the next one takes again; giving it back costs as much as loading it, and loops wait for the other processors.
const LONG_JOB: Duration = Duration::from_millis(20);

/// Interval of giving memory back while memory is short. The reads before it bound what is taken in the meantime.
const GIVE_BACK_EVERY_SHORT: Duration = Duration::from_millis(200);

/// Interval of reading how much memory is available where it has a bound.
const READ_EVERY_BOUND: Duration = Duration::from_millis(200);

/// Interval of that while little of the bound is left.
const READ_EVERY_LOW: Duration = Duration::from_millis(50);

thread_local! {
    /// On this thread only: time at which it got its processor.
    static STINT_BEGAN: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Handle of the thread. The thread ends with the last handle and the last configuration.
#[derive(Clone)]
pub struct ConfigThread(Sender<Job>);

type Job = Box<dyn FnOnce() + Send>;

/// Value that takes long to free.
pub trait FreeInSteps: Send + Sync + 'static {
    /// Frees the value part by part, with [`yield_if_due`] between the parts.
    fn free(self);
}

/// Reference to a generation in use. The last reference to be dropped has the generation freed on the thread that
/// published it, whichever thread that happens on. There is no other way to share a generation.
pub struct GenerationRef<G: FreeInSteps>(Option<Arc<Published<G>>>);

struct Published<G> {
    generation: G,
    thread: ConfigThread,
}

impl ConfigThread {
    /// Starts the thread. It calls `give_back` after a long job, and every `GIVE_BACK_EVERY`: loops and pools free memory,
    /// and none of them has the time to return it to the system.
    ///
    /// # Errors
    /// Failure to start a thread.
    pub fn start(give_back: fn()) -> io::Result<Self> {
        let (jobs, received) = mpsc::channel();
        available_memory::refresh();
        named().spawn(move || serve(received, give_back))?;
        Ok(Self(jobs))
    }

    /// Runs `work` on the thread and waits for its end. A panic in `work` continues in the caller.
    pub fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        self.run_while(work, Duration::MAX, || {})
    }

    /// Runs `work` as [`run`](Self::run) does, and calls `meanwhile` at every interval `every` until `work` has
    /// ended.
    pub fn run_while<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
        every: Duration,
        mut meanwhile: impl FnMut(),
    ) -> T {
        let (result, done) = mpsc::sync_channel(1);
        self.send(Box::new(move || {
            // The receiver waits for it.
            let _ = result.send(panic::catch_unwind(AssertUnwindSafe(work)));
        }));
        loop {
            match done.recv_timeout(every) {
                Ok(Ok(value)) => return value,
                Ok(Err(panic)) => panic::resume_unwind(panic),
                Err(RecvTimeoutError::Timeout) => meanwhile(),
                Err(RecvTimeoutError::Disconnected) => {
                    unreachable!("the thread lives as long as this handle, and answers every job")
                }
            }
        }
    }

    /// Publishes a generation for use by loops.
    pub fn publish<G: FreeInSteps>(&self, generation: G) -> GenerationRef<G> {
        GenerationRef(Some(Arc::new(Published { generation, thread: self.clone() })))
    }

    /// Sends a job to the thread. Takes no lock that is held for long, and waits for nothing.
    fn send(&self, job: Job) {
        // Sending cannot fail: the thread ends after the last handle.
        let _ = self.0.send(job);
    }
}

impl<G: FreeInSteps> GenerationRef<G> {
    /// Publishes a value made of this one. The same thread frees it.
    pub fn publish_with<H: FreeInSteps>(&self, make: impl FnOnce(&G) -> H) -> GenerationRef<H> {
        let Published { generation, thread } = self.published();
        thread.publish(make(generation))
    }

    fn published(&self) -> &Published<G> {
        self.0.as_ref().expect("it is there until the drop")
    }
}

impl<G: FreeInSteps> Clone for GenerationRef<G> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<G: FreeInSteps> std::ops::Deref for GenerationRef<G> {
    type Target = G;

    fn deref(&self) -> &G {
        &self.published().generation
    }
}

impl<G: FreeInSteps> Drop for GenerationRef<G> {
    fn drop(&mut self) {
        // If several references are dropped at the same time, exactly one of them gets the value.
        if let Some(Published { generation, thread }) = self.0.take().and_then(Arc::into_inner) {
            thread.send(Box::new(move || generation.free()));
        }
    }
}

/// Runs `work`, which loads a configuration, on a thread that ends with it: for a process that may not have threads
/// yet, or that does not keep configurations. A panic in `work` continues in the caller.
///
/// # Errors
/// Failure to start a thread.
pub fn run_on_own_thread<T: Send>(give_back: fn(), work: impl FnOnce() -> T + Send) -> io::Result<T> {
    let done = thread::scope(|scope| {
        let begin = || {
            STINT_BEGAN.set(Some(Instant::now()));
            work()
        };
        Ok::<_, io::Error>(named().spawn_scoped(scope, begin)?.join())
    })?;
    give_back();
    Ok(done.unwrap_or_else(|panic| panic::resume_unwind(panic)))
}

fn named() -> thread::Builder {
    thread::Builder::new().name("config".into()).stack_size(STACK_SIZE)
}

/// Yields the processor if this thread has had it for long. Called between the parts of long work that may run on the
/// thread; costs a look at the clock there, and nothing elsewhere.
pub fn yield_if_due() {
    if let Some(began) = STINT_BEGAN.get()
        && began.elapsed() >= STINT
    {
        thread::yield_now();
        STINT_BEGAN.set(Some(Instant::now()));
    }
}

fn serve(jobs: Receiver<Job>, give_back: fn()) {
    let mut given_back = Instant::now();
    loop {
        let every = if available_memory::is_short() { GIVE_BACK_EVERY_SHORT } else { GIVE_BACK_EVERY };
        let wait = every.saturating_sub(given_back.elapsed());
        let wait = match memory::bound() {
            None => wait,
            Some(_) if memory::is_low() => wait.min(READ_EVERY_LOW),
            Some(_) => wait.min(READ_EVERY_BOUND),
        };
        match jobs.recv_timeout(wait) {
            Ok(job) => {
                let began = Instant::now();
                STINT_BEGAN.set(Some(began));
                job();
                if began.elapsed() < LONG_JOB {
                    continue;
                }
            }
            Err(RecvTimeoutError::Timeout) if given_back.elapsed() < every => {
                available_memory::refresh();
                continue;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        give_back();
        available_memory::refresh();
        given_back = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    /// Tells on which thread it is dropped.
    struct Witness(Sender<Option<String>>);

    impl FreeInSteps for Witness {
        fn free(self) {}
    }

    impl Drop for Witness {
        fn drop(&mut self) {
            let _ = self.0.send(thread::current().name().map(str::to_owned));
        }
    }

    #[test]
    fn generation_is_freed_on_its_thread_after_the_last_drop() {
        let (dropped, freed) = mpsc::channel();
        let config = ConfigThread::start(|| {}).unwrap();
        let first = config.publish(Witness(dropped));
        let second = first.clone();
        drop(first);
        assert!(freed.try_recv().is_err(), "somebody uses it");
        thread::spawn(move || drop(second)).join().unwrap();
        assert_eq!(freed.recv().unwrap().as_deref(), Some("config"));
    }

    #[test]
    fn thread_lives_while_a_generation_is_used() {
        let (dropped, freed) = mpsc::channel();
        let live = ConfigThread::start(|| {}).unwrap().publish(Witness(dropped));
        drop(live);
        assert_eq!(freed.recv().unwrap().as_deref(), Some("config"));
        assert!(freed.recv().is_err());
    }

    #[test]
    fn memory_is_given_back_at_once_only_after_long_jobs() {
        static CALLS: AtomicUsize = AtomicUsize::new(0);
        let config = ConfigThread::start(|| _ = CALLS.fetch_add(1, Relaxed)).unwrap();
        let began = Instant::now();
        (0..3).for_each(|_| config.run(|| ()));
        let short = CALLS.load(Relaxed);
        assert!(short == 0 || began.elapsed() >= LONG_JOB, "on a machine without a processor they were long");
        config.run(|| {
            let began = Instant::now();
            while began.elapsed() < LONG_JOB {
                thread::yield_now();
            }
        });
        // The next job runs after the work that belongs to the one before.
        config.run(|| ());
        assert!(CALLS.load(Relaxed) > short);
    }

    #[test]
    fn work_runs_on_the_thread_and_panics_reach_the_caller() {
        let config = ConfigThread::start(|| {}).unwrap();
        let name = || thread::current().name().map(str::to_owned);
        assert_eq!(config.run(name).as_deref(), Some("config"));
        let panic = panic::catch_unwind(AssertUnwindSafe(|| config.run(|| panic!("expected"))));
        assert!(panic.is_err());
        assert_eq!(config.run(|| 7), 7, "the thread goes on");
    }
}
