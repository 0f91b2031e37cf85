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

/// Deadline of the current step of a connection. Fires at or after the set time of the loop's clock, at most about 2
/// ms after it.
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
        ready!(self.poll_timer(at, cx));
        // tokio's timers fire in the middle of a turn: a next deadline computed from the time of the turn would pass at
        // once, again and again.
        clock::catch_up(at);
        Poll::Ready(())
    }

    fn poll_timer(&mut self, at: Instant, cx: &mut Context<'_>) -> Poll<()> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, poll_fn, ready};
    use std::time::Instant as Clock;

    use crate::testing::on_loop;
    use crate::{Subject, spawn_local};

    const MS: Duration = Duration::from_millis(1);

    /// tokio looks at its timers in the middle of a turn, too, when a loop has much to do.
    #[test]
    fn past_deadline_fires_at_loop_time() {
        on_loop(|| async {
            for id in 0..2 {
                spawn_local(Subject { kind: "busy", id }, async move {
                    loop {
                        let begun = Clock::now();
                        while begun.elapsed() < MS / 2 {}
                        tokio::task::yield_now().await;
                    }
                });
            }
            let looks = spawn_local(Subject { kind: "looks", id: 0 }, async {
                let mut deadline = Deadline::new();
                for _ in 0..100 {
                    deadline.set(MS);
                    let at = deadline.at().unwrap();
                    deadline.elapsed().await;
                    assert!(clock::now() >= at, "{:?} before", at - clock::now());
                }
            });
            looks.await.unwrap();
        });
    }

    #[test]
    fn a_ready_future_wins_and_arms_nothing() {
        on_loop(|| async {
            let mut deadline = Deadline::new();
            deadline.set(Duration::ZERO);
            assert_eq!(deadline.guard(ready(5)).await, Ok(5));
            assert!(deadline.timer.is_none());
        });
    }

    #[test]
    fn deadline_never_fires_early() {
        on_loop(|| async {
            let mut deadline = Deadline::new();
            for after in [Duration::ZERO, MS, 3 * MS, 20 * MS, 70 * MS] {
                let start = clock::now();
                deadline.set(after);
                assert_eq!(deadline.guard(pending::<()>()).await, Err(Elapsed));
                assert!(start.elapsed() >= after, "{after:?}");
                assert!(clock::now() >= start + after, "{after:?}");
            }
        });
    }

    #[test]
    fn later_deadline_keeps_the_timer_and_fires_at_the_new_time() {
        on_loop(|| async {
            let mut deadline = Deadline::new();
            let start = clock::now();
            deadline.set(10 * MS);
            poll_fn(|cx| {
                assert!(deadline.poll_elapsed(cx).is_pending());
                Poll::Ready(())
            })
            .await;
            let armed = deadline.timer.as_ref().unwrap().deadline();
            deadline.set(40 * MS);
            poll_fn(|cx| {
                assert!(deadline.poll_elapsed(cx).is_pending());
                Poll::Ready(())
            })
            .await;
            assert_eq!(deadline.timer.as_ref().unwrap().deadline(), armed);
            deadline.elapsed().await;
            assert!(start.elapsed() >= 40 * MS);
        });
    }

    #[test]
    fn earlier_deadline_registers_again() {
        on_loop(|| async {
            let mut deadline = Deadline::new();
            deadline.set(Duration::from_secs(3600));
            poll_fn(|cx| {
                assert!(deadline.poll_elapsed(cx).is_pending());
                Poll::Ready(())
            })
            .await;
            deadline.set(5 * MS);
            deadline.elapsed().await;
        });
    }

    #[test]
    fn cleared_deadline_never_fires_and_can_be_set_again() {
        on_loop(|| async {
            let mut deadline = Deadline::new();
            deadline.set(5 * MS);
            poll_fn(|cx| {
                assert!(deadline.poll_elapsed(cx).is_pending());
                Poll::Ready(())
            })
            .await;
            deadline.clear();
            assert_eq!(deadline.at(), None);
            let outlived = deadline.guard(tokio::time::sleep(30 * MS)).await;
            assert_eq!(outlived, Ok(()));
            deadline.set(5 * MS);
            deadline.elapsed().await;
        });
    }

    #[test]
    fn deadline_wakes_the_current_waiter() {
        on_loop(|| async {
            let mut deadline = Deadline::new();
            deadline.set(20 * MS);
            poll_fn(|cx| {
                assert!(deadline.poll_elapsed(cx).is_pending());
                Poll::Ready(())
            })
            .await;
            let task = spawn_local(Subject { kind: "test", id: 0 }, async move { deadline.elapsed().await });
            task.await.unwrap();
        });
    }

    #[test]
    fn deadline_fires_on_a_loop_that_never_parks() {
        on_loop(|| async {
            let busy = spawn_local(Subject { kind: "busy", id: 0 }, async {
                loop {
                    crate::yield_now().await;
                }
            });
            let mut deadline = Deadline::new();
            for _ in 0..3 {
                deadline.set(5 * MS);
                deadline.elapsed().await;
            }
            busy.abort();
        });
    }

    #[test]
    fn overlong_span_means_no_deadline() {
        let mut deadline = Deadline::new();
        deadline.set(Duration::MAX);
        assert_eq!(deadline.at(), None);
    }
}
