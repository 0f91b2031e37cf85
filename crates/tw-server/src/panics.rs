//! A panic of ours goes to the error log, at `alert`, and ends no more than the request it happened in.
//!
//! The standard library would print it, and with `RUST_BACKTRACE` in the environment a backtrace as well: for that it
//! asks for the current directory and reads the program's file, on whatever thread it is. No loop may wait for that, and
//! the loop guard ends a process that tries. So there is a line with the place and no backtrace. The main thread may
//! wait, and its panic ends the process: that one is printed as ever.

use std::panic::PanicHookInfo;
use std::sync::{Arc, Mutex, TryLockError};
use std::thread;

use tw_log::ErrorLog;

/// What the standard library calls the thread of `main`.
const MAIN_THREAD: &str = "main";

/// From here on panics of all threads but the main one are lines of the log that `log` holds then. Once per process.
pub fn report_to(log: Arc<Mutex<ErrorLog>>) {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| match thread::current().name() {
        Some(MAIN_THREAD) => print(info),
        name => report(&log, name.unwrap_or("unnamed"), info),
    }));
}

fn report(log: &Mutex<ErrorLog>, thread: &str, info: &PanicHookInfo<'_>) {
    let log = match log.try_lock() {
        Ok(log) => log.clone(),
        Err(TryLockError::Poisoned(error)) => error.into_inner().clone(),
        // Held by another thread for a moment, or by this one, which panicked while it wrote a line: then to wait would
        // be for ever. The line is lost.
        Err(TryLockError::WouldBlock) => return,
    };
    let message = info.payload_as_str().unwrap_or("a value that is no text");
    match info.location() {
        Some(place) => tw_log::alert!(log, "thread \"{thread}\" panicked at {place}: {message}"),
        None => tw_log::alert!(log, "thread \"{thread}\" panicked: {message}"),
    }
}
