//! The program: words of the command line in, a served cluster out.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;

use tailwater_ingress::controller;
use tailwater_ingress::options::{self, Command};

/// Status of a wrong command line.
const USAGE_ERROR: u8 = 2;

fn main() -> ExitCode {
    let words = std::env::args_os().skip(1).map(OsString::into_string);
    let command = words
        .collect::<Result<Vec<_>, _>>()
        .map_err(|word| format!("invalid option: \"{}\"", word.display()))
        .and_then(options::parse);
    let result = match command {
        Ok(Command::Help) => print(&options::help()),
        Ok(Command::Version) => {
            print(concat!("tailwater-ingress version: ", env!("CARGO_PKG_VERSION"), "\n"))
        }
        Ok(Command::Serve(options)) => controller::run(*options),
        Err(error) => {
            complain(&format!("{error}\n    = tailwater-ingress --help lists the options"));
            return ExitCode::from(USAGE_ERROR);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            ExitCode::FAILURE
        }
    }
}

fn print(text: &str) -> Result<(), String> {
    io::stdout().write_all(text.as_bytes()).map_err(|error| error.to_string())
}

fn complain(text: &str) {
    // A failure to write to standard error cannot be reported.
    let _ = writeln!(io::stderr(), "tailwater-ingress: {text}");
}
