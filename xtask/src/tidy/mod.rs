//! `cargo xtask tidy`: rules of this repository beyond lints. One rule, one file, one function; it also runs as a
//! test, so `cargo test --workspace` is enough to check them.

mod bans;
mod circles;
mod code;
mod commands;
mod conflicts;
mod contents;
mod differences;
mod edges;
mod fs_homes;
mod language;
mod links;
mod modules;
mod size;
mod texts;
mod tree;
mod unsafe_code;
mod words;
mod workflows;
mod yaml;

use std::fmt;

use crate::{Failure, root};
use tree::Tree;

/// A place where a rule is broken.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    path: String,
    /// Counted from 1; 0 is the whole file.
    line: usize,
    text: String,
    /// Worth a thought, but no failure.
    is_advice: bool,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_advice { "advice" } else { "error" };
        write!(f, "{}:{}: {kind}: {}", self.path, self.line.max(1), self.text)
    }
}

impl Finding {
    fn error(path: &str, line: usize, text: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, text: text.into(), is_advice: false }
    }

    fn advice(path: &str, line: usize, text: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, text: text.into(), is_advice: true }
    }
}

/// Every rule.
const RULES: &[fn(&Tree) -> Vec<Finding>] = &[
    edges::check,
    circles::check,
    unsafe_code::check,
    fs_homes::check,
    bans::check,
    differences::check,
    words::check,
    conflicts::check,
    contents::check,
    links::check,
    commands::check,
    workflows::check,
    language::check,
    size::check,
    texts::check,
];

fn findings() -> Result<Vec<Finding>, Failure> {
    let tree = Tree::read(&root()).map_err(|error| format!("cannot read the tree: {error}"))?;
    Ok(RULES.iter().flat_map(|rule| rule(&tree)).collect())
}

/// Prints what breaks a rule.
pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    if !arguments.is_empty() {
        return Err(format!("unknown arguments {arguments:?}"));
    }
    let findings = findings()?;
    findings.iter().for_each(|finding| println!("{finding}"));
    match findings.iter().filter(|finding| !finding.is_advice).count() {
        0 => Ok(()),
        errors => Err(format!("{errors} errors")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_tidy() {
        let errors: Vec<String> = findings()
            .unwrap()
            .iter()
            .filter(|finding| !finding.is_advice)
            .map(ToString::to_string)
            .collect();
        assert!(errors.is_empty(), "{}", errors.join("\n"));
    }
}
