//! Sink: one destination of log lines, with its ring, its writer thread and its counters.

use std::borrow::Cow;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use tw_base::Counter;

use tw_base::Errno;

use crate::commands::{CloseResult, ReopenFile, WriterCommands};
use crate::files::{self, Opened};
use crate::memory::Cyclic;
use crate::output::Output;
use crate::ring::{PushEffect, PushResult, RING_SIZE_DEFAULT, Ring, lock};
use crate::syslog::Datagrams;
use crate::target::{Links, Target};
use crate::writer::Writer;
use crate::{ErrorLog, OpenError, frame};

/// Settings of a sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SinkConfig {
    /// Bytes that may wait to be written; rounded to chunks, at least [`crate::RING_SIZE_MIN`].
    pub ring_size: usize,
    /// nginx's `buffer=` and `flush=`; `None` writes as soon as possible.
    pub batch: Option<Batch>,
}

impl Default for SinkConfig {
    fn default() -> Self {
        Self { ring_size: RING_SIZE_DEFAULT, batch: None }
    }
}

/// Conditions for a batched write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Batch {
    /// Write when about this many bytes wait; at most half a ring, counted in chunks of a page or more.
    pub size: usize,
    /// Write at the latest this long after the first line; `None` waits for `size`, a reopen or the end.
    pub flush: Option<Duration>,
    /// nginx's `gzip=`: the level of compression, 1 to 9, by the writer thread.
    pub gzip: Option<u32>,
}

/// Counters of a sink since it was opened.
#[derive(Debug, Default)]
pub struct Counts {
    /// Lines written.
    pub written_lines: Counter,
    /// Bytes written.
    pub written_bytes: Counter,
    /// Lines dropped: the ring was full, or the log could not be written before the end.
    pub dropped: Counter,
    /// Calls of `write()` or `open()` that failed.
    pub failed: Counter,
}

/// A cheap handle to one log; clones share it. The writer thread ends, after a last write, when the last one is
/// dropped.
#[derive(Debug, Clone)]
pub struct Sink(Arc<Handle>);

/// Owner of an open log. The writer holds only [`Shared`], so dropping the last handle ends it.
#[derive(Debug)]
struct Handle(Arc<Shared>);

/// State shared by the threads that log and the writer.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) target: Target,
    pub(crate) config: SinkConfig,
    pub(crate) ring: Ring,
    pub(crate) counts: Counts,
    pub(crate) commands: WriterCommands,
    /// True if lines were added that must not wait for a batch to fill.
    pub(crate) urgent: AtomicBool,
    /// Log for failures of the writer; weak, because an error log holds sinks.
    pub(crate) reports: Weak<Mutex<ErrorLog>>,
}

impl Sink {
    /// Opens (and creates, 0644) what `target` names. Waits for the disk: main thread only.
    pub(crate) fn open(
        target: &Target,
        config: SinkConfig,
        reports: Weak<Mutex<ErrorLog>>,
    ) -> Result<Self, OpenError> {
        let failed = |call, error: &io::Error| OpenError {
            call,
            path: target.name().into_owned(),
            errno: Errno::from(error),
        };
        let output = match target {
            Target::Stderr => Output::Stream(
                io::stderr().as_fd().try_clone_to_owned().map_err(|error| failed("dup()", &error))?,
            ),
            Target::File(path) => Output::Stream(open_log(path)?),
            Target::Syslog(server) => Output::Syslog(Datagrams::new(server.clone())),
            Target::Memory(memory) => {
                Output::Memory(Cyclic::new(memory).map_err(|error| failed("memfd_create()", &error.into()))?)
            }
            Target::Files(files) => Output::Files(Opened::new(files)),
        };
        Ok(Self::new(target.clone(), output, config, reports))
    }

    /// Makes a sink for a descriptor that is already open.
    pub(crate) fn adopt(
        target: Target,
        file: OwnedFd,
        config: SinkConfig,
        reports: Weak<Mutex<ErrorLog>>,
    ) -> Self {
        Self::new(target, Output::Stream(file), config, reports)
    }

    fn new(target: Target, output: Output, config: SinkConfig, reports: Weak<Mutex<ErrorLog>>) -> Self {
        // The first use of the time zone reads files, which must not happen on a logging thread later.
        crate::time::zone();
        let ring = Ring::new(config.ring_size);
        let counts = Counts::default();
        let commands = WriterCommands::new(output);
        let urgent = AtomicBool::new(false);
        let shared = Shared { target, config, ring, counts, commands, urgent, reports };
        Self(Arc::new(Handle(Arc::new(shared))))
    }

    /// Copies one line, with its line feed, into the ring; a message without it, if the sink is a syslog server.
    /// Never waits; callable from any thread.
    pub fn push(&self, line: &[u8]) -> PushResult {
        self.push_parts(&[line])
    }

    /// Logs a line given in parts.
    pub fn push_parts(&self, parts: &[&[u8]]) -> PushResult {
        let shared = &self.0.0;
        if shared.target.is_framed() {
            let head = frame::head(parts.iter().map(|part| part.len()).sum());
            shared.push(&head, parts)
        } else {
            shared.push(&[], parts)
        }
    }

    /// A line that does not wait for a batch to fill: of an error log that shares the file of an access log.
    pub(crate) fn push_urgent(&self, parts: &[&[u8]]) -> PushResult {
        let pushed = self.push_parts(parts);
        if self.0.0.config.batch.is_some() && pushed == PushResult::Queued {
            self.0.0.urgent.store(true, SeqCst);
            return self.0.0.commands.lines_added(true);
        }
        pushed
    }

    /// Queues a line for the file at `path`, if the sink is one of [`Target::Files`]. It is written only if the
    /// directory `root` exists, and the path satisfies `links`. `path` has no NUL.
    pub fn push_to(&self, path: &[u8], root: &[u8], links: Links, line: &[u8]) -> PushResult {
        self.push_parts(&[&files::head(path, root, links), path, root, line])
    }

    /// Starts the writer thread, once. Lines pushed before wait in the ring.
    pub(crate) fn start(&self) -> io::Result<()> {
        Writer::start(&self.0.0)
    }

    /// Makes the writer thread open its files again after the queued lines (log rotation). Does not wait.
    pub fn reopen(&self) {
        self.0.0.commands.reopen(ReopenFile::Again);
    }

    /// Continues in `file`, which a process with more privileges has opened. Does not wait.
    pub fn reopen_with(&self, file: OwnedFd) {
        self.0.0.commands.reopen(ReopenFile::Open(file));
    }

    /// Writes the queued lines and ends the writer, waiting at most until `deadline`; later lines are dropped.
    ///
    /// Waits for the disk: not on a loop thread.
    pub fn flush_and_close(&self, deadline: Instant) -> CloseResult {
        // A log that was never started, as in a test of the configuration, still gets its lines.
        if self.0.0.ring.is_pending() && self.start().is_err() {
            return CloseResult::Late;
        }
        self.0.0.commands.close();
        self.0.0.commands.wait_closed(deadline)
    }

    /// Counters of the sink.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.0.0.counts
    }

    /// Target of the sink.
    pub(crate) fn target(&self) -> &Target {
        &self.0.0.target
    }

    /// The path as configured, or what else it is called.
    #[must_use]
    pub fn name(&self) -> Cow<'_, str> {
        self.0.0.name()
    }

    /// Returns `true` if this is a handle to the sink of `shared`.
    pub(crate) fn is(&self, shared: &Shared) -> bool {
        std::ptr::eq(&raw const *self.0.0, shared)
    }

    /// A handle that does not keep the log open.
    pub(crate) fn downgrade(&self) -> WeakSink {
        WeakSink { handle: Arc::downgrade(&self.0), shared: Arc::downgrade(&self.0.0) }
    }
}

/// See [`Sink::downgrade`].
#[derive(Debug)]
pub(crate) struct WeakSink {
    handle: Weak<Handle>,
    /// Outlives the last handle until the writer has ended.
    shared: Weak<Shared>,
}

impl WeakSink {
    /// The sink, if it is still in use.
    pub(crate) fn upgrade(&self) -> Option<Sink> {
        self.handle.upgrade().map(Sink)
    }

    /// Returns `true` if the sink is unused and its writer has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.shared.strong_count() == 0
    }

    /// Waits until the writer of an unused sink has ended, at most until `deadline`.
    pub(crate) fn wait_closed(&self, deadline: Instant) -> CloseResult {
        self.shared.upgrade().map_or(CloseResult::Written, |shared| shared.commands.wait_closed(deadline))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.commands.close();
    }
}

impl Shared {
    pub(crate) fn name(&self) -> Cow<'_, str> {
        self.target.name()
    }

    fn push(&self, head: &[u8], parts: &[&[u8]]) -> PushResult {
        let pushed = match self.ring.push(head, parts) {
            PushEffect::Appended => self.commands.lines_added(false),
            PushEffect::Grew => self.commands.lines_added(self.is_batch_full()),
            PushEffect::Full => PushResult::Dropped,
        };
        if pushed == PushResult::Dropped {
            self.counts.dropped.add(1);
        }
        pushed
    }

    /// Error log for failures of this log.
    pub(crate) fn error_log(&self) -> ErrorLog {
        self.reports.upgrade().map_or_else(ErrorLog::none, |log| lock(&log).clone())
    }

    /// Returns `true` if enough lines are queued that the writer should not linger.
    pub(crate) fn is_batch_full(&self) -> bool {
        let half = self.ring.size() / 2;
        self.ring.used_size() > self.config.batch.map_or(half, |batch| batch.size.min(half))
    }
}

/// Opens a log for appending, creating it if it is missing; the error is worded as nginx does. Waits for the disk.
///
/// A name of our own standard output or error (`/dev/stdout`, or a link to it) is that descriptor again, unless it is
/// a plain file: a socket has no name to be opened by, and a pipe may belong to the user who started us.
pub fn open_log(path: &Path) -> Result<OwnedFd, OpenError> {
    let opened = match standard_stream(path) {
        Some(stream) => stream,
        None => open_for_appending(path),
    };
    opened.map_err(|error| OpenError {
        call: "open()",
        path: path.to_string_lossy().into_owned(),
        errno: Errno::from(&error),
    })
}

// DIFF(nginx): a pipe that nobody reads is opened all the same, and takes lines until it is full. Who opens logs does not wait.
/// Opens what has this name, or makes a file of it. Writing to it waits, opening does not.
fn open_for_appending(path: &Path) -> io::Result<OwnedFd> {
    const NXIO: i32 = rustix::io::Errno::NXIO.raw_os_error();
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o644);
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    options.custom_flags(i32::from_ne_bytes(flags.bits().to_ne_bytes()));
    let opened = options.open(path).or_else(|error| match error.raw_os_error() {
        // Opening a pipe for reading, too, makes it its own reader, so that it can be written to.
        Some(NXIO) => options.read(true).open(path),
        _ => Err(error),
    });
    let log = OwnedFd::from(opened?);
    fcntl_setfl(&log, fcntl_getfl(&log)? - OFlags::NONBLOCK)?;
    Ok(log)
}

// DIFF(nginx): such a name is the stream itself, whatever it is and whoever owns it.
/// The standard output or error that `path` leads to. Plain files are opened: for an offset of their own, and again
/// after they were rotated.
fn standard_stream(path: &Path) -> Option<io::Result<OwnedFd>> {
    let metadata = fs::metadata(path).ok().filter(|metadata| !metadata.is_file())?;
    let is_it = |stream: &BorrowedFd<'_>| {
        rustix::fs::fstat(stream)
            .is_ok_and(|stream| (stream.st_dev, stream.st_ino) == (metadata.dev(), metadata.ino()))
    };
    let stdout = io::stdout();
    let stderr = io::stderr();
    let stream = [stdout.as_fd(), stderr.as_fd()].into_iter().find(is_it)?;
    Some(stream.try_clone_to_owned())
}
