//! `tailwater-scripts`: runs JavaScript for the server. The server starts it; by hand, it runs a file or checks modules.

use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

const USAGE: &str = "usage: tailwater-scripts run FILE [ARGUMENT...]
                                     runs a module and prints what it logs; - is standard input
       tailwater-scripts check       reads modules from standard input, as the server sends them, and reports errors
       tailwater-scripts serve FD…   serves loops of the server over these sockets; 0 is standard input";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["run", file, ..] => tailwater_scripts::run_file(file, arguments.get(2..).unwrap_or_default()),
        ["check"] => tailwater_scripts::check(std::io::stdin().lock(), std::io::stdout().lock())
            .map_err(|error| error.to_string()),
        ["serve", numbers @ ..] if !numbers.is_empty() => serve(numbers),
        _ => Err(USAGE.to_owned()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            report(&message);
            ExitCode::FAILURE
        }
    }
}

fn serve(numbers: &[&str]) -> Result<(), String> {
    let socket = |number: &&str| -> Result<OwnedFd, String> {
        let number = number.parse().map_err(|_| format!("\"{number}\" is no descriptor"))?;
        let socket = match number {
            0 => std::io::stdin().as_fd().try_clone_to_owned(),
            _ => tw_sys::inherit::take(number),
        };
        socket.map_err(|error| format!("descriptor {number}: {error}"))
    };
    let sockets = numbers.iter().map(socket).collect::<Result<_, _>>()?;
    tailwater_scripts::serve_confined(sockets).map_err(|error| error.to_string())
}

#[expect(clippy::print_stderr, reason = "a program says on standard error why it ends")]
fn report(message: &str) {
    eprintln!("tailwater-scripts: {message}");
}
