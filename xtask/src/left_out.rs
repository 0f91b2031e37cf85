//! Tests that a run left out, with reasons: the tests write them to a file, which is printed at the end.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tw_testkit::left_out::{FILE_VARIABLE, VARIABLE};

use crate::{Failure, target};

/// The file of one run.
pub(crate) struct LeftOut(PathBuf);

impl LeftOut {
    /// Makes an empty list.
    pub(crate) fn new() -> Result<Self, Failure> {
        let path = target().join("left-out");
        fs::create_dir_all(target())
            .and_then(|()| fs::write(&path, ""))
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        Ok(Self(path))
    }

    /// Lets the tests that `command` runs write into it.
    pub(crate) fn collect_from<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        command.env(FILE_VARIABLE, &self.0)
    }

    /// Adds a line that is not from a test.
    pub(crate) fn add(&self, line: &str) -> Result<(), Failure> {
        let file = File::options().append(true).open(&self.0);
        file.and_then(|mut file| writeln!(file, "{line}"))
            .map_err(|error| format!("cannot write {}: {error}", self.0.display()))
    }

    /// Prints the tests that were left out, if any.
    pub(crate) fn print(&self) {
        let reasons = read(&self.0);
        if !reasons.is_empty() {
            println!(
                "left out, because of this machine or of this run ({VARIABLE}=strict fails for the former):"
            );
            reasons.iter().for_each(|(line, count)| println!("  {line}{}", times(*count)));
        }
    }
}

fn times(count: usize) -> String {
    if count == 1 { String::new() } else { format!(" ({count} times)") }
}

/// Each line once, and how often it was there.
fn read(path: &Path) -> BTreeMap<String, usize> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let mut lines = BTreeMap::new();
    for line in text.lines() {
        *lines.entry(line.trim_start_matches("left out: ").to_owned()).or_default() += 1;
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use tw_testkit::TempDir;

    #[test]
    fn left_out_tests_are_listed_once() {
        let dir = TempDir::new("left-out").unwrap();
        let path = dir
            .write("said", "left out: it: a: no x\nleft out: it: b: no x\nleft out: it: a: no x\n")
            .unwrap();
        LeftOut(path.clone()).add("ci: c: no y").unwrap();
        let printed: Vec<_> = read(&path).into_iter().map(|(line, count)| line + &times(count)).collect();
        assert_eq!(printed, ["ci: c: no y", "it: a: no x (2 times)", "it: b: no x"]);
        assert!(read(&dir.join("none")).is_empty());
    }
}
