//! Start of a worker process up to its loops, and resources that its master sends with each configuration.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use tailwater_commands::configuration::bytes_path::path;
use tailwater_commands::configuration::conf::Loaded;
use tailwater_commands::configuration::process;
use tailwater_commands::output::console::{Console, Fault};
use tw_app::Config;
use tw_base::Errno;
use tw_conf::MemoryFiles;
use tw_core::config_thread;
use tw_core::shared_objects::SharedObjects;
use tw_log::{Sinks, Target};
use tw_rt::affinity::Affinity;
use tw_sys::heap::purge;
use tw_sys::inherit;
use tw_sys::program::Copier;

use super::life_signs::LifeSigns;
use super::sandbox::{ProcessRole, SandboxRules};
use super::{Server, memory};
use crate::ipc::channel::{Channel, Configure, Text, WorkerCommand};
use crate::sockets::Sockets;

/// Closes descriptors inherited from the process that started the master: a process that serves strangers must not
/// have them.
pub(super) fn close_inherited() {
    let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten().filter_map(Result::ok);
    let numbers = open.filter_map(|fd| fd.file_name().to_str()?.parse().ok());
    // `take` refuses the standard streams, and descriptors that this process opened itself.
    numbers.collect::<Vec<_>>().into_iter().for_each(|fd| drop(inherit::take(fd)));
}

/// A worker process that serves.
pub(super) struct Started {
    pub(super) server: Server,
    pub(super) console: Console,
    pub(super) signs: Option<LifeSigns>,
    pub(super) is_daemon: bool,
}

/// Starts everything up to the loops, and drops privileges.
pub(super) fn start(channel: &Channel, sinks: &Sinks) -> Result<Option<Started>, Fault> {
    let failed = |error: io::Error| Fault::emerg(format!("recvmsg() failed ({})", Errno::from(&error)));
    let Some((WorkerCommand::Configure(order), mut fds)) = channel.receive().map_err(failed)? else {
        return Ok(None);
    };
    tw_tls_settings::inherit_keys(&order.keys.0);
    let files = configuration_files(&order, &mut fds);
    let loaded = config_thread::run_on_own_thread(purge, || load(&order, files, &SharedObjects::default()));
    let config = loaded
        .map_err(|error| Fault::emerg(format!("starting a thread failed ({})", Errno::from(&error))))??;
    let Taken { sockets, affinity } = take(&order, fds, &config, sinks)?;
    let mut console = Console::quiet();
    console.log_to((*config.error_log).clone());
    if order.is_daemon {
        leave_stderr(&config, sinks)?;
    }
    process::set_limits(&config.main, &console);
    // Memory is locked once: with another "worker_memory_lock" another process serves.
    memory::lock(&config, Copier::new().ok().as_ref(), &console);
    let rules = SandboxRules::of(&config, ProcessRole::Worker);
    rules.become_user(order.identity.as_ref(), &console)?;
    process::keep_secrets(&config, &console);
    process::change_directory(&config.main)?;
    rules.enforce()?.log_to(&console);
    let server = Server::start(config, Arc::new(sockets), affinity, None, sinks, &console)?;
    let signs = Some(LifeSigns::every(order.sign_interval));
    Ok(Some(Started { server, console, signs, is_daemon: order.is_daemon }))
}

/// Files of a configuration as the master has read and opened them. Those of data are the first of `fds`, and are taken.
pub(super) fn configuration_files(order: &Configure, fds: &mut Vec<OwnedFd>) -> MemoryFiles {
    let mut files = memory_files(&order.files);
    let data = fds.drain(..order.data.len().min(fds.len()));
    order.data.iter().zip(data).for_each(|(name, file)| files.insert_open(&name[..], file));
    files
}

/// Loads what the master has read and checked.
pub(super) fn load(order: &Configure, files: MemoryFiles, previous: &SharedObjects) -> Result<Config, Fault> {
    let console = Console::quiet();
    console.begin_record();
    match order.source.load_from(&files, previous, &console) {
        Some(Loaded { config, .. }) => Ok(config),
        None => {
            let said = console.end_record().pop();
            Err(said.unwrap_or_else(|| Fault::emerg("the configuration cannot be used")))
        }
    }
}

pub(super) fn memory_files(texts: &[Text]) -> MemoryFiles {
    let mut files = MemoryFiles::default();
    texts.iter().for_each(|file| files.insert(&file.name[..], &file.text[..]));
    files
}

/// Resources received with a configuration.
pub(super) struct Taken {
    pub(super) sockets: Sockets,
    pub(super) affinity: Affinity,
}

/// Takes over what the master has opened for `config`.
pub(super) fn take(
    order: &Configure,
    fds: Vec<OwnedFd>,
    config: &Config,
    sinks: &Sinks,
) -> Result<Taken, Fault> {
    let affinity = process::affinity(&config.main).map_err(Fault::emerg)?;
    let mut fds = fds.into_iter();
    let sockets = Sockets::from_fds(&mut fds, &order.sockets);
    let sockets = sockets.map_err(|error| Fault::emerg(format!("a listening socket is missing: {error}")))?;
    sinks.hand_over(named(&order.logs, fds));
    config.logs.open(sinks).map_err(|error| Fault::emerg(error.to_string()))?;
    if let Some(name) = &config.main.time_zone {
        tw_log::time::set_zone(name);
    }
    Ok(Taken { sockets, affinity })
}

pub(super) fn named(names: &[Vec<u8>], fds: impl Iterator<Item = OwnedFd>) -> Vec<(PathBuf, OwnedFd)> {
    names.iter().map(|name| path(name).to_owned()).zip(fds).collect()
}

/// Standard error is closed with the error log in use: the terminal of a daemon may be closed.
fn leave_stderr(config: &Config, sinks: &Sinks) -> Result<(), Fault> {
    let targets = config.main.error_log.iter().map(|target| &target.target);
    if targets.clone().any(|target| *target == Target::Stderr) {
        return Ok(());
    }
    match targets.into_iter().find_map(|target| sinks.handed(target)) {
        Some(Ok(log)) => rustix::stdio::dup2_stderr(&log).map_err(io::Error::from),
        Some(Err(error)) => Err(error),
        None => Ok(()),
    }
    .map_err(|error| Fault::emerg(format!("dup() of the error log failed ({})", Errno::from(&error))))
}
