//! `tailwater top`: the program that shows a running server in a terminal takes the place of this one.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use crate::output::console::Console;

/// Name of the program.
const NAME: &str = "tailwater-top";

/// Becomes `tailwater-top` with these words; returns only if it cannot be started.
pub fn top(words: Vec<Vec<u8>>) -> ExitCode {
    let program = beside().unwrap_or_else(|| PathBuf::from(NAME));
    let error = Command::new(&program).args(words.into_iter().map(OsString::from_vec)).exec();
    let console = Console::new();
    match error.kind() {
        ErrorKind::NotFound => console.plain(format_args!(
            "{NAME} is not installed\n    = it is a program of its own, which packages install beside tailwater; from source: \
             cargo install --path crates/tailwater-top"
        )),
        _ => console.plain(format_args!("{}: {error}", program.display())),
    }
    ExitCode::FAILURE
}

/// The program beside this one, or in the directory for programs of users if this one is in that of administrators.
fn beside() -> Option<PathBuf> {
    let directory = std::env::current_exe().ok()?.parent()?.to_owned();
    let all = [directory.join(NAME), directory.with_file_name("bin").join(NAME)];
    all.into_iter().find(|path| path.is_file())
}
