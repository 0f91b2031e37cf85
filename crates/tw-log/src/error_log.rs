//! Error log: nginx's lines, to any number of sinks, each with its own level.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use crate::context::{ContextText, LineContext};
use crate::json_line::{JsonLine, LineTime};
use crate::sink::Shared;
use crate::text_line::TextLine;
use crate::{Level, Sink, SyslogHead};

/// Error log of one location: its targets with their levels. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ErrorLog {
    targets: Arc<[ErrorTarget]>,
    max: Option<Level>,
}

/// One place where errors go.
#[derive(Debug, Clone)]
pub struct ErrorTarget {
    /// Sink of the target.
    pub sink: Sink,
    /// Lines at this level and worse.
    pub level: Level,
    /// Header before each message, if the sink is a syslog server.
    pub syslog: Option<SyslogHead>,
    /// Format of the lines.
    pub format: LineFormat,
}

/// Format of the lines of an error log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LineFormat {
    /// Format of nginx.
    #[default]
    Text,
    /// `json`: an object in each line.
    Json,
}

/// Targets that get a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LineTargets {
    /// Every target whose level admits it.
    Admitting,
    /// Every target.
    All,
}

impl ErrorLog {
    /// A log that writes each line to every target whose level admits it.
    #[must_use]
    pub fn new(targets: Vec<(Sink, Level)>) -> Self {
        let target = |(sink, level)| ErrorTarget { sink, level, syslog: None, format: LineFormat::Text };
        Self::to(targets.into_iter().map(target).collect())
    }

    /// Makes a log with targets that may be syslog servers.
    #[must_use]
    pub fn to(targets: Vec<ErrorTarget>) -> Self {
        let max = targets.iter().map(|target| target.level).max();
        Self { targets: targets.into(), max }
    }

    /// Makes a log without targets.
    #[must_use]
    pub fn none() -> Self {
        Self::new(Vec::new())
    }

    /// Returns `true` if a line of this level is logged anywhere. Costs one comparison: check it before preparing
    /// anything costly.
    #[must_use]
    pub fn enabled(&self, level: Level) -> bool {
        self.max.is_some_and(|max| level <= max)
    }

    /// Writes `2026/11/20 11:00:00 [error] PID#TID: *CONNECTION message`, cut at [`LINE_MAX`](crate::LINE_MAX).
    ///
    /// Control characters are escaped as `\x0A`, so that no peer can forge a line. Reads the clock; never waits;
    /// allocates only for syslog. Use the macros ([`crate::error!`] and the like), which check [`ErrorLog::enabled`]
    /// first.
    pub fn write(&self, level: Level, connection: Option<u64>, message: fmt::Arguments<'_>) {
        if self.enabled(level) {
            self.write_to(LineTargets::Admitting, level, connection, message, None);
        }
    }

    /// Writes a line as [`write`](Self::write) does, with the facts of `context` behind the message.
    pub fn write_about(
        &self,
        level: Level,
        connection: Option<u64>,
        message: fmt::Arguments<'_>,
        context: Option<&dyn LineContext>,
    ) {
        if self.enabled(level) {
            self.write_to(LineTargets::Admitting, level, connection, message, context);
        }
    }

    /// Writes a line to every target, whatever its level: for `debug_connection`.
    pub fn write_to_all(
        &self,
        level: Level,
        connection: Option<u64>,
        message: fmt::Arguments<'_>,
        context: Option<&dyn LineContext>,
    ) {
        self.write_to(LineTargets::All, level, connection, message, context);
    }

    fn write_to(
        &self,
        whom: LineTargets,
        level: Level,
        connection: Option<u64>,
        message: fmt::Arguments<'_>,
        context: Option<&dyn LineContext>,
    ) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let time = LineTime { unix_s: now.as_secs().cast_signed(), ms: now.subsec_millis() };
        let admits = |target: &&ErrorTarget| whom == LineTargets::All || level <= target.level;
        let of_format =
            |format| self.targets.iter().filter(admits).filter(move |target| target.format == format);
        let mut texts = of_format(LineFormat::Text).peekable();
        if texts.peek().is_some() {
            let line = match context {
                None => TextLine::new(time.unix_s, level, connection, message),
                Some(context) => {
                    let message = format_args!("{message}{}", ContextText(context));
                    TextLine::new(time.unix_s, level, connection, message)
                }
            };
            texts.for_each(|target| target.push(line.bytes(), level, time));
        }
        let mut objects = of_format(LineFormat::Json).peekable();
        if objects.peek().is_some() {
            let line = JsonLine::new(time, level, connection, message, context);
            objects.for_each(|target| target.push(line.bytes(), level, time));
        }
    }

    /// Clone of the log without this sink.
    pub(crate) fn without(&self, shared: &Shared) -> Self {
        Self::to(self.targets.iter().filter(|target| !target.sink.is(shared)).cloned().collect())
    }
}

impl ErrorTarget {
    /// Queues a line, which ends with a line feed.
    fn push(&self, line: &[u8], level: Level, time: LineTime) {
        // A dropped line is counted by its sink, and cannot be reported elsewhere.
        let _ = match &self.syslog {
            None => self.sink.push_urgent(&[line]),
            Some(head) => {
                let text = line.strip_suffix(b"\n").unwrap_or(line);
                self.sink.push_parts(&[&syslog_head(head, level, time.unix_s), text])
            }
        };
    }
}

fn syslog_head(head: &SyslogHead, level: Level, unix_s: i64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(64);
    head.push(&mut bytes, level, unix_s);
    bytes
}

/// Writes to `log`, or to standard error if it has no targets. Waits for standard error: writer threads only.
pub(crate) fn write_or_stderr(log: &ErrorLog, level: Level, message: fmt::Arguments<'_>) {
    if log.targets.is_empty() {
        // A failure to write to standard error cannot be reported.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let line = TextLine::new(now.as_secs().cast_signed(), level, None, message);
        let _ = io::Write::write_all(&mut io::stderr(), line.bytes());
    } else {
        log.write(level, None, message);
    }
}

/// One line of a given level: `write_at!(log, Level::Warn, "text {}", value)` or, for a connection,
/// `write_at!(log, Level::Warn, *id, "text {}", value)`. The arguments are evaluated only if the level is logged.
#[macro_export]
macro_rules! write_at {
    ($log:expr, $level:expr, *$connection:expr, $($message:tt)+) => {{
        let log = &$log;
        let level = $level;
        if log.enabled(level) {
            log.write(level, ::core::option::Option::Some($connection), ::core::format_args!($($message)+));
        }
    }};
    ($log:expr, $level:expr, $($message:tt)+) => {{
        let log = &$log;
        let level = $level;
        if log.enabled(level) {
            log.write(level, ::core::option::Option::None, ::core::format_args!($($message)+));
        }
    }};
}

macro_rules! level_macros {
    ($d:tt $($name:ident $level:ident $doc:literal)+) => {$(
        #[doc = $doc]
        #[doc = concat!("\n\n`", stringify!($name), "!(log, \"text {}\", value)` or `", stringify!($name),
            "!(log, *connection, \"text\")`; see [`write_at!`](crate::write_at).")]
        #[macro_export]
        macro_rules! $name {
            ($d log:expr, $d($d message:tt)+) => {
                $d crate::write_at!($d log, $d crate::Level::$level, $d($d message)+)
            };
        }
    )+};
}

level_macros! { $
    emerg Emerg "A line at `emerg`: the server cannot start or go on."
    alert Alert "A line at `alert`: a fault of this program or of its installation."
    crit Crit "A line at `crit`: a resource is exhausted or broken."
    error Error "A line at `error`: a request or an upstream failed."
    warn Warn "A line at `warn`: something works, but not as it was meant to."
    notice Notice "A line at `notice`: a start, a stop, a reload."
    info Info "A line at `info`: a client did something wrong."
    debug Debug "A line at `debug`: a step."
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_without_targets_is_never_enabled() {
        assert!(Level::ALL.into_iter().all(|level| !ErrorLog::none().enabled(level)));
    }
}
