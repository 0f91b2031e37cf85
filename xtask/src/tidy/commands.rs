//! Commands of this tool in documents, scripts and workflows: each one exists, and has the options that are named with it.

use super::Finding;
use super::tree::Tree;
use crate::{COMMANDS, Command};

/// Beginning of a command.
const BEGINNING: &str = "cargo xtask ";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let written_values = tree.files.iter().filter(|file| file.path.ends_with(".md"));
    for file in written_values.chain(&tree.others) {
        for (index, line) in file.text.lines().enumerate() {
            for words in line.split(BEGINNING).skip(1) {
                if let Some(text) = complaint(words) {
                    findings.push(Finding::error(&file.path, index + 1, text));
                }
            }
        }
    }
    findings
}

/// Says what is wrong with the words after `cargo xtask`.
fn complaint(words: &str) -> Option<String> {
    // The end of the command: of a quotation, of its line in a script, or a comment.
    let end = words.find(['`', '"', '\'', '#', '|', ';', '&', ')']).unwrap_or(words.len());
    let mut words = words[..end].split_whitespace();
    let name = words.next()?.trim_end_matches([',', '.', ':']);
    if name.starts_with('-') || !name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-') {
        return None;
    }
    let Some(command) = COMMANDS.iter().find(|command| command.name == name) else {
        return Some(format!("{BEGINNING}{name}: no such command"));
    };
    let unknown = words.find(|word| is_option(word) && !knows(command, word))?;
    Some(format!("{BEGINNING}{name} has no option {unknown}"))
}

/// Returns `true` for a long option. The end of a comment of Markdown is none.
fn is_option(word: &str) -> bool {
    word.strip_prefix("--").is_some_and(|name| name.starts_with(|c: char| c.is_ascii_alphabetic()))
}

/// Returns `true` if the help of a command has an option.
fn knows(command: &Command, option: &str) -> bool {
    let help = format!("{} {}", command.arguments, command.options);
    let option = option.trim_end_matches([',', '.', ':', '…']);
    option == "--help"
        || help.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').any(|word| word == option)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_options_exist() {
        for (words, expected) in [
            ("tidy` checks it", true),
            ("tidy, and more", true),
            ("tidier` checks it", false),
            ("ci --skip-tests", true),
            ("ci --skip-test", false),
            ("tidy   # not --all of it", true),
            ("tidy` has no --all", true),
            ("dist --target x86_64-unknown-linux-musl", true),
            ("conformance: begin -->", true),
            ("--help", true),
            ("COMMAND", true),
        ] {
            assert_eq!(complaint(words).is_none(), expected, "{words}");
        }
    }
}
