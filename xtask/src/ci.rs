//! `cargo xtask ci`: all checks that a change must pass, cheapest first; stops at the first failure.

use std::env;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::left_out::LeftOut;
use crate::{Failure, cargo, root};

/// One cargo command.
struct Step<'a> {
    name: &'a str,
    arguments: &'a [&'a str],
    /// Environment variable and value.
    env: Option<(&'static str, &'static str)>,
}

const STEPS: &[Step<'_>] = &[
    Step { name: "fmt", arguments: &["fmt", "--all", "--check"], env: None },
    Step {
        name: "clippy",
        arguments: &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"],
        env: None,
    },
    // The tests of this crate include tidy, and check that generated documents are fresh.
    Step { name: TEST, arguments: &["test", "--workspace"], env: None },
    Step {
        name: "doc",
        arguments: &["doc", "--workspace", "--no-deps"],
        env: Some(("RUSTDOCFLAGS", "-D warnings")),
    },
];

const TEST: &str = "test";

/// A kind of machine the server is built for besides this one.
struct Target {
    triple: &'static str,
    /// The compiler for the parts in C.
    compiler: &'static str,
    /// Debian packages that provide it.
    packages: &'static str,
}

const TARGETS: &[Target] = &[
    Target { triple: "x86_64-unknown-linux-musl", compiler: "musl-gcc", packages: "musl-tools" },
    Target {
        triple: "aarch64-unknown-linux-gnu",
        compiler: "aarch64-linux-gnu-gcc",
        packages: "gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
    },
];

/// Runs the steps. `--skip-tests`: all but the tests, for a caller that has just run them.
pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let skip_tests = match arguments {
        [] => false,
        [word] if word == "--skip-tests" => true,
        _ => return Err(format!("unknown arguments {arguments:?}")),
    };
    let begin = Instant::now();
    let left_out = LeftOut::new()?;
    for step in STEPS.iter().filter(|step| !(skip_tests && step.name == TEST)) {
        run_step(step, &left_out)?;
    }
    check_dependencies(&left_out)?;
    for target in TARGETS {
        check_target(target, &left_out)?;
    }
    compare_instructions(&left_out)?;
    left_out.print();
    println!("ci: all passed in {:.1} s", begin.elapsed().as_secs_f64());
    Ok(())
}

/// Licences, advisories and versions of what others have made (`deny.toml`), if the program for that is installed.
fn check_dependencies(left_out: &LeftOut) -> Result<(), Failure> {
    if is_on_path("cargo-deny") {
        return run_step(&Step { name: "deny", arguments: &["deny", "check"], env: None }, left_out);
    }
    left_out.add("ci: cargo deny: not installed: cargo install cargo-deny")
}

/// Compares instructions per request with those that the repository keeps. A change is a warning, because it may come
/// from another compiler; so is an error, because a machine may forbid to trace processes.
fn compare_instructions(left_out: &LeftOut) -> Result<(), Failure> {
    println!("ci: instructions: of the release build that is there");
    match tw_bench::compare_instructions() {
        Ok(()) => Ok(()),
        Err(reason) => left_out.add(&format!("ci: instructions: {reason}")),
    }
}

/// Runs Clippy for a target, if everything for that is installed; otherwise a line at the end says what is missing.
fn check_target(target: &Target, left_out: &LeftOut) -> Result<(), Failure> {
    let triple = target.triple;
    if let Some(missing) = missing(triple, false)? {
        return left_out.add(&format!("ci: clippy for {triple}: not installed: {missing}"));
    }
    let arguments = &["clippy", "--workspace", "--all-targets", "--target", triple, "--", "-D", "warnings"];
    run_step(&Step { name: triple, arguments, env: None }, left_out)
}

/// Command that installs what is missing for a target besides the one of this machine; `None` if nothing is. With
/// `has_compiler`, a compiler of C is there already.
pub(crate) fn missing(triple: &str, has_compiler: bool) -> Result<Option<String>, Failure> {
    let target = TARGETS.iter().find(|target| target.triple == triple);
    if !is_installed(triple)? {
        return Ok(Some(format!("rustup target add {triple}")));
    }
    let missing = target.filter(|target| !has_compiler && !is_on_path(target.compiler));
    Ok(missing.map(|target| format!("apt-get install {}", target.packages)))
}

/// Linker for a target of another architecture: the compiler of its parts in C.
pub(crate) fn cross_linker(triple: &str) -> Option<&'static str> {
    let machine = env::consts::ARCH;
    let target = TARGETS.iter().find(|target| target.triple == triple)?;
    (!triple.starts_with(machine)).then_some(target.compiler)
}

/// Returns `true` if the compiler has the standard library of a target.
fn is_installed(triple: &str) -> Result<bool, Failure> {
    let mut command = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    command.args(["--print", "target-libdir", "--target", triple]).current_dir(root());
    let output = command.output().map_err(|error| format!("cannot run rustc: {error}"))?;
    Ok(output.status.success() && Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir())
}

fn is_on_path(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

fn run_step(step: &Step<'_>, left_out: &LeftOut) -> Result<(), Failure> {
    println!("ci: {}: cargo {}", step.name, step.arguments.join(" "));
    let begin = Instant::now();
    let mut command = cargo();
    command.args(step.arguments).current_dir(root()).envs(step.env);
    let status =
        left_out.collect_from(&mut command).status().map_err(|error| format!("cannot run cargo: {error}"))?;
    let took_s = begin.elapsed().as_secs_f64();
    if !status.success() {
        return Err(format!("{} failed after {took_s:.1} s", step.name));
    }
    println!("ci: {}: passed in {took_s:.1} s", step.name);
    Ok(())
}
