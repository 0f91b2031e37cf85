//! `-t`, `-T` and `--explain`: would the server start with this configuration, and what would it do?
//!
//! Loads it as a start does, and looks whether what it names exists. Needs no privileges, opens nothing for writing,
//! makes nothing and listens nowhere, so it can be run beside a running server by anybody.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use tw_core::kept::Kept;

use crate::cli::{Messages, Options, Test};
use crate::conf::{Loaded, Source, path};
use crate::console::{Console, Fault};
use crate::explain;
use crate::process::{Privileges, Process};
use crate::worker::sandbox::{Role, Rules};

/// Tests the configuration and says how that went.
pub(crate) fn check(source: &Source, test: Test, options: &Options) -> ExitCode {
    let console = match options.messages {
        Messages::All => Console::new().with_notes(),
        Messages::Problems => Console::new(),
    };
    let say = |text: std::fmt::Arguments<'_>| {
        if options.messages == Messages::All {
            console.plain(text);
        }
    };
    let name = source.name();
    let loaded = source.load(&Kept::default(), &console).inspect(|_| {
        say(format_args!("the configuration file {name} syntax is ok"));
    });
    let usable = loaded.as_ref().is_some_and(|loaded| is_usable(loaded, &console));
    let Some(loaded) = loaded.filter(|_| usable) else {
        console.plain(format_args!("configuration file {name} test failed"));
        return ExitCode::FAILURE;
    };
    say(format_args!("configuration file {name} test is successful"));
    let role = if loaded.config.main.master_process { Role::Worker } else { Role::Alone };
    for line in Rules::of(&loaded.config, role).describe(&loaded.config) {
        say(format_args!("{line}"));
    }
    let mut out = io::stdout().lock();
    if test == Test::Dump {
        // A reader that has seen enough is no failure.
        let _ = loaded.sources().dump(&mut out).and_then(|()| out.flush());
    }
    if let Some(url) = &options.explain {
        match explain::run(loaded, url) {
            Ok(text) => {
                let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
            }
            Err(why) => {
                console.plain(format_args!("{why}"));
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

/// Whether what the configuration names can be found.
// DIFF(nginx): a test opens no log and no listening socket, and makes no directory; nginx -t does.
fn is_usable(loaded: &Loaded, console: &Console) -> bool {
    if Process::of(loaded, Privileges::GiveUp, console).is_none() {
        return false;
    }
    if loaded.check_directories(console).is_none() {
        return false;
    }
    let config = &loaded.config;
    let logs = config.logs.paths().filter_map(|path| no_place("open()", path));
    let pid = std::iter::once(path(&config.main.pid)).filter_map(|path| {
        let fault = no_place("open()", path)?;
        Some(Fault { message: format!("{}{}", fault.message, loaded.place_of("pid")), ..fault })
    });
    let directories = config.temp_paths.iter().map(|temp| path(temp.path.to_bytes()));
    let directories = directories.filter_map(|path| no_place("mkdir()", path));
    let mut missing = logs.chain(pid).chain(directories);
    match missing.next() {
        Some(fault) => {
            console.fault(&fault);
            false
        }
        None => true,
    }
}

/// What will be said when `path` is to be created and its directory is missing.
fn no_place(call: &str, path: &Path) -> Option<Fault> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty())?;
    let error = match fs::metadata(directory) {
        Ok(found) if found.is_dir() => return None,
        Ok(_) => rustix::io::Errno::NOTDIR.into(),
        Err(error) => error,
    };
    // Whatever else is wrong may be right for the user who starts the server.
    let missing = matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory);
    let hint = || format!("the directory {} must exist", directory.display());
    missing.then(|| Fault::call(call, &path.to_string_lossy(), &error).hint(hint()))
}
