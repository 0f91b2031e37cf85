//! Logs as the configuration names them: bound at load, opened only when the configuration goes live.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use tw_conf::{ConfError, Cx, Node};
use tw_log::{Batch, ErrorLog, Level, OpenError, RING_SIZE_DEFAULT, Sink, SinkConfig, Sinks};

/// One `error_log`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogTarget {
    /// The file; `None` is standard error.
    pub path: Option<PathBuf>,
    /// Lines at this level and worse are written.
    pub level: Level,
}

impl LogTarget {
    /// Reads `file [level]`.
    pub fn parse(node: &Node, cx: &Cx<'_>) -> Result<Self, ConfError> {
        let file = node.arg(0)?;
        for unsupported in ["syslog:", "memory:"] {
            if file.bytes.starts_with(unsupported.as_bytes()) {
                let message =
                    format!("\"error_log {unsupported}\" is not supported by this version of Tailwater");
                return Err(node.fail(message));
            }
        }
        let level = match node.args.get(1) {
            None => Level::Error,
            Some(word) => {
                Level::parse(&word.bytes).ok_or_else(|| node.fail(format!("invalid log level \"{word}\"")))?
            }
        };
        Ok(Self::new(&file.bytes, level, cx))
    }

    /// A file, relative to the prefix, or `stderr`.
    pub fn new(file: &[u8], level: Level, cx: &Cx<'_>) -> Self {
        Self { path: (file != b"stderr").then(|| cx.full_path(file)), level }
    }
}

/// A log file that is opened when the configuration goes live; until then, lines go nowhere.
#[derive(Debug, Clone)]
pub struct SinkRef(Arc<Pending>);

#[derive(Debug)]
struct Pending {
    path: Option<PathBuf>,
    batch: OnceLock<Batch>,
    sink: OnceLock<Sink>,
}

/// A file was named before with another buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OtherBatch;

impl SinkRef {
    /// The open sink.
    pub fn sink(&self) -> Option<&Sink> {
        self.0.sink.get()
    }
}

impl Pending {
    /// A batch is at most half a ring: it has room in one that is twice as large.
    fn config(&self) -> SinkConfig {
        let batch = self.batch.get().copied();
        let ring_size = batch.map_or(0, |batch| batch.size.saturating_mul(2)).max(RING_SIZE_DEFAULT);
        SinkConfig { ring_size, batch }
    }
}

/// An error log shared by the locations that inherit it.
#[derive(Debug, Clone)]
pub struct SharedErrorLog(Arc<Targets>);

#[derive(Debug)]
struct Targets {
    sinks: Vec<(SinkRef, Level)>,
    log: OnceLock<ErrorLog>,
    none: ErrorLog,
}

impl std::ops::Deref for SharedErrorLog {
    type Target = ErrorLog;

    fn deref(&self) -> &ErrorLog {
        self.0.log.get().unwrap_or(&self.0.none)
    }
}

/// All logs a configuration names.
#[derive(Default)]
pub struct Logs {
    sinks: Vec<SinkRef>,
    error_logs: Vec<SharedErrorLog>,
}

impl Logs {
    /// The sink for a path; `None` is standard error.
    pub fn sink(&mut self, path: Option<&Path>) -> SinkRef {
        if let Some(known) = self.sinks.iter().find(|s| s.0.path.as_deref() == path) {
            return known.clone();
        }
        let pending =
            Pending { path: path.map(Path::to_owned), batch: OnceLock::new(), sink: OnceLock::new() };
        let sink = SinkRef(Arc::new(pending));
        self.sinks.push(sink.clone());
        sink
    }

    /// The sink for a path whose lines are written in batches, whoever else names it.
    pub fn batched(&mut self, path: &Path, batch: Batch) -> Result<SinkRef, OtherBatch> {
        let sink = self.sink(Some(path));
        if *sink.0.batch.get_or_init(|| batch) == batch { Ok(sink) } else { Err(OtherBatch) }
    }

    /// An error log with these targets.
    pub fn error_log(&mut self, targets: &[LogTarget]) -> SharedErrorLog {
        let sinks = targets.iter().map(|target| (self.sink(target.path.as_deref()), target.level)).collect();
        let log = SharedErrorLog(Arc::new(Targets { sinks, log: OnceLock::new(), none: ErrorLog::none() }));
        self.error_logs.push(log.clone());
        log
    }

    /// Every log that is open.
    pub fn sinks(&self) -> impl Iterator<Item = &Sink> {
        self.sinks.iter().filter_map(SinkRef::sink)
    }

    /// The files of all logs, each once.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.sinks.iter().filter_map(|sink| sink.0.path.as_deref())
    }

    /// Opens every log. Waits for the disk: the main thread only. On an error nothing else has changed.
    pub fn open(&self, sinks: &Sinks) -> Result<(), OpenError> {
        for pending in &self.sinks {
            let sink = match &pending.0.path {
                Some(path) => sinks.open(path, pending.0.config())?,
                None => sinks.stderr(pending.0.config())?,
            };
            // Opening twice is harmless: the first one stays.
            let _ = pending.0.sink.set(sink);
        }
        for log in &self.error_logs {
            let targets =
                log.0.sinks.iter().filter_map(|(s, level)| Some((s.sink()?.clone(), *level))).collect();
            let _ = log.0.log.set(ErrorLog::new(targets));
        }
        Ok(())
    }
}
