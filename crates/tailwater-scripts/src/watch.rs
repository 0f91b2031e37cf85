//! CPU time of a callback: the deadline that the engine asks for, and the timer of the kernel that ends the process.

use std::cell::Cell;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tw_sys::cpu_limit::CpuLimit;

tw_base::limits! {
    /// Limits of the process.
    pub(crate) const LIMITS;

    /// CPU time beyond `js_timeout` that a native function may take before the process ends.
    ///
    /// The engine is asked to stop at `js_timeout`; functions of its own, such as `String.prototype.repeat`, do not ask.
    const OVERRUN_MAX: Duration = Duration::from_millis(25), time, "the script process ends and is replaced";
}

/// Deadline of the running callback, in CPU time of this thread. Time that the process waits for an answer does not count.
///
/// The begin and the end of a callback ask no clock: the time counts from the first question of the engine or the first signal of the timer
/// on, whichever comes first, so a callback may use up to 5 ms more.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// CPU time that the running callback may use; `None` between callbacks.
    limit: Cell<Option<Duration>>,
    /// CPU time at which the callback is interrupted. Most callbacks end before anything asks for it.
    deadline: Cell<Option<Duration>>,
    is_expired: Cell<bool>,
    /// Timer of the kernel; absent in tests, which share their process.
    timer: Option<CpuLimit>,
}

/// CPU time of this thread.
pub(crate) fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

impl Watch {
    /// A watch that ends the process if the engine does not ask for the time.
    pub(crate) fn with_timer(timer: CpuLimit) -> Self {
        Self { timer: Some(timer), ..Self::default() }
    }

    /// Begins a callback that may use this much CPU time. `overrun` has the socket and the last words of a process that ends because of it.
    pub(crate) fn start(&self, limit: Duration, overrun: Option<(BorrowedFd<'_>, &[u8])>) {
        self.is_expired.set(false);
        self.limit.set(Some(limit));
        self.deadline.set(None);
        if let (Some(timer), Some((socket, words))) = (&self.timer, overrun) {
            timer.start(limit + OVERRUN_MAX, socket, words);
        }
    }

    /// Returns whether callbacks need last words.
    pub(crate) fn has_timer(&self) -> bool {
        self.timer.is_some()
    }

    /// Ends a callback.
    pub(crate) fn stop(&self) {
        self.limit.set(None);
        if let Some(timer) = &self.timer {
            timer.stop();
        }
    }

    /// Checks the deadline; the engine calls it at every ten thousandth jump or call.
    pub(crate) fn interrupts(&self) -> bool {
        let Some(limit) = self.limit.get() else { return false };
        let now = cpu_time();
        let deadline = self.deadline.get().unwrap_or_else(|| {
            let begin = self.timer.as_ref().and_then(CpuLimit::first_seen).unwrap_or(now);
            self.deadline.set(Some(begin + limit));
            begin + limit
        });
        if now > deadline {
            self.is_expired.set(true);
        }
        now > deadline
    }

    /// Returns whether the last callback was interrupted.
    pub(crate) fn is_expired(&self) -> bool {
        self.is_expired.get()
    }
}
