//! A job and the future that waits for it: one allocation for both, the work and later its result.
//!
//! ```text
//! Waiting ─► Running ─► Done ─► Over
//!    │          │─ refused ┘        │
//!    └──────────┴── future dropped ─┘
//! ```

use crate::device::{self, Device};
use crate::error::DiskError;
use crate::op::Op;
use crate::queue::Ticket;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;
use tw_base::FatalMutex;

/// Work of a thread on a job.
pub(crate) trait Run: Send + Sync {
    /// Does the work, calls `done`, wakes the waiting task, and returns the cost; `None` if the work was canceled.
    fn run(&self, done: &dyn Fn()) -> Option<Cost>;

    /// Fails the waiting task, because `mount` hangs. Work that has not begun is dropped; what was begun goes on, and its result
    /// is dropped.
    fn refuse(&self, mount: &Arc<str>);
}

/// Cost of one job.
pub(crate) struct Cost {
    pub(crate) op: Op,
    pub(crate) device: Option<&'static Device>,
    pub(crate) queue_ns: u64,
    pub(crate) service_ns: u64,
    pub(crate) has_panicked: bool,
}

/// Start time of the work, and the time for which it had waited.
pub(crate) struct Begun {
    at: Instant,
    queue_ns: u64,
}

/// A finished job.
pub(crate) struct Done<T> {
    pub(crate) result: Result<T, DiskError>,
    pub(crate) queued: Instant,
    pub(crate) queue_ns: u64,
    pub(crate) service_ns: u64,
}

enum Stage<W, T> {
    Waiting { work: W, waker: Option<Waker> },
    Running { waker: Option<Waker> },
    Done(Done<T>),
    Over,
}

/// Work of type `W` with a result of type `T`.
pub(crate) struct Task<W, T> {
    op: Op,
    queued: Instant,
    stage: FatalMutex<Stage<W, T>>,
}

fn span_ns(from: Instant, to: Instant) -> u64 {
    u64::try_from(to.saturating_duration_since(from).as_nanos()).unwrap_or(u64::MAX)
}

impl<W, T> Task<W, T> {
    pub(crate) fn new(op: Op, work: W) -> Self {
        Self { op, queued: Instant::now(), stage: FatalMutex::new(Stage::Waiting { work, waker: None }) }
    }

    /// Borrows work that has not begun.
    pub(crate) fn peek<U>(&self, look: impl FnOnce(&W) -> U) -> Option<U> {
        match &*self.stage.lock() {
            Stage::Waiting { work, .. } => Some(look(work)),
            _ => None,
        }
    }

    /// Takes the work, to do it now; `None` if it was taken back.
    pub(crate) fn begin(&self) -> Option<(W, Begun)> {
        let mut stage = self.stage.lock();
        match std::mem::replace(&mut *stage, Stage::Over) {
            Stage::Waiting { work, waker } => {
                *stage = Stage::Running { waker };
                drop(stage);
                let at = Instant::now();
                Some((work, Begun { at, queue_ns: span_ns(self.queued, at) }))
            }
            other => {
                *stage = other;
                None
            }
        }
    }

    /// Hands over the result of the work, and wakes the waiting task.
    pub(crate) fn finish(&self, begun: &Begun, result: Result<T, DiskError>) -> Cost {
        let service_ns = span_ns(begun.at, Instant::now());
        let has_panicked = matches!(result, Err(DiskError::Panicked));
        let mut stage = self.stage.lock();
        match std::mem::replace(&mut *stage, Stage::Over) {
            Stage::Running { waker } | Stage::Waiting { waker, .. } => {
                *stage =
                    Stage::Done(Done { result, queued: self.queued, queue_ns: begun.queue_ns, service_ns });
                drop(stage);
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
            // The future was dropped, or was told that the device hangs: the result (a buffer, an open file) is dropped
            // here, on this thread and outside the lock.
            gone_stage => {
                *stage = gone_stage;
                drop(stage);
            }
        }
        Cost { op: self.op, device: None, queue_ns: begun.queue_ns, service_ns, has_panicked }
    }
}

impl<W, T> Task<W, T> {
    /// As [`Run::refuse`].
    pub(crate) fn refuse(&self, mount: &Arc<str>) {
        let waited_ns = span_ns(self.queued, Instant::now());
        let result = Err(DiskError::Hung { op: self.op, mount: mount.clone() });
        let mut stage = self.stage.lock();
        let (work, waker, queue_ns) = match std::mem::replace(&mut *stage, Stage::Over) {
            Stage::Waiting { work, waker } => (Some(work), waker, waited_ns),
            Stage::Running { waker } => (None, waker, 0),
            over => {
                *stage = over;
                return;
            }
        };
        let service_ns = waited_ns - queue_ns;
        *stage = Stage::Done(Done { result, queued: self.queued, queue_ns, service_ns });
        drop(stage);
        if let Some(waker) = waker {
            waker.wake();
        }
        // Files that it held are closed by jobs.
        drop(work);
    }
}

impl<W, T> Run for Task<W, T>
where
    W: FnOnce() -> Result<T, DiskError> + Send,
    T: Send,
{
    fn run(&self, done: &dyn Fn()) -> Option<Cost> {
        let (work, begun) = self.begin()?;
        device::forget_touched();
        let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(DiskError::Panicked));
        done();
        Some(Cost { device: device::touched(), ..self.finish(&begun, result) })
    }

    fn refuse(&self, mount: &Arc<str>) {
        Task::refuse(self, mount);
    }
}

/// Place from which a queued job can be taken back.
pub(crate) trait CancelQueue: Send + Sync {
    /// Removes a job that has not been taken yet.
    fn cancel(&self, ticket: Ticket);
}

/// Waits for a task. Dropped early, it cancels the job if that has not begun.
pub(crate) struct Job<W, T, D: CancelQueue> {
    task: Arc<Task<W, T>>,
    queue: Arc<D>,
    ticket: Ticket,
}

impl<W, T, D: CancelQueue> Job<W, T, D> {
    pub(crate) fn new(task: Arc<Task<W, T>>, queue: Arc<D>, ticket: Ticket) -> Self {
        Self { task, queue, ticket }
    }
}

impl<W, T, D: CancelQueue> Future for Job<W, T, D> {
    type Output = Done<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Done<T>> {
        let mut stage = self.task.stage.lock();
        match &mut *stage {
            Stage::Waiting { waker, .. } | Stage::Running { waker } => {
                match waker {
                    Some(known_waker) => known_waker.clone_from(cx.waker()),
                    None => *waker = Some(cx.waker().clone()),
                }
                Poll::Pending
            }
            Stage::Done(_) | Stage::Over => match std::mem::replace(&mut *stage, Stage::Over) {
                Stage::Done(done) => Poll::Ready(done),
                _ => Poll::Pending,
            },
        }
    }
}

impl<W, T, D: CancelQueue> Drop for Job<W, T, D> {
    fn drop(&mut self) {
        let left_stage = {
            let mut stage = self.task.stage.lock();
            std::mem::replace(&mut *stage, Stage::Over)
        };
        if matches!(left_stage, Stage::Waiting { .. }) {
            self.queue.cancel(self.ticket);
        }
    }
}
