//! The way to a running server, on the main thread, before there is any other.
//!
//! ```text
//! load ─► limits ─► logs ─► directories ─► sockets ─► background ─► pid file ─► user ─► log writers, pools, loops
//! ```
//! What needs privileges comes before `user`. What a fork would lose, threads, comes after `background`.

use std::io;
use std::time::{Duration, Instant};

use tw_disk::Pool;
use tw_log::{Level, OpenError, Sinks, Target};
use tw_rt::affinity::Affinity;
use tw_rt::signal::Signals;
use tw_server::config_thread::{ConfigThread, Live};
use tw_server::http::generation::{Config, Generation};
use tw_server::load::Kept;
use tw_server::pools::Disks;
use tw_sys::daemon::{self, Starting};

use crate::conf::{Loaded, Source, path};
use crate::console::{Console, Fault};
use crate::files;
use crate::instance::{Instance, Mode};
use crate::pid::PidFile;
use crate::pools;
use crate::process::{self, Privileges, Process};
use crate::sockets::Sockets;
use crate::version::{COMPILER, PROGRAM};
use crate::workers::{Wanted, Workers};

/// Time for the error log to take the reason of a start that failed.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// What was opened before there is any thread.
struct Opened {
    config: Config,
    process: Process,
}

/// What runs.
struct Launched {
    signals: Signals,
    pid: Option<PidFile>,
    config_thread: ConfigThread,
    generation: Live,
    pools: Vec<Pool>,
    affinity: Affinity,
    workers: Workers,
    parent: Option<Starting>,
}

/// Starts the server. `None` after a fault, which has been said.
pub(crate) fn start(mut source: Source, mode: Mode, sinks: Sinks) -> Option<(Instance, Signals)> {
    let mut console = Console::new();
    let launched = open(&mut source, mode, &sinks, &mut console).and_then(|(opened, sockets)| {
        let launched = launch(opened, &sockets, mode, &sinks, &console).inspect_err(|fault| {
            console.fault(fault);
            sockets.remove_files(&console);
        });
        launched.ok().map(|launched| (launched, sockets))
    });
    let Some((launched, sockets)) = launched else {
        // A log that does not take the reason in time changes nothing.
        let _ = sinks.flush_and_close(Instant::now() + LAST_WORDS);
        return None;
    };
    let Launched { signals, pid, config_thread, generation, pools, affinity, workers, parent } = launched;
    console.log_to((*generation.error_log).clone());
    console.leave_stderr();
    let mode = if parent.is_some() { Mode::Background } else { mode };
    if let Some(parent) = parent {
        files::redirect_stderr(&generation.main);
        parent.ready();
    }
    Some((
        Instance {
            mode,
            source,
            console,
            sinks,
            config_thread,
            generation,
            sockets,
            pools,
            affinity,
            workers,
            pid,
        },
        signals,
    ))
}

/// Everything up to the sockets.
fn open(source: &mut Source, mode: Mode, sinks: &Sinks, console: &mut Console) -> Option<(Opened, Sockets)> {
    let say = |console: &Console, fault: Fault| console.fault(&fault);
    if let Err(error) = source.make_absolute() {
        say(console, Fault::emerg(format!("getcwd() failed ({})", tw_log::Errno::from(&error))));
        return None;
    }
    let loaded = source.load(&Kept::default(), console)?;
    let privileges = if mode == Mode::Session { Privileges::Keep } else { Privileges::GiveUp };
    let process = Process::of(&loaded, privileges, console)?;
    let Loaded { config, .. } = loaded;
    process::set_limits(&config.main, console);
    if let Some(name) = &config.main.time_zone {
        tw_log::time::set_zone(name);
    }
    open_logs(&config, sinks).map_err(|fault| say(console, fault)).ok()?;
    if mode != Mode::Session {
        console.log_to((*config.error_log).clone());
        if config.main.error_log.iter().any(|target| target.target == Target::Stderr) {
            console.leave_stderr();
        }
        let made = files::make_temp_paths(&config.temp_paths, process.identity.as_ref());
        made.map_err(|fault| say(console, fault)).ok()?;
    }
    let sockets = Sockets::default().next(&config.listens, config.main.worker_count(), console)?;
    Some((Opened { config, process }, sockets))
}

/// Opens the logs of a configuration.
pub(crate) fn open_logs(config: &Config, sinks: &Sinks) -> Result<(), Fault> {
    config.logs.open(sinks).map_err(|error: OpenError| {
        let fault = Fault::emerg(error.to_string());
        match io::Error::from_raw_os_error(error.errno.0).kind() {
            io::ErrorKind::NotFound => fault.hint("the directory of a log must exist"),
            io::ErrorKind::PermissionDenied => {
                fault.hint("logs are opened by the user who starts the server")
            }
            _ => fault,
        }
    })
}

/// Everything from the way to the background on.
fn launch(
    opened: Opened,
    sockets: &Sockets,
    mode: Mode,
    sinks: &Sinks,
    console: &Console,
) -> Result<Launched, Fault> {
    let Opened { config, process } = opened;
    let failed = |what: &str, error: &io::Error| {
        Fault::emerg(format!("{what} failed ({})", tw_log::Errno::from(error)))
    };
    let background = config.main.daemon && mode != Mode::Session;
    let parent = background.then(daemon::detach).transpose().map_err(|error| {
        Fault::emerg(format!("cannot go to the background: {error}"))
            .hint("\"daemon off\" stays in the foreground")
    })?;
    let signals = Signals::take().map_err(|error| failed("signalfd()", &error))?;
    let pid = match mode {
        Mode::Session => None,
        _ => Some(PidFile::create(path(&config.main.pid))?),
    };
    if let Some(identity) = &process.identity {
        // DIFF(nginx): no master keeps the privileges of root. Logs are given to the user, who opens them again.
        files::give_logs(config.logs.paths(), identity, console);
        identity.assume()?;
        // Otherwise the kernel lets a process that gave up privileges leave no core file.
        if let Err(error) = tw_rt::limits::allow_core_files() {
            console.say(Level::Alert, format_args!("{}", failed("prctl(PR_SET_DUMPABLE)", &error)));
        }
    }
    process::change_directory(&config.main)?;

    sinks.start().map_err(|error| Fault::emerg(error.to_string()))?;
    sinks.report_to((*config.error_log).clone());
    describe(console);
    let pools = pools::next(&config.main.pools, &[], &config.error_log)?;
    let disks = Disks::new(pools.iter().cloned(), &config.plans);
    let config_thread = ConfigThread::start().map_err(|error| failed("starting a thread", &error))?;
    let generation = config_thread.publish(Generation { id: 1, config, disks });
    let mut workers = Workers::new().map_err(|error| failed("eventfd()", &error))?;
    console.say(Level::Notice, format_args!("start worker processes"));
    let wanted = Wanted { generation: &generation, sockets, affinity: &process.affinity };
    workers.serve(&wanted, console)?;
    Ok(Launched {
        signals,
        pid,
        config_thread,
        generation,
        pools,
        affinity: process.affinity,
        workers,
        parent,
    })
}

/// What nginx says about itself and its system when it starts.
fn describe(console: &Console) {
    let notice = |message: std::fmt::Arguments<'_>| console.say(Level::Notice, message);
    let system = rustix::system::uname();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let number = |limit: Option<u64>| limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
    notice(format_args!("using the \"epoll\" event method"));
    notice(format_args!("{PROGRAM}"));
    notice(format_args!("built by {COMPILER}"));
    notice(format_args!("OS: {} {}", system.sysname().to_string_lossy(), system.release().to_string_lossy()));
    notice(format_args!("getrlimit(RLIMIT_NOFILE): {}:{}", number(limit.current), number(limit.maximum)));
}
