//! A timer for a connection that is cheap to move: setting it later costs two stores, no registration.
//!
//! The tokio timer behind it is made when something first has to wait, stays where it was armed, and is armed again
//! only when it fires before the deadline or the deadline moves before it. A keep-alive connection that answers a
//! thousand requests registers once a minute, not once a request.

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use pin_project_lite::pin_project;
use tokio::task::coop::unconstrained;
use tokio::time::{Sleep, sleep_until};

use crate::clock;

/// The deadline passed before the guarded future finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elapsed;

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("timed out")
    }
}

impl std::error::Error for Elapsed {}

/// When the current step of a connection must be done. Fires at or after the set time of the loop's clock, at most
/// about 2 ms after it.
#[derive(Debug, Default)]
pub struct Deadline {
    at: Option<Instant>,
    /// Armed for `at` or earlier, or not yet looked at since `at` moved.
    timer: Option<Pin<Box<Sleep>>>,
    /// Identity of the waker the timer holds; 0 when it holds none. The timer keeps that waker alive, so an equal
    /// address means the same task.
    waker: usize,
}

impl Deadline {
    /// No deadline; allocates nothing.
    pub const fn new() -> Self {
        Self { at: None, timer: None, waker: 0 }
    }

    /// The deadline is `after` from this turn's time on. A span too long to represent means none.
    pub fn set(&mut self, after: Duration) {
        self.at = clock::now().checked_add(after);
    }

    /// The deadline is `at`.
    pub fn set_at(&mut self, at: Instant) {
        self.at = Some(at);
    }

    /// No deadline from here on.
    pub fn clear(&mut self) {
        self.at = None;
    }

    /// The time set, if any.
    pub fn at(&self) -> Option<Instant> {
        self.at
    }

    /// Waits for `future`, or for the deadline when that comes first. `future` is asked first: when both are
    /// ready, it wins. Allocates once per `Deadline`, when a future first has to wait.
    pub fn guard<F: Future>(&mut self, future: F) -> Guard<'_, F> {
        Guard { deadline: self, future }
    }

    /// Waits until the deadline passes; for ever when none is set.
    pub async fn elapsed(&mut self) {
        std::future::poll_fn(|cx| self.poll_elapsed(cx)).await
    }

    /// Ready when the deadline has passed; else the task is woken when it does. Costs two compares when the timer
    /// is armed already.
    pub fn poll_elapsed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(at) = self.at else { return Poll::Pending };
        let at = tokio::time::Instant::from_std(at);
        let waker = cx.waker().data().addr();
        let timer = match &mut self.timer {
            None => self.timer.insert(Box::pin(sleep_until(at))),
            Some(timer) if timer.is_elapsed() => {
                if at <= timer.deadline() {
                    return Poll::Ready(());
                }
                timer.as_mut().reset(at);
                timer
            }
            Some(timer) if at < timer.deadline() => {
                timer.as_mut().reset(at);
                timer
            }
            Some(_) if self.waker == waker => return Poll::Pending,
            Some(timer) => timer,
        };
        // Outside of tokio's task budget: a timer that was not asked because the budget is spent would not be armed.
        self.waker = 0;
        let fired = pin!(unconstrained(timer.as_mut())).poll(cx);
        if fired.is_pending() {
            self.waker = waker;
        }
        fired
    }
}

pin_project! {
    /// A future with a [`Deadline`]; see [`Deadline::guard`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct Guard<'a, F> {
        deadline: &'a mut Deadline,
        #[pin]
        future: F,
    }
}

impl<F: Future> Future for Guard<'_, F> {
    type Output = Result<F::Output, Elapsed>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(output) = this.future.poll(cx) {
            return Poll::Ready(Ok(output));
        }
        ready!(this.deadline.poll_elapsed(cx));
        Poll::Ready(Err(Elapsed))
    }
}
