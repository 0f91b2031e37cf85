//! `tailwater help NAME`: what the reference says about a directive, variable, metric or module.

use std::process::ExitCode;

use tw_reference::{Lookup, look_up};

use crate::output::console::Console;
use crate::output::stdout::write_out;

/// Prints the entries with the name. The status is 1 if there is none.
pub fn reference(name: &[u8]) -> ExitCode {
    let name = String::from_utf8_lossy(name);
    match look_up(&name) {
        Lookup::Found(text) => {
            write_out(&text);
            ExitCode::SUCCESS
        }
        Lookup::Unknown(similar) => {
            let hint = match similar {
                Some(similar) => format!("did you mean: tailwater help '{similar}'?"),
                None => "tailwater help 'NAME' explains a command, directive, $variable, metric or module"
                    .to_owned(),
            };
            let console = Console::new();
            console.plain(format_args!("there is nothing about \"{name}\"\n    = {hint}"));
            ExitCode::FAILURE
        }
    }
}
