//! The binary: command line, master, worker process.
//!
//! ```text
//! main ─┬─► tailwater-commands: command line, commands, configuration, messages
//!       └─► master ─ ipc ─► worker
//!             └─────────────► sockets          check: `-t`          faults: panics and stacks
//! ```
//! Everything here runs on the main thread of a process, which waits for signals and orders while loops serve, and may wait
//! for disks.
//!
//! **The master keeps the privileges.** It reads the files of the configuration, loads them to check them, opens sockets and logs, and
//! discards what it has loaded. It starts the worker process by executing its own program file, so the worker has memory and addresses of its
//! own. Over a Unix socket the worker receives the texts of all files and the descriptors of sockets, logs and files of data. It loads the texts
//! itself, drops its privileges, and serves. `channel` is the protocol between the two; the master trusts nothing that a worker
//! sends. With `master_process off` and `tailwater serve`, the first process does the work of the worker.
//!
//! **A reload happens inside the running worker process.** A request keeps the generation it began with, so no request is dropped, not
//! even a long download. Sockets are kept by address and pools by name. An error leaves everything as it was, and `-s reload` reports it. Some changes
//! cannot be made by a running process (user, limits, sandbox): the master starts a second worker process beside the
//! first one, which finishes its requests.
//!
//! **Panics and crashes.** A panic ends the connection in which it happened, because no other connection uses the memory of that request.
//! Loops share data in a `FatalMutex`, requests of one loop in a `FatalCell`; a panic that holds one ends the process (status 70), so
//! half-changed data is never used. `loop_watchdog` finds a loop that hangs, writes the stacks of all threads, and ends the process if
//! configured (status 71). A worker process that dies is started again with the same sockets and texts; one that does not respond gets a
//! successor. Connections that are not accepted yet stay in the queues of the sockets.

mod check;
mod faults;
mod ipc;
mod master;
mod script_check;
mod sockets;
mod worker;

use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::process::ExitCode;

use master::Mode;
use tailwater_commands::cli::{self, Command, ControlOptions, Options, Output, PurgeOptions, SignalCommand};
use tailwater_commands::commands;
use tailwater_commands::configuration::bytes_path::path;
use tailwater_commands::configuration::conf::Source;
use tailwater_commands::configuration::member_directories;
use tailwater_commands::output::console::{self, Console, Fault};
use tailwater_commands::output::stdout::write_out;
use tailwater_commands::server::Server;
use tw_core::shared_objects::SharedObjects;
use tw_log::{Level, Sinks};
use tw_net::Addr;
use tw_rt::available_memory;

/// Never asks a file system for anything once it runs, unlike glibc's.
#[global_allocator]
static ALLOCATOR: tw_rt::Heap = tw_rt::Heap;

fn main() -> ExitCode {
    tw_sys::heap::defer_purge();
    available_memory::refresh();
    // Every thread has places of its own in memory, and gets 2 MiB where it needs 40 KB: a server took three times the memory,
    // and a large configuration was loaded no faster. An old kernel may give huge pages all the same.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    // The crypto library has not allocated anything yet, so the allocator can still be installed.
    let _ = tw_sys::secret::install();
    let mut words = std::env::args_os();
    match words.next() {
        Some(name) if name == worker::process::TITLE => return worker::process::run(),
        Some(name) if name == member_directories::TITLE => return member_directories::ask(),
        _ => {}
    }
    let words = words.map(OsStringExt::into_vec);
    match cli::parse(words) {
        Ok(Command::Main(options)) => main_command(&options),
        Ok(Command::Serve(options)) => commands::serve::serve(&OwnServer, &options),
        Ok(Command::Proxy(options)) => commands::proxy::proxy(&OwnServer, &options),
        Ok(Command::Purge(options)) => purge(&options),
        Ok(Command::Cache(command)) => commands::cache_directory::run(&command),
        Ok(Command::CacheHelp) => help(&commands::version::cache_help()),
        Ok(Command::Trust(options)) => commands::trust::trust(&options),
        Ok(Command::WafTest(options)) => commands::waf::test(&options),
        Ok(Command::WafHelp) => help(&commands::version::waf_help()),
        Ok(Command::HashPassword(user)) => commands::hash_password::hash_password(user.as_deref()),
        Ok(Command::Reference(name)) => commands::reference::reference(&name),
        Ok(Command::Top(words)) => commands::top::top(words),
        Ok(Command::Js(words)) => commands::js::js(words),
        Ok(Command::JsHelp) => help(&commands::version::js_help()),
        Ok(Command::ServeHelp) => help(&commands::version::serve_help()),
        Ok(Command::ProxyHelp) => help(&commands::version::proxy_help()),
        Ok(Command::FleetStatus(options)) => fleet_status(&options),
        Ok(Command::Fleet(options)) => commands::fleet_commands::run(&OwnServer, &options),
        Ok(Command::FleetHelp) => help(&commands::version::fleet_help()),
        Ok(Command::PurgeHelp) => help(&commands::version::purge_help()),
        Ok(Command::TrustHelp) => help(&commands::version::trust_help()),
        Ok(Command::HashPasswordHelp) => help(&commands::version::hash_password_help()),
        Err(error) => {
            Console::new().plain(format_args!("{error}\n    = {}", error.hint));
            ExitCode::FAILURE
        }
    }
}

fn help(text: &str) -> ExitCode {
    write_out(text);
    ExitCode::SUCCESS
}

fn main_command(options: &Options) -> ExitCode {
    if let Some(show) = options.show {
        // DIFF(nginx): help is on standard output, as everything but `-v` and `-V`, whose readers look at standard error.
        match options.output {
            Output::Standard => write_out(&commands::version::text(show)),
            Output::Error => console::print(&commands::version::text(show)),
        }
        if options.test.is_none() {
            return ExitCode::SUCCESS;
        }
    }
    let source = Source::new(options);
    match (options.test, options.order) {
        (Some(test), _) => check::check(&source, test, options),
        (None, Some(order)) => send_command(&source.for_command(), order),
        (None, None) => run(source, options.control.clone()),
    }
}

/// `-s`
fn send_command(source: &Source, order: SignalCommand) -> ExitCode {
    let console = Console::new();
    console.begin_record();
    let loaded = source.load(&SharedObjects::default(), &console);
    let warned = console.end_record();
    let Some(loaded) = loaded else {
        if order == SignalCommand::Reload {
            master::report_refusal(&source.pid_file(), &warned);
        }
        return ExitCode::FAILURE;
    };
    let (said, code) = match master::order(path(&loaded.config.main.pid), order) {
        Ok(said) => (said, ExitCode::SUCCESS),
        Err(said) => (said, ExitCode::FAILURE),
    };
    // The server warns of the same, and its answer has no hints.
    let is_new = |fault: &&Fault| {
        !warned
            .iter()
            .any(|known_fault| known_fault.level == fault.level && known_fault.message == fault.message)
    };
    said.iter().filter(is_new).for_each(|fault| console.fault(fault));
    code
}

/// `tailwater purge`: the running server is found as `-s` finds it, by the pid file of the configuration.
fn purge(options: &PurgeOptions) -> ExitCode {
    let console = Console::new();
    let Some(loaded) = Source::new(&options.main).for_command().load(&SharedObjects::default(), &console)
    else {
        return ExitCode::FAILURE;
    };
    let (said, code) = match master::purge(path(&loaded.config.main.pid), &options.order) {
        Ok(said) => (said, ExitCode::SUCCESS),
        Err(said) => (said, ExitCode::FAILURE),
    };
    for fault in &said {
        match fault.level {
            Level::Notice => console.plain(format_args!("{fault}")),
            _ => console.fault(fault),
        }
    }
    code
}

/// `tailwater fleet status`
fn fleet_status(options: &Options) -> ExitCode {
    let console = Console::new();
    let Some(loaded) = Source::new(options).for_command().load(&SharedObjects::default(), &console) else {
        return ExitCode::FAILURE;
    };
    match master::fleet_status(path(&loaded.config.main.pid)) {
        Ok(lines) => {
            lines.iter().for_each(|line| write_out(&format!("{}\n", line.message)));
            write_out(&commands::fleet_commands::configurations(&loaded));
            ExitCode::SUCCESS
        }
        Err(said) => {
            said.iter().for_each(|fault| console.fault(fault));
            ExitCode::FAILURE
        }
    }
}

/// The server of this program, for commands.
struct OwnServer;

impl Server for OwnServer {
    fn serve(&self, source: Source, sinks: Sinks, started: &mut dyn FnMut(&[Addr])) -> ExitCode {
        let Some(master) = master::start(source, Mode::Session, sinks, None) else {
            return ExitCode::FAILURE;
        };
        let addresses: Vec<_> = master.addresses().cloned().collect();
        started(&addresses);
        master.run();
        ExitCode::SUCCESS
    }

    fn reload(&self, pid: &Path) -> Result<(), Vec<Fault>> {
        master::order(pid, SignalCommand::Reload).map(|_| ())
    }
}

fn run(source: Source, control: Option<ControlOptions>) -> ExitCode {
    match master::start(source, Mode::Foreground, Sinks::new(), control) {
        Some(master) => {
            master.run();
            ExitCode::SUCCESS
        }
        None => ExitCode::FAILURE,
    }
}
