//! The log files of a configuration. The master opens them, because a worker process may not, and hands them over.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use tailwater_commands::configuration::created_files::CreatedFile;
use tailwater_commands::output::console::Fault;
use tw_app::Config;
use tw_core::log::LogTarget;
use tw_log::{ErrorLog, OpenError, SinkConfig, Sinks, open_log};

/// Log files that are open for appending, by their names.
pub(super) type LogFiles = Vec<(PathBuf, OwnedFd)>;

/// Opens every log of a configuration for this process.
pub(super) fn open_here(config: &Config, sinks: &Sinks) -> Result<(), Fault> {
    config.logs.open(sinks).map_err(|error| refused(&error))
}

/// Opens every log file of a configuration for a worker process.
pub(super) fn open_files<'a>(paths: impl Iterator<Item = &'a Path>) -> Result<LogFiles, Fault> {
    paths.map(|path| Ok((path.to_owned(), open_log(path).map_err(|error| refused(&error))?))).collect()
}

/// The error log of a master that has a worker process: where `targets` say, but for buffers in memory, which are the
/// worker's.
pub(super) fn of_master(targets: &[LogTarget], files: &LogFiles, sinks: &Sinks) -> Result<ErrorLog, Fault> {
    let targets = targets.iter().filter(|target| target.is_stream() || target.syslog.is_some());
    let paths: Vec<_> = targets.clone().filter_map(|target| target.target.path()).collect();
    let shared = files.iter().filter(|(path, _)| paths.contains(&&**path));
    let shared = shared.map(|(path, file)| Ok((path.clone(), file.try_clone()?)));
    let shared = shared.collect::<io::Result<LogFiles>>();
    sinks.hand_over(shared.map_err(|error| Fault::call("dup()", "error log", &error))?);
    let open = |target: &LogTarget| {
        let sink = sinks.get(&target.target, SinkConfig::default())?;
        Ok(target.with_sink(sink))
    };
    let open = targets.map(open).collect::<Result<_, OpenError>>();
    open.map(ErrorLog::to).map_err(|error| refused(&error))
}

fn refused(error: &OpenError) -> Fault {
    let fault = Fault::emerg(error.to_string());
    match CreatedFile::Log.hint(Path::new(&error.path), &io::Error::from_raw_os_error(error.errno.0)) {
        Some(hint) => fault.hint(hint),
        None => fault,
    }
}
