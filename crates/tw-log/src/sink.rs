//! One place that log lines go to: its ring, its writer thread, its counts.

use std::borrow::Cow;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use tw_base::Counter;

use crate::orders::{Closed, NewFile, Orders};
use crate::ring::{Push, Pushed, RING_SIZE_DEFAULT, Ring, lock};
use crate::writer::Writer;
use crate::{Errno, ErrorLog, OpenError};

/// Settings of a sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

/// When to write, if not at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch {
    /// Write when about this many bytes wait; at most half a ring, counted in chunks of a page or more.
    pub size: usize,
    /// Write at the latest this long after the first line; `None` waits for `size`, a reopen or the end.
    pub flush: Option<Duration>,
}

/// What happened to the lines of a sink since it was opened.
#[derive(Debug, Default)]
pub struct Counts {
    /// Lines written.
    pub written: Counter,
    /// Bytes written.
    pub written_bytes: Counter,
    /// Lines dropped: the ring was full, or the log could not be written before the end.
    pub dropped: Counter,
    /// Calls of `write()` or `open()` that failed.
    pub failed: Counter,
}

/// A cheap handle to one log; clones share it. The writer thread ends, after a last write, when the last one is dropped.
#[derive(Debug, Clone)]
pub struct Sink(Arc<Handle>);

/// What keeps a log open. The writer holds only [`Shared`], so that dropping this ends it.
#[derive(Debug)]
struct Handle(Arc<Shared>);

/// What the threads that log and the writer have in common.
#[derive(Debug)]
pub(crate) struct Shared {
    /// `None` is standard error.
    pub(crate) path: Option<PathBuf>,
    pub(crate) config: SinkConfig,
    pub(crate) ring: Ring,
    pub(crate) counts: Counts,
    pub(crate) orders: Orders,
    /// Where the writer reports failures; weak, because an error log holds sinks.
    pub(crate) reports: Weak<Mutex<ErrorLog>>,
}

impl Sink {
    /// Opens (and creates, 0644) the file at `path` for appending. Waits for the disk: main thread only.
    pub(crate) fn open(
        path: &Path,
        config: SinkConfig,
        reports: Weak<Mutex<ErrorLog>>,
    ) -> Result<Self, OpenError> {
        let file = open_log(path)?;
        Ok(Self::adopt(Some(path.to_owned()), file, config, reports))
    }

    /// A sink for a descriptor that somebody else opened.
    pub(crate) fn adopt(
        path: Option<PathBuf>,
        file: OwnedFd,
        config: SinkConfig,
        reports: Weak<Mutex<ErrorLog>>,
    ) -> Self {
        // The first use of the zone reads files; this is the last moment when that disturbs nobody.
        crate::time::zone();
        let ring = Ring::new(config.ring_size);
        let shared =
            Shared { path, config, ring, counts: Counts::default(), orders: Orders::new(file), reports };
        Self(Arc::new(Handle(Arc::new(shared))))
    }

    /// Copies one line, with its line feed, into the ring. Never waits, whatever the log does; any thread.
    pub fn push(&self, line: &[u8]) -> Pushed {
        self.0.0.push(line)
    }

    /// Starts the writer thread, once. Lines pushed before wait in the ring.
    pub(crate) fn start(&self) -> io::Result<()> {
        Writer::start(&self.0.0)
    }

    /// Lets the writer thread open the path again after what is queued (log rotation). Does not wait.
    pub fn reopen(&self) {
        if let Some(path) = &self.0.0.path {
            self.0.0.orders.reopen(NewFile::Path(path.clone()));
        }
    }

    /// Goes on in `file`, which somebody with more rights has opened. Does not wait.
    pub fn reopen_with(&self, file: OwnedFd) {
        self.0.0.orders.reopen(NewFile::Open(file));
    }

    /// Writes what is queued and ends the writer, but waits at most until `deadline`; later lines are dropped.
    ///
    /// Returns whether all was written. Waits for the disk: not on a loop thread.
    pub fn flush_and_close(&self, deadline: Instant) -> Closed {
        // A log that was never started, as in a test of the configuration, still gets its lines.
        if self.0.0.ring.is_pending() && self.start().is_err() {
            return Closed::Late;
        }
        self.0.0.orders.close();
        self.0.0.orders.wait_closed(deadline)
    }

    /// What happened to its lines so far.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.0.0.counts
    }

    /// The path as configured, or `stderr`.
    #[must_use]
    pub fn name(&self) -> Cow<'_, str> {
        self.0.0.name()
    }

    /// Whether this is a handle to the sink of `shared`.
    pub(crate) fn is(&self, shared: &Shared) -> bool {
        std::ptr::eq(&raw const *self.0.0, shared)
    }

    /// A handle that does not keep the log open.
    pub(crate) fn downgrade(&self) -> WeakSink {
        WeakSink(Arc::downgrade(&self.0))
    }
}

/// See [`Sink::downgrade`].
#[derive(Debug)]
pub(crate) struct WeakSink(Weak<Handle>);

impl WeakSink {
    /// The sink, if somebody still uses it.
    pub(crate) fn upgrade(&self) -> Option<Sink> {
        self.0.upgrade().map(Sink)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.orders.close();
    }
}

impl Shared {
    pub(crate) fn name(&self) -> Cow<'_, str> {
        self.path.as_deref().map_or(Cow::Borrowed("stderr"), Path::to_string_lossy)
    }

    fn push(&self, line: &[u8]) -> Pushed {
        let pushed = match self.ring.push(line) {
            Push::Appended => self.orders.lines_came(false),
            Push::Grew => self.orders.lines_came(self.is_batch_full()),
            Push::Full => Pushed::Dropped,
        };
        if pushed == Pushed::Dropped {
            self.counts.dropped.add(1);
        }
        pushed
    }

    /// Where failures of this log are reported now.
    pub(crate) fn error_log(&self) -> ErrorLog {
        self.reports.upgrade().map_or_else(ErrorLog::none, |log| lock(&log).clone())
    }

    /// Whether so much waits that the writer should not linger.
    pub(crate) fn is_batch_full(&self) -> bool {
        let half = self.ring.size() / 2;
        self.ring.used_size() > self.config.batch.map_or(half, |batch| batch.size.min(half))
    }
}

/// Opens a log for appending, creating it; the error reads as nginx words it.
pub(crate) fn open_log(path: &Path) -> Result<OwnedFd, OpenError> {
    let opened = OpenOptions::new().append(true).create(true).mode(0o644).open(path);
    opened.map(OwnedFd::from).map_err(|error| OpenError {
        call: "open()",
        path: path.to_string_lossy().into_owned(),
        errno: Errno::from(&error),
    })
}
