//! Waits for a client in one direction: until its timeout, and as long as it keeps to a minimum rate. Only the time of these waits
//! counts, so a client is not slow because something else was.

use std::cell::{Cell, OnceCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::send_error::SendError;
use crate::config::location::MinRate;

/// Waits for one client while it sends a body or takes a response.
#[derive(Debug, Default)]
pub struct ClientWait {
    /// Time of the waits that are over. There is none before the first wait with a minimum rate.
    waited: OnceCell<Rc<Cell<Duration>>>,
    /// Bytes that the client had acknowledged at the first wait.
    acked: OnceCell<u64>,
}

/// Limits of a wait.
#[derive(Debug, Clone, Copy)]
pub struct WaitLimits {
    /// Longest single wait.
    pub timeout: Duration,
    /// Smallest rate that is allowed; `None` if there is none.
    pub min_rate: Option<MinRate>,
}

/// Wait that is under way; dropping it ends it.
pub struct Waiting {
    /// Time that it adds to, and its begin.
    measured: Option<(Rc<Cell<Duration>>, Instant)>,
    timeout: Duration,
    end: WaitEnd,
}

/// Reason for which a wait is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitEnd {
    /// Nothing happened for the timeout.
    Timeout,
    /// The client is slower than the minimum rate.
    TooSlow,
}

impl ClientWait {
    /// Bytes that the client has acknowledged since the first call, of so many in all: what its socket has room for is not with the
    /// client yet.
    pub fn acked_since_first(&self, acked: u64) -> u64 {
        acked.saturating_sub(*self.acked.get_or_init(|| acked))
    }

    /// Begins a wait for a client that has moved so many bytes. The error: it has been waited for long enough.
    pub fn begin(&self, limits: WaitLimits, bytes: u64) -> Result<Waiting, WaitEnd> {
        let WaitLimits { timeout, min_rate } = limits;
        let Some(min_rate) = min_rate else {
            return Ok(Waiting { measured: None, timeout, end: WaitEnd::Timeout });
        };
        let waited = self.waited.get_or_init(Rc::default);
        let remaining = min_rate.patience(bytes).saturating_sub(waited.get());
        if remaining.is_zero() {
            return Err(WaitEnd::TooSlow);
        }
        let end = if remaining < timeout { WaitEnd::TooSlow } else { WaitEnd::Timeout };
        let measured = Some((waited.clone(), tw_rt::clock::now()));
        Ok(Waiting { measured, timeout: remaining.min(timeout), end })
    }
}

impl Waiting {
    /// Longest time of this wait.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Reason for giving up after that time.
    pub fn end(&self) -> WaitEnd {
        self.end
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some((waited, begun)) = &self.measured {
            waited.set(waited.get().saturating_add(tw_rt::clock::now().saturating_duration_since(*begun)));
        }
    }
}

impl From<WaitEnd> for SendError {
    fn from(end: WaitEnd) -> Self {
        match end {
            WaitEnd::Timeout => Self::Timeout,
            WaitEnd::TooSlow => Self::TooSlow,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_ends_by_the_timeout_or_the_rate() {
        let rate = MinRate { rate: 1000, grace: Duration::from_secs(5) };
        let limits = |timeout, min_rate| WaitLimits { timeout: Duration::from_secs(timeout), min_rate };
        let wait = ClientWait::default();
        let begin = |limits, bytes| {
            wait.begin(limits, bytes).map(|waiting| (waiting.timeout().as_secs(), waiting.end()))
        };
        assert_eq!(begin(limits(60, None), 0), Ok((60, WaitEnd::Timeout)));
        assert_eq!(begin(limits(60, Some(rate)), 0), Ok((5, WaitEnd::TooSlow)));
        assert_eq!(begin(limits(3, Some(rate)), 0), Ok((3, WaitEnd::Timeout)));
        wait.waited.get().unwrap().set(Duration::from_secs(6));
        assert_eq!(begin(limits(60, Some(rate)), 0), Err(WaitEnd::TooSlow));
        assert_eq!(begin(limits(60, Some(rate)), 3000), Ok((2, WaitEnd::TooSlow)));
        assert_eq!(begin(limits(60, None), 0), Ok((60, WaitEnd::Timeout)));
    }
}
