//! CPU time of a callback: the deadline that the engine asks for, and the timer of the kernel that ends the process.

use std::cell::Cell;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Deadline of the running callback, in CPU time of this thread. Time that the process waits for an answer does not count.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// CPU time at which the callback is interrupted; `None` between callbacks.
    deadline: Cell<Option<Duration>>,
    is_expired: Cell<bool>,
}

/// CPU time of this thread.
pub(crate) fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

impl Watch {
    /// Begins a callback that may use this much CPU time.
    pub(crate) fn start(&self, limit: Duration) {
        self.is_expired.set(false);
        self.deadline.set(Some(cpu_time() + limit));
    }

    /// Ends a callback.
    pub(crate) fn stop(&self) {
        self.deadline.set(None);
    }

    /// Checks the deadline; the engine calls it at every ten thousandth jump or call.
    pub(crate) fn interrupts(&self) -> bool {
        let is_late = self.deadline.get().is_some_and(|deadline| cpu_time() > deadline);
        if is_late {
            self.is_expired.set(true);
        }
        is_late
    }

    /// Returns whether the last callback was interrupted.
    pub(crate) fn is_expired(&self) -> bool {
        self.is_expired.get()
    }
}
