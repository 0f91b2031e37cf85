//! `cargo xtask docs`: writes the generated documents. The tests in `crates/tailwater/tests/docs` make them, and fail
//! in CI when they are outdated.

use std::env;
use std::process::Command;

use crate::{Failure, root, site};

pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    match arguments {
        [] => write(),
        [site] if site == "--site" => site::build(),
        _ => Err(format!("unknown arguments {arguments:?}")),
    }
}

fn write() -> Result<(), Failure> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args(["test", "--quiet", "-p", "tailwater", "--test", "docs", "documented"])
        .current_dir(root())
        .env("UPDATE", "1");
    let output = command.output().map_err(|error| format!("cannot run cargo: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = [output.stdout, output.stderr].concat();
    Err(format!("the documents could not be made\n{}", String::from_utf8_lossy(&text)))
}
