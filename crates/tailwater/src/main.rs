//! The binary: command line, start, signals.

mod conf;
mod instance;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut prefix = b"/usr/local/tailwater/".to_vec();
    let mut file = b"conf/nginx.conf".to_vec();
    let mut args = std::env::args().skip(1);
    while let (Some(option), Some(value)) = (args.next(), args.next()) {
        match option.as_str() {
            "-p" => prefix = value.into_bytes(),
            "-c" => file = value.into_bytes(),
            _ => return ExitCode::FAILURE,
        }
    }
    match instance::run(&conf::Names::new(prefix, file)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            let _ = std::io::Write::write_all(
                &mut std::io::stderr(),
                format!("tailwater: [emerg] {e}\n").as_bytes(),
            );
            ExitCode::FAILURE
        }
    }
}
