//! Read rate of a connection (`proxy_limit_rate`, `proxy_upload_rate`): so many bytes for every second that has begun, as nginx
//! counts.

use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tw_rt::Deadline;

/// Limiter of one response, or of one direction of a relay.
pub struct ReadRate {
    /// Bytes per second.
    rate: u64,
    began: Instant,
    read: u64,
    pause: Deadline,
    /// Nothing might be read since that was last asked.
    has_paused: bool,
}

impl ReadRate {
    /// `rate` bytes per second, of which `read` were read.
    pub fn new(rate: u64, read: usize) -> Self {
        let (began, pause) = (tw_rt::clock::now(), Deadline::new());
        Self { rate: rate.max(1), began, read: read as u64, pause, has_paused: false }
    }

    /// Bytes that may be read now. Pending while that is nothing.
    pub fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<usize> {
        loop {
            let elapsed = tw_rt::clock::now().saturating_duration_since(self.began);
            let granted = self.rate.saturating_mul(elapsed.as_secs().saturating_add(1));
            if let Some(room) = granted.checked_sub(self.read).filter(|room| *room > 0) {
                return Poll::Ready(usize::try_from(room).unwrap_or(usize::MAX));
            }
            self.has_paused = true;
            self.pause.set_at(self.began + Duration::from_secs(self.read / self.rate));
            if self.pause.poll_elapsed(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// Returns true if reading has paused since the last call.
    pub fn has_paused(&mut self) -> bool {
        std::mem::take(&mut self.has_paused)
    }

    /// So many bytes were read.
    pub fn count(&mut self, n: usize) {
        self.read += n as u64;
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn every_second_that_has_begun_has_its_share() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime can be built").block_on(async {
            let mut cx = Context::from_waker(Waker::noop());
            let mut pace = ReadRate::new(100, 30);
            assert_eq!(pace.poll_room(&mut cx), Poll::Ready(70));
            pace.count(70);
            assert_eq!(pace.poll_room(&mut cx), Poll::Pending);
            pace.began -= Duration::from_secs(1);
            assert_eq!(pace.poll_room(&mut cx), Poll::Ready(100));
            // Bytes read beyond the rate are deducted from later seconds.
            pace.count(250);
            assert_eq!(pace.poll_room(&mut cx), Poll::Pending);
            pace.began -= Duration::from_secs(2);
            assert_eq!(pace.poll_room(&mut cx), Poll::Ready(50));
        });
    }
}
