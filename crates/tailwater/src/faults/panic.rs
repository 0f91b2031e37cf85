//! A panic is written to the error log, at `alert`, and ends only the request in which it happened.
//!
//! The standard library would print it, and with `RUST_BACKTRACE` in the environment a backtrace as well: for that it
//! reads the current directory and the program's file, on the thread that panics. A loop must not wait for that, and
//! the loop guard ends a process that tries. So the thread that panics only notes addresses; another one looks up the
//! names. The main thread may wait, and its panic ends the process: that one is printed as usual.

use std::panic::PanicHookInfo;
use std::sync::Arc;
use std::sync::mpsc::TrySendError;
use std::thread;

use tw_log::{ErrorLog, Level};
use tw_rt::{Subject, watch};
use tw_sys::stack::{self, Frames};

use super::{Event, NAME, Shared};

/// Name of the thread of `main` in the standard library.
const MAIN_THREAD: &str = "main";
/// Kind of the tasks of connections; every line about them has their numbers.
const CONNECTION: &str = "connection";

/// Details of a panic, collected where it happens.
pub(super) struct Panic {
    thread: String,
    subject: Option<Subject>,
    message: String,
    pub(super) frames: Frames,
}

// DIFF(nginx): a fault of ours ends one connection, not the process.
/// From here on panics of all threads but the main one are told by the thread that `common` leads to.
pub(super) fn report_to(common: Arc<Shared>) {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        common.counts.panics.add(1);
        let current = thread::current();
        let name = current.name().unwrap_or("unnamed");
        if name == MAIN_THREAD {
            return print(info);
        }
        let panic = Panic::new(name, info);
        // The thread that resolves names cannot do so for its own panic.
        let unsent = match name {
            NAME => Err(TrySendError::Full(Event::Panic(Box::new(panic)))),
            _ => common.events.try_send(Event::Panic(Box::new(panic))),
        };
        if let Err(TrySendError::Full(Event::Panic(panic)) | TrySendError::Disconnected(Event::Panic(panic))) = unsent
            // Held by another thread for a moment, or by this one, which panicked while it held it: to wait would be for
            // ever.
            && let Ok(log) = common.log.try_lock()
        {
            panic.write(&log, None);
        }
    }));
}

impl Panic {
    fn new(thread: &str, info: &PanicHookInfo<'_>) -> Self {
        let message = info.payload_as_str().unwrap_or("a value that is no text");
        let message = match info.location() {
            Some(place) => format!("at {place}: {message}"),
            None => message.to_owned(),
        };
        Self {
            thread: thread.to_owned(),
            subject: watch::subject(),
            message,
            frames: stack::of_this_thread(),
        }
    }

    /// Writes the line.
    pub(super) fn write(&self, log: &ErrorLog, stack: Option<&str>) {
        let Self { thread, subject, message, .. } = self;
        let connection = subject.filter(|subject| subject.kind == CONNECTION).map(|subject| subject.id);
        let stack = stack.map(|stack| format!(", stack: {stack}")).unwrap_or_default();
        log.write(Level::Alert, connection, format_args!("thread \"{thread}\" panicked {message}{stack}"));
    }
}
