//! Error log: nginx's lines, to any number of sinks, each with its own level.

use std::fmt::{self, Write as _};
use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use crate::context::{ContextText, LineContext};
use crate::json_line::{self, JsonLine, LineTime};
use crate::sink::Shared;
use crate::{Level, Sink, SyslogHead, time};

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Bytes of one line of an error log.
    ///
    /// Longest line in bytes, with its line feed, as in nginx; longer ones are cut.
    pub const LINE_MAX: usize = 2048, bytes, "the line is cut";
    use json_line::LIMITS;
}

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

    /// Writes `2026/11/20 11:00:00 [error] PID#TID: *CONNECTION message`, cut at [`LINE_MAX`].
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
                None => Line::new(time.unix_s, level, connection, message),
                Some(context) => {
                    let message = format_args!("{message}{}", ContextText(context));
                    Line::new(time.unix_s, level, connection, message)
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

/// Bytes a peer sent, for a message: valid UTF-8 as it is, other bytes as `\xFF`. Control characters are the log's
/// affair.
#[derive(Debug, Clone, Copy)]
pub struct Text<'a>(pub &'a [u8]);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            f.write_str(chunk.valid())?;
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02X}")?;
            }
        }
        Ok(())
    }
}

/// A line under construction, on the stack.
struct Line {
    bytes: [u8; LINE_MAX],
    len: usize,
}

impl Line {
    fn new(unix_s: i64, level: Level, connection: Option<u64>, message: fmt::Arguments<'_>) -> Self {
        let mut line = Self { bytes: [0; LINE_MAX], len: 0 };
        line.put(&time::error_time(unix_s));
        // These system calls never wait; a cached value would be wrong after fork().
        let pid = std::process::id();
        let tid = rustix::thread::gettid().as_raw_nonzero();
        // An error only says that the line is full.
        let _ = write!(line, " [{level}] {pid}#{tid}: ");
        if let Some(connection) = connection {
            let _ = write!(line, "*{connection} ");
        }
        let _ = line.write_fmt(message);
        line.bytes[line.len] = b'\n';
        line.len += 1;
        line
    }

    /// Appends what fits before the line feed; `false` if something did not.
    fn put(&mut self, bytes: &[u8]) -> bool {
        let room = LINE_MAX - 1 - self.len;
        let fits = bytes.len().min(room);
        self.bytes[self.len..self.len + fits].copy_from_slice(&bytes[..fits]);
        self.len += fits;
        fits == bytes.len()
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // DIFF(nginx): control characters are escaped in every message; nginx writes what the peer sent.
        for piece in text.as_bytes().split_inclusive(u8::is_ascii_control) {
            let (plain, control) = match piece.split_last() {
                Some((last, plain)) if last.is_ascii_control() => (plain, Some(*last)),
                _ => (piece, None),
            };
            let fits = self.put(plain) && control.is_none_or(|byte| self.put(&crate::escape::hex(byte)));
            if !fits {
                return Err(fmt::Error);
            }
        }
        Ok(())
    }
}

/// Writes to `log`, or to standard error if it has no targets. Waits for standard error: writer threads only.
pub(crate) fn write_or_stderr(log: &ErrorLog, level: Level, message: fmt::Arguments<'_>) {
    if log.targets.is_empty() {
        // A failure to write to standard error cannot be reported.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let line = Line::new(now.as_secs().cast_signed(), level, None, message);
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

    fn line(connection: Option<u64>, message: fmt::Arguments<'_>) -> String {
        let line = Line::new(0, Level::Error, connection, message);
        String::from_utf8(line.bytes().to_vec()).unwrap()
    }

    #[test]
    fn lines_have_the_shape_of_nginx() {
        let pid = std::process::id();
        let tid = rustix::thread::gettid().as_raw_nonzero();
        let line = line(Some(7), format_args!("open() \"{}\" failed", "/x"));
        let (time, rest) = line.split_at(19);
        assert!(time.bytes().zip(*b"0000/00/00 00:00:00").all(|(is, shape)| match shape {
            b'0' => is.is_ascii_digit(),
            _ => is == shape,
        }));
        assert_eq!(rest, format!(" [error] {pid}#{tid}: *7 open() \"/x\" failed\n"));
    }

    #[test]
    fn message_is_one_line_for_any_input() {
        let peer = Text(b"a\r\n2026/11/20 [emerg] \x1b[31m\x7f\xff\xc3\xa9\"");
        let line = line(None, format_args!("client sent {peer}"));
        assert!(
            line.ends_with(": client sent a\\x0D\\x0A2026/11/20 [emerg] \\x1B[31m\\x7F\\xFFé\"\n"),
            "{line}"
        );
    }

    #[test]
    fn long_messages_are_cut() {
        for len in [LINE_MAX - 100, LINE_MAX, 100_000] {
            let line = line(None, format_args!("{}\n", "m".repeat(len)));
            assert!(line.len() <= LINE_MAX);
            assert_eq!(line.matches('\n').count(), 1);
            assert!(line.ends_with('\n'));
            if len >= LINE_MAX {
                assert_eq!(line.len(), LINE_MAX);
            }
        }
    }

    #[test]
    fn a_log_without_targets_is_never_enabled() {
        assert!(Level::ALL.into_iter().all(|level| !ErrorLog::none().enabled(level)));
    }
}
