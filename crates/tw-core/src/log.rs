//! Logs as the configuration names them: bound at load, opened only when the configuration goes live.

mod session_log;
mod syslog;
mod tag;

use std::path::Path;
use std::sync::{Arc, OnceLock};

use tw_conf::{ConfError, Cx, Node, Word, units};
use tw_log::{
    Batch, ErrorLog, ErrorTarget, JSON_LINE_MAX, LINE_MAX, Level, LineFormat, MEMORY_SIZE_MIN, Memory,
    OpenError, OpenFailure, Opener, RING_SIZE_DEFAULT, Sink, SinkConfig, Sinks, SyslogHead, Target,
};

pub use session_log::{LogPlan, LoggedSession, SessionLogger};
pub use syslog::Syslog;
pub use tag::{LogTag, LogTags, RawLogTag, visit_tags};

/// One `error_log`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogTarget {
    /// Target of the lines.
    pub target: Target,
    /// Lines at this level and worse are written.
    pub level: Level,
    /// Header of each message, if the target is a syslog server.
    pub syslog: Option<SyslogHead>,
    /// Format of the lines.
    pub format: LineFormat,
}

impl LogTarget {
    /// Reads `file [level] [json]`.
    pub fn parse(node: &Node, cx: &Cx<'_>) -> Result<Self, ConfError> {
        let file = node.arg(0)?;
        let (formats, levels): (Vec<_>, Vec<_>) =
            node.args.iter().skip(1).cloned().partition(|word| word.is("json"));
        let format = match &formats[..] {
            [] => LineFormat::Text,
            [_] => LineFormat::Json,
            [_, again, ..] => return Err(node.fail("duplicate log format \"json\"").at(again.span)),
        };
        let level = read_level(&levels)?;
        if let Some(text) = file.bytes.strip_prefix(b"syslog:") {
            let Syslog { server, head, .. } = Syslog::parse(text).map_err(|message| node.fail(message))?;
            return Ok(Self { target: Target::Syslog(server), level, syslog: Some(head), format });
        }
        let Some(size) = file.bytes.strip_prefix(b"memory:") else {
            return Ok(Self { format, ..Self::new(&file.bytes, level, cx) });
        };
        // DIFF(nginx): the buffer is a file in memory: it is read through /proc while the server runs, without a debugger.
        let bytes = units::size(size).and_then(|size| usize::try_from(size).ok());
        // A line has room.
        let least = match format {
            LineFormat::Text => MEMORY_SIZE_MIN,
            LineFormat::Json => MEMORY_SIZE_MIN - LINE_MAX + JSON_LINE_MAX,
        };
        let bytes = bytes.filter(|size| *size >= least).ok_or_else(|| {
            let size = String::from_utf8_lossy(size);
            node.fail(format!("invalid buffer size \"{size}\"")).hint(format!("at least {least} bytes"))
        })?;
        let name = format!("error_log memory{}", cx.sources.tail(node.span));
        Ok(Self { target: Target::Memory(Memory { name, size: bytes }), level, syslog: None, format })
    }

    /// A file, relative to the prefix, or `stderr`.
    pub fn new(file: &[u8], level: Level, cx: &Cx<'_>) -> Self {
        let target = match file {
            b"stderr" => Target::Stderr,
            file => Target::File(cx.full_path(file)),
        };
        Self { target, level, syslog: None, format: LineFormat::Text }
    }

    /// The target as an error log writes to it.
    pub fn with_sink(&self, sink: Sink) -> ErrorTarget {
        ErrorTarget { sink, level: self.level, syslog: self.syslog.clone(), format: self.format }
    }

    /// Returns true for a file or standard error, as opposed to targets that may lose all lines.
    pub fn is_stream(&self) -> bool {
        matches!(self.target, Target::Stderr | Target::File(_))
    }
}

/// The steps of nginx that have a debug level of their own.
const DEBUG_PARTS: [&str; 7] =
    ["debug_core", "debug_alloc", "debug_mutex", "debug_event", "debug_http", "debug_mail", "debug_stream"];

/// The level of the words behind a log: one level, or parts of `debug`. Our steps are all those of http.
fn read_level(words: &[Word]) -> Result<Level, ConfError> {
    let mut level = None;
    let mut parts: Vec<&str> = Vec::new();
    for word in words {
        let fail = |what: &str| Err(ConfError::new(format!("{what} log level \"{word}\"")).at(word.span));
        if let Some(found_level) = Level::parse(&word.bytes) {
            if level.is_some() || !parts.is_empty() {
                return fail("duplicate");
            }
            level = Some(found_level);
        } else if let Some(part) = DEBUG_PARTS.into_iter().find(|part| word.is(part)) {
            if level.is_some() {
                return fail("invalid");
            }
            parts.push(part);
        } else {
            return fail("invalid");
        }
    }
    Ok(match (level, &parts[..]) {
        (Some(level), _) => level,
        (None, []) => Level::Error,
        (None, parts) if parts.contains(&"debug_http") => Level::Debug,
        (None, _) => Level::Info,
    })
}

/// Opens the files of logs with variables in their path.
pub const OPENER: Opener = Opener(|path, links| {
    let links = match links {
        tw_log::Links::Follow => tw_disk::Links::Follow,
        tw_log::Links::Refuse(from) => tw_disk::Links::Refuse { from },
        tw_log::Links::SameOwner(from) => tw_disk::Links::SameOwner { from },
    };
    tw_disk::open_log(path, links).map_err(|errno| OpenFailure {
        errno: errno.into(),
        addition: tw_disk::sandbox_denial(tw_disk::Op::Create, errno, path),
    })
});

/// Opens files as [`OPENER`] does, and creates the directories that they need.
pub const DIRECTORY_OPENER: Opener = Opener(|path, links| {
    let opened = (OPENER.0)(path, links);
    match opened {
        Err(OpenFailure { errno, .. }) if errno.0 == rustix::io::Errno::NOENT.raw_os_error() => {}
        opened => return opened,
    }
    tw_disk::make_log_directories(path).map_err(|errno| OpenFailure {
        errno: errno.into(),
        addition: tw_disk::sandbox_denial(tw_disk::Op::Create, errno, path),
    })?;
    (OPENER.0)(path, links)
});

/// A log that is opened when the configuration goes live; until then, lines go nowhere.
#[derive(Debug, Clone)]
pub struct SinkRef(Arc<Pending>);

#[derive(Debug)]
struct Pending {
    target: Target,
    batch: OnceLock<Batch>,
    sink: OnceLock<Sink>,
}

/// A file was named before with another buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchConflict;

impl SinkRef {
    /// Target of the sink.
    pub fn target(&self) -> &Target {
        &self.0.target
    }

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
    targets: Vec<(SinkRef, LogTarget)>,
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
    /// The sink for a target.
    pub fn sink(&mut self, target: &Target) -> SinkRef {
        if let Some(sink_ref) = self.sinks.iter().find(|sink| sink.0.target == *target) {
            return sink_ref.clone();
        }
        let pending = Pending { target: target.clone(), batch: OnceLock::new(), sink: OnceLock::new() };
        let sink = SinkRef(Arc::new(pending));
        self.sinks.push(sink.clone());
        sink
    }

    /// Returns the sink for a path whose lines are written in batches, shared by all logs that name it.
    pub fn batched_sink(&mut self, path: &Path, batch: Batch) -> Result<SinkRef, BatchConflict> {
        let sink = self.sink(&Target::File(path.to_owned()));
        if *sink.0.batch.get_or_init(|| batch) == batch { Ok(sink) } else { Err(BatchConflict) }
    }

    /// An error log with these targets.
    pub fn error_log(&mut self, targets: &[LogTarget]) -> SharedErrorLog {
        let targets = targets.iter().map(|target| (self.sink(&target.target), target.clone())).collect();
        let log = SharedErrorLog(Arc::new(Targets { targets, log: OnceLock::new(), none: ErrorLog::none() }));
        self.error_logs.push(log.clone());
        log
    }

    /// Returns true if some error log takes debug lines.
    pub fn has_debug(&self) -> bool {
        let targets = self.error_logs.iter().flat_map(|log| &log.0.targets);
        targets.into_iter().any(|(_, target)| target.level == Level::Debug)
    }

    /// Every log that is open.
    pub fn sinks(&self) -> impl Iterator<Item = &Sink> {
        self.sinks.iter().filter_map(SinkRef::sink)
    }

    /// Targets of all logs, each once.
    pub fn targets(&self) -> impl Iterator<Item = &Target> {
        self.sinks.iter().map(|sink| &sink.0.target)
    }

    /// The files of all logs, each once.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.sinks.iter().filter_map(|sink| sink.0.target.path())
    }

    /// Opens every log. Waits for the disk: the main thread only. On an error nothing else has changed.
    pub fn open(&self, sinks: &Sinks) -> Result<(), OpenError> {
        for pending in &self.sinks {
            let sink = sinks.get(&pending.0.target, pending.0.config())?;
            // Opening twice is harmless: the first one stays.
            let _ = pending.0.sink.set(sink);
        }
        for log in &self.error_logs {
            let open = |(sink, target): &(SinkRef, LogTarget)| {
                let sink = sink.sink()?.clone();
                Some(target.with_sink(sink))
            };
            let _ = log.0.log.set(ErrorLog::to(log.0.targets.iter().filter_map(open).collect()));
        }
        Ok(())
    }
}
