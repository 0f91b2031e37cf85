//! Reports about calls of scripts: their lines in the error log, and the ends of calls that have failed.

use tw_core::session::Session;
use tw_log::{ErrorLog, Level, Text};
use tw_script::{ByteBuf, Exception, LoadError, LogLevel, Outcome};

use crate::counters::Counters;
use crate::script_call::{CallFailure, ScriptCall};

tw_base::limits! {
    /// Limits of this file.
    pub(crate) const LIMITS;

    /// Lines of the stack of an exception in the error log.
    const STACK_LINES_MAX: usize = 8, count, "those of the outermost functions are left out";
}

/// Failure that was logged. The request is answered with this status, unless its response has begun; a session ends with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Failed {
    pub(crate) status: u16,
}

/// Result of a call that has ended. Logs and counts an exception.
pub(crate) fn outcome<S: Session>(
    r: &S,
    call: &ScriptCall,
    counters: &Counters,
    outcome: Outcome,
) -> Result<Option<ByteBuf>, Failed> {
    match outcome {
        Outcome::Value(value) => Ok(value),
        Outcome::Exception(exception) => {
            counters.exceptions.add(1);
            if !exception.limit.is_empty() {
                counters.limits.add(1);
            }
            let what = if exception.is_rejection { "unhandled rejection" } else { "exception" };
            r.log(Level::Error, format_args!("js {what}: {}", ExceptionText(&exception)));
            Err(Failed { status: 500 })
        }
        Outcome::NotStarted(reason) => {
            let function = call.function();
            match call.contexts().connection.load_error(call.set().id) {
                Some(error) => {
                    let error = LoadErrorText(&error);
                    r.log(Level::Error, format_args!("js: \"{function}\" cannot be called, {error}"));
                }
                None => r.log(Level::Error, format_args!("js: \"{function}\" cannot be called, {reason}")),
            }
            Err(Failed { status: 500 })
        }
    }
}

/// Writes a line of a script into the error log of the request or session.
pub(crate) fn log<S: Session>(r: &S, level: LogLevel, message: &[u8]) {
    r.log(level_of(level), format_args!("js: {}", Text(message)));
}

/// Writes a line of a script outside of calls into an error log.
pub(crate) fn log_without_session(log: &ErrorLog, level: LogLevel, message: &[u8]) {
    log.write(level_of(level), None, format_args!("js: {}", Text(message)));
}

const fn level_of(level: LogLevel) -> Level {
    match level {
        LogLevel::Debug => Level::Debug,
        LogLevel::Info => Level::Info,
        LogLevel::Warn => Level::Warn,
        LogLevel::Error => Level::Error,
    }
}

/// Logs and counts a failure.
pub(crate) fn fail<S: Session>(r: &S, function: &str, counters: &Counters, failure: &CallFailure) -> Failed {
    match failure {
        CallFailure::NoProcess => {
            r.log(Level::Error, format_args!("js: no script process for \"{function}\" in time"));
            Failed { status: 503 }
        }
        CallFailure::Lost(Some(overrun)) => {
            counters.limits.add(1);
            let tw_script::Overrun { file, line, .. } = &**overrun;
            r.log(
                Level::Error,
                format_args!(
                    "js: \"{function}\" ({file}:{line}) has exceeded js_timeout, its script process was ended"
                ),
            );
            Failed { status: 500 }
        }
        CallFailure::Lost(None) => {
            r.log(Level::Error, format_args!("js: the script process of \"{function}\" has ended"));
            Failed { status: 500 }
        }
        CallFailure::Flooded => {
            r.log(Level::Error, format_args!("js: \"{function}\" has sent too much at once"));
            Failed { status: 500 }
        }
        CallFailure::Send(error) => {
            r.log(Level::Error, format_args!("js: \"{function}\" cannot be called: {error}"));
            Failed { status: 500 }
        }
    }
}

/// Exception with its place, for the error log.
struct ExceptionText<'a>(&'a Exception);

impl std::fmt::Display for ExceptionText<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Exception { message, stack, .. } = self.0;
        write!(f, "{}", Text(message.as_bytes()))?;
        for line in stack.lines().take(STACK_LINES_MAX) {
            write!(f, " {}", Text(without_column(line.trim()).as_bytes()))?;
            if line.ends_with(')') {
                f.write_str(")")?;
            }
        }
        Ok(())
    }
}

/// A line of a stack, `at function (file:line:column)`, up to the number of the line.
fn without_column(line: &str) -> &str {
    let line = line.strip_suffix(')').unwrap_or(line);
    match line.rsplit_once(':') {
        Some((rest, column)) if column.parse::<u32>().is_ok() && rest.contains(':') => rest,
        _ => line,
    }
}

/// Reason why modules cannot be used, for the error log.
pub(crate) struct LoadErrorText<'a>(pub(crate) &'a LoadError);

impl std::fmt::Display for LoadErrorText<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            LoadError::MissingImport { referrer, specifier } => {
                write!(
                    f,
                    "module \"{}\" is not found in {}",
                    Text(specifier.as_bytes()),
                    Text(referrer.as_bytes())
                )
            }
            LoadError::Exception { file, message, .. } if file.is_empty() => {
                write!(f, "{}", Text(message.as_bytes()))
            }
            LoadError::Exception { file, line, column, message } => {
                write!(f, "{} in {}:{line}:{column}", Text(message.as_bytes()), Text(file.as_bytes()))
            }
        }
    }
}
