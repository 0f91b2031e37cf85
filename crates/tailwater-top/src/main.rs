//! The program: words of the command line in, screens or text out.

use std::ffi::OsString;
use std::io::{self, ErrorKind, Write as _};
use std::process::ExitCode;

use tailwater_top::options::{self, Command, Options, Output};
use tailwater_top::{plain, terminal};

/// Status of a wrong command line.
const USAGE_ERROR: u8 = 2;

fn main() -> ExitCode {
    let words = std::env::args_os().skip(1).map(OsString::into_string);
    let command = words
        .collect::<Result<Vec<_>, _>>()
        .map_err(|word| format!("invalid option: \"{}\"", word.display()))
        .and_then(options::parse);
    match command {
        Ok(Command::Help) => print(&options::help()),
        Ok(Command::Version) => print(concat!("tailwater-top version: ", env!("CARGO_PKG_VERSION"), "\n")),
        Ok(Command::Show(options)) => show(*options),
        Err(error) => {
            complain(&format!("{error}\n    = tailwater-top --help lists the options"));
            ExitCode::from(USAGE_ERROR)
        }
    }
}

fn show(options: Options) -> ExitCode {
    let url = options.url.clone();
    let shown = match options.output {
        Output::Once => terminal::read_twice(&options)
            .map(|app| print(&plain::text(&app, options.pane)))
            .map_err(|error| format!("{url}: {error}")),
        Output::Screen => {
            terminal::run(options).map(|()| ExitCode::SUCCESS).map_err(|error| error.to_string())
        }
    };
    shown.unwrap_or_else(|error| {
        complain(&error);
        ExitCode::FAILURE
    })
}

/// Writes `text` to standard output. A reader that closes the pipe early is no failure.
fn print(text: &str) -> ExitCode {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    }
}

fn complain(text: &str) {
    // A failure to write to standard error cannot be reported.
    let _ = writeln!(io::stderr(), "tailwater-top: {text}");
}
