//! Waker of one task.

use std::cell::RefCell;
use std::task::{Context, Waker};

/// Waker of the task that waits for one kind of event of a stream or connection.
#[derive(Default)]
pub struct TaskWaker(RefCell<Option<Waker>>);

impl TaskWaker {
    /// Registers the calling task to be woken next.
    pub fn register(&self, cx: &Context<'_>) {
        let mut waker = self.0.borrow_mut();
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
    }

    /// Sets the waker of a task; `None` for no task.
    pub fn set(&self, waker: Option<&Waker>) {
        let mut place = self.0.borrow_mut();
        match (&mut *place, waker) {
            (Some(old), Some(waker)) => old.clone_from(waker),
            (place, waker) => *place = waker.cloned(),
        }
    }

    /// Wakes the task, once.
    pub fn wake(&self) {
        if let Some(waker) = self.0.take() {
            waker.wake();
        }
    }
}
