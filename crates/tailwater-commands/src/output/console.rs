//! Messages of the start, of a test and of a reload: to standard error while a terminal or a caller may read it, and to
//! the error log as soon as it is open.

use std::cell::RefCell;
use std::fmt;
use std::io::{self, IsTerminal, Write as _};
use std::sync::Arc;

use tw_conf::{ConfError, Diagnostic, Sources};
use tw_log::{ErrorLog, Level};

use crate::output::recent_messages::{RecentMessage, RecentMessages};

/// Something that ends the start or refuses a reload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Severity.
    pub level: Level,
    /// The line of the log.
    pub message: String,
    /// Advice to the operator, for the line below.
    pub hint: Option<String>,
}

impl Fault {
    /// A fault without which the server would run.
    pub fn emerg(message: impl Into<String>) -> Self {
        Self { level: Level::Emerg, message: message.into(), hint: None }
    }

    /// Adds advice to the operator.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// `CALL "PATH" failed (2: No such file or directory)`
    pub fn call(call: &str, path: &str, error: &io::Error) -> Self {
        Self::emerg(format!("{call} \"{path}\" failed ({})", tw_base::Errno::from(error)))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Format of standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OutputStyle {
    /// A file, a pipe, a journal: nginx's line as it is; below it the source line and the hint.
    Plain,
    /// A terminal: the same without control characters, perhaps in colour.
    Terminal { colour: bool },
}

/// Treatment of notes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Notes {
    /// Shown: the configuration is being tested.
    Shown,
    Dropped,
}

/// Destination of messages.
#[derive(Debug, Clone)]
pub struct Console {
    stderr: Option<OutputStyle>,
    log: ErrorLog,
    notes: Notes,
    /// Messages since the recording began.
    record: RefCell<Option<Vec<Fault>>>,
    /// The last warnings and errors, if they are remembered.
    recent: Option<Arc<RecentMessages>>,
}

impl Default for Console {
    fn default() -> Self {
        Self::new()
    }
}

impl Console {
    /// Standard error only, in the form that suits it.
    pub fn new() -> Self {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let colour = !set("NO_COLOR") && !dumb;
        let look =
            if io::stderr().is_terminal() { OutputStyle::Terminal { colour } } else { OutputStyle::Plain };
        Self {
            stderr: Some(look),
            log: ErrorLog::none(),
            notes: Notes::Dropped,
            record: RefCell::default(),
            recent: None,
        }
    }

    /// Console that prints nothing until it has a log.
    pub fn quiet() -> Self {
        Self {
            stderr: None,
            log: ErrorLog::none(),
            notes: Notes::Dropped,
            record: RefCell::default(),
            recent: None,
        }
    }

    /// Console that prints notes about the configuration as well.
    pub fn with_notes(self) -> Self {
        Self { notes: Notes::Shown, ..self }
    }

    /// Remembers the last warnings and errors from now on, for [`recent`](Self::recent).
    pub fn remember_recent(&mut self) {
        self.recent = Some(Arc::default());
    }

    /// The last warnings and errors, the newest first.
    pub fn recent(&self) -> Vec<RecentMessage> {
        self.recent.as_ref().map(|recent| recent.newest()).unwrap_or_default()
    }

    /// Remembers warnings and worse from now on.
    pub fn begin_record(&self) {
        self.record.replace(Some(Vec::new()));
    }

    /// Continues a recording, behind the messages `said` of a copy that has recorded until now.
    pub fn go_on_recording(&self, said: Vec<Fault>) {
        self.record.replace(Some(said));
    }

    /// Ends the recording and returns its messages.
    pub fn end_record(&self) -> Vec<Fault> {
        self.record.take().unwrap_or_default()
    }

    /// Sends messages to `log`, too.
    pub fn log_to(&mut self, log: ErrorLog) {
        self.log = log;
    }

    /// Leaves standard error alone from now on.
    pub fn leave_stderr(&mut self) {
        self.stderr = None;
    }

    /// A message. Like nginx, standard error shows only warnings and worse.
    pub fn report(&self, level: Level, message: fmt::Arguments<'_>) {
        self.show(level, message, None);
        self.log.write(level, None, message);
        self.remember(|| Fault { level, message: message.to_string(), hint: None });
    }

    /// A fault, with its hint.
    pub fn fault(&self, fault: &Fault) {
        self.show(fault.level, format_args!("{fault}"), fault.hint.as_deref());
        self.log.write(fault.level, None, format_args!("{fault}"));
        self.remember(|| fault.clone());
    }

    /// A message about the configuration, with its place. Standard error alone shows the place: a log has lines.
    pub fn conf(&self, error: &ConfError, sources: &Sources) {
        if error.level == tw_conf::Level::Notice && self.notes == Notes::Dropped {
            return;
        }
        let diagnostic = Diagnostic { error, sources };
        match self.stderr {
            Some(OutputStyle::Plain) => print(&format!("{}\n", diagnostic.plain())),
            Some(OutputStyle::Terminal { colour }) => print(&format!("{}\n", diagnostic.terminal(colour))),
            None => {}
        }
        let level = match error.level {
            tw_conf::Level::Emerg => Level::Emerg,
            tw_conf::Level::Crit => Level::Crit,
            tw_conf::Level::Warn => Level::Warn,
            tw_conf::Level::Notice => Level::Notice,
        };
        let line = error.line(sources);
        self.log.write(level, None, format_args!("{line}"));
        self.remember(|| Fault { level, message: line.to_string(), hint: error.hint.clone() });
    }

    /// A message with a list below it, which a log has no room for.
    pub fn list(&self, message: &str, list: fmt::Arguments<'_>) {
        self.show(Level::Emerg, format_args!("{message}:"), None);
        if self.stderr.is_some() {
            print(&format!("{list}\n"));
        }
        let message = format!("{message}; \"tailwater -t\" lists them");
        self.log.write(Level::Emerg, None, format_args!("{message}"));
        self.remember(|| Fault::emerg(message));
    }

    /// A message without level, to standard error alone, as nginx reports the outcome of a test.
    pub fn plain(&self, message: fmt::Arguments<'_>) {
        if self.stderr.is_some() {
            print(&format!("tailwater: {message}\n"));
        }
    }

    fn remember(&self, fault: impl FnOnce() -> Fault) {
        let mut record = self.record.borrow_mut();
        if record.is_none() && self.recent.is_none() {
            return;
        }
        let fault = fault();
        if let Some(recent) = &self.recent {
            recent.add(fault.clone());
        }
        if let Some(record) = &mut *record {
            record.extend(Some(fault).filter(|fault| fault.level <= Level::Warn));
        }
    }

    fn show(&self, level: Level, message: fmt::Arguments<'_>, hint: Option<&str>) {
        let is_shown = level <= Level::Warn || level == Level::Notice && self.notes == Notes::Shown;
        if !is_shown {
            return;
        }
        match self.stderr {
            Some(OutputStyle::Plain) => {
                let hint = hint.map(|hint| format!("    = {hint}\n")).unwrap_or_default();
                print(&format!("tailwater: [{level}] {message}\n{hint}"));
            }
            Some(OutputStyle::Terminal { colour }) => {
                let paint = |code: &'static str| if colour { code } else { "" };
                let mark = paint(if level == Level::Warn { "\x1b[1;33m" } else { "\x1b[1;31m" });
                let bold = paint("\x1b[1m");
                let dim = paint("\x1b[1;34m");
                let off = paint("\x1b[0m");
                let hint = hint.map(|hint| format!("    {dim}={off} {hint}\n")).unwrap_or_default();
                print(&format!("tailwater: {mark}[{level}]{off} {bold}{message}{off}\n{hint}"));
            }
            None => {}
        }
    }
}

/// Writes to standard error; a failure cannot be reported.
pub fn print(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}
