//! Files that the rules look at, read once.

use std::path::Path;
use std::{fs, io};

use super::code;

/// A file of the repository.
#[derive(Debug)]
pub(super) struct File {
    /// From the root, with `/`.
    pub(super) path: String,
    pub(super) text: String,
    /// Text of a Rust file without comments and quoted text; empty for other files.
    pub(super) code: String,
}

/// All text files that are kept here.
#[derive(Debug, Default)]
pub(super) struct Tree {
    /// Files of the kinds that people write.
    pub(super) files: Vec<File>,
    /// The others.
    pub(super) others: Vec<File>,
}

/// Directories without files of the repository.
const SKIPPED: &[&str] = &["target", ".git", "artifacts"];

/// Kinds of files that people write.
const KINDS: &[&str] = &["rs", "toml", "md"];

/// A line of a Rust file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Line<'a> {
    /// Counted from 1.
    pub(super) number: usize,
    pub(super) text: &'a str,
    /// Line without comments and quoted text.
    pub(super) code: &'a str,
    /// True in a `tests` directory or below `#[cfg(test)]` at the start of a line, where tests are in this
    /// repository.
    pub(super) is_test: bool,
}

impl Tree {
    /// Reads everything below `root`.
    pub(super) fn read(root: &Path) -> io::Result<Self> {
        let mut tree = Self::default();
        tree.read_dir(root, "")?;
        tree.files.sort_by(|a, b| a.path.cmp(&b.path));
        tree.others.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(tree)
    }

    fn read_dir(&mut self, root: &Path, dir: &str) -> io::Result<()> {
        for entry in fs::read_dir(root.join(dir))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = if dir.is_empty() { name.clone() } else { format!("{dir}/{name}") };
            let kind = entry.file_type()?;
            if kind.is_dir() {
                if !SKIPPED.contains(&name.as_str()) {
                    self.read_dir(root, &path)?;
                }
            } else if name.rsplit_once('.').is_some_and(|(_, kind)| KINDS.contains(&kind)) {
                self.files.push(File::new(path, fs::read_to_string(entry.path())?));
            } else if kind.is_file()
                && let Ok(text) = String::from_utf8(fs::read(entry.path())?)
            {
                self.others.push(File::new(path, text));
            }
        }
        Ok(())
    }

    /// The file at `path`.
    pub(super) fn get(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Rust files, without tidy itself, which has to name what it searches for.
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
        let file = |(path, text): &(&str, &str)| File::new((*path).into(), (*text).into());
        Self { files: files.iter().map(file).collect(), others: Vec::new() }
    }
}

impl File {
    pub(super) fn new(path: String, text: String) -> Self {
        let code = if path.ends_with(".rs") { code::of(&text) } else { String::new() };
        Self { path, text, code }
    }

    /// The lines of a Rust file.
    pub(super) fn lines(&self) -> impl Iterator<Item = Line<'_>> {
        let mut is_test = self.path.contains("/tests/") || self.path.ends_with("/tests.rs");
        self.text.lines().zip(self.code.split('\n')).enumerate().map(move |(index, (text, code))| {
            is_test |= code.starts_with("#[cfg(test)]");
            Line { number: index + 1, text, code, is_test }
        })
    }
}

/// Returns `true` if `text` contains `word` with no letter, digit or `_` beside it.
pub(super) fn has_word(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word)
        .any(|(at, _)| !text[..at].ends_with(is_part) && !text[at + word.len()..].starts_with(is_part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_matched_whole() {
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
    fn lines_separate_code_from_comments() {
        let tree = Tree::of(&[("a.rs", "a(\"//\nb\"); // c\nd\n")]);
        let code: Vec<_> = tree.files[0].lines().map(|line| (line.number, line.code.trim_end())).collect();
        assert_eq!(code, [(1, "a(\""), (2, "\");"), (3, "d")]);
    }
}
