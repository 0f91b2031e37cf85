//! Time that passes before a response goes to a temporary file: a client that takes a large response as fast as the loop can write
//! it is late for milliseconds only, and what a file costs then is lost.

use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tw_rt::{Deadline, clock};

/// Rate of a client for which it may wait all the time, in bytes per millisecond: 100 MB/s.
const FAST_RATE: u64 = 100_000;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Time for which an upstream server waits for its client while `proxy_buffers` are full, and 10 ms for each megabyte that
    /// the client has taken.
    const WAIT_MAX: Duration = Duration::from_millis(10), time, "the response goes to a temporary file";
}

/// Time that a client has to make room in a full buffer.
#[derive(Default)]
pub(super) struct SpillDelay {
    /// Time at which the buffer was found full, until the client takes something.
    full_since: Option<Instant>,
    /// Time for which it was full before.
    waited: Duration,
    /// Bytes that the client has taken.
    taken: u64,
    end: Deadline,
}

impl SpillDelay {
    /// Notes that the client has taken so many bytes.
    pub(super) fn taken(&mut self, bytes: usize) {
        self.taken += bytes as u64;
        if let Some(since) = self.full_since.take() {
            self.waited += clock::now().saturating_duration_since(since);
        }
    }

    /// Ready when the buffer, which is full, has been full for long enough; until then the task is woken.
    pub(super) fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let since = *self.full_since.get_or_insert_with(clock::now);
        let remaining = self.allowed().saturating_sub(self.waited);
        if remaining.is_zero() {
            return Poll::Ready(());
        }
        self.end.set_at(since + remaining);
        self.end.poll_elapsed(cx)
    }

    /// Time for which the buffer may be full in all.
    fn allowed(&self) -> Duration {
        WAIT_MAX + Duration::from_millis(self.taken / FAST_RATE)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    /// Time that `delay` waits for, at the virtual clock of a paused runtime.
    async fn wait(delay: &mut SpillDelay) -> Duration {
        let begun = clock::now();
        poll_fn(|cx| delay.poll_over(cx)).await;
        clock::now() - begun
    }

    #[test]
    fn slow_clients_have_one_delay_and_fast_ones_more() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.expect("a runtime can be built").block_on(async {
            let mut slow = SpillDelay::default();
            assert!(wait(&mut slow).await >= WAIT_MAX);
            // The time for waiting is used up, however slowly the client reads from then on.
            slow.taken(1000);
            let mut cx = Context::from_waker(std::task::Waker::noop());
            assert!(slow.poll_over(&mut cx).is_ready());

            let mut fast = SpillDelay::default();
            for _ in 0..100 {
                assert!(fast.poll_over(&mut cx).is_pending(), "no time has passed");
                fast.taken(64 << 10);
            }
            assert_eq!(fast.allowed(), WAIT_MAX + Duration::from_millis((6400 << 10) / FAST_RATE));
        });
    }
}
