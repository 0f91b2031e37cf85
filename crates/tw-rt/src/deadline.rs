//! A timer for a connection that is cheap to move: setting it later costs two stores, no registration.
//!
//! The timer behind it is made when something first has to wait, stays where it was armed, and is armed again
//! only when the deadline moves before it or it has fired before the deadline. A keep-alive connection that answers a
//! thousand requests registers once a minute, not once a request. On a loop the timer is one of [`timers`](crate::timers),
//! on other threads one of tokio.

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use pin_project_lite::pin_project;
use tokio::task::coop::unconstrained;

use crate::clock;
use crate::timers::{self, LoopTimer};

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
    timer: Option<ArmedTimer>,
}

#[derive(Debug)]
enum ArmedTimer {
    Loop {
        at: Instant,
        /// Identity of the waker the timer holds. The timer keeps that waker alive until it fires, so an equal address means the same task.
        waker: usize,
        timer: LoopTimer,
    },
    Tokio(Pin<Box<tokio::time::Sleep>>),
}

impl Deadline {
    /// No deadline; allocates nothing.
    pub const fn new() -> Self {
        Self { at: None, timer: None }
    }

    /// The deadline is `at`.
    pub const fn until(at: Instant) -> Self {
        Self { at: Some(at), timer: None }
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
    /// ready, it wins.
    pub fn guard<F: Future>(&mut self, future: F) -> Guard<'_, F> {
        Guard { deadline: self, future }
    }

    /// Waits until the deadline passes; for ever when none is set.
    pub async fn elapsed(&mut self) {
        std::future::poll_fn(|cx| self.poll_elapsed(cx)).await
    }

    /// Ready when the deadline has passed; else the task is woken when it does. Costs three compares when the timer
    /// is armed already.
    pub fn poll_elapsed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(at) = self.at else { return Poll::Pending };
        match &mut self.timer {
            Some(ArmedTimer::Tokio(sleep)) => poll_tokio(sleep, at, cx),
            None if !timers::is_running() => {
                #[expect(clippy::disallowed_methods, reason = "this thread runs no loop")]
                let mut sleep = Box::pin(tokio::time::sleep_until(at.into()));
                let poll = poll_tokio(&mut sleep, at, cx);
                self.timer = Some(ArmedTimer::Tokio(sleep));
                poll
            }
            timer => poll_loop(timer, at, cx),
        }
    }
}

/// Looks at a timer of the loop, and arms it if it does not wake the task at `at` or before.
fn poll_loop(armed: &mut Option<ArmedTimer>, at: Instant, cx: &Context<'_>) -> Poll<()> {
    let now = clock::now();
    if at <= now {
        return Poll::Ready(());
    }
    let task = cx.waker().data().addr();
    match armed {
        // A timer of a time to come has not fired.
        Some(ArmedTimer::Loop { at: earlier, waker, .. })
            if *earlier <= at && now < *earlier && *waker == task => {}
        Some(ArmedTimer::Loop { at: earlier, waker, timer }) => {
            timer.reset(at, cx.waker().clone());
            (*earlier, *waker) = (at, task);
        }
        _ => {
            let timer = LoopTimer::new(at, cx.waker().clone());
            *armed = timer.map(|timer| ArmedTimer::Loop { at, waker: task, timer });
        }
    }
    Poll::Pending
}

fn poll_tokio(sleep: &mut Pin<Box<tokio::time::Sleep>>, at: Instant, cx: &mut Context<'_>) -> Poll<()> {
    if sleep.deadline().into_std() != at {
        sleep.as_mut().reset(at.into());
    }
    // Outside of tokio's task budget: a timer that was not asked because the budget is spent would not be armed.
    pin!(unconstrained(sleep.as_mut())).poll(cx)
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
            let armed_at = |deadline: &Deadline| match deadline.timer {
                Some(ArmedTimer::Loop { at, .. }) => at,
                _ => panic!("armed on a loop"),
            };
            let armed = armed_at(&deadline);
            deadline.set(40 * MS);
            poll_fn(|cx| {
                assert!(deadline.poll_elapsed(cx).is_pending());
                Poll::Ready(())
            })
            .await;
            assert_eq!(armed_at(&deadline), armed);
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
            let outlived = deadline.guard(crate::time::sleep(30 * MS)).await;
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
