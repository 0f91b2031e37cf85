//! Sinks of the process: one per target and settings, shared by all generations of the configuration.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use tw_base::Errno;

use crate::commands::CloseResult;
use crate::ring::lock;
use crate::sink::{Sink, SinkConfig, WeakSink};
use crate::target::Target;
use crate::{ErrorLog, OpenError};

/// Sinks of the process, used by the main thread; clones share them. An unused sink is closed and forgotten.
#[derive(Debug, Clone)]
pub struct Sinks {
    open: Arc<Mutex<Open>>,
    /// Error log for failures of writers.
    reports: Arc<Mutex<ErrorLog>>,
}

#[derive(Debug, Default)]
struct Open {
    sinks: HashMap<(Target, SinkConfig), WeakSink>,
    /// Unused sinks whose writers may not have ended yet.
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
    /// A sink that is open with other settings stays beside the new one until it is unused.
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

    /// Descriptor that was handed over for a target.
    pub fn handed(&self, target: &Target) -> Option<io::Result<OwnedFd>> {
        self.lock().handed.get(target.path()?).map(OwnedFd::try_clone)
    }

    /// The sink of a file that a process with more privileges has opened.
    pub fn adopt(&self, path: &Path, file: OwnedFd, config: SinkConfig) -> Result<Sink, OpenError> {
        let target = Target::File(path.to_owned());
        self.get_or_open(&target, config, || {
            Ok(Sink::adopt(target.clone(), file, config, Arc::downgrade(&self.reports)))
        })
    }

    /// Replaces the files handed over by a process with more privileges: logs of these names use them instead of
    /// opening files, from now on and after [`Sinks::reopen`].
    pub fn hand_over(&self, files: impl IntoIterator<Item = (PathBuf, OwnedFd)>) {
        self.lock().handed = files.into_iter().collect();
    }

    /// Sets the error log for failures of writers. Before, and for failures of the error log itself, it is standard
    /// error.
    pub fn report_to(&self, log: ErrorLog) {
        *lock(&self.reports) = log;
    }

    /// Starts a writer thread for every sink, now and whenever one is opened. After the last `fork()`.
    pub fn start(&self) -> Result<(), OpenError> {
        self.lock().started = true;
        self.all().iter().try_for_each(start)
    }

    /// Makes every writer open its path again (log rotation), or continue in the file handed over for it. Does not
    /// wait.
    pub fn reopen(&self) {
        for sink in self.all() {
            match self.handed(sink.target()) {
                Some(Ok(file)) => sink.reopen_with(file),
                Some(Err(_)) | None => sink.reopen(),
            }
        }
    }

    /// Writes all queued lines and ends the writers, including those of unused sinks, waiting at most until
    /// `deadline` for all of them together.
    pub fn flush_and_close(&self, deadline: Instant) -> CloseResult {
        let used = self.all();
        let ended = used.iter().map(|sink| sink.flush_and_close(deadline)).collect::<Vec<_>>();
        let leaving = self.lock().forget_unused();
        let close_results = leaving.iter().map(|sink| sink.wait_closed(deadline)).collect::<Vec<_>>();
        self.lock().leaving = leaving;
        let is_late = ended.into_iter().chain(close_results).any(|closed| closed == CloseResult::Late);
        if is_late { CloseResult::Late } else { CloseResult::Written }
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
    /// Removes the unused sinks, and returns those whose writers have not ended.
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
