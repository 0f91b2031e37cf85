//! Commands to a writer thread: reopen and close, with its answers, and its state (awake, lingering or asleep).

use std::mem;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crate::output::Output;
use crate::ring::{PushResult, lock};

/// The writer will look into the ring before it rests.
const AWAKE: u8 = 0;
/// The writer looks again soon; wake it only if much waits.
const LINGERING: u8 = 1;
/// The writer waits to be woken.
const ASLEEP: u8 = 2;
/// The writer has ended.
const CLOSED: u8 = 3;

/// Result of closing a sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum CloseResult {
    /// Every queued line was written.
    Written,
    /// The log was too slow; the unwritten lines are lost when the process ends.
    Late,
}

/// File to continue in after a rotation.
#[derive(Debug)]
pub(crate) enum ReopenFile {
    /// Open what the target names.
    Again,
    /// Use this.
    Open(OwnedFd),
}

/// Commands to one writer, and its state.
#[derive(Debug)]
pub(crate) struct WriterCommands {
    state: AtomicU8,
    writer: OnceLock<Thread>,
    pending: Mutex<Pending>,
    closed: Condvar,
}

/// State shared with the writer. Locked when a command is given or looked up, never for a line.
#[derive(Debug)]
struct Pending {
    /// Output, until the writer starts.
    output: Option<Output>,
    begun: bool,
    reopen: Option<ReopenFile>,
    close: bool,
    closed: Option<CloseResult>,
}

impl WriterCommands {
    /// For a writer that is not yet running and will write to `output`.
    pub(crate) fn new(output: Output) -> Self {
        let pending =
            Pending { output: Some(output), begun: false, reopen: None, close: false, closed: None };
        Self {
            state: AtomicU8::new(AWAKE),
            writer: OnceLock::new(),
            pending: Mutex::new(pending),
            closed: Condvar::new(),
        }
    }

    // ---- for logging threads: lock-free ----

    /// Wakes a sleeping writer, and a lingering one if `full`.
    pub(crate) fn lines_added(&self, full: bool) -> PushResult {
        let state = self.state.load(SeqCst);
        match state {
            CLOSED => return PushResult::Dropped,
            AWAKE => {}
            LINGERING if !full => {}
            // Only one of many threads wins the exchange and pays for the wake-up.
            _ => {
                if self.state.compare_exchange(state, AWAKE, SeqCst, SeqCst).is_ok() {
                    self.unpark();
                }
            }
        }
        PushResult::Queued
    }

    // ---- for the main thread ----

    /// Returns `true` if the caller has to start the writer now; it is started once.
    pub(crate) fn mark_started(&self) -> bool {
        !mem::replace(&mut self.pending().begun, true)
    }

    /// Reverts [`mark_started`](Self::mark_started): the thread did not start.
    pub(crate) fn mark_not_started(&self) {
        self.pending().begun = false;
    }

    /// Makes the writer continue in another file; a later command replaces a pending one.
    pub(crate) fn reopen(&self, file: ReopenFile) {
        self.pending().reopen = Some(file);
        self.unpark();
    }

    /// Makes the writer write all queued lines and end.
    pub(crate) fn close(&self) {
        self.pending().close = true;
        self.unpark();
    }

    /// Waits until the writer has ended, at most until `deadline`.
    pub(crate) fn wait_closed(&self, deadline: Instant) -> CloseResult {
        let mut pending = self.pending();
        // A writer that never began has nothing to write.
        while pending.closed.is_none() && pending.begun {
            let remaining = deadline.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return CloseResult::Late;
            }
            pending = self.closed.wait_timeout(pending, remaining).unwrap_or_else(PoisonError::into_inner).0;
        }
        pending.closed.unwrap_or(CloseResult::Written)
    }

    // ---- for the writer ----

    /// Registers the writer's thread, which is woken from now on. Returns its output.
    pub(crate) fn started(&self) -> Option<Output> {
        let _ = self.writer.set(thread::current());
        self.pending().output.take()
    }

    /// Takes the pending commands. A reopen is taken once, a close stays.
    pub(crate) fn take_pending(&self) -> PendingCommands {
        let mut pending = self.pending();
        PendingCommands { reopen: pending.reopen.take(), close: pending.close }
    }

    /// Returns `true` if a command is pending.
    pub(crate) fn has_pending(&self) -> bool {
        let pending = self.pending();
        pending.close || pending.reopen.is_some()
    }

    /// Sleeps at most `span` (`None`: without limit) unless `is_due` returns `true`. Returns after a command, a
    /// wake-up, the span, or spuriously.
    pub(crate) fn sleep(&self, rest: SleepState, span: Option<Duration>, is_due: impl FnOnce() -> bool) {
        // SeqCst: a thread that adds a line after `is_due` was evaluated sees this state and wakes the writer.
        self.state.store(rest as u8, SeqCst);
        if !is_due() && !self.has_pending() {
            match span {
                Some(span) => thread::park_timeout(span),
                None => thread::park(),
            }
        }
        self.state.store(AWAKE, SeqCst);
    }

    /// Waits `span`, whatever lines are added; a command ends it early.
    pub(crate) fn pause(&self, span: Duration) {
        let end = Instant::now() + span;
        while !self.has_pending() {
            let remaining = end.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return;
            }
            thread::park_timeout(remaining);
        }
    }

    /// Makes every later push of a line fail, because the writer has ended.
    pub(crate) fn set_closed(&self) {
        self.state.store(CLOSED, SeqCst);
    }

    /// Reports the end of the writer.
    pub(crate) fn report_closed(&self, closed: CloseResult) {
        self.pending().closed = Some(closed);
        self.closed.notify_all();
    }

    fn unpark(&self) {
        if let Some(writer) = self.writer.get() {
            writer.unpark();
        }
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        lock(&self.pending)
    }
}

/// Commands for the writer, to carry out after it has written the queued lines.
#[derive(Debug)]
pub(crate) struct PendingCommands {
    /// Go on in another file.
    pub(crate) reopen: Option<ReopenFile>,
    /// End.
    pub(crate) close: bool,
}

/// Sleep state of the writer.
#[derive(Debug, Clone, Copy)]
#[repr(u8)]
pub(crate) enum SleepState {
    /// Lines need not wake it unless they fill the batch.
    Linger = LINGERING,
    /// The next line wakes it.
    Sleep = ASLEEP,
}
