//! `cargo xtask COMMAND`: the development tasks of this repository, in Rust and in one place.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool speaks to its terminal")]

mod bench;
mod ci;
mod conformance;
mod cost;
mod dist;
mod docs;
mod fleet_demo;
mod install;
mod left_out;
mod notices;
mod soak;
mod tidy;
mod torture;

use std::{
    env,
    path::{Path, PathBuf},
    process::{self, ExitCode},
};

/// Error of a command, for the terminal. Empty if it was already printed.
type Failure = String;

/// One word after `cargo xtask`.
struct Command {
    name: &'static str,
    arguments: &'static str,
    about: &'static str,
    run: fn(&[String]) -> Result<(), Failure>,
}

/// Every command. A new one is one line here and one file beside this one.
const COMMANDS: &[Command] = &[
    Command {
        name: "bench",
        arguments: "static | filters | disk | idle | tls | …",
        about: "measure against nginx, with targets",
        run: bench::run,
    },
    Command {
        name: "ci",
        arguments: "[--skip-tests]",
        about: "all checks that a change must pass",
        run: ci::run,
    },
    Command {
        name: "conformance",
        arguments: "--suite DIRECTORY [--write] [FILE.t…]",
        about: "nginx's test suite, and the table of its results",
        run: conformance::run,
    },
    Command {
        name: "cost",
        arguments: "[build | changes | tests]",
        about: "times of builds, rebuilds after typical changes, and test programs",
        run: cost::run,
    },
    Command {
        name: "dist",
        arguments: "[--plain] [--target TRIPLE]…",
        about: "archive, packages and image for users, of a binary optimised with a profile",
        run: dist::run,
    },
    Command { name: "docs", arguments: "", about: "write the generated documents", run: docs::run },
    Command {
        name: "fleet-demo",
        arguments: "[--nats-server FILE]",
        about: "three nodes and an engine: a purge, a rollout, and a bad configuration that is rolled back",
        run: fleet_demo::run,
    },
    Command {
        name: "install",
        arguments: "--prefix DIRECTORY",
        about: "configuration, unit, manual page and completions beside a binary from cargo install",
        run: install::run,
    },
    Command {
        name: "notices",
        arguments: "[FILE]",
        about: "third-party code in the program, with its licences",
        run: notices::run,
    },
    Command {
        name: "soak",
        arguments: "[--runs 20] [--busy 2]",
        about: "repeat the tests beside busy processes, and count failures",
        run: soak::run,
    },
    Command {
        name: "tidy",
        arguments: "",
        about: "check the rules of this repository beyond lints",
        run: tidy::run,
    },
    Command {
        name: "torture",
        arguments: "[--requests 100000] [--kills 50] [--seed N]",
        about: "requests to a faulty origin, kills of a cache: no wrong byte, no hang, no leak",
        run: torture::run,
    },
];

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let command = words.first().and_then(|word| COMMANDS.iter().find(|command| command.name == word));
    let Some(command) = command else {
        println!("cargo xtask COMMAND");
        for Command { name, arguments, about, .. } in COMMANDS {
            println!("  {:<28} {about}", format!("{name} {arguments}"));
        }
        return ExitCode::FAILURE;
    };
    match (command.run)(&words[1..]) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.is_empty() {
                eprintln!("{}: {failure}", command.name);
            }
            ExitCode::FAILURE
        }
    }
}

/// The cargo of the toolchain that built this tool.
fn cargo() -> process::Command {
    process::Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Target directory of cargo.
fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// The directory of the workspace.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}
