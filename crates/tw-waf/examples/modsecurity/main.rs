//! Runs ModSecurity's own tests of its language, which have to be fetched, against the engine.
//!
//! ```text
//! modsecurity DIRECTORY [UNITS] [-v | -t FILE NUMBER]
//! ```
//! `DIRECTORY` is `test` of ModSecurity's repository, which has `test-cases/regression`. `UNITS` is the repository
//! `secrules-language-tests` with cases of operators and transformations. A case passes if the status, the texts of its log lines and the errors of its rules
//! are as it says. Texts of the debug log are looked for in the trace of the engine. `-v` shows why cases fail, `-t` all about one of them.

#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::disallowed_methods, missing_docs)]

mod case;
mod json;
mod unit;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use self::json::Json;

/// Result of a case.
pub(crate) enum Outcome {
    Passed,
    /// Asks for something that is no part of the engine; the reason.
    LeftOut(&'static str),
    Failed(String),
}

/// Names of the files of JSON in a directory, in order.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|e| e == "json")).collect();
    files.sort();
    files
}

fn read(path: &Path) -> Json {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Numbers of the cases with each outcome.
#[derive(Default)]
struct Tally {
    passed: u32,
    failed: u32,
    left_out: BTreeMap<&'static str, u32>,
}

impl Tally {
    fn add(&mut self, name: &str, outcome: Outcome, is_verbose: bool) {
        match outcome {
            Outcome::Passed => self.passed += 1,
            Outcome::LeftOut(reason) => *self.left_out.entry(reason).or_default() += 1,
            Outcome::Failed(reason) => {
                self.failed += 1;
                if is_verbose {
                    println!("FAIL {name}: {reason}");
                }
            }
        }
    }

    fn show(&self, title: &str) {
        let Self { passed, failed, left_out } = self;
        let share = 100.0 * f64::from(*passed) / f64::from((passed + failed).max(1));
        println!("{title}: {passed} passed, {failed} failed, {share:.1} %");
        for (reason, count) in left_out {
            println!("  left out: {count} ({reason})");
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let is_verbose = arguments.iter().any(|argument| argument == "-v");
    let shown = arguments.iter().position(|argument| argument == "-t");
    let shown = shown.map(|at| (arguments[at + 1].clone(), arguments[at + 2].parse::<usize>().unwrap()));
    let root = Path::new(&arguments[0]);
    let mut tally = Tally::default();
    for path in files(&root.join("test-cases/regression")) {
        let file = path.file_name().unwrap().to_str().unwrap().to_owned();
        if shown.as_ref().is_some_and(|(wanted_name, _)| *wanted_name != file) {
            continue;
        }
        for (number, value) in read(&path).list().iter().enumerate() {
            let is_shown = shown.as_ref().is_some_and(|(_, wanted_number)| *wanted_number == number);
            let outcome = case::run(value, root, &file, is_shown);
            let name = format!("{file}:{number} {}", value.text("title"));
            tally.add(&name, outcome, is_verbose || is_shown);
        }
    }
    tally.show("regression");
    let units = arguments.get(1).filter(|argument| !argument.starts_with('-'));
    for kind in ["operators", "transformations"] {
        let Some(directory) = units else { continue };
        let mut tally = Tally::default();
        for path in files(&Path::new(directory).join(kind)) {
            for (number, value) in read(&path).list().iter().enumerate() {
                let name = format!("{}:{number}", path.file_name().unwrap().to_str().unwrap());
                tally.add(&name, unit::run(value, directory), is_verbose);
            }
        }
        tally.show(kind);
    }
}
