//! Reads by io_uring (`aio on`): one ring per pool, served by one thread of its own, never by a loop.
//!
//! The lane has its own queue with the same rules as the pool's; its slots are the places of the ring. What the ring cannot
//! read (a file system that refuses, a kernel that takes io_uring away) is read by the threads of the pool.

use crate::account::{Account, JobClass, JobSource};
use crate::device::{self, Device, ReadJobGuard};
use crate::error::DiskError;
use crate::file::{File, Handle};
use crate::notice::Notice;
use crate::op::Op;
use crate::os;
use crate::pool::Shared;
use crate::queue::{Overdue, Queue, Runner, Ticket};
use crate::stats::HungDevice;
use crate::task::{Begun, CancelQueue, Cost, Job, Run, Task};
use crate::watch::{self, HungDevices, RefusedJobs, Watched};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tw_base::FatalMutex;
use tw_sys::uring::{Read, Ring, Waker};

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Reads in flight in the io_uring of one pool (aio on).
    ///
    /// Reads in flight in one ring: twice the default threads, a quarter of the requests a block device usually takes.
    pub const RING_PLACES: u32 = 64, count, "further ones wait in the queue of the pool";
}

/// A read that waits for its turn.
pub(crate) struct ReadWork {
    file: RingFile,
    offset: u64,
    buf: Vec<u8>,
    read_job: ReadJobGuard,
}

type ReadTask = Task<ReadWork, Vec<u8>>;
/// Waits for a read of the lane.
pub(crate) type ReadJob = Job<ReadWork, Vec<u8>, UringQueue>;

/// A file with a descriptor.
struct RingFile(File);

impl RingFile {
    fn new(file: &File) -> Option<Self> {
        file.fd().is_some().then(|| Self(file.clone()))
    }
}

impl AsFd for RingFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0
            .fd()
            .expect("`new` makes one only of a file with a descriptor, which stays until the last handle")
    }
}

/// A read in the ring.
struct Flight {
    task: Arc<ReadTask>,
    ticket: Ticket,
    begun: Begun,
    read_job: ReadJobGuard,
}

/// The queue in front of a ring.
pub(crate) struct UringQueue {
    state: FatalMutex<State>,
    waker: Waker,
    shared: Arc<Shared>,
}

struct State {
    queue: Queue<Arc<ReadTask>>,
    /// The thread has seen everything queued so far, and waits for the ring.
    is_asleep: bool,
    is_stopping: bool,
    /// The kernel has taken the ring away.
    is_lost: bool,
    /// `device_timeout`, in ticks.
    timeout: u64,
    hung: HungDevices,
    thread: Option<JoinHandle<()>>,
}

impl UringQueue {
    /// Starts a ring and its thread.
    pub(crate) fn start(shared: &Arc<Shared>, max_queue: usize, timeout: u64) -> Result<Arc<Self>, Errno> {
        let errno = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        let ring = Ring::new(RING_PLACES).map_err(errno)?;
        let uring_queue = Arc::new(Self {
            state: FatalMutex::new(State {
                queue: Queue::new(RING_PLACES, max_queue, None),
                is_asleep: false,
                is_stopping: false,
                is_lost: false,
                timeout,
                hung: HungDevices::default(),
                thread: None,
            }),
            waker: ring.waker(),
            shared: shared.clone(),
        });
        let its = uring_queue.clone();
        let name = format!("{}-ring", shared.name());
        let thread = std::thread::Builder::new().name(name).spawn(move || its.serve(ring)).map_err(errno)?;
        uring_queue.state.lock().thread = Some(thread);
        watch::over(&uring_queue);
        Ok(uring_queue)
    }

    /// Queues a read; gives the buffer back if this file or this ring cannot be read by the lane.
    pub(crate) fn submit(
        uring_queue: &Arc<Self>,
        account: &Account,
        file: &File,
        offset: u64,
        buf: Vec<u8>,
    ) -> Result<ReadJob, ReadRefusal> {
        let Some(file) = RingFile::new(file) else { return Err(ReadRefusal::Unsuited(buf)) };
        let mut state = uring_queue.state.lock();
        if state.is_lost || state.is_stopping {
            drop(state);
            return Err(ReadRefusal::Unsuited(buf));
        }
        let device = file.0.inner().device;
        let number = device::number_of(Some(device));
        if state.queue.is_vain(number) {
            uring_queue.shared.counters.refusals.add(1);
            return Err(ReadRefusal::Error(DiskError::Hung {
                op: Op::Read,
                mount: state.hung.mount(number),
            }));
        }
        let read_job = device.begin_read_job();
        let task = Arc::new(Task::new(Op::Read, ReadWork { file, offset, buf, read_job }));
        let pushed = state.queue.push(account.class, account.source, number, task.clone(), false);
        let must_wake = std::mem::take(&mut state.is_asleep);
        drop(state);
        if must_wake {
            uring_queue.waker.wake();
        }
        watch::wake(Some(device));
        match pushed {
            Ok(ticket) => Ok(Job::new(task, uring_queue.clone(), ticket)),
            Err(full) => Err(ReadRefusal::Error(uring_queue.shared.overflow(full.waiting))),
        }
    }

    pub(crate) fn resize(&self, max_queue: usize, device_timeout: Duration) {
        let mut state = self.state.lock();
        state.queue.resize(RING_PLACES, max_queue, None);
        state.timeout = watch::ticks(device_timeout);
    }

    /// Devices on which reads hang.
    pub(crate) fn hung(&self) -> Vec<HungDevice> {
        let mut hung = Vec::new();
        let state = self.state.lock();
        state.hung.add_to(&mut hung, |device| state.queue.hung_on(device));
        hung
    }

    /// Jobs that wait, and jobs in the ring.
    pub(crate) fn levels(&self) -> (usize, u32) {
        let state = self.state.lock();
        (state.queue.waiting(), state.queue.running())
    }

    /// Lets the thread end when everything queued is done.
    pub(crate) fn stop(&self) {
        self.state.lock().is_stopping = true;
        self.waker.wake();
    }

    /// Waits for the thread.
    pub(crate) fn join(&self) {
        let thread = self.state.lock().thread.take();
        if let Some(thread) = thread {
            // The thread panics only if a waker or a buffer panics while it is dropped; there is nothing to do about
            // that.
            let _ = thread.join();
        }
    }

    fn serve(&self, mut ring: Ring<RingFile, Flight>) {
        let mut over = Vec::new();
        let mut begun = Vec::new();
        loop {
            {
                let mut state = self.state.lock();
                for ticket in over.drain(..) {
                    state.queue.done(ticket);
                }
                while let Some(taken) = state.queue.take(Runner::default()) {
                    begun.push(taken);
                }
                // Hung operations are not waited for: the ring keeps their buffers.
                let is_idle = begun.is_empty() && ring.in_flight() == state.queue.hung() as usize;
                if state.is_stopping && is_idle && state.queue.waiting() == state.queue.waiting_in_vain() {
                    if ring.in_flight() > 0 {
                        drop(ring.give_up());
                    }
                    return;
                }
                state.is_asleep = true;
            }
            for (ticket, task) in begun.drain(..) {
                if !self.launch(&mut ring, ticket, task) {
                    over.push(ticket);
                }
            }
            if !over.is_empty() {
                continue;
            }
            let waited = ring.wait(|read, result| {
                over.push(read.tag.ticket);
                self.land(read, result.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO)));
            });
            if let Err(error) = waited {
                self.lose(ring, Errno::from_io_error(&error).unwrap_or(Errno::IO));
                return;
            }
        }
    }

    /// Puts a read into the ring; false if it is over already.
    fn launch(&self, ring: &mut Ring<RingFile, Flight>, ticket: Ticket, task: Arc<ReadTask>) -> bool {
        let Some((ReadWork { file, offset, mut buf, read_job }, begun)) = task.begin() else { return false };
        let inner = file.0.inner();
        if let (Handle::Os(fd), true) = (&inner.handle, inner.supports_nowait()) {
            // The data is in memory after all: the loops learn that, and the ring is left to reads that wait.
            if let Ok(n) = inner.access_time.read_by_job(fd, || inner.read_cached(fd, offset, &mut buf)) {
                buf.truncate(n);
                self.finish(&task, &begun, &file, Ok(buf));
                return false;
            }
        }
        let read = Read { file, offset, buf, tag: Flight { task, ticket, begun, read_job } };
        match ring.push(read) {
            Ok(()) => true,
            Err(Read { file, offset, mut buf, tag: Flight { task, begun, .. } }) => {
                // There are as many slots as places, so this does not happen; if it did, this thread would read.
                let result = read_by_thread(&file, offset, &mut buf).map(|()| buf);
                self.finish(&task, &begun, &file, result);
                false
            }
        }
    }

    /// A read has come back.
    fn land(&self, read: Read<RingFile, Flight>, result: Result<usize, Errno>) {
        let Read { file, offset, mut buf, tag: Flight { task, begun, read_job, .. } } = read;
        drop(read_job);
        self.shared.counters.ring_reads.add(1);
        match result {
            Ok(n) => {
                buf.truncate(n);
                self.finish(&task, &begun, &file, Ok(buf));
            }
            Err(Errno::AGAIN | Errno::INTR | Errno::OPNOTSUPP) => {
                let device = file.0.inner().device;
                let its = task.clone();
                self.by_thread(device, its, move || {
                    let result = read_by_thread(&file, offset, &mut buf).map(|()| buf);
                    task.finish(&begun, result);
                });
            }
            Err(errno) => self.finish(&task, &begun, &file, Err(Op::Read.failed(errno))),
        }
    }

    fn finish(&self, task: &ReadTask, begun: &Begun, file: &RingFile, result: Result<Vec<u8>, DiskError>) {
        let mut cost = task.finish(begun, result);
        cost.device = Some(file.0.inner().device);
        self.shared.record(&cost);
    }

    /// Has a thread of the pool do what the ring could not.
    fn by_thread(&self, device: &'static Device, task: Arc<ReadTask>, read: impl FnOnce() + Send + 'static) {
        let account = Account::new(JobClass::Hit, JobSource::NONE);
        let work = move || {
            read();
            Ok(())
        };
        let leftover = Leftover { rest: Task::new(Op::Read, work), task };
        if let Some(leftover_task) = self.shared.detach_task(&account, Some(device), Arc::new(leftover)) {
            leftover_task.run(&|| ());
        }
    }

    /// The kernel has taken the ring away: what is in it is lost, what waits for it goes to the threads.
    fn lose(&self, ring: Ring<RingFile, Flight>, errno: Errno) {
        let lost = ring.give_up();
        let mut waiting = Vec::new();
        {
            let mut state = self.state.lock();
            state.is_lost = true;
            for flight in &lost {
                state.queue.done(flight.ticket);
            }
            // No slot is taken any more, so every job can start.
            while let Some((ticket, task)) = state.queue.take(Runner::default()) {
                waiting.push(task);
                state.queue.done(ticket);
            }
        }
        for Flight { task, begun, .. } in lost {
            self.shared.record(&task.finish(&begun, Err(Op::Read.failed(errno))));
        }
        for task in waiting {
            let Some(device) = task.peek(|work| work.file.0.inner().device) else { continue };
            self.by_thread(device, task.clone(), move || {
                if let Some((ReadWork { file, offset, mut buf, .. }, begun)) = task.begin() {
                    let result = read_by_thread(&file, offset, &mut buf).map(|()| buf);
                    task.finish(&begun, result);
                }
            });
        }
        self.shared.notify(Notice::RingLost(errno));
    }
}

/// Reason for which the ring does not take a read.
pub(crate) enum ReadRefusal {
    /// The threads have to read it.
    Unsuited(Vec<u8>),
    /// The queue is full, or the device hangs.
    Error(DiskError),
}

/// Rest of a read, to be done by a thread.
struct Leftover<W> {
    rest: Task<W, ()>,
    task: Arc<ReadTask>,
}

impl<W: FnOnce() -> Result<(), DiskError> + Send> Run for Leftover<W> {
    fn run(&self, done: &dyn Fn()) -> Option<Cost> {
        self.rest.run(done)
    }

    fn refuse(&self, mount: &Arc<str>) {
        self.task.refuse(mount);
    }
}

impl Watched for UringQueue {
    fn tick(self: Arc<Self>) -> bool {
        let mut refused = RefusedJobs::default();
        let (is_busy, is_stopping) = {
            let mut state = self.state.lock();
            let State { queue, timeout, hung, .. } = &mut *state;
            queue.tick();
            for Overdue { ticket, device } in queue.overdue(*timeout, |_| 0) {
                // The job keeps its place in the ring.
                let job = queue.hang(ticket, false);
                let mount = hung.begin(device, *timeout);
                refused.jobs.extend(job.map(|job| (job, mount)));
            }
            hung.check(queue, self.shared.name(), &mut refused);
            (queue.has_taken() || !hung.is_empty(), state.is_stopping)
        };
        if is_stopping {
            self.waker.wake();
        }
        self.shared.counters.refusals.add(refused.jobs.len() as u64);
        refused.report(|notice| self.shared.notify(notice));
        is_busy
    }
}

fn read_by_thread(file: &RingFile, offset: u64, buf: &mut Vec<u8>) -> Result<(), DiskError> {
    let n = match &file.0.inner().handle {
        Handle::Os(fd) => os::read(fd, offset, buf),
        Handle::Sim(_) | Handle::Closed => Err(Errno::BADF),
    };
    buf.truncate(n.map_err(|errno| Op::Read.failed(errno))?);
    Ok(())
}

impl CancelQueue for UringQueue {
    fn cancel(&self, ticket: Ticket) {
        let job = self.state.lock().queue.cancel(ticket);
        if job.is_some() {
            self.shared.counters.cancellations.add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open_options::OpenOptions;
    use crate::{Aio, Disk, Pool};
    use std::future::Future;
    use std::io;
    use std::pin::Pin;
    use std::sync::mpsc::channel;
    use std::task::{Context, Poll, Waker as TaskWaker};
    use tw_testkit::{Lacks, leave_out};

    fn poll_once<T>(future: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
        future.poll(&mut Context::from_waker(TaskWaker::noop()))
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    fn new_account() -> Account {
        Account::new(JobClass::Hit, JobSource::new(1))
    }

    /// A lane whose thread was never started, if there is io_uring here.
    fn uring_queue(pool: &Pool) -> Option<(Arc<UringQueue>, Ring<RingFile, Flight>)> {
        let no_ring = |error: &io::Error| leave_out(Lacks::Machine, format_args!("no io_uring: {error}"));
        let ring = Ring::new(RING_PLACES).inspect_err(no_ring).ok()?;
        let state = State {
            queue: Queue::new(2, 100, Some(2)),
            is_asleep: true,
            is_stopping: false,
            is_lost: false,
            timeout: 1000,
            hung: HungDevices::default(),
            thread: None,
        };
        let uring_queue =
            UringQueue { state: FatalMutex::new(state), waker: ring.waker(), shared: pool.shared().clone() };
        Some((Arc::new(uring_queue), ring))
    }

    fn this_file(pool: &Pool) -> File {
        let disk = Disk::new(pool.clone(), Aio::Threads);
        let path = std::ffi::CString::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src/ring.rs")).unwrap();
        block_on(disk.open(&mut new_account(), &path, &OpenOptions::READ)).unwrap()
    }

    fn submit(uring_queue: &Arc<UringQueue>, file: &File, offset: u64) -> ReadJob {
        match UringQueue::submit(uring_queue, &new_account(), file, offset, vec![0; 8]) {
            Ok(job) => job,
            Err(_) => panic!("an open uring_queue takes reads"),
        }
    }

    #[test]
    fn reads_that_wait_are_taken_back() {
        let pool = Pool::new("back", 1, 10).unwrap();
        let Some((uring_queue, _ring)) = uring_queue(&pool) else { return };
        let file = this_file(&pool);
        let jobs: Vec<_> = (0..4).map(|i| submit(&uring_queue, &file, i)).collect();
        assert_eq!(uring_queue.levels(), (3, 1));
        drop(jobs);
        assert_eq!(uring_queue.levels(), (0, 0));
        assert_eq!(pool.stats().cancellations, 4);
    }

    #[test]
    fn lost_ring_fails_its_reads_and_threads_do_the_rest() {
        let pool = Pool::new("lost", 1, 10).unwrap();
        let (sender, receiver) = channel();
        pool.on_notice(move |notice| sender.send(notice).unwrap());
        let Some((uring_queue, mut ring)) = uring_queue(&pool) else { return };
        let file = this_file(&pool);
        let mut in_ring = submit(&uring_queue, &file, 0);
        let waiting = submit(&uring_queue, &file, 4);
        let (ticket, task) = uring_queue.state.lock().queue.take(Runner::default()).unwrap();
        // Into the ring itself: a look into memory first would answer it.
        let (ReadWork { file: its, offset, buf, read_job }, begun) = task.begin().unwrap();
        assert!(
            ring.push(Read { file: its, offset, buf, tag: Flight { task, ticket, begun, read_job } }).is_ok()
        );
        assert!(poll_once(Pin::new(&mut in_ring)).is_pending());
        uring_queue.lose(ring, Errno::PERM);
        assert_eq!(block_on(in_ring).result, Err(Op::Read.failed(Errno::PERM)));
        assert_eq!(block_on(waiting).result.unwrap().len(), 8);
        assert_eq!(receiver.try_recv(), Ok(Notice::RingLost(Errno::PERM)));
        assert!(matches!(
            UringQueue::submit(&uring_queue, &new_account(), &file, 0, vec![0; 8]),
            Err(ReadRefusal::Unsuited(_))
        ));
        let text = Notice::RingLost(Errno::PERM).to_string();
        assert_eq!(text, "io_uring stopped working (1: Operation not permitted), threads read instead");
    }
}
