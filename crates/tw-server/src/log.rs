//! Logs as the configuration names them: bound at load, opened only when the configuration goes live.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use tw_conf::{ConfError, Cx, Node};
use tw_log::{ErrorLog, Level, OpenError, Sink, SinkConfig, Sinks};

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
        Ok(Self { path: (!file.is("stderr")).then(|| cx.full_path(&file.bytes)), level })
    }
}

/// A log file that is opened when the configuration goes live; until then, lines go nowhere.
#[derive(Debug, Clone)]
pub struct SinkRef(Arc<Pending>);

#[derive(Debug)]
struct Pending {
    path: Option<PathBuf>,
    config: SinkConfig,
    sink: OnceLock<Sink>,
}

impl SinkRef {
    /// The open sink.
    pub fn sink(&self) -> Option<&Sink> {
        self.0.sink.get()
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
    /// The sink for a path; the settings of the first use of a path hold.
    pub fn sink(&mut self, path: Option<&Path>, config: SinkConfig) -> SinkRef {
        if let Some(known) = self.sinks.iter().find(|s| s.0.path.as_deref() == path) {
            return known.clone();
        }
        let sink =
            SinkRef(Arc::new(Pending { path: path.map(Path::to_owned), config, sink: OnceLock::new() }));
        self.sinks.push(sink.clone());
        sink
    }

    /// An error log with these targets.
    pub fn error_log(&mut self, targets: &[LogTarget]) -> SharedErrorLog {
        let sinks = targets
            .iter()
            .map(|target| (self.sink(target.path.as_deref(), SinkConfig::default()), target.level))
            .collect();
        let log = SharedErrorLog(Arc::new(Targets { sinks, log: OnceLock::new(), none: ErrorLog::none() }));
        self.error_logs.push(log.clone());
        log
    }

    /// Every log that is open.
    pub fn sinks(&self) -> impl Iterator<Item = &Sink> {
        self.sinks.iter().filter_map(SinkRef::sink)
    }

    /// Opens every log. Waits for the disk: the main thread only. On an error nothing else has changed.
    pub fn open(&self, sinks: &Sinks) -> Result<(), OpenError> {
        for pending in &self.sinks {
            let sink = match &pending.0.path {
                Some(path) => sinks.open(path, pending.0.config)?,
                None => sinks.stderr(pending.0.config)?,
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
