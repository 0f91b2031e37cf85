//! Commands to a writer thread: reopen and close, with its answers, and its state (awake, lingering or asleep).

use std::mem;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crate::output::Output;
use crate::ring::{Pushed, lock};

/// The writer will look into the ring before it rests.
const AWAKE: u8 = 0;
/// The writer looks again soon; wake it only if much waits.
const LINGERING: u8 = 1;
/// The writer waits to be woken.
const ASLEEP: u8 = 2;
/// The writer has gone.
const CLOSED: u8 = 3;

/// Result of closing a sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Closed {
    /// Every queued line was written.
    Written,
    /// The log could not take them in time; what is missing is lost when the process ends.
    Late,
}

/// File to continue in after a rotation.
#[derive(Debug)]
pub(crate) enum NewFile {
    /// Open what the target names.
    Again,
    /// Use this.
    Open(OwnedFd),
}

/// The orders to one writer, and its state.
#[derive(Debug)]
pub(crate) struct Orders {
    state: AtomicU8,
    writer: OnceLock<Thread>,
    desk: Mutex<Desk>,
    closed: Condvar,
}

/// State shared with the writer. Locked when a command is given or looked up, never for a line.
#[derive(Debug)]
struct Desk {
    /// Output, until the writer starts.
    output: Option<Output>,
    begun: bool,
    reopen: Option<NewFile>,
    close: bool,
    closed: Option<Closed>,
}

impl Orders {
    /// For a writer that is not yet running and will write to `output`.
    pub(crate) fn new(output: Output) -> Self {
        let desk = Desk { output: Some(output), begun: false, reopen: None, close: false, closed: None };
        Self {
            state: AtomicU8::new(AWAKE),
            writer: OnceLock::new(),
            desk: Mutex::new(desk),
            closed: Condvar::new(),
        }
    }

    // ---- for those who log: lock-free ----

    /// Lines are in the ring. Wakes a sleeping writer, and a lingering one if `full`.
    pub(crate) fn lines_came(&self, full: bool) -> Pushed {
        let seen = self.state.load(SeqCst);
        match seen {
            CLOSED => return Pushed::Dropped,
            AWAKE => {}
            LINGERING if !full => {}
            // One of many threads wins the exchange and pays for the wake-up.
            _ => {
                if self.state.compare_exchange(seen, AWAKE, SeqCst, SeqCst).is_ok() {
                    self.unpark();
                }
            }
        }
        Pushed::Queued
    }

    // ---- for the main thread ----

    /// Returns `true` if the caller has to start the writer now; it is started once.
    pub(crate) fn begin(&self) -> bool {
        !mem::replace(&mut self.desk().begun, true)
    }

    /// Takes that back: the thread did not start.
    pub(crate) fn not_begun(&self) {
        self.desk().begun = false;
    }

    /// Orders to go on in another file; a later order replaces one that was not yet followed.
    pub(crate) fn reopen(&self, file: NewFile) {
        self.desk().reopen = Some(file);
        self.unpark();
    }

    /// Orders to write what is queued and end.
    pub(crate) fn close(&self) {
        self.desk().close = true;
        self.unpark();
    }

    /// Waits until the writer has ended, at most until `deadline`.
    pub(crate) fn wait_closed(&self, deadline: Instant) -> Closed {
        let mut desk = self.desk();
        // Nothing was ever written by a writer that never began.
        while desk.closed.is_none() && desk.begun {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Closed::Late;
            }
            desk = self.closed.wait_timeout(desk, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        desk.closed.unwrap_or(Closed::Written)
    }

    // ---- for the writer ----

    /// Registers the writer's thread, which is woken from now on. Returns its output.
    pub(crate) fn started(&self) -> Option<Output> {
        let _ = self.writer.set(thread::current());
        self.desk().output.take()
    }

    /// Takes the pending commands. A reopen is taken once, a close stays.
    pub(crate) fn take(&self) -> Order {
        let mut desk = self.desk();
        Order { reopen: desk.reopen.take(), close: desk.close }
    }

    /// Returns `true` if a command is pending.
    pub(crate) fn any(&self) -> bool {
        let desk = self.desk();
        desk.close || desk.reopen.is_some()
    }

    /// Rests at most `span` (`None`: for ever) unless `is_due` says that there is work already. Returns after an order,
    /// a wake-up, the span, or for no reason.
    pub(crate) fn rest(&self, rest: Rest, span: Option<Duration>, is_due: impl FnOnce() -> bool) {
        // SeqCst: whoever adds a line after `is_due` has looked sees this state and wakes us.
        self.state.store(rest as u8, SeqCst);
        if !is_due() && !self.any() {
            match span {
                Some(span) => thread::park_timeout(span),
                None => thread::park(),
            }
        }
        self.state.store(AWAKE, SeqCst);
    }

    /// Waits `span`, whatever lines come; an order ends it early.
    pub(crate) fn pause(&self, span: Duration) {
        let end = Instant::now() + span;
        while !self.any() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            thread::park_timeout(left);
        }
    }

    /// Makes every later push of a line fail, because the writer has ended.
    pub(crate) fn refuse(&self) {
        self.state.store(CLOSED, SeqCst);
    }

    /// The last word of the writer.
    pub(crate) fn closed(&self, closed: Closed) {
        self.desk().closed = Some(closed);
        self.closed.notify_all();
    }

    fn unpark(&self) {
        if let Some(writer) = self.writer.get() {
            writer.unpark();
        }
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        lock(&self.desk)
    }
}

/// Commands for the writer, to carry out after it has written the queued lines.
#[derive(Debug)]
pub(crate) struct Order {
    /// Go on in another file.
    pub(crate) reopen: Option<NewFile>,
    /// End.
    pub(crate) close: bool,
}

/// Sleep state of the writer.
#[derive(Debug, Clone, Copy)]
#[repr(u8)]
pub(crate) enum Rest {
    /// Lines need not wake it unless they fill the batch.
    Linger = LINGERING,
    /// The next line wakes it.
    Sleep = ASLEEP,
}
