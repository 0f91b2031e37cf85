//! `tailwater-scripts run FILE`: a module by hand, without a server. What it logs is printed, and files are those of the user.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::Read as _;
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, poll};
use rustix::io::Errno;
use tw_script::{
    CallId, Effect, Environment, Exception, Field, FrameError, Load, LoadError, LogLevel, Module, Operation,
    OperationError, Outcome, ProcessMessage, Reply, Settings, Source, Token,
};
use tw_script_files::{Descriptors, FileAccess};

use crate::link::Link;
use crate::realm::Realm;
use crate::watch::Watch;

/// CPU time of each callback of a module that is run by hand, in milliseconds.
const TIMEOUT_MS: u32 = 60_000;
/// Memory of it, in bytes.
const MEMORY_SIZE: u64 = 1 << 30;
/// The call that the module runs as.
const CALL: CallId = 1;

/// Host of a module that is run by hand: it prints what is logged, and has files.
#[derive(Default)]
struct Terminal {
    last_token: Cell<Token>,
    /// Operations that were not carried out yet.
    operations: RefCell<VecDeque<(Token, Operation)>>,
    files: Descriptors,
}

impl Terminal {
    fn answer(&self, operation: Operation) -> Result<Reply, OperationError> {
        match operation {
            Operation::File(command) => match tw_script_files::run(&FileAccess::OfUser, &self.files, command)
            {
                Ok(value) => Ok(Reply::File(value)),
                Err(error) => Err(OperationError::File(error)),
            },
            _ => Err(OperationError::Type("not available without a server".to_owned())),
        }
    }

    /// Carries out the oldest operation whose promise is pending.
    fn answer_next(&self) -> Option<(Token, Result<Reply, OperationError>)> {
        let (token, operation) = self.operations.borrow_mut().pop_front()?;
        Some((token, self.answer(operation)))
    }
}

impl Link for Terminal {
    fn send(&self, message: &ProcessMessage) -> Result<(), FrameError> {
        match message {
            ProcessMessage::Effect { effect: Effect::Log { level, message }, .. } => print(*level, message),
            ProcessMessage::Operation { token, operation, .. } => {
                self.operations.borrow_mut().push_back((*token, operation.clone()));
            }
            _ => {}
        }
        Ok(())
    }

    fn wait(&self, _: CallId, token: Token) -> Result<Reply, OperationError> {
        let mut operations = self.operations.borrow_mut();
        let place = operations.iter().position(|(asked, _)| *asked == token);
        let operation = place.and_then(|place| operations.remove(place));
        drop(operations);
        match operation {
            Some((_, operation)) => self.answer(operation),
            None => Err(OperationError::Type("not available without a server".to_owned())),
        }
    }

    fn next_token(&self) -> Token {
        self.last_token.set(self.last_token.get() + 1);
        self.last_token.get()
    }
}

/// Prints a line: errors to standard error.
fn print(level: LogLevel, line: &[u8]) {
    // A closed output can be reported to nobody.
    let _ = match level {
        LogLevel::Error => write_line(std::io::stderr().lock(), line),
        LogLevel::Debug | LogLevel::Info | LogLevel::Warn => write_line(std::io::stdout().lock(), line),
    };
}

fn write_line(mut out: impl std::io::Write, line: &[u8]) -> std::io::Result<()> {
    out.write_all(line)?;
    out.write_all(b"\n")
}

/// Runs a module until nothing of it is pending, with the modules that it imports by relative paths. `-` is standard input. `arguments`
/// follow the path in `process.argv`.
///
/// # Errors
/// A file cannot be read, or the module throws an exception.
pub fn run_file(path: &str, arguments: &[String]) -> Result<(), String> {
    let terminal = Rc::new(Terminal::default());
    let link: Rc<dyn Link> = terminal.clone();
    let watch = Rc::new(Watch::default());
    let mut load = Load {
        script: 1,
        modules: vec![Module { name: String::new(), path: path.to_owned() }],
        sources: vec![read(path)?],
        imports: Vec::new(),
        settings: Settings { timeout_ms: TIMEOUT_MS, memory_size: MEMORY_SIZE, context_reuse_count: 0 },
        environment: environment(path, arguments),
    };
    loop {
        match Realm::run_modules(&Rc::new(load.clone()), &link, &watch, CALL) {
            Ok(realm) => return wait(realm, &terminal),
            Err(LoadError::MissingImport { referrer, specifier }) => {
                let directory = Path::new(&referrer).parent().unwrap_or(Path::new("."));
                let file = directory.join(&specifier).to_string_lossy().into_owned();
                if !load.sources.iter().any(|source| source.path == file) {
                    load.sources.push(read(&file)?);
                }
                load.imports.push(tw_script::Import { referrer, specifier, path: file });
            }
            Err(error) => return Err(message(&error)),
        }
    }
}

/// Carries out operations and timers until the module has ended.
fn wait(mut realm: Realm, terminal: &Terminal) -> Result<(), String> {
    loop {
        if let Some((_, outcome)) = realm.take_finished().pop() {
            return match outcome {
                Outcome::Value(_) => realm.check_main().map_err(|error| message(&error)),
                Outcome::Exception(exception) => Err(text(&exception)),
                Outcome::NotStarted(reason) => Err(reason),
            };
        }
        if let Some((token, result)) = terminal.answer_next() {
            realm.deliver(token, result);
            continue;
        }
        let Some(next) = realm.next_timer() else {
            return Err("the module waits for something that does not happen".to_owned());
        };
        pause(next.saturating_duration_since(Instant::now()))?;
        realm.fire_timers(Instant::now());
    }
}

/// Waits, as there is nothing else to do.
fn pause(time: Duration) -> Result<(), String> {
    let timeout = Timespec::try_from(time).map_err(|error| error.to_string())?;
    match poll(&mut [], Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

/// Reason why modules cannot be used, with its place.
fn message(error: &LoadError) -> String {
    match error {
        LoadError::Exception { file, line, column, message } if !file.is_empty() => {
            format!("{file}:{line}:{column}: {message}")
        }
        LoadError::Exception { message, .. } => message.clone(),
        LoadError::MissingImport { referrer, specifier } => {
            format!("\"{specifier}\" is not found in {referrer}")
        }
    }
}

/// An exception with its stack.
fn text(exception: &Exception) -> String {
    match exception.stack.is_empty() {
        true => exception.message.clone(),
        false => format!("{}\n{}", exception.message, exception.stack),
    }
}

fn environment(path: &str, arguments: &[String]) -> Environment {
    let program = std::env::args().next().unwrap_or_default();
    let argv = [program.as_str(), path].into_iter().chain(arguments.iter().map(String::as_str));
    let variables = std::env::vars_os().map(|(name, value)| Field::new(name.into_vec(), value.into_vec()));
    Environment {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        argv: argv.map(|word| word.as_bytes().to_vec().into()).collect(),
        env: variables.collect(),
        pid: std::process::id(),
        ..Environment::default()
    }
}

fn read(path: &str) -> Result<Source, String> {
    let mut text = Vec::new();
    let result = match path {
        "-" => std::io::stdin().lock().read_to_end(&mut text).map(drop),
        path => std::fs::read(path).map(|read| text = read),
    };
    result.map_err(|error| format!("{path}: {error}"))?;
    Ok(Source { path: path.to_owned(), text: text.into() })
}
