//! Sleeps and timeouts with the timers of the loop. On other threads tokio's timers serve.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use pin_project_lite::pin_project;

use crate::deadline::{Deadline, Elapsed};

/// A future that is ready at a time.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Sleep(Deadline);

/// Waits for a span from this turn's time on, to a millisecond; for ever if the span is too long to represent.
pub fn sleep(span: Duration) -> Sleep {
    let mut deadline = Deadline::new();
    deadline.set(span);
    Sleep(deadline)
}

/// Waits until `at`.
pub fn sleep_until(at: Instant) -> Sleep {
    Sleep(Deadline::until(at))
}

impl Sleep {
    /// Waits until `at` from now on, in the place of the time set before.
    pub fn reset(&mut self, at: Instant) {
        self.0.set_at(at);
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.poll_elapsed(cx)
    }
}

/// Waits for `future` for a span from this turn's time on.
pub fn timeout<F: Future>(span: Duration, future: F) -> Timeout<F> {
    Timeout { future, sleep: sleep(span) }
}

/// Waits for `future` until `at`.
pub fn timeout_at<F: Future>(at: Instant, future: F) -> Timeout<F> {
    Timeout { future, sleep: sleep_until(at) }
}

pin_project! {
    /// A future with a time limit; see [`timeout`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct Timeout<F> {
        #[pin]
        future: F,
        sleep: Sleep,
    }
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, Elapsed>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(output) = this.future.poll(cx) {
            return Poll::Ready(Ok(output));
        }
        Pin::new(this.sleep).poll(cx).map(|()| Err(Elapsed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};

    use crate::clock;
    use crate::testing::on_loop;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn sleeps_of_a_loop_end_in_the_order_of_their_times() {
        let order = on_loop(|| async {
            let subject = crate::Subject { kind: "test", id: 0 };
            let (sender, mut ended) = tokio::sync::mpsc::unbounded_channel();
            for span in [70, 3, 20, 5, 1] {
                let sender = sender.clone();
                crate::spawn_local(subject, async move {
                    let begun = clock::now();
                    sleep(span * MS).await;
                    assert!(clock::now() >= begun + span * MS, "{span}");
                    let _ = sender.send(span);
                });
            }
            drop(sender);
            let mut order = Vec::new();
            while let Some(span) = ended.recv().await {
                order.push(span);
            }
            order
        });
        assert_eq!(order, [1, 3, 5, 20, 70]);
    }

    #[test]
    fn sleep_can_be_moved_while_it_waits() {
        on_loop(|| async {
            let mut sleep = sleep(Duration::from_secs(3600));
            let begun = clock::now();
            assert_eq!(timeout(MS, &mut sleep).await, Err(Elapsed));
            sleep.reset(begun + 10 * MS);
            sleep.await;
            assert!(clock::now() >= begun + 10 * MS);
        });
    }

    #[test]
    fn timeout_returns_what_comes_first() {
        on_loop(|| async {
            assert_eq!(timeout(Duration::ZERO, ready(5)).await, Ok(5));
            assert_eq!(timeout_at(clock::now() + 2 * MS, pending::<()>()).await, Err(Elapsed));
            assert_eq!(timeout(Duration::MAX, sleep(MS)).await, Ok(()));
        });
    }

    #[test]
    fn other_threads_sleep_by_their_runtime() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let begun = Instant::now();
        runtime.block_on(async {
            sleep(5 * MS).await;
            assert_eq!(timeout(5 * MS, pending::<()>()).await, Err(Elapsed));
        });
        assert!(begun.elapsed() >= 10 * MS);
    }
}
