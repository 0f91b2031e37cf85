//! All sinks of the process: one per target and settings, whoever asks, in whatever generation of the configuration.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use tw_base::Errno;

use crate::orders::Closed;
use crate::ring::lock;
use crate::sink::{Sink, SinkConfig, WeakSink};
use crate::target::Target;
use crate::{ErrorLog, OpenError};

/// The sinks of the process, for the main thread; a clone leads to the same. A sink nobody uses any more is closed and forgotten.
#[derive(Debug, Clone)]
pub struct Sinks {
    open: Arc<Mutex<Open>>,
    /// Where writers report failures of their logs.
    reports: Arc<Mutex<ErrorLog>>,
}

#[derive(Debug, Default)]
struct Open {
    sinks: HashMap<(Target, SinkConfig), WeakSink>,
    /// Those that nobody uses any more, and whose writers may not have ended yet.
    leaving: Vec<WeakSink>,
    handed: HashMap<PathBuf, OwnedFd>,
    started: bool,
}

impl Default for Sinks {
    fn default() -> Self {
        Self::new()
    }
}

impl Sinks {
    /// No sinks yet, and no writer threads before [`Sinks::start`].
    #[must_use]
    pub fn new() -> Self {
        Self { open: Arc::default(), reports: Arc::new(Mutex::new(ErrorLog::none())) }
    }

    /// The sink that appends to the file at `path`, opened and created (0644) if it is new. Waits for the disk.
    pub fn open(&self, path: &Path, config: SinkConfig) -> Result<Sink, OpenError> {
        self.get(&Target::File(path.to_owned()), config)
    }

    /// The sink that writes to `target`, opened if it is new. Waits for the disk.
    ///
    /// One that is open with other settings stays as it is, beside the new one, until nobody uses it any more.
    pub fn get(&self, target: &Target, config: SinkConfig) -> Result<Sink, OpenError> {
        if let Some(file) = self.handed(target) {
            let file = file.map_err(|error| OpenError {
                call: "dup()",
                path: target.name().into_owned(),
                errno: Errno::from(&error),
            })?;
            return self.get_or_open(target, config, || {
                Ok(Sink::adopt(target.clone(), file, config, Arc::downgrade(&self.reports)))
            });
        }
        self.get_or_open(target, config, || Sink::open(target, config, Arc::downgrade(&self.reports)))
    }

    /// What was handed over for a target.
    pub fn handed(&self, target: &Target) -> Option<io::Result<OwnedFd>> {
        self.lock().handed.get(target.path()?).map(OwnedFd::try_clone)
    }

    /// The same for a file that somebody with more rights has opened.
    pub fn adopt(&self, path: &Path, file: OwnedFd, config: SinkConfig) -> Result<Sink, OpenError> {
        let target = Target::File(path.to_owned());
        self.get_or_open(&target, config, || {
            Ok(Sink::adopt(target.clone(), file, config, Arc::downgrade(&self.reports)))
        })
    }

    /// Files that somebody with more rights has opened, in the place of those handed over before: logs of these names
    /// go there instead of being opened, from now on and after [`Sinks::reopen`].
    pub fn hand_over(&self, files: impl IntoIterator<Item = (PathBuf, OwnedFd)>) {
        self.lock().handed = files.into_iter().collect();
    }

    /// Where writers report failures of their logs from now on; before, and for the error log's own failures, it is
    /// standard error.
    pub fn report_to(&self, log: ErrorLog) {
        *lock(&self.reports) = log;
    }

    /// Starts a writer thread for every sink, now and whenever one is opened. After the last `fork()`.
    pub fn start(&self) -> Result<(), OpenError> {
        self.lock().started = true;
        self.all().iter().try_for_each(start)
    }

    /// Lets every writer open its path again (log rotation), or go on in what was handed over for it. Does not wait.
    pub fn reopen(&self) {
        for sink in self.all() {
            match self.handed(sink.target()) {
                Some(Ok(file)) => sink.reopen_with(file),
                Some(Err(_)) | None => sink.reopen(),
            }
        }
    }

    /// Writes what is queued and ends the writers, waiting at most until `deadline` for all of them together; also for those
    /// of sinks that nobody uses any more, which are ending already.
    pub fn flush_and_close(&self, deadline: Instant) -> Closed {
        let used = self.all();
        let ended = used.iter().map(|sink| sink.flush_and_close(deadline)).collect::<Vec<_>>();
        let leaving = self.lock().forget_unused();
        let left = leaving.iter().map(|sink| sink.wait_closed(deadline)).collect::<Vec<_>>();
        self.lock().leaving = leaving;
        let is_late = ended.into_iter().chain(left).any(|closed| closed == Closed::Late);
        if is_late { Closed::Late } else { Closed::Written }
    }

    /// Every sink in use, in no order: for metrics and for handing descriptors over.
    #[must_use]
    pub fn all(&self) -> Vec<Sink> {
        self.lock().sinks.values().filter_map(WeakSink::upgrade).collect()
    }

    fn get_or_open(
        &self,
        target: &Target,
        config: SinkConfig,
        make: impl FnOnce() -> Result<Sink, OpenError>,
    ) -> Result<Sink, OpenError> {
        let mut open = self.lock();
        let leaving = open.forget_unused();
        open.leaving = leaving;
        let key = (target.clone(), config);
        if let Some(sink) = open.sinks.get(&key).and_then(WeakSink::upgrade) {
            return Ok(sink);
        }
        let sink = make()?;
        if open.started {
            start(&sink)?;
        }
        open.sinks.insert(key, sink.downgrade());
        Ok(sink)
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        lock(&self.open)
    }
}

impl Open {
    /// Takes out what nobody uses any more and has not ended yet.
    fn forget_unused(&mut self) -> Vec<WeakSink> {
        let mut leaving = std::mem::take(&mut self.leaving);
        let unused = self.sinks.extract_if(|_, sink| sink.upgrade().is_none());
        leaving.extend(unused.map(|(_, sink)| sink));
        leaving.retain(|sink| !sink.is_over());
        leaving
    }
}

fn start(sink: &Sink) -> Result<(), OpenError> {
    sink.start().map_err(|error| failed(sink, &error))
}

fn failed(sink: &Sink, error: &io::Error) -> OpenError {
    OpenError { call: "pthread_create()", path: sink.name().into_owned(), errno: Errno::from(error) }
}
