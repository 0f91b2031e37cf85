//! Commands that are programs of their own beside this one: such a program takes the place of this one.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use crate::output::console::Console;

/// Becomes the program `name` with these words; returns only if it cannot be started. `source` is the command that makes it from source.
pub(super) fn become_program(name: &str, words: Vec<Vec<u8>>, source: &str) -> ExitCode {
    let program = find(name).unwrap_or_else(|| PathBuf::from(name));
    let error = Command::new(&program).args(words.into_iter().map(OsString::from_vec)).exec();
    let console = Console::new();
    match error.kind() {
        ErrorKind::NotFound => console.plain(format_args!(
            "{name} is not installed\n    = it is a program of its own, which packages install beside tailwater; from source: {source}"
        )),
        _ => console.plain(format_args!("{}: {error}", program.display())),
    }
    ExitCode::FAILURE
}

/// The program beside this one, or in the directory for programs of users if this one is in that of administrators.
fn find(name: &str) -> Option<PathBuf> {
    let directory = std::env::current_exe().ok()?.parent()?.to_owned();
    let all = [directory.join(name), directory.with_file_name("bin").join(name)];
    all.into_iter().find(|path| path.is_file())
}
