//! Thread that writes one log.
//!
//! ```text
//!            first line                 nothing new
//!   asleep ─────────────► take, write ──────────────► asleep
//!                           ▲      │ wrote something
//!                           └ linger
//! ```
//!
//! A quiet log is written line by line at once, and so are the first lines of a burst. Under load, lines gather while
//! the writer lingers, so that the wake-up and the `write()` are paid once per batch; `buffer=` and `flush=` linger
//! before the write as well. A failed write is repeated every second with nothing lost; lines that the ring cannot
//! hold meanwhile are dropped there and counted. A write to a syslog server, or to files with variables in their
//! names, is tried once: the lines for others need not wait for it.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use std::{fmt, mem, thread};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, writev};

use crate::commands::{CloseResult, ReopenFile, SleepState};
use crate::files::{FailedOperation, LostLines};
use crate::output::Output;
use crate::ring::{Chunk, TakenLines};
use crate::sink::{Shared, open_log};
use crate::syslog::{SendError, SendResult};
use crate::target::{OpenFailure, Target};
use crate::{Level, error_log, frame, gzip};

// DIFF(nginx): the loop does not write lines itself.
/// Time for which lines gather after a write. Too short to notice, long enough to bound wake-ups to 250/s: 1,000 of them cost 3 % of
/// a loop that writes 90,000 lines a second.
const LINGER: Duration = Duration::from_millis(4);

/// Longest time between two batches of a burst.
const BURST_GAP: Duration = Duration::from_millis(1);

/// Batches of a burst that are written before lines gather, so that lines of a few single requests are in the log at
/// once. 64 wake-ups are 0.2 ms of a loop, once per burst.
const BURST: u32 = 64;

/// Pause after a failed write.
const RETRY: Duration = Duration::from_secs(1);

/// A failing log is reported at most this often, as in nginx.
// DIFF(nginx): the same holds for syslog servers and for files named by variables, and nobody's request is named.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// A file that cannot be opened, of a log with variables in its path, is reported at most this often.
const REPORT_FILES_EVERY: Duration = Duration::from_secs(1);

/// Dropped lines are reported at most this often.
const REPORT_DROPPED_EVERY: Duration = Duration::from_secs(1);

/// The longest wait for a descriptor that is not ready, before commands are checked again.
const POLL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Parts of one `writev`: the kernel's `IOV_MAX`.
const PARTS_MAX: usize = 1024;

/// Enough for a line being formatted (2 KiB), a time zone and a compressor, whose tables are on the heap.
const STACK_SIZE: usize = 256 * 1024;

/// Memory for messages or compressed lines that is kept from one batch to the next, bytes.
const FLAT_KEEP: usize = 64 * 1024;

/// Result of writing a batch.
enum Wrote {
    /// Everything was written.
    All,
    /// The log failed, or it is not ready and a command is pending.
    Part,
}

/// Writer of one sink, with the state that only it uses.
pub(crate) struct Writer {
    shared: Arc<Shared>,
    output: Output,
    batch: TakenLines,
    /// The batch in another form: compressed, or in one piece.
    flat: Vec<u8>,
    /// Bytes of `flat`, or else of `batch`, that are already written.
    written_len: usize,
    /// Lines of the batch that are done with, and those of them that are lost.
    done: u64,
    lost: u64,
    /// Lines of the last batch.
    last: u64,
    /// Batches since the last rest that was worth the name.
    burst: u32,
    failure_reported: Option<Instant>,
    files_reported: Option<Instant>,
    dropped_reported: Option<Instant>,
    dropped_known: u64,
}

impl Writer {
    /// Starts the thread of `shared`, once.
    pub(crate) fn start(shared: &Arc<Shared>) -> io::Result<()> {
        if !shared.commands.mark_started() {
            return Ok(());
        }
        let name = format!("log:{}", shared.name().rsplit('/').next().unwrap_or_default());
        let this = Arc::clone(shared);
        let life = move || {
            if let Some(output) = this.commands.started() {
                Self::new(this, output).run();
            }
        };
        match thread::Builder::new().name(name).stack_size(STACK_SIZE).spawn(life) {
            Ok(_) => Ok(()),
            Err(error) => {
                shared.commands.mark_not_started();
                Err(error)
            }
        }
    }

    fn new(shared: Arc<Shared>, output: Output) -> Self {
        Self {
            shared,
            output,
            batch: TakenLines::default(),
            flat: Vec::new(),
            written_len: 0,
            done: 0,
            lost: 0,
            last: 0,
            burst: 0,
            failure_reported: None,
            files_reported: None,
            dropped_reported: None,
            dropped_known: 0,
        }
    }

    fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let mut idle = true;
        let closed = loop {
            self.rest(idle);
            // Commands are taken before the ring: lines pushed before a command are then certainly taken below.
            let pending = shared.commands.take_pending();
            // Lines left by a failed write come first; meanwhile new lines fill their chunks better in the ring.
            if self.batch.chunks.is_empty() {
                shared.ring.take(&mut self.batch);
            }
            idle = self.batch.chunks.is_empty();
            let wrote = self.write_batch();
            let reopened = pending.reopen.map(|file| self.go_on_in(file)).is_some();
            self.report_dropped();
            match wrote {
                Wrote::Part if pending.close => break CloseResult::Late,
                Wrote::Part if reopened => {}
                Wrote::Part => shared.commands.pause(RETRY),
                Wrote::All if pending.close && idle => break CloseResult::Written,
                Wrote::All => {}
            }
        };
        shared.commands.set_closed();
        // Lines that came too late for the last batch are counted as dropped.
        shared.ring.take(&mut self.batch);
        shared.counts.written_lines.add(self.done - self.lost);
        shared.counts.dropped.add(self.batch.lines - self.done + self.lost);
        shared.commands.report_closed(closed);
    }

    /// Waits for the next batch, or a command.
    fn rest(&mut self, idle: bool) {
        let shared = Arc::clone(&self.shared);
        let Shared { commands, ring, config, .. } = &*shared;
        if !self.batch.chunks.is_empty() {
            // The pause after the failure was the rest.
            return;
        }
        if let Some(batch) = config.batch {
            self.sleep();
            let deadline = batch.flush.map(|flush| Instant::now() + flush);
            let remaining = || deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            // A wake-up may be left over from an earlier line, so the conditions are checked again.
            while ring.is_pending()
                && !self.shared.is_batch_full()
                && !commands.has_pending()
                && remaining() != Some(Duration::ZERO)
                && !shared.urgent.swap(false, SeqCst)
            {
                let is_due = || shared.is_batch_full() || shared.urgent.load(SeqCst);
                commands.sleep(SleepState::Linger, remaining(), is_due);
            }
        } else if idle || self.burst < BURST || self.is_prompt() {
            let since = Instant::now();
            self.sleep();
            self.burst = if since.elapsed() < BURST_GAP { self.burst.saturating_add(1) } else { 0 };
        } else {
            commands.sleep(SleepState::Linger, Some(LINGER), || self.shared.is_batch_full());
        }
    }

    /// Returns `true` if lines are written without waiting for more: each may need a file of its own anyway.
    fn is_prompt(&self) -> bool {
        matches!(self.output, Output::Files(_)) && self.last == 1
    }

    /// Waits for the next line, until dropped lines can be reported, or until a file is to be closed.
    fn sleep(&mut self) {
        let report_due = self.shared.counts.dropped.value() != self.dropped_known;
        let report = report_due.then_some(REPORT_DROPPED_EVERY);
        let sweep = match &mut self.output {
            Output::Files(files) => files.sweep(),
            Output::Stream(_) | Output::Syslog(_) | Output::Memory(_) => None,
        };
        let span = report.into_iter().chain(sweep).min();
        self.shared.commands.sleep(SleepState::Sleep, span, || self.shared.ring.is_pending());
    }

    /// Writes a batch. Bytes that a stream does not accept stay in the batch.
    fn write_batch(&mut self) -> Wrote {
        if self.batch.chunks.is_empty() {
            return Wrote::All;
        }
        match &self.output {
            Output::Stream(_) => self.write_stream(),
            Output::Syslog(_) => self.send(),
            Output::Memory(_) | Output::Files(_) => self.write_messages(),
        }
    }

    /// The batch is over.
    fn finish(&mut self) -> Wrote {
        self.shared.counts.written_lines.add(self.batch.lines - self.lost);
        self.shared.counts.dropped.add(self.lost);
        // Lines lost by a failure were reported with the failure.
        self.dropped_known += self.lost;
        self.last = self.batch.lines;
        self.shared.ring.give_back(&mut self.batch);
        self.flat.clear();
        if self.flat.capacity() > FLAT_KEEP {
            self.flat = Vec::new();
        }
        (self.written_len, self.done, self.lost) = (0, 0, 0);
        Wrote::All
    }

    fn write_stream(&mut self) -> Wrote {
        let level = self.shared.config.batch.and_then(|batch| batch.gzip);
        if let Some(level) = level
            && self.flat.is_empty()
        {
            match gzip::member(level, self.batch.chunks.iter().map(Chunk::bytes)) {
                Ok(member) => self.flat = member,
                // A Vec takes every byte: this does not happen.
                Err(_) => {
                    self.lost = self.batch.lines;
                    return self.finish();
                }
            }
        }
        loop {
            let Output::Stream(file) = &self.output else { return self.finish() };
            let parts = self.parts();
            if parts.is_empty() {
                return self.finish();
            }
            match writev(file, &parts) {
                Ok(n) => {
                    self.written_len += n;
                    self.shared.counts.written_bytes.add(n as u64);
                }
                Err(Errno::INTR) => {}
                // Another process made the open file description non-blocking: it is a terminal or a pipe that is
                // shared.
                Err(Errno::AGAIN) => {
                    if !is_writable(file.as_fd()) && self.shared.commands.has_pending() {
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
        if !self.flat.is_empty() {
            let rest = &self.flat[self.written_len..];
            return if rest.is_empty() { Vec::new() } else { vec![IoSlice::new(rest)] };
        }
        let mut skip = self.written_len;
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

    /// Brings the messages of the batch into one piece.
    fn flatten(&mut self) {
        if self.flat.is_empty() {
            self.batch.chunks.iter().for_each(|chunk| self.flat.extend_from_slice(chunk.bytes()));
        }
    }

    /// Sends every message of the batch. One that fails is lost; a server that does not take any now is waited for.
    fn send(&mut self) -> Wrote {
        self.flatten();
        while let Some(message) = frame::at(&self.flat, self.written_len) {
            let Output::Syslog(server) = &mut self.output else { break };
            let len = message.len();
            match server.send(message) {
                SendResult::Busy => {
                    if !server.fd().is_some_and(is_writable) && self.shared.commands.has_pending() {
                        return Wrote::Part;
                    }
                    continue;
                }
                SendResult::Yes => self.shared.counts.written_bytes.add(len as u64),
                SendResult::Anew(error) => {
                    self.shared.counts.written_bytes.add(len as u64);
                    self.report_failed_send(&error);
                }
                SendResult::No(error) => {
                    self.lost += 1;
                    self.report_failed_send(&error);
                }
            }
            self.done += 1;
            self.written_len += frame::HEAD + len;
        }
        self.finish()
    }

    /// Reports that the server could not be reached, unless that was reported recently.
    fn report_failed_send(&mut self, failed: &SendError) {
        self.shared.counts.failed.add(1);
        if is_due(&mut self.failure_reported, REPORT_EVERY)
            && let Target::Syslog(server) = &self.shared.target
        {
            let call = failed.call;
            let errno = tw_base::Errno::from(&failed.error);
            self.report_failure(
                failed.level(),
                format_args!("{call} failed ({errno}) while logging to syslog, server: {server}"),
            );
        }
    }

    /// Writes messages to where each is done with at once, whether it can be written or not.
    fn write_messages(&mut self) -> Wrote {
        self.flatten();
        let mut failures = Vec::new();
        match &mut self.output {
            Output::Files(files) => {
                let bytes = files.write(&self.flat, |lost| {
                    self.lost += lost.lines;
                    failures.push(lost);
                });
                self.shared.counts.written_bytes.add(bytes);
            }
            Output::Memory(memory) => match memory.write(frame::all(&self.flat)) {
                Ok(()) => self.shared.counts.written_bytes.add(self.flat.len() as u64),
                Err(errno) => {
                    self.lost = self.batch.lines;
                    self.shared.counts.failed.add(1);
                    self.report_failed_write(errno);
                }
            },
            Output::Stream(_) | Output::Syslog(_) => {}
        }
        self.shared.counts.failed.add(failures.len() as u64);
        failures.iter().for_each(|lost| self.report_lost(lost));
        self.finish()
    }

    fn report_lost(&mut self, lost: &LostLines) {
        let OpenFailure { errno, addition } = &lost.failure;
        let path = crate::Text(&lost.path);
        match lost.why {
            FailedOperation::Write => {
                if is_due(&mut self.failure_reported, REPORT_EVERY) {
                    self.report_failure(Level::Alert, format_args!("write() to \"{path}\" failed ({errno})"));
                }
            }
            FailedOperation::Root | FailedOperation::Open
                if !is_due(&mut self.files_reported, REPORT_FILES_EVERY) => {}
            FailedOperation::Root => {
                let message = format_args!("testing \"{path}\" existence failed ({errno})");
                self.report_failure(Level::Error, message);
            }
            FailedOperation::Open => {
                self.report_failure(
                    Level::Crit,
                    format_args!("open() \"{path}\" failed ({errno}){addition}"),
                );
            }
        }
    }

    fn go_on_in(&mut self, file: ReopenFile) {
        let opened = match (file, &self.shared.target, &mut self.output) {
            (ReopenFile::Open(file), ..) => Ok(file),
            (ReopenFile::Again, Target::File(path), _) => open_log(path),
            (ReopenFile::Again, _, Output::Files(files)) => return files.close(),
            (ReopenFile::Again, _, Output::Syslog(server)) => return server.close(),
            (ReopenFile::Again, _, Output::Stream(_) | Output::Memory(_)) => return,
        };
        match opened {
            Ok(file) => {
                // The old file is closed here: this thread may wait for its last blocks.
                self.output = Output::Stream(file);
                if !self.flat.is_empty() {
                    // Half a member of a gzip file is worth nothing.
                    self.written_len = 0;
                }
            }
            Err(error) => {
                self.shared.counts.failed.add(1);
                self.report_failure(Level::Emerg, format_args!("{error}"));
            }
        }
    }

    /// Reports that the log could not be written, unless that was reported recently.
    fn report_failed_write(&mut self, errno: Errno) {
        if is_due(&mut self.failure_reported, REPORT_EVERY) {
            let name = self.shared.name();
            let errno = tw_base::Errno::from(errno);
            self.report_failure(Level::Alert, format_args!("write() to \"{name}\" failed ({errno})"));
        }
    }

    /// Reports the number of dropped lines once there is room again, also to the error log itself.
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

    /// Writes to the error log, but not to the log that fails.
    fn report_failure(&self, level: Level, message: fmt::Arguments<'_>) {
        let log = self.shared.error_log().without(&self.shared);
        error_log::write_or_stderr(&log, level, message);
    }
}

fn is_writable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(&fd, PollFlags::OUT)];
    poll(&mut fds, Some(&POLL)).is_ok_and(|ready| ready > 0)
}

/// Returns `true` if `every` has passed since `last`, and sets `last` to now.
fn is_due(last: &mut Option<Instant>, every: Duration) -> bool {
    let now = Instant::now();
    let due = last.is_none_or(|last| now.duration_since(last) >= every);
    if due {
        *last = Some(now);
    }
    due
}
