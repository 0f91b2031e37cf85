//! `cargo xtask COMMAND`: the development tasks of this repository, in Rust and in one place.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool speaks to its terminal")]

mod ci;
mod conformance;
mod cost;
mod dist;
mod docs;
mod fleet_demo;
mod install;
mod left_out;
mod notices;
mod site;
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
    /// Options, one on a line; empty if there is none.
    options: &'static str,
    run: fn(&[String]) -> Result<(), Failure>,
}

/// Every command. A new one is one line here and one file beside this one.
const COMMANDS: &[Command] = &[
    Command {
        name: "bench",
        arguments: "static | filters | disk | idle | tls | …",
        about: "measure against nginx, with targets",
        options: tw_bench::USAGE,
        run: tw_bench::run,
    },
    Command {
        name: "ci",
        arguments: "[--skip-tests]",
        about: "all checks that a change must pass",
        options: "--skip-tests      everything but the tests",
        run: ci::run,
    },
    Command {
        name: "conformance",
        arguments: "--suite DIRECTORY [--write] [FILE.t…]",
        about: "nginx's test suite, and the table of its results",
        options: "--suite DIRECTORY the suite, as https://github.com/nginx/nginx-tests has it\n\
         --binary FILE     server under test                       target/debug/tailwater\n\
         --jobs N          files at a time                         twice the number of processors\n\
         --timeout SECONDS longest time of a file\n\
         --openssl VERSION version of OpenSSL that the server names, for files that require one\n\
         --njs DIRECTORY   run the tests of njs in it (nginx/t) in place of those of the suite\n\
         --write           write the table into docs/conformance.md\n\
         FILE.t            only these files",
        run: conformance::run,
    },
    Command {
        name: "cost",
        arguments: "[build | changes | tests]",
        about: "times of builds, rebuilds after typical changes, and test programs",
        options: "build, changes or tests: only this part",
        run: cost::run,
    },
    Command {
        name: "differ",
        arguments: "[--nginx FILE] [--cases N] [--seed N]",
        about: "generated configurations and requests, compared with nginx",
        options: tw_differ::USAGE,
        run: |words| tw_differ::run(words, &root()),
    },
    Command {
        name: "dist",
        arguments: "[--plain] [--target TRIPLE]…",
        about: "archive, packages and image for users, of a binary optimised with a profile",
        options: dist::USAGE,
        run: dist::run,
    },
    Command {
        name: "docs",
        arguments: "[--site]",
        about: "write the generated documents",
        options: "--site            build a site of all documents with mdBook, in target/site/html",
        run: docs::run,
    },
    Command {
        name: "fleet-demo",
        arguments: "[--nats-server FILE]",
        about: "three nodes and an engine: a purge, a rollout, and a bad configuration that is rolled back",
        options: "--nats-server FILE the engine                              nats-server on the PATH\n\
         --binary FILE      the server                              target/debug/tailwater",
        run: fleet_demo::run,
    },
    Command {
        name: "install",
        arguments: "--prefix DIRECTORY",
        about: "build all programs at once and install them, with configuration, unit, manual pages and completions",
        options: install::USAGE,
        run: install::run,
    },
    Command {
        name: "notices",
        arguments: "[FILE]",
        about: "third-party code in the program, with its licences",
        options: "FILE: write into this file instead of standard output",
        run: notices::run,
    },
    Command {
        name: "soak",
        arguments: "[--runs 20] [--busy 2]",
        about: "repeat the tests beside busy processes, and count failures",
        options: "--runs N          runs of all tests                        20\n\
         --busy N          processes that keep the cores busy       2",
        run: soak::run,
    },
    Command {
        name: "tidy",
        arguments: "",
        about: "check the rules of this repository beyond lints",
        options: "",
        run: tidy::run,
    },
    Command {
        name: "torture",
        arguments: "[--requests 100000] [--kills 50] [--seed N]",
        about: "requests to a faulty origin, kills of a cache: no wrong byte, no hang, no leak",
        options: "--requests N      requests to a faulty origin              100000\n\
         --kills N         kills of each cache                      50\n\
         --sessions N      sessions of each kind in stream          100000\n\
         --downloads N     downloads over HTTP/3 during upgrades    200\n\
         --seed N          seed of what is random",
        run: torture::run,
    },
];

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let Some((name, rest)) = words.split_first() else {
        eprintln!("{}", usage());
        return ExitCode::FAILURE;
    };
    if is_help(name) || name == "help" {
        println!("{}", usage());
        return ExitCode::SUCCESS;
    }
    let Some(command) = COMMANDS.iter().find(|command| command.name == name) else {
        eprintln!("unknown command {name}\n\n{}", usage());
        return ExitCode::FAILURE;
    };
    if rest.iter().any(|word| is_help(word)) {
        println!("{}", command.help());
        return ExitCode::SUCCESS;
    }
    match (command.run)(rest) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.is_empty() {
                eprintln!("{name}: {failure}");
            }
            ExitCode::FAILURE
        }
    }
}

fn is_help(word: &str) -> bool {
    matches!(word, "--help" | "-h" | "-?")
}

/// All commands.
fn usage() -> String {
    let mut text =
        "usage: cargo xtask COMMAND [OPTIONS]; cargo xtask COMMAND --help lists the options\n".to_owned();
    for Command { name, arguments, about, .. } in COMMANDS {
        text += &format!("\n  {:<28} {about}", format!("{name} {arguments}"));
    }
    text
}

impl Command {
    /// Purpose and options.
    fn help(&self) -> String {
        let Self { name, arguments, about, options, .. } = self;
        let usage = format!("usage: cargo xtask {name} {arguments}");
        match *options {
            "" => format!("{}\n\n{about}", usage.trim_end()),
            // These options begin with a usage line of their own.
            options if options.starts_with("usage: ") => format!("{options}\n\n{about}"),
            options => format!("{usage}\n\n{about}\n\n{options}"),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_explains_itself() {
        for command in COMMANDS {
            let help = command.help();
            let first = help.lines().next().unwrap_or_default();
            assert!(first.starts_with(&format!("usage: cargo xtask {}", command.name)), "{help}");
            assert!(help.contains(command.about), "{help}");
            assert!(usage().contains(&format!("\n  {} ", command.name)), "{}", command.name);
            // A command whose arguments have options lists them.
            for option in command.arguments.split([' ', '[', ']']).filter(|word| word.starts_with("--")) {
                assert!(command.options.contains(option), "{}: {option}", command.name);
            }
        }
        assert!(is_help("--help") && is_help("-h") && !is_help("--plain"));
    }
}
