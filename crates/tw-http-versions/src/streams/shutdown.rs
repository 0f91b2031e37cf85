//! Shutdown of a connection that has streams: its client is told to begin no more of them (GOAWAY), and then the connection closes.
//!
//! ```text
//! Open ─ announced ─► Draining ─ last GOAWAY of HTTP/3 ─► Drained ─┐
//!   │                    │                                         ├─► Closing ─ time is over, or everything has left ─► end
//!   └────────────────────┴─────────────────────────────────────────┘
//! ```

use std::task::{Context, Poll};
use std::time::Duration;

use tw_rt::Deadline;

/// Stage of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The client may begin streams.
    Open,
    /// A first GOAWAY was sent; begun requests are still served.
    Draining,
    /// The last GOAWAY was sent; begun requests are still served.
    Drained,
    /// No request is served any more: what was sent leaves.
    Closing,
}

/// Progress of a shutdown.
pub(crate) struct Shutdown {
    stage: Stage,
    /// Time until which the connection may take to close.
    deadline: Deadline,
}

impl Shutdown {
    /// No shutdown yet.
    pub(crate) fn new() -> Self {
        Self { stage: Stage::Open, deadline: Deadline::new() }
    }

    /// Stage of the connection.
    pub(crate) fn stage(&self) -> Stage {
        self.stage
    }

    /// Returns true once the connection closes.
    pub(crate) fn is_closing(&self) -> bool {
        self.stage == Stage::Closing
    }

    /// Begins the shutdown. Returns false if it has begun before.
    pub(super) fn begin(&mut self) -> bool {
        let is_open = self.stage == Stage::Open;
        if is_open {
            self.stage = Stage::Draining;
        }
        is_open
    }

    /// Notes that the last GOAWAY is sent.
    pub(crate) fn set_drained(&mut self) {
        if self.stage == Stage::Draining {
            self.stage = Stage::Drained;
        }
    }

    /// Begins to close the connection, which may take this time. Returns false if it has begun before.
    pub(super) fn begin_close(&mut self, time: Duration) -> bool {
        if self.is_closing() {
            return false;
        }
        self.stage = Stage::Closing;
        self.deadline.set(time);
        true
    }

    /// Ready when the connection has taken too long to close.
    pub(crate) fn poll_close_timeout(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.is_closing() {
            true => self.deadline.poll_elapsed(cx),
            false => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_of_a_shutdown_is_taken_once() {
        let mut shutdown = Shutdown::new();
        assert_eq!(shutdown.stage(), Stage::Open);
        shutdown.set_drained();
        assert_eq!(shutdown.stage(), Stage::Open, "the last GOAWAY comes after the first one");
        assert!(shutdown.begin());
        assert!(!shutdown.begin());
        assert_eq!(shutdown.stage(), Stage::Draining);
        shutdown.set_drained();
        assert_eq!(shutdown.stage(), Stage::Drained);
        assert!(!shutdown.begin());
        assert!(shutdown.begin_close(Duration::from_secs(1)));
        assert!(!shutdown.begin_close(Duration::ZERO));
        assert!(!shutdown.begin(), "a connection that closes is not announced again");
        assert!(shutdown.is_closing());
    }

    #[test]
    fn an_open_connection_may_be_closed_at_once() {
        let mut shutdown = Shutdown::new();
        assert!(shutdown.begin_close(Duration::ZERO));
        shutdown.set_drained();
        assert!(shutdown.is_closing() && !shutdown.begin());
    }
}
