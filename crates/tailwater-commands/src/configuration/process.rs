//! Settings of the process itself: user, limits, priority, processors.

use rustix::process::{Resource, Rlimit, geteuid, getrlimit, setrlimit};
use tw_app::Config;
use tw_base::Errno;
use tw_conf::ConfError;
use tw_core::process::MainSettings;
use tw_log::Level;
use tw_rt::affinity::{Affinity, CpuMask};
use tw_rt::limits;

use crate::configuration::bytes_path::path;
use crate::configuration::conf::Loaded;
use crate::configuration::user::Identity;
use crate::output::console::{Console, Fault};

/// Descriptors besides connections and their files: of sockets, logs, caches and files that are kept open.
const DESCRIPTORS_OF_PROCESS: u64 = 1024;
/// Most descriptors for which there is room from the start: 2 MiB of the kernel's memory.
const DESCRIPTORS_MAX: u64 = 1 << 18;

/// Treatment of the privileges of root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Privileges {
    /// The process becomes the user whom the configuration names.
    GiveUp,
    /// The user stays the same: the process has changed it already, or runs as the user who started it.
    Keep,
}

/// Properties of the process that were looked up.
#[derive(Debug)]
pub struct Process {
    /// User and group to become; `None` without the privilege to.
    pub identity: Option<Identity>,
    /// `worker_cpu_affinity`
    pub affinity: Affinity,
}

/// Becomes `identity` for good. The calling thread must be the only one.
pub fn assume(identity: &Identity, console: &Console) -> Result<(), Fault> {
    identity.assume()?;
    // Otherwise the kernel writes no core file of a process that gave up privileges.
    if let Err(error) = limits::allow_core_files() {
        let errno = Errno::from(&error);
        console.report(Level::Alert, format_args!("prctl(PR_SET_DUMPABLE) failed ({errno})"));
    }
    Ok(())
}

// DIFF(nginx): a process with private keys leaves a core file only if `worker_rlimit_core` wants one.
/// Sees to it that private keys are in no core file, unless the configuration wants some. After the process has become its user.
pub fn keep_secrets(config: &Config, console: &Console) {
    if config.is_secured
        && config.main.rlimit_core.is_none()
        && let Err(error) = limits::forbid_core_files()
    {
        let errno = Errno::from(&error);
        console.report(Level::Alert, format_args!("prctl(PR_SET_DUMPABLE) failed ({errno})"));
    }
}

impl Process {
    /// Looks up what `loaded` names, and says what cannot be found. Reads files and changes nothing.
    pub fn of(loaded: &Loaded, privileges: Privileges, console: &Console) -> Option<Self> {
        let fail = |error: &ConfError| console.conf(error, loaded.sources());
        let identity = match (privileges, geteuid().is_root()) {
            (Privileges::GiveUp, true) => Some(identity(loaded).map_err(|error| fail(&error))),
            (Privileges::GiveUp, false) => {
                if loaded.config.main.user.is_some() {
                    let text =
                        "the \"user\" directive makes sense only if the server is started by root, ignored";
                    fail(&at(ConfError::warn(text), loaded, "user"));
                }
                None
            }
            (Privileges::Keep, _) => None,
        };
        let affinity = affinity(&loaded.config.main)
            .map_err(|text| fail(&at(ConfError::new(text), loaded, "worker_cpu_affinity")));
        // Both were looked up before, so that the errors of both are reported.
        let identity = identity.transpose().ok()?;
        let affinity = affinity.ok()?;
        if let Affinity::Masks(masks) = &affinity
            && masks.len() != loaded.config.main.worker_count()
        {
            let text = "the number of \"worker_processes\" is not equal to the number of \"worker_cpu_affinity\" \
                masks, using last mask for remaining worker processes";
            fail(&at(ConfError::warn(text), loaded, "worker_cpu_affinity"));
        }
        Some(Self { identity, affinity })
    }
}

fn at(error: ConfError, loaded: &Loaded, directive: &str) -> ConfError {
    match loaded.span(directive) {
        Some(span) => error.at(span),
        None => error,
    }
}

fn identity(loaded: &Loaded) -> Result<Identity, ConfError> {
    let Some((name, group)) = &loaded.config.main.user else { return Ok(Identity::nobody()) };
    Identity::of(name, group.as_deref()).map_err(|fault| {
        let error = at(ConfError::new(fault.message), loaded, "user");
        ConfError { hint: fault.hint, ..error }
    })
}

/// `worker_cpu_affinity`
pub fn affinity(main: &MainSettings) -> Result<Affinity, String> {
    let words: Vec<_> = main.cpu_affinity.iter().map(|word| String::from_utf8_lossy(word)).collect();
    let mask = |text: &str| CpuMask::parse(text).map_err(|error| error.to_string());
    match words.iter().map(AsRef::as_ref).collect::<Vec<_>>()[..] {
        [] => Ok(Affinity::Free),
        ["auto"] => match CpuMask::of_current_thread() {
            Ok(all) => Ok(Affinity::Auto(all)),
            Err(error) => Err(format!("sched_getaffinity() failed ({})", Errno::from(&error))),
        },
        ["auto", text] => mask(text).map(Affinity::Auto),
        ref texts => texts.iter().map(|text| mask(text)).collect::<Result<_, _>>().map(Affinity::Masks),
    }
}

/// Sets limits and priority, for the whole process. What the system refuses is reported; the server runs without it.
pub fn set_limits(main: &MainSettings, console: &Console) {
    let alert = |call: String, error: &std::io::Error| {
        console.report(Level::Alert, format_args!("{call} failed ({})", Errno::from(error)));
    };
    match main.rlimit_nofile {
        Some(count) => {
            if let Err(error) = limits::set_open_files(count) {
                alert(format!("setrlimit(RLIMIT_NOFILE, {count})"), &error);
            }
        }
        None => raise_open_files(),
    }
    if let Some(size) = main.rlimit_core
        && let Err(error) = limits::set_core_size(size)
    {
        alert(format!("setrlimit(RLIMIT_CORE, {size})"), &error);
    }
    if main.priority != 0
        && let Err(error) = limits::set_priority(main.priority)
    {
        alert(format!("setpriority({})", main.priority), &error);
    }
    // The limit is for files as well, which the next configuration may lock (hot_lock_size).
    limits::raise_locked_memory();
    let connections = main.worker_connections.saturating_mul(main.worker_count() as u64);
    if let Some(limit) = limits::open_files().filter(|limit| connections > *limit) {
        console.report(
            Level::Warn,
            format_args!("{connections} worker_connections exceed open file resource limit: {limit}"),
        );
    }
    reserve_descriptors(connections);
}

/// Makes the kernel's table of descriptors large enough for `connections`. If it grows later, the thread that opens a descriptor waits for
/// every processor (an RCU grace period, 12 ms at each doubling as measured), because threads share the table. That thread is a loop that
/// accepts a connection.
fn reserve_descriptors(connections: u64) {
    // A connection may have a file.
    let wanted_limit =
        connections.saturating_mul(2).saturating_add(DESCRIPTORS_OF_PROCESS).min(DESCRIPTORS_MAX);
    let wanted_limit = limits::open_files().map_or(wanted_limit, |limit| wanted_limit.min(limit));
    let last = i32::try_from(wanted_limit).unwrap_or(i32::MAX).saturating_sub(1);
    // A duplicate with a high number makes the kernel grow the table now, instead of when it has to. It is closed at
    // once.
    let _ = rustix::io::fcntl_dupfd_cloexec(std::io::stderr(), last);
}

/// Allows as many open files as can be had without privileges.
// DIFF(nginx): one process holds the connections of all loops, for which the usual soft limit is too small.
pub fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    // If this is refused, the limit stays, and set_limits() reports whether it is too small.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Goes to `working_directory`. Relative names mean something else from here on.
pub fn change_directory(main: &MainSettings) -> Result<(), Fault> {
    let Some(directory) = main.working_directory.as_deref().map(path) else { return Ok(()) };
    std::env::set_current_dir(directory)
        .map_err(|error| Fault::call("chdir()", &directory.to_string_lossy(), &error))
}
