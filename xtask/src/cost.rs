//! `cargo xtask cost`: build times of the crates, rebuild times after a change of typical files, and run times of the
//! test programs, as tables. docs/development.md has the goals.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

use crate::{Failure, cargo, root, target};

/// Typical changes: a name for the table, and the file that is touched.
const CHANGES: &[(&str, &str)] = &[
    ("a module", "crates/tw-modules/src/content/autoindex.rs"),
    ("routing", "crates/tw-request/src/route.rs"),
    ("cache", "crates/tw-cache/src/index/mod.rs"),
    ("TLS", "crates/tw-tls/src/identity.rs"),
    ("HTTP/2", "crates/tw-http2/src/stream.rs"),
];

/// Crates of the workspace in one table; the others are one line.
const PREFIX: &str = "tw-";

/// Directory below the target directory for the build from nothing, which is removed afterwards.
const SCRATCH: &str = "cost";

/// Selected parts of the report.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Build,
    Changes,
    Tests,
}

/// Measures and prints.
pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let parts: &[Part] = match words[..] {
        [] => &[Part::Build, Part::Changes, Part::Tests],
        ["build"] => &[Part::Build],
        ["changes"] => &[Part::Changes],
        ["tests"] => &[Part::Tests],
        _ => return Err(format!("unknown arguments {arguments:?}")),
    };
    for part in parts {
        match part {
            Part::Build => print_build()?,
            Part::Changes => print_changes()?,
            Part::Tests => print_tests()?,
        }
    }
    Ok(())
}

/// Builds the program from nothing and prints the time of each crate.
fn print_build() -> Result<(), Failure> {
    let scratch = target().join(SCRATCH);
    let _ = fs::remove_dir_all(&scratch);
    let begin = Instant::now();
    let mut command = cargo();
    command.args(["build", "-p", "tailwater", "--timings"]).env("CARGO_TARGET_DIR", &scratch);
    let built = timed(&mut command).map(|_| begin.elapsed());
    let report = fs::read_to_string(scratch.join("cargo-timings/cargo-timing.html"));
    let _ = fs::remove_dir_all(&scratch);
    let built = built?;
    let report = report.map_err(|error| format!("no timings: {error}"))?;
    let units = units(&report).ok_or("cargo's report of timings has another form")?;
    let others: f64 = units.iter().filter(|(name, _)| !is_ours(name)).map(|(_, seconds)| seconds).sum();
    println!("| crate | build, s |\n|---|---|");
    units
        .iter()
        .filter(|(name, _)| is_ours(name))
        .for_each(|(name, seconds)| println!("| `{name}` | {seconds:.1} |"));
    println!("| all others together | {others:.1} |");
    println!("| from nothing, as it passes on this machine | {:.0} |\n", built.as_secs_f64());
    Ok(())
}

fn is_ours(name: &str) -> bool {
    name.starts_with(PREFIX) || name.starts_with("tailwater")
}

/// The seconds of each crate in cargo's report of timings.
fn units(report: &str) -> Option<BTreeMap<String, f64>> {
    let data = report.split_once("const UNIT_DATA = ")?.1.split_once(";\n")?.0;
    let list: Value = serde_json::from_str(data).ok()?;
    let mut units = BTreeMap::new();
    for unit in list.as_array()? {
        *units.entry(unit.get("name")?.as_str()?.to_owned()).or_insert(0.0) +=
            unit.get("duration")?.as_f64()?;
    }
    Some(units)
}

/// Touches each typical file and prints what a check and a build of the program take.
fn print_changes() -> Result<(), Failure> {
    println!(
        "| after a change in | crates rebuilt | `cargo check`, s | `cargo build`, s |\n|---|---|---|---|"
    );
    for (name, file) in CHANGES {
        let path = root().join(file);
        let mut seconds = Vec::new();
        let mut rebuilt = 0;
        for step in ["check", "build"] {
            // Work that is not about this change is done before.
            timed(cargo().args([step, "-p", "tailwater"]))?;
            touch(&path).map_err(|error| format!("cannot touch {file}: {error}"))?;
            let begin = Instant::now();
            let said = timed(cargo().args([step, "-p", "tailwater"]))?;
            seconds.push(begin.elapsed());
            rebuilt =
                said.lines().filter(|line| line.contains("Compiling ") || line.contains("Checking ")).count();
        }
        let seconds: Vec<String> = seconds.iter().map(|span| format!("{:.1}", span.as_secs_f64())).collect();
        println!("| {name} (`{file}`) | {rebuilt} | {} |", seconds.join(" | "));
    }
    println!();
    Ok(())
}

fn touch(path: &Path) -> std::io::Result<()> {
    File::options().append(true).open(path)?.set_modified(SystemTime::now())
}

/// Runs every test program by itself and prints its time, the longest first.
fn print_tests() -> Result<(), Failure> {
    let mut command = cargo();
    command.args(["test", "--workspace", "--no-run", "--message-format=json"]).stderr(Stdio::null());
    let output = command.output().map_err(|error| format!("cargo test: {error}"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut times: Vec<(Duration, String, bool)> = Vec::new();
    for (name, program, dir) in said.lines().filter_map(program) {
        let begin = Instant::now();
        let mut command = Command::new(&program);
        let status = command.current_dir(dir).stdout(Stdio::null()).stderr(Stdio::null()).status();
        let has_passed = status.map_err(|error| format!("{}: {error}", program.display()))?.success();
        times.push((begin.elapsed(), name, has_passed));
    }
    times.sort_by(|a, b| b.cmp(a));
    let all: Duration = times.iter().map(|(span, ..)| *span).sum();
    println!("| test program | s |\n|---|---|");
    for (span, name, has_passed) in &times {
        let fault = if *has_passed { "" } else { ", failed" };
        println!("| {name} | {:.1}{fault} |", span.as_secs_f64());
    }
    println!("| all | {:.0} |", all.as_secs_f64());
    Ok(())
}

/// Name, executable and directory of a test program that one of cargo's messages is about.
fn program(message: &str) -> Option<(String, PathBuf, PathBuf)> {
    let message: Value = serde_json::from_str(message).ok()?;
    let program = message.get("executable")?.as_str()?;
    if message.get("profile")?.get("test")? != &Value::Bool(true) {
        return None;
    }
    let dir = Path::new(message.get("manifest_path")?.as_str()?).parent()?;
    let package = dir.file_name()?.to_string_lossy();
    let target = message.get("target")?.get("name")?.as_str()?;
    Some((format!("`{package}` {target}"), program.into(), dir.to_owned()))
}

/// Runs a command, and returns its standard error.
fn timed(command: &mut Command) -> Result<String, Failure> {
    let output = command.stdout(Stdio::null()).output().map_err(|error| format!("cargo: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(said) } else { Err(said) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timings_of_one_crate_are_added_up() {
        let report = "<script>\nconst UNIT_DATA = [{\"name\": \"tw-a\", \"duration\": 1.5}, {\"name\": \"tw-a\", \"duration\": 2.0},\
            {\"name\": \"libc\", \"duration\": 0.5}];\nconst X = 1;\n";
        let expected = [("libc".to_owned(), 0.5), ("tw-a".to_owned(), 3.5)];
        assert_eq!(units(report), Some(expected.into()));
        assert_eq!(units("<html>"), None);
    }

    #[test]
    fn only_test_programs_are_run() {
        let message = |executable: &str, test: bool| {
            format!(
                "{{\"executable\": {executable}, \"profile\": {{\"test\": {test}}}, \
                 \"manifest_path\": \"/w/crates/tw-a/Cargo.toml\", \"target\": {{\"name\": \"it\"}}}}"
            )
        };
        let expected = ("`tw-a` it".to_owned(), "/t/it-1".into(), "/w/crates/tw-a".into());
        assert_eq!(program(&message("\"/t/it-1\"", true)), Some(expected));
        assert_eq!(program(&message("\"/t/tailwater\"", false)), None);
        assert_eq!(program(&message("null", true)), None);
    }

    #[test]
    fn typical_files_are_there() {
        for (_, file) in CHANGES {
            assert!(root().join(file).is_file(), "{file}");
        }
    }
}
