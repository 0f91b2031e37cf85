//! Putting of complete files: a queue, from which one job puts all that wait.
//!
//! ```text
//! tasks ─► waiting ─► one job: create, write, rename, for each ─► results
//! ```
//! Whoever finds no job running starts one, so a file that is alone is put at once; while that goes on, the next ones collect.
//! Another job is started beside it if many wait, or if it takes long: a slow disk has more to do at once.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tw_base::FatalMutex;
use tw_disk::{Account, Disk, DiskError, NewFile};

use tw_request::local_future::boxed;

/// Time after which a job is not waited for.
const SLOW: Duration = Duration::from_millis(2);

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Complete responses that wait to be put at their paths by one job, while another one does the same.
    const BATCH_FILES: usize = 16, count, "another job is started at once";
}

/// Queue of the complete files of one cache.
#[derive(Default)]
pub(crate) struct PutQueue(FatalMutex<PutState>);

#[derive(Default)]
struct PutState {
    waiting: Vec<Arc<Put>>,
    running: usize,
    /// Start of the youngest job.
    began: Option<Instant>,
}

/// File that is to be put, and later the result.
struct Put(FatalMutex<Slot>);

struct Slot {
    /// `None` once a job has it.
    file: Option<NewFile<Bytes>>,
    result: Option<Result<(), DiskError>>,
    waker: Option<Waker>,
    /// True if its task is to start the next job.
    is_due: bool,
}

/// Event that the task of a file waits for.
enum PutEvent {
    Over(Result<(), DiskError>),
    /// The next job is to be started.
    Due,
}

impl Put {
    fn new(file: NewFile<Bytes>) -> Self {
        Self(FatalMutex::new(Slot { file: Some(file), result: None, waker: None, is_due: false }))
    }

    fn poll(&self, cx: &Context<'_>) -> Poll<PutEvent> {
        let mut slot = self.0.lock();
        if let Some(result) = slot.result.take() {
            return Poll::Ready(PutEvent::Over(result));
        }
        if std::mem::take(&mut slot.is_due) {
            return Poll::Ready(PutEvent::Due);
        }
        match &mut slot.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// Changes the slot and wakes its task.
    fn change(&self, change: impl FnOnce(&mut Slot)) {
        let waker = {
            let mut slot = self.0.lock();
            change(&mut slot);
            slot.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl PutState {
    /// Has the task of the first file start the next job, if any waits.
    fn pass_on(&self) {
        if let Some(first) = self.waiting.first() {
            first.change(|slot| slot.is_due = true);
        }
    }
}

/// Guard of a file that waits: it leaves the queue with its task.
struct WaitingPut<'a> {
    queue: &'a PutQueue,
    put: Arc<Put>,
}

impl Drop for WaitingPut<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.0.lock();
        let (is_waiting, is_due) = {
            let slot = self.put.0.lock();
            (slot.file.is_some(), slot.is_due)
        };
        if is_waiting {
            state.waiting.retain(|put| !Arc::ptr_eq(put, &self.put));
        }
        if is_due {
            state.pass_on();
        }
    }
}

/// Guard of a running job: whatever ends it, nobody waits for it any more, and the next one can be started.
struct RunningJob<'a> {
    queue: &'a PutQueue,
    batch: Vec<Arc<Put>>,
}

impl Drop for RunningJob<'_> {
    fn drop(&mut self) {
        // Those without a result: the task that had started the job was dropped.
        self.batch.drain(..).for_each(|put| put.change(|slot| slot.result = Some(Err(DiskError::Cancelled))));
        let mut state = self.queue.0.lock();
        state.running -= 1;
        state.pass_on();
    }
}

impl PutQueue {
    /// Puts a file like [`Disk::put_made`].
    pub(crate) async fn put(
        &self,
        disk: &Disk,
        account: &mut Account,
        below: u32,
        file: NewFile<Bytes>,
    ) -> Result<(), DiskError> {
        let waiting = WaitingPut { queue: self, put: Arc::new(Put::new(file)) };
        let mut batch = self.push(&waiting.put);
        loop {
            if let Some((running, files)) = batch {
                boxed(|| run(running, disk, account, below, files)).await;
            }
            match poll_fn(|cx| waiting.put.poll(cx)).await {
                PutEvent::Over(result) => return result,
                PutEvent::Due => batch = self.start(&mut self.0.lock()),
            }
        }
    }

    /// Adds a file. Returns the job that its task is to run, if it is time for one.
    fn push(&self, put: &Arc<Put>) -> Option<(RunningJob<'_>, Vec<NewFile<Bytes>>)> {
        let mut state = self.0.lock();
        state.waiting.push(put.clone());
        let is_free = state.running == 0 || state.waiting.len() >= BATCH_FILES;
        let is_slow = || state.began.is_some_and(|began| began.elapsed() > SLOW);
        if is_free || is_slow() { self.start(&mut state) } else { None }
    }

    /// Takes all files that wait, if there are any.
    fn start(&self, state: &mut PutState) -> Option<(RunningJob<'_>, Vec<NewFile<Bytes>>)> {
        let batch = std::mem::take(&mut state.waiting);
        let files: Vec<_> = batch.iter().filter_map(|put| put.0.lock().file.take()).collect();
        if files.is_empty() {
            return None;
        }
        state.running += 1;
        state.began = Some(Instant::now());
        Some((RunningJob { queue: self, batch }, files))
    }
}

/// Runs a job and hands out its results.
async fn run(
    mut running: RunningJob<'_>,
    disk: &Disk,
    account: &mut Account,
    below: u32,
    files: Vec<NewFile<Bytes>>,
) {
    let results = disk.put_each(account, below, files).await;
    for (put, result) in running.batch.drain(..).zip(results) {
        put.change(|slot| slot.result = Some(result));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::rc::Rc;
    use tokio::task::{JoinHandle, LocalSet, spawn_local};
    use tw_disk::sim::Sim;
    use tw_disk::{Aio, JobClass, JobSource, Op, Pool};

    const FILES: usize = 3 * BATCH_FILES;

    fn file(nth: usize) -> NewFile<Bytes> {
        let path = CString::new(format!("/cache/{}/{nth}", nth % 5)).unwrap();
        NewFile { path, make: Box::new(move || vec![Bytes::from(format!("file {nth}"))]) }
    }

    fn new_account() -> Account {
        Account::new(JobClass::Fill, JobSource::NONE)
    }

    fn run_local(future: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(LocalSet::new().run_until(future));
    }

    fn disk() -> (Arc<Sim>, Pool, Disk) {
        let (sim, pool) = (Sim::new(1), Pool::new("sim", 2, 100).unwrap());
        let disk = Disk::simulated(pool.clone(), Aio::Threads, sim.clone());
        (sim, pool, disk)
    }

    /// Puts files by a task each.
    fn put_all(
        queue: &Rc<PutQueue>,
        disk: &Disk,
        numbers: std::ops::Range<usize>,
    ) -> Vec<JoinHandle<Result<(), DiskError>>> {
        let put = |nth| {
            let (queue, disk) = (queue.clone(), disk.clone());
            spawn_local(async move { queue.put(&disk, &mut new_account(), 1, file(nth)).await })
        };
        numbers.map(put).collect()
    }

    #[test]
    fn files_that_wait_together_are_put_by_few_jobs() {
        let (sim, pool, disk) = disk();
        run_local(async {
            let queue = Rc::new(PutQueue::default());
            let tasks = put_all(&queue, &disk, 0..FILES);
            for (nth, task) in tasks.into_iter().enumerate() {
                task.await.unwrap().unwrap();
                let path = CString::new(format!("/cache/{}/{nth}", nth % 5)).unwrap();
                assert_eq!(sim.content(&path).unwrap(), format!("file {nth}").into_bytes());
            }
            let state = queue.0.lock();
            assert_eq!((state.waiting.len(), state.running), (0, 0));
        });
        let stats = pool.stats();
        let jobs = stats.ops.iter().find(|stats| stats.op == Op::Create).map_or(0, |stats| stats.jobs);
        assert!((3..=FILES as u64 / 4).contains(&jobs), "{jobs}");
    }

    #[test]
    fn one_failure_does_not_fail_the_others() {
        let (sim, _pool, disk) = disk();
        run_local(async {
            let queue = Rc::new(PutQueue::default());
            // A directory is at this path.
            disk.mkdir_all(&mut new_account(), c"/cache/1/1", 0o700).await.unwrap();
            let mut results = Vec::new();
            for task in put_all(&queue, &disk, 0..3) {
                results.push(task.await.unwrap().is_ok());
            }
            assert_eq!(results, [true, false, true]);
            assert_eq!(sim.content(c"/cache/2/2").unwrap(), b"file 2");
        });
    }

    #[test]
    fn dropped_tasks_hold_nobody_up() {
        let (sim, _pool, disk) = disk();
        run_local(async {
            let queue = PutQueue::default();
            let (mut first, mut second, mut third) = (new_account(), new_account(), new_account());
            let mut leading = Box::pin(queue.put(&disk, &mut first, 1, file(0)));
            let mut next = Box::pin(queue.put(&disk, &mut second, 1, file(1)));
            let mut last = Box::pin(queue.put(&disk, &mut third, 1, file(2)));
            let mut cx = Context::from_waker(Waker::noop());
            assert!(leading.as_mut().poll(&mut cx).is_pending());
            assert_eq!(queue.0.lock().running, 1);
            assert!(next.as_mut().poll(&mut cx).is_pending() && last.as_mut().poll(&mut cx).is_pending());
            // The one that runs the job, and then the one that was to start the next.
            drop(leading);
            drop(next);
            last.await.unwrap();
            assert_eq!(sim.content(c"/cache/2/2").unwrap(), b"file 2");
            let state = queue.0.lock();
            assert_eq!((state.waiting.len(), state.running), (0, 0));
        });
    }
}
