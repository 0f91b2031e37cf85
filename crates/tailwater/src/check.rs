//! `-t`, `-T` and `--explain`: tests of a configuration without starting a server.
//!
//! Loads it as a start does, and checks that the files it names exist. Needs no privileges, opens nothing for writing,
//! makes nothing and listens nowhere, so any user can run it beside a running server.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use tailwater_commands::cli::{Messages, Options, Test};
use tailwater_commands::commands::explain;
use tailwater_commands::configuration::conf::{Loaded, Source, Tested};
use tailwater_commands::configuration::created_files::{self, CreatedFile};
use tailwater_commands::configuration::machine_checks;
use tailwater_commands::configuration::member_directories;
use tailwater_commands::configuration::process::{Privileges, Process};
use tailwater_commands::output::console::{Console, Fault};
use tw_log::Level;

use crate::script_check;
use crate::worker::sandbox::{ProcessRole, SandboxRules};

/// Tests the configuration and says how that went.
pub(crate) fn check(source: &Source, test: Test, options: &Options) -> ExitCode {
    let console = match options.messages {
        Messages::All => Console::new().with_notes(),
        Messages::Problems => Console::new(),
    };
    let print = |text: std::fmt::Arguments<'_>| {
        if options.messages == Messages::All {
            console.plain(text);
        }
    };
    let name = source.name();
    let accepted = match source.test(&console) {
        Tested::Accepted(loaded) => {
            print(format_args!("the configuration file {name} syntax is ok"));
            is_usable(&loaded, source.prefix(), &console).then_some(loaded)
        }
        Tested::Rejected(partial) => {
            // Other faults of a rejected configuration are reported at the same time.
            if let Some(loaded) = partial {
                let _ = is_usable(&loaded, source.prefix(), &console);
            }
            None
        }
    };
    let Some(mut loaded) = accepted else {
        console.plain(format_args!("configuration file {name} test failed"));
        return ExitCode::FAILURE;
    };
    if options.messages == Messages::All {
        machine_checks::run(std::mem::take(&mut loaded.checks), loaded.sources(), &console);
    }
    let role = if loaded.config.main.master_process { ProcessRole::Worker } else { ProcessRole::Alone };
    if let Some(line) = SandboxRules::of(&loaded.config, role).describe(&loaded.config) {
        print(format_args!("{line}"));
    }
    print(format_args!("configuration file {name} test is successful"));
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

/// Checks that the files and users that the configuration names can be found, and reports everything that cannot.
// DIFF(nginx): a test opens no log and no listening socket, and makes no directory; nginx -t does.
fn is_usable(loaded: &Loaded, prefix: &Path, console: &Console) -> bool {
    let has_process = Process::of(loaded, Privileges::GiveUp, console).is_some();
    let has_directories = loaded.check_directories(console).is_some();
    let has_scripts = match script_check::check(&loaded.config) {
        Ok(()) => true,
        Err(fault) => {
            console.fault(&fault);
            false
        }
    };
    member_directories::check_devices(&loaded.config, console);
    let mut can_make_files = true;
    for (made, fault) in created_files::check(&loaded.config, prefix) {
        let is_note = fault.level == Level::Notice;
        let place = if made == CreatedFile::Pid { loaded.place_of("pid") } else { String::new() };
        let before = if is_note { "this user cannot start it: " } else { "" };
        console.fault(&Fault { message: format!("{before}{}{place}", fault.message), ..fault });
        can_make_files &= is_note;
    }
    has_process && has_directories && has_scripts && can_make_files
}
