//! `tailwater cache stat|check|export|format`: directories and devices of caches, read without a server or beside one.
//!
//! Nothing is locked and nothing is written, except by `check --remove` and `format`. Beside a running server, files appear, change and go at
//! any time: one that is gone is left out, and a head that cannot be read is read again before it counts as damaged, because a
//! validation may be replacing it.

mod body;
mod check;
mod device;
mod directory;
mod export;
mod format;
mod list;
mod names;
mod pace;
mod response_file;
mod segment_file;
mod stat;
mod stored;
mod tar;
mod text;
mod walk;

use std::process::ExitCode;

use crate::cli::CacheCommand;
use crate::output::console::Console;

/// Runs a command. Status 0: all good; 1: something is damaged; 2: the work could not be done.
pub fn run(command: &CacheCommand) -> ExitCode {
    let console = Console::new();
    let status = match command {
        CacheCommand::Stat(options) => stat::run(options, &console),
        CacheCommand::Check(options) => check::run(options, &console),
        CacheCommand::Export(options) => export::run(options, &console),
        CacheCommand::Format(options) => format::run(options, &console),
    };
    ExitCode::from(status)
}
