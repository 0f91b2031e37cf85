//! Thread pools, kept by name over all reloads.

use tailwater_commands::output::console::{Console, Fault};
use tw_core::pools::PoolSettings;
use tw_disk::{Notice, Pool, PoolSize};
use tw_log::{ErrorLog, Level};

/// The pools of a configuration in its order: those of `running` by name, and new ones, started. No running one changes.
pub(crate) fn next(settings: &[PoolSettings], running: &[Pool], log: &ErrorLog) -> Result<Vec<Pool>, Fault> {
    let pool = |settings: &PoolSettings| match running.iter().find(|pool| pool.name() == &*settings.name) {
        Some(pool) => Ok(pool.clone()),
        None => start(settings, log),
    };
    settings.iter().map(pool).collect()
}

fn start(settings: &PoolSettings, log: &ErrorLog) -> Result<Pool, Fault> {
    let pool = Pool::sized(&settings.name, &settings.size).map_err(|errno| failed(settings, errno))?;
    let log = log.clone();
    pool.on_notice(move |notice| {
        let level = if matches!(notice, Notice::Hangs { .. }) { Level::Alert } else { Level::Notice };
        log.write(level, None, format_args!("{notice}"));
    });
    Ok(pool)
}

/// Gives every pool the size that `settings`, in the same order, asks for.
pub(crate) fn resize(settings: &[PoolSettings], pools: &[Pool], console: &Console) {
    for (settings, pool) in settings.iter().zip(pools) {
        if let Err(errno) = pool.resize(&settings.size) {
            console.fault(&Fault { level: Level::Alert, ..failed(settings, errno) });
        }
    }
}

fn failed(settings: &PoolSettings, errno: tw_disk::Errno) -> Fault {
    let PoolSettings { name, size: PoolSize { threads, .. }, .. } = settings;
    Fault::emerg(format!(
        "cannot start {threads} threads of thread pool \"{name}\" ({})",
        tw_base::Errno::from(errno)
    ))
    .hint("the limit of processes and threads (ulimit -u, TasksMax of systemd) may be too low")
}
