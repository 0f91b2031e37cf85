//! One run of a program for one request.
//!
//! It never waits for the disk itself: it stops where a file has to be looked at, and continues with the metadata.

use std::ffi::{CStr, CString};

use tw_core::regex::{BacktrackLimit, Match, Regex};
use tw_core::session::Session;
use tw_disk::{DiskError, FileKind, FileMeta, Now, Op};
use tw_log::{Level, Text};
use tw_request::files;
use tw_request::generation::PlanId;
use tw_request::plan::Outcome;
use tw_request::request::{Request, RequestOrigin, Rewritten};
use tw_request::vars::{Template, VarTarget};

use super::captures::Captures;
use super::condition::{ExpectedResult, FileTest};
use super::program::{IfSettings, Operation, Program, Test};
use super::raw::AfterMatch;
use super::replace::Replacement;
use super::set_misc::{CallFailed, CallResult};

/// Permission of the owner to execute a file.
const OWNER_EXECUTES: u32 = 0o100;

/// Run of a program for one request.
pub(super) struct Run<'a> {
    program: &'a Program,
    /// The next operation.
    at: usize,
    /// The plan of the location it began in.
    base: PlanId,
    uri: Uri,
    /// Escaping of captures in values.
    captures: Captures,
    /// Result of looking at the file that the next operation tests.
    file_meta: Option<Result<FileMeta, DiskError>>,
    logs: bool,
}

/// Change of the URI: the location has to be chosen again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Uri {
    Same,
    Changed,
}

/// File whose metadata has to be read from the disk.
pub(super) struct ColdFile(CString);

/// Why an operation did not end with a next one.
enum Stop {
    Decided(Outcome),
    Cold(ColdFile),
}

impl From<BacktrackLimit> for Stop {
    fn from(_: BacktrackLimit) -> Self {
        Self::Decided(Outcome::Status(500))
    }
}

impl<'a> Run<'a> {
    pub(super) fn new(program: &'a Program, logs: bool, r: &Request) -> Self {
        // As in nginx, values are escaped like arguments until a `rewrite` has matched.
        let captures = Captures::in_args(r);
        Self { program, at: 0, base: r.route.plan, uri: Uri::Same, captures, file_meta: None, logs }
    }

    /// Runs up to a decision, or to a file that has to be looked at.
    pub(super) fn advance(&mut self, r: &mut Request) -> Result<Outcome, ColdFile> {
        let event_loop = r.client().event_loop.clone();
        let mut scratch = event_loop.buffers.path.take();
        let program = self.program;
        let mut stopped = None;
        while let Some(operation) = program.operations.get(self.at) {
            match self.step(operation, r, &mut scratch) {
                Ok(next) => self.at = next,
                Err(stop) => {
                    stopped = Some(stop);
                    break;
                }
            }
        }
        event_loop.buffers.path.set(scratch);
        match stopped {
            Some(Stop::Cold(file)) => Err(file),
            Some(Stop::Decided(outcome)) => Ok(outcome),
            None => Ok(self.end()),
        }
    }

    /// Asks the disk for `file` and runs to the end.
    pub(super) async fn wait(mut self, r: &mut Request, mut file: ColdFile) -> Outcome {
        loop {
            self.file_meta = Some(files::stat(r, file.0).await);
            match self.advance(r) {
                Ok(outcome) => return outcome,
                Err(cold) => file = cold,
            }
        }
    }

    /// Outcome of a program that ended without `return`.
    fn end(&self) -> Outcome {
        match self.uri {
            Uri::Changed => Outcome::Rewritten,
            Uri::Same => Outcome::Pass,
        }
    }

    /// Runs one operation; returns the number of the next.
    fn step(&mut self, operation: &Operation, r: &mut Request, scratch: &mut Vec<u8>) -> Result<usize, Stop> {
        match operation {
            Operation::Rewrite(regex, replacement) => self.rewrite(regex, replacement, r, scratch)?,
            Operation::Set(place, value) => self.set(*place, value, r, scratch),
            Operation::Call(place, call) => match call.run(self.captures, r) {
                Ok(CallResult::Value(value)) => place.store(r, value),
                Ok(CallResult::Unchanged) => {}
                Err(CallFailed) => return Err(Stop::Decided(Outcome::Status(500))),
            },
            Operation::Return(answer) => return Err(Stop::Decided(answer.respond(r))),
            Operation::Break => {
                if self.uri == Uri::Changed {
                    self.keep_location(r);
                }
                return Err(Stop::Decided(self.end()));
            }
            Operation::If { test, end, enter } => {
                if !self.test(test, r, scratch)? {
                    return Ok(*end);
                }
                if let IfSettings::If(nth) = enter {
                    r.enter_if(self.base, *nth);
                }
            }
        }
        Ok(self.at + 1)
    }

    fn rewrite(
        &mut self,
        regex: &Regex,
        replacement: &Replacement,
        r: &mut Request,
        scratch: &mut Vec<u8>,
    ) -> Result<(), Stop> {
        if self.matches(regex, &r.uri.path, r)? == Match::No {
            r.bindings.captures.get_mut().clear();
            return Ok(());
        }
        r.state.origin = RequestOrigin::Internal;
        r.state.has_client_target = false;
        replacement.apply(r, scratch);
        self.captures = Captures::Plain;
        if let AfterMatch::Redirect(status) = replacement.then() {
            self.log(r, format_args!("rewritten redirect: \"{}\"", Text(&r.response.location)));
            return Err(Stop::Decided(Outcome::Status(status)));
        }
        let path = Text(&r.uri.path);
        let args = Text(&r.uri.args);
        self.log(r, format_args!("rewritten data: \"{path}\", args: \"{args}\""));
        if r.uri.path.is_empty() {
            r.log(Level::Error, format_args!("the rewritten URI has a zero length"));
            return Err(Stop::Decided(Outcome::Status(500)));
        }
        self.uri = Uri::Changed;
        match replacement.then() {
            AfterMatch::Continue => return Ok(()),
            AfterMatch::Break => self.keep_location(r),
            AfterMatch::Last | AfterMatch::Redirect(_) => {}
        }
        Err(Stop::Decided(self.end()))
    }

    /// Keeps the URI that `rewrite` has made in this location.
    fn keep_location(&mut self, r: &mut Request) {
        self.uri = Uri::Same;
        r.state.rewritten = Rewritten::Here;
    }

    fn set(&self, place: VarTarget, value: &Template, r: &mut Request, scratch: &mut Vec<u8>) {
        scratch.clear();
        self.captures.eval(value, r, scratch);
        match place {
            VarTarget::Slot(slot) => r.set_slot(slot, scratch),
            VarTarget::Assign(assign) => assign(r, std::mem::take(scratch)),
        }
    }

    /// Evaluates a condition.
    fn test(&mut self, test: &Test, r: &mut Request, scratch: &mut Vec<u8>) -> Result<bool, Stop> {
        scratch.clear();
        match test {
            Test::True(var) => {
                var.eval(r, scratch);
                Ok(!matches!(scratch.as_slice(), b"" | b"0"))
            }
            Test::Equal(var, expected, value) => {
                var.eval(r, scratch);
                let len = scratch.len();
                self.captures.eval(value, r, scratch);
                let (left, right) = scratch.split_at(len);
                Ok(expected.is(left == right))
            }
            Test::Matches(var, expected, regex) => {
                var.eval(r, scratch);
                let matched = self.matches(regex, scratch, r)?;
                if matched == Match::No {
                    r.bindings.captures.get_mut().clear();
                }
                Ok(expected.is(matched == Match::Yes))
            }
            Test::File(test, expected, path) => {
                self.captures.eval(path, r, scratch);
                scratch.push(0);
                // A NUL in it leaves an empty name, which no file has.
                let path = CStr::from_bytes_with_nul(scratch).unwrap_or_default();
                let file_meta = match self.file_meta.take() {
                    Some(file_meta) => file_meta,
                    None => match files::stat_now(r, path) {
                        Now::Ready(file_meta) => file_meta.map_err(|errno| Op::Stat.failed(errno)),
                        Now::Cold => return Err(Stop::Cold(ColdFile(path.into()))),
                    },
                };
                match file_meta {
                    Ok(meta) => Ok(expected.is(test.is_true(&meta))),
                    Err(error @ DiskError::Os { .. }) => {
                        if !error.is_absent() {
                            r.log(Level::Crit, format_args!("{}", error.on(path)));
                        }
                        Ok(expected.is(false))
                    }
                    Err(error) => {
                        Err(Stop::Decided(tw_module_support::file_response::refuse(r, path, &error)))
                    }
                }
            }
        }
    }

    fn matches(&self, regex: &Regex, subject: &[u8], r: &Request) -> Result<Match, Stop> {
        let matched = r.matches(regex, subject)?;
        if self.logs {
            let verb = match matched {
                Match::Yes => "matches",
                Match::No => "does not match",
            };
            self.log(r, format_args!("\"{}\" {verb} \"{}\"", regex.pattern(), Text(subject)));
        }
        Ok(matched)
    }

    fn log(&self, r: &Request, message: std::fmt::Arguments<'_>) {
        if self.logs {
            r.log(Level::Notice, message);
        }
    }
}

impl ExpectedResult {
    fn is(self, answer: bool) -> bool {
        answer == (self == Self::Yes)
    }
}

impl FileTest {
    fn is_true(self, meta: &FileMeta) -> bool {
        match self {
            Self::File => meta.kind == FileKind::File,
            Self::Directory => meta.kind == FileKind::Directory,
            Self::Exists => meta.kind != FileKind::Other,
            Self::Executable => meta.mode & OWNER_EXECUTES != 0,
        }
    }
}
