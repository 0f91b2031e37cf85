//! The files the rules look at, read once.

use std::path::Path;
use std::{fs, io};

/// A file of the repository.
#[derive(Debug)]
pub(super) struct File {
    /// From the root, with `/`.
    pub(super) path: String,
    pub(super) text: String,
}

/// All text files that people write here.
#[derive(Debug, Default)]
pub(super) struct Tree {
    pub(super) files: Vec<File>,
}

/// Directories with nothing that people wrote.
const SKIPPED: &[&str] = &["target", ".git", "corpus", "artifacts"];

/// Kinds of files that are read.
const KINDS: &[&str] = &["rs", "toml", "md"];

/// A line of a Rust file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Line<'a> {
    /// Counted from 1.
    pub(super) number: usize,
    pub(super) text: &'a str,
    /// In a `tests` directory or below `#[cfg(test)]` at the start of a line, where tests stand in this repository.
    pub(super) is_test: bool,
}

impl Tree {
    /// Reads everything below `root`.
    pub(super) fn read(root: &Path) -> io::Result<Self> {
        let mut tree = Self::default();
        tree.read_dir(root, "")?;
        tree.files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(tree)
    }

    fn read_dir(&mut self, root: &Path, dir: &str) -> io::Result<()> {
        for entry in fs::read_dir(root.join(dir))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = if dir.is_empty() { name.clone() } else { format!("{dir}/{name}") };
            if entry.file_type()?.is_dir() {
                if !SKIPPED.contains(&name.as_str()) {
                    self.read_dir(root, &path)?;
                }
            } else if name.rsplit_once('.').is_some_and(|(_, kind)| KINDS.contains(&kind)) {
                self.files.push(File { path, text: fs::read_to_string(entry.path())? });
            }
        }
        Ok(())
    }

    /// The file at `path`.
    pub(super) fn get(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// The Rust files, without tidy itself, which has to name what it looks for.
    pub(super) fn rust(&self) -> impl Iterator<Item = &File> {
        self.files
            .iter()
            .filter(|file| file.path.ends_with(".rs") && !file.path.starts_with("xtask/src/tidy/"))
    }

    /// The manifests of the workspace. `fuzz` is a workspace of its own, built by another tool.
    pub(super) fn manifests(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.path.ends_with("/Cargo.toml") && !file.path.starts_with("fuzz/"))
    }

    /// A tree of these files.
    #[cfg(test)]
    pub(super) fn of(files: &[(&str, &str)]) -> Self {
        let file = |(path, text): &(&str, &str)| File { path: (*path).into(), text: (*text).into() };
        Self { files: files.iter().map(file).collect() }
    }
}

impl File {
    /// The lines of a Rust file.
    pub(super) fn lines(&self) -> impl Iterator<Item = Line<'_>> {
        let mut is_test = self.path.contains("/tests/") || self.path.ends_with("/tests.rs");
        self.text.lines().enumerate().map(move |(index, text)| {
            is_test |= text.starts_with("#[cfg(test)]");
            Line { number: index + 1, text, is_test }
        })
    }
}

impl<'a> Line<'a> {
    /// The part before a `//` comment. A `//` inside a string ends it too, which no rule minds.
    pub(super) fn code(&self) -> &'a str {
        self.text.split("//").next().unwrap_or_default()
    }
}

/// Whether `text` contains `word` with no letter, digit or `_` beside it.
pub(super) fn has_word(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word)
        .any(|(at, _)| !text[..at].ends_with(is_part) && !text[at + word.len()..].starts_with(is_part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stand_alone() {
        assert!(has_word("unsafe {", "unsafe"));
        assert!(has_word("(unsafe)", "unsafe"));
        assert!(!has_word("forbid(unsafe_code)", "unsafe"));
        assert!(!has_word("notunsafe", "unsafe"));
    }

    #[test]
    fn tests_begin_at_the_attribute() {
        let tree = Tree::of(&[("crates/a/src/lib.rs", "fn a() {}\n#[cfg(test)]\nmod tests {}\n")]);
        let marks: Vec<bool> = tree.files[0].lines().map(|line| line.is_test).collect();
        assert_eq!(marks, [false, true, true]);
        let tree = Tree::of(&[("crates/a/tests/it/main.rs", "fn a() {}\n")]);
        assert!(tree.files[0].lines().all(|line| line.is_test));
    }

    #[test]
    fn comments_are_not_code() {
        let line = Line { number: 1, text: "a(); // unsafe", is_test: false };
        assert_eq!(line.code(), "a(); ");
    }
}
