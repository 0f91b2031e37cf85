//! The binary: command line, start, signals, reload.
//!
//! Everything here runs on the main thread, which waits for signals while the loops serve, and may wait for disks.

mod check;
mod cli;
mod conf;
mod console;
mod explain;
mod files;
mod instance;
mod pid;
mod pools;
mod process;
mod reload;
mod serve;
mod signals;
mod sockets;
mod start;
mod user;
mod version;
mod workers;

use std::os::unix::ffi::OsStringExt;
use std::process::ExitCode;

use tw_log::Sinks;
use tw_server::load::Kept;

use cli::{Command, Options, Order};
use conf::{Source, path};
use console::Console;
use instance::Mode;

/// Never asks a file system for anything once it runs, unlike glibc's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let words = std::env::args_os().skip(1).map(OsStringExt::into_vec);
    match cli::parse(words) {
        Ok(Command::Main(options)) => main_command(&options),
        Ok(Command::Serve(options)) => serve::serve(&options),
        Ok(Command::ServeHelp) => {
            console::print(version::SERVE_HELP);
            ExitCode::SUCCESS
        }
        Err(error) => {
            Console::new().plain(format_args!("{error}"));
            ExitCode::FAILURE
        }
    }
}

fn main_command(options: &Options) -> ExitCode {
    if let Some(show) = options.show {
        console::print(&version::text(show));
        if options.test.is_none() {
            return ExitCode::SUCCESS;
        }
    }
    let source = Source::new(options);
    match (options.test, options.order) {
        (Some(test), _) => check::check(&source, test, options),
        (None, Some(order)) => give_order(&source, order),
        (None, None) => run(source),
    }
}

/// `-s`
fn give_order(source: &Source, order: Order) -> ExitCode {
    let console = Console::new();
    let Some(loaded) = source.load(&Kept::default(), &console) else { return ExitCode::FAILURE };
    match pid::order(path(&loaded.config.main.pid), order) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            console.fault(&fault);
            ExitCode::FAILURE
        }
    }
}

fn run(source: Source) -> ExitCode {
    match start::start(source, Mode::Foreground, Sinks::new()) {
        Some((instance, signals)) => {
            signals::run(instance, &signals);
            ExitCode::SUCCESS
        }
        None => ExitCode::FAILURE,
    }
}
