//! Tasks of a loop: started on it, run on it, counted by it.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use pin_project_lite::pin_project;
use tokio::task::JoinHandle;
use tw_base::{FatalCell, Slab};

use crate::watch::{self, Subject, Watched};

/// Starts `future` as a task of the loop this thread runs. Dropping the handle leaves it running.
///
/// Panics when the thread runs no loop.
pub fn spawn_local<F>(subject: Subject, future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
{
    tokio::task::spawn_local(Watched::new(subject, future))
}

/// Lets every other ready task run, and events arrive, before the caller goes on.
pub async fn yield_now() {
    watch::end_turn_soon();
    tokio::task::yield_now().await;
}

/// Goes to the end of the queue of ready tasks: those in front of it run first, without waiting for new events.
pub async fn requeue() {
    let mut queued = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut queued, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// The tasks of one kind on one loop: how many run, asking all of them to stop, waiting until none is left.
#[derive(Clone, Debug, Default)]
pub struct TaskGroup(Rc<Group>);

#[derive(Debug, Default)]
struct Group {
    stopping: Cell<bool>,
    /// Wakers of the running tasks; one that does nothing before the task runs first.
    wakers: FatalCell<Slab<Waker>>,
    drained: RefCell<Vec<Waker>>,
}

impl TaskGroup {
    /// A group without tasks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts `future` as a task of this group. Panics when the thread runs no loop.
    pub fn spawn<F>(&self, subject: Subject, future: F)
    where
        F: Future<Output = ()> + 'static,
    {
        let slot = self.0.wakers.borrow_mut().insert(Waker::noop().clone());
        let member = Member { group: Rc::clone(&self.0), slot, has_waker: false };
        spawn_local(subject, Grouped { future, member });
    }

    /// Number of running tasks.
    pub fn len(&self) -> usize {
        self.0.wakers.borrow().len()
    }

    /// Returns true if no task runs.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Asks every task to stop as soon as it can: [`is_stopping`](Self::is_stopping) turns true and each is woken
    /// once. A task that waits looks at it first whenever it is polled.
    pub fn stop(&self) {
        self.0.stopping.set(true);
        let wakers: Vec<Waker> = self.0.wakers.borrow().iter().cloned().collect();
        wakers.iter().for_each(Waker::wake_by_ref);
    }

    /// Returns true after [`stop`](Self::stop).
    pub fn is_stopping(&self) -> bool {
        self.0.stopping.get()
    }

    /// Waits until no task runs.
    pub async fn drained(&self) {
        std::future::poll_fn(|cx| {
            if self.is_empty() {
                return Poll::Ready(());
            }
            let mut waiting = self.0.drained.borrow_mut();
            if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }
}

impl Group {
    fn remove(&self, slot: u32) {
        let mut wakers = self.wakers.borrow_mut();
        let waker = wakers.remove(slot);
        let is_empty = wakers.is_empty();
        // The waker may hold the last reference to its task, so it goes when nothing is borrowed.
        drop(wakers);
        drop(waker);
        if is_empty {
            self.drained.take().into_iter().for_each(Waker::wake);
        }
    }
}

#[derive(Debug)]
struct Member {
    group: Rc<Group>,
    slot: u32,
    has_waker: bool,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.group.remove(self.slot);
    }
}

pin_project! {
    struct Grouped<F> {
        #[pin]
        future: F,
        member: Member,
    }
}

impl<F: Future> Future for Grouped<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let Member { group, slot, has_waker } = this.member;
        // A task keeps its waker for life, so once is enough.
        if !std::mem::replace(has_waker, true)
            && let Some(waker) = group.wakers.borrow_mut().get_mut(*slot)
        {
            waker.clone_from(cx.waker());
        }
        this.future.poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::on_loop;

    const TEST: Subject = Subject { kind: "test", id: 0 };

    #[test]
    fn group_counts_its_tasks_and_reports_the_last_end() {
        on_loop(|| async {
            let group = TaskGroup::new();
            group.drained().await;
            for turns in 0..10 {
                group.spawn(TEST, async move {
                    for _ in 0..turns {
                        yield_now().await;
                    }
                });
            }
            assert_eq!(group.len(), 10);
            group.drained().await;
            assert!(group.is_empty());
        });
    }

    #[test]
    fn stopping_wakes_tasks_that_wait_for_something_else() {
        on_loop(|| async {
            let group = TaskGroup::new();
            for _ in 0..3 {
                let waiting = group.clone();
                group.spawn(TEST, async move {
                    let stopped = |_: &mut Context<'_>| {
                        if waiting.is_stopping() { Poll::Ready(()) } else { Poll::Pending }
                    };
                    std::future::poll_fn(stopped).await;
                });
            }
            yield_now().await;
            assert_eq!(group.len(), 3);
            group.stop();
            group.drained().await;
        });
    }

    #[test]
    fn slots_are_used_again() {
        on_loop(|| async {
            let group = TaskGroup::new();
            for _ in 0..100 {
                group.spawn(TEST, async {});
                group.spawn(TEST, async {});
                group.drained().await;
            }
        });
    }

    #[test]
    fn a_task_that_panics_leaves_its_group() {
        on_loop(|| async {
            let group = TaskGroup::new();
            group.spawn(TEST, async { panic!("expected") });
            group.drained().await;
        });
    }
}
