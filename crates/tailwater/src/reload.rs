//! HUP: the configuration is read again and takes the place of the old one, or nothing changes.
//!
//! Everything that can fail happens first, beside what runs: loading, logs, directories, sockets, pools, new loops. Then
//! the loops are told. A request keeps the configuration it began with; the next one of its connection has the new one.

use tw_log::Level;
use tw_server::http::generation::Generation;
use tw_server::pools::Disks;

use crate::conf::{Loaded, path};
use crate::console::{Console, Fault};
use crate::files;
use crate::instance::{Instance, Mode};
use crate::pid::PidFile;
use crate::pools;
use crate::process::{self, Privileges, Process};
use crate::start::open_logs;
use crate::workers::Wanted;

// DIFF(nginx): connections outlive a reload, so worker_shutdown_timeout does not end them then.
/// Reads the configuration again. After a fault, which has been said, everything is as before.
pub(crate) fn reload(instance: &mut Instance) {
    if let Err(fault) = try_reload(instance) {
        if let Some(fault) = fault {
            instance.console.fault(&fault);
        }
        instance.console.say(Level::Notice, format_args!("the configuration stays as it was"));
    }
}

/// The error is a fault that has not been said yet.
fn try_reload(instance: &mut Instance) -> Result<(), Option<Fault>> {
    let console = &instance.console;
    let (source, previous, speaker) = (instance.source.clone(), instance.generation.clone(), console.clone());
    let load = move || source.load(&previous.kept, &speaker);
    let loaded = instance.config_thread.run(load).ok_or(None)?;
    let process = Process::of(&loaded, Privileges::Keep, console).ok_or(None)?;
    let Loaded { config, .. } = loaded;
    open_logs(&config, &instance.sinks)?;
    if instance.mode != Mode::Session {
        files::make_temp_paths(&config.temp_paths, process.identity.as_ref())?;
    }
    let sockets = instance.sockets.next(&config.listens, config.main.worker_count(), console).ok_or(None)?;
    let pools = pools::next(&config.main.pools, &instance.pools, &config.error_log)?;
    let moved = *config.main.pid != *instance.generation.main.pid;
    let pid =
        (moved && instance.pid.is_some()).then(|| PidFile::create(path(&config.main.pid))).transpose()?;
    process::set_limits(&config.main, console);

    let disks = Disks::new(pools.iter().cloned(), &config.plans);
    let generation =
        instance.config_thread.publish(Generation { id: instance.generation.id + 1, config, disks });
    let wanted = Wanted { generation: &generation, sockets: &sockets, affinity: &process.affinity };
    instance.workers.serve(&wanted, console)?;

    // From here on nothing can fail.
    keeps(&instance.generation, &generation, console);
    pools::resize(&generation.main.pools, &pools, console);
    sockets.replace(&instance.sockets, console);
    instance.sinks.report_to((*generation.error_log).clone());
    instance.console.log_to((*generation.error_log).clone());
    if let Some(pid) = pid {
        instance.pid = Some(pid);
    }
    instance.sockets = sockets;
    instance.pools = pools;
    instance.affinity = process.affinity;
    instance.generation = generation;
    Ok(())
}

/// Says which changes need a restart.
fn keeps(old: &Generation, new: &Generation, console: &Console) {
    let (old, new) = (&old.main, &new.main);
    let changed = [
        ("user", old.user != new.user),
        ("working_directory", old.working_directory != new.working_directory),
        ("daemon", old.daemon != new.daemon),
    ];
    for (name, _) in changed.iter().filter(|(_, changed)| *changed) {
        console.say(
            Level::Warn,
            format_args!("\"{name}\" takes effect when the server is started, not on reload"),
        );
    }
}
