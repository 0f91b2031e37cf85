//! Reports of tests that cannot run on this machine.
//!
//! A test that returns early looks like one that passed, and the test runner hides what a passing test prints. So
//! [`leave_out`] writes to standard error itself, past the runner, and into the file named by [`FILE_VARIABLE`], from
//! which `cargo xtask ci` and `cargo xtask soak` list at their end the tests left out, with reasons.

use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

/// `TAILWATER_TESTS=strict`: what this machine lacks fails the test.
pub const VARIABLE: &str = "TAILWATER_TESTS";
/// Names the file that gets a line for everything that was left out.
pub const FILE_VARIABLE: &str = "TAILWATER_LEFT_OUT";

/// Cause of a missing requirement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lacks {
    /// Something is missing on this machine, and could be there.
    Machine,
    /// Another run does it: as root or not, with or without debug assertions. No run can do both, so it is no error.
    Run,
}

/// Reports that the rest of this thread's test is left out, and why; the caller then returns.
///
/// Panics under `TAILWATER_TESTS=strict` if the machine lacks something.
pub fn leave_out(lacks: Lacks, why: impl fmt::Display) {
    let thread = std::thread::current();
    let program = std::env::current_exe().ok();
    let program = program.as_deref().and_then(Path::file_stem).unwrap_or_default().to_string_lossy();
    let line = line(&program, thread.name().unwrap_or_default(), &why);
    let is_strict = std::env::var_os(VARIABLE).is_some_and(|value| value == "strict");
    assert!(!(is_strict && lacks == Lacks::Machine), "left out, which {VARIABLE}=strict forbids: {why}");
    // Each line is written at once, because other tests write, too. Errors are ignored.
    let _ = io::stderr().write_all(line.as_bytes());
    if let Some(path) = std::env::var_os(FILE_VARIABLE) {
        let file = OpenOptions::new().append(true).create(true).open(path);
        let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }
}

/// `program` has cargo's hash at its end.
fn line(program: &str, test: &str, why: &impl fmt::Display) -> String {
    let program = program.rsplit_once('-').map_or(program, |(name, _)| name);
    format!("left out: {program}: {test}: {why}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TempDir;
    use std::process::Command;

    #[test]
    fn a_line_names_the_test_and_the_reason() {
        assert_eq!(line("it-0123abcd", "a::b", &"no x"), "left out: it: a::b: no x\n");
        assert_eq!(line("tw_disk", "b", &"no x"), "left out: tw_disk: b: no x\n");
    }

    /// Left out twice, once more when the next test runs this one alone.
    #[test]
    fn both_kinds() {
        if std::env::var_os(FILE_VARIABLE)
            .is_some_and(|path| path.to_string_lossy().contains("left-out-test"))
        {
            leave_out(Lacks::Run, "it is another run");
            leave_out(Lacks::Machine, "there is no x");
        }
    }

    #[test]
    fn left_out_test_is_reported_past_the_runner_and_fails_in_strict_mode() {
        let dir = TempDir::new("left-out-test").unwrap();
        let program = std::env::current_exe().unwrap();
        let name = "left_out::tests::both_kinds";
        for (value, expected) in [("", 2), ("strict", 1)] {
            let file = dir.join(format!("said{value}"));
            let mut test = Command::new(&program);
            test.args(["--exact", name]).env(VARIABLE, value).env(FILE_VARIABLE, &file);
            let run = test.output().unwrap();
            assert_eq!(run.status.success(), value.is_empty(), "{run:?}");
            let seen_text = String::from_utf8(run.stderr).unwrap();
            let kept = std::fs::read_to_string(file).unwrap();
            for text in [&seen_text, &kept] {
                let lines: Vec<_> = text.lines().filter(|line| line.contains(name)).collect();
                assert_eq!(lines.len(), expected, "{value:?}: {text}");
                assert!(lines.iter().all(|line| line.starts_with("left out: tw_testkit: ")), "{text}");
            }
        }
    }
}
