//! The thread that writes one log.
//!
//! ```text
//!            first line                 nothing new
//!   asleep ─────────────► take, write ──────────────► asleep
//!                           ▲      │ wrote something
//!                           └ linger
//! ```
//!
//! A quiet log is written line by line at once. Under load, lines gather while the writer lingers, so that the wake-up
//! and the `write()` are paid once per batch; `buffer=` and `flush=` linger before the write as well. A failed write is
//! tried again every second with nothing lost; what the ring cannot hold meanwhile is dropped there and counted.

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, mem, thread};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, writev};

use crate::orders::{Closed, NewFile, Rest};
use crate::ring::Taken;
use crate::sink::{Shared, open_log};
use crate::{ErrorLog, Level, error_log};

/// How long lines gather after a write. Short enough that nobody sees it, long enough to bound wake-ups to 1,000/s.
const LINGER: Duration = Duration::from_millis(1);

/// Pause after a failed write.
const RETRY: Duration = Duration::from_secs(1);

/// A failing log is reported at most this often, as in nginx.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// Dropped lines are reported at most this often.
const REPORT_DROPPED_EVERY: Duration = Duration::from_secs(1);

/// The longest wait for a descriptor that is not ready, before orders are looked at again.
const POLL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Parts of one `writev`: the kernel's `IOV_MAX`.
const PARTS_MAX: usize = 1024;

/// Enough for a line being formatted (2 KiB) and a time zone.
const STACK_SIZE: usize = 128 * 1024;

/// How a batch went.
enum Wrote {
    /// Nothing of it is left.
    All,
    /// The log failed, or it is not ready and there are orders.
    Part,
}

/// One writer and what it alone uses.
pub(crate) struct Writer {
    shared: Arc<Shared>,
    file: OwnedFd,
    batch: Taken,
    /// Bytes of `batch` that are already written.
    written: usize,
    failure_reported: Option<Instant>,
    dropped_reported: Option<Instant>,
    dropped_known: u64,
}

impl Writer {
    /// Starts the thread of `shared`, once.
    pub(crate) fn start(shared: &Arc<Shared>) -> io::Result<()> {
        let Some(file) = shared.orders.take_file() else { return Ok(()) };
        let again = file.try_clone()?;
        let writer = Self {
            shared: Arc::clone(shared),
            file,
            batch: Taken::default(),
            written: 0,
            failure_reported: None,
            dropped_reported: None,
            dropped_known: 0,
        };
        let name = format!("log:{}", shared.name().rsplit('/').next().unwrap_or_default());
        match thread::Builder::new().name(name).stack_size(STACK_SIZE).spawn(move || writer.run()) {
            Ok(handle) => shared.orders.started(handle.thread().clone()),
            Err(error) => {
                shared.orders.put_file(again);
                return Err(error);
            }
        }
        Ok(())
    }

    fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let mut idle = true;
        let closed = loop {
            self.rest(idle);
            // Orders are looked up before the ring: lines pushed before an order are then certainly taken below.
            let order = shared.orders.take();
            // What a failing log left comes first; meanwhile lines fill their chunks better in the ring.
            if self.batch.chunks.is_empty() {
                shared.ring.take(&mut self.batch);
            }
            idle = self.batch.chunks.is_empty();
            let wrote = self.write_batch();
            let reopened = order.reopen.map(|file| self.go_on_in(file)).is_some();
            self.report_dropped();
            match wrote {
                Wrote::Part if order.close => break Closed::Late,
                Wrote::Part if reopened => {}
                Wrote::Part => shared.orders.pause(RETRY),
                Wrote::All if order.close && idle => break Closed::Written,
                Wrote::All => {}
            }
        };
        shared.orders.refuse();
        // What came too late for the last batch.
        shared.ring.take(&mut self.batch);
        shared.counts.dropped.add(self.batch.lines);
        shared.orders.closed(closed);
    }

    /// Waits for the next batch, or an order.
    fn rest(&self, idle: bool) {
        let Shared { orders, ring, config, .. } = &*self.shared;
        if !self.batch.chunks.is_empty() {
            // The pause after the failure was the rest.
            return;
        }
        if let Some(batch) = config.batch {
            self.sleep();
            let deadline = batch.flush.map(|flush| Instant::now() + flush);
            let left = || deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            // A wake-up may be left over from an earlier line, so that what was waited for is looked at again.
            while ring.is_pending()
                && !self.shared.is_batch_full()
                && !orders.any()
                && left() != Some(Duration::ZERO)
            {
                orders.rest(Rest::Linger, left(), || self.shared.is_batch_full());
            }
        } else if idle {
            self.sleep();
        } else {
            orders.rest(Rest::Linger, Some(LINGER), || self.shared.is_batch_full());
        }
    }

    /// Waits for the next line, or until dropped lines can be reported.
    fn sleep(&self) {
        let report_due = self.shared.counts.dropped.value() != self.dropped_known;
        let span = report_due.then_some(REPORT_DROPPED_EVERY);
        self.shared.orders.rest(Rest::Sleep, span, || self.shared.ring.is_pending());
    }

    /// Writes what was taken. What the log does not take stays in the batch.
    fn write_batch(&mut self) -> Wrote {
        loop {
            let parts = self.parts();
            if parts.is_empty() {
                self.shared.counts.written.add(self.batch.lines);
                self.shared.ring.give_back(&mut self.batch);
                self.written = 0;
                return Wrote::All;
            }
            match writev(&self.file, &parts) {
                Ok(n) => {
                    self.written += n;
                    self.shared.counts.written_bytes.add(n as u64);
                }
                Err(Errno::INTR) => {}
                // Somebody made the description non-blocking: a terminal or a pipe we share.
                Err(Errno::AGAIN) => {
                    if !self.is_writable() && self.shared.orders.any() {
                        return Wrote::Part;
                    }
                }
                Err(errno) => {
                    self.shared.counts.failed.add(1);
                    self.report_failed_write(errno);
                    return Wrote::Part;
                }
            }
        }
    }

    /// The rest of the batch, as far as one call takes it.
    fn parts(&self) -> Vec<IoSlice<'_>> {
        let mut skip = self.written;
        let mut parts = Vec::with_capacity(self.batch.chunks.len().min(PARTS_MAX));
        for chunk in &self.batch.chunks {
            let bytes = chunk.bytes();
            if skip >= bytes.len() {
                skip -= bytes.len();
            } else if parts.len() < PARTS_MAX {
                parts.push(IoSlice::new(&bytes[skip..]));
                skip = 0;
            }
        }
        parts
    }

    fn is_writable(&self) -> bool {
        let mut fds = [PollFd::new(&self.file, PollFlags::OUT)];
        poll(&mut fds, Some(&POLL)).is_ok_and(|ready| ready > 0)
    }

    fn go_on_in(&mut self, file: NewFile) {
        let opened = match file {
            NewFile::Open(file) => Ok(file),
            NewFile::Path(path) => open_log(&path),
        };
        match opened {
            // The old file is closed here: this thread may wait for its last blocks.
            Ok(file) => self.file = file,
            Err(error) => {
                self.shared.counts.failed.add(1);
                self.report_failure(Level::Emerg, format_args!("{error}"));
            }
        }
    }

    /// Says that the log could not be written, unless that was said lately.
    fn report_failed_write(&mut self, errno: Errno) {
        if is_due(&mut self.failure_reported, REPORT_EVERY) {
            let (name, errno) = (self.shared.name(), crate::Errno::from(errno));
            self.report_failure(Level::Alert, format_args!("write() to \"{name}\" failed ({errno})"));
        }
    }

    /// Says how many lines were dropped, once there is room again. The error log itself is told too: it has room.
    fn report_dropped(&mut self) {
        let dropped = self.shared.counts.dropped.value();
        if dropped != self.dropped_known
            && !self.shared.is_batch_full()
            && is_due(&mut self.dropped_reported, REPORT_DROPPED_EVERY)
        {
            let lines = dropped - mem::replace(&mut self.dropped_known, dropped);
            let name = self.shared.name();
            error_log::write_or_stderr(
                &self.shared.error_log(),
                Level::Crit,
                format_args!("{lines} lines dropped, log \"{name}\" could not keep up"),
            );
        }
    }

    /// Writes to the error log, unless that is the log that fails.
    fn report_failure(&self, level: Level, message: fmt::Arguments<'_>) {
        let log = self.shared.error_log();
        let log = if log.goes_to(&self.shared) { ErrorLog::none() } else { log };
        error_log::write_or_stderr(&log, level, message);
    }
}

/// Whether `every` has passed since `last`, which then becomes now.
fn is_due(last: &mut Option<Instant>, every: Duration) -> bool {
    let now = Instant::now();
    let due = last.is_none_or(|last| now.duration_since(last) >= every);
    if due {
        *last = Some(now);
    }
    due
}
