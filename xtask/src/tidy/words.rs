//! Banned words: empty ones, and those that only one person or machine understands.

use super::Finding;
use super::tree::{Tree, has_word};

/// Banned words, and why.
const WORDS: &[(&str, &str)] = &[
    ("TODO", "finish it or leave it out"),
    ("FIXME", "fix it"),
    ("XXX", "say what is wrong"),
    ("HACK", "say why it has to be so"),
];

/// Banned ends of names, and why.
const ENDS: &[(&str, &str)] = &[
    ("Manager", "what does it do?"),
    ("Helper", "what does it do?"),
    ("Util", "what does it do?"),
    ("Utils", "what does it do?"),
];

/// Beginnings of paths that exist on one machine only.
const PATHS: &[&str] = &["/home/", "/Users/"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let files = tree.files.iter().filter(|file| !file.path.starts_with("xtask/src/tidy/"));
    let mut findings = Vec::new();
    for file in files {
        for (index, line) in file.text.lines().enumerate() {
            if let Some(text) = complaint(line) {
                findings.push(Finding::error(&file.path, index + 1, text));
            }
        }
    }
    findings
}

fn complaint(line: &str) -> Option<String> {
    let word = WORDS.iter().find(|(word, _)| has_word(line, word));
    let names = || line.split(|c: char| !c.is_alphanumeric() && c != '_');
    let end =
        || ENDS.iter().find(|(end, _)| names().any(|name| name.len() > end.len() && name.ends_with(end)));
    let path = || PATHS.iter().find(|path| line.contains(**path));
    match word.or_else(end) {
        Some((word, reason)) => Some(format!("{word}: {reason}")),
        None => path().map(|path| format!("{path}: a path of one machine")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_words_are_found() {
        for (line, expected) in [
            ("// TODO later", true),
            ("// METHODOTODO", false),
            ("struct CacheManager;", true),
            ("the cache manager", false),
            ("fn f(utils: Utils)", false),
            ("struct TimeUtils;", true),
            ("root /home/me/www;", true),
            ("root /srv/www;", false),
        ] {
            assert_eq!(complaint(line).is_some(), expected, "{line}");
        }
    }
}
