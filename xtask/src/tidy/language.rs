//! Plain English: first words of doc comments, names of tests, and one public type for each name.

use std::collections::BTreeMap;

use super::Finding;
use super::tree::{File, Tree};

/// First words of a doc comment that leave its subject open.
const FIRST_WORDS: &[&str] = &[
    "What", "Whether", "Who", "Whom", "Whose", "Which", "How", "It", "Its", "That", "Those", "The same",
    "Where", "When",
];

/// Beginnings of test names that leave the subject open.
const TEST_PREFIXES: &[&str] = &["it_", "who_", "what_", "that_", "whether_", "those_", "how_"];

/// Type names that several modules of one crate may have, and why.
const SHARED_NAMES: &[(&str, &str)] = &[
    ("Config", "a standard name; the module tells whose"),
    ("Error", "a standard name; the module tells whose"),
    ("Raw", "settings as written, one for each module"),
    ("Settings", "settings as used, one for each module"),
    ("Stats", "a standard name; the module tells whose"),
];

/// Places that define a public type: path and line of each, by the name of the type.
type Definitions<'a> = BTreeMap<&'a str, Vec<(&'a str, usize)>>;

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut crates: BTreeMap<&str, Definitions<'_>> = BTreeMap::new();
    for file in tree.files.iter().filter(|file| file.path.ends_with(".rs")) {
        let Some(name) = crate_name(&file.path) else { continue };
        findings.extend(open_comments(file));
        findings.extend(open_tests(file));
        define_types(file, crates.entry(name).or_default());
    }
    findings.extend(crates.values().flat_map(shared_types));
    findings
}

/// Crate of a path.
fn crate_name(path: &str) -> Option<&str> {
    let mut parts = path.split('/');
    match parts.next()? {
        "crates" => parts.next(),
        other => path.contains('/').then_some(other),
    }
}

/// Doc comments whose first word leaves the subject open.
fn open_comments(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut before = None;
    for (index, line) in file.text.lines().enumerate() {
        let kind = doc_comment(line);
        if let Some((marker, text)) = kind
            && before != Some(marker)
            && let Some(word) = open_word(text)
        {
            let text = format!("doc comment begins with “{word}”: begin with a noun phrase or a verb");
            findings.push(Finding::error(&file.path, index + 1, text));
        }
        before = kind.map(|(marker, _)| marker);
    }
    findings
}

/// Marker and text of a line of a doc comment.
fn doc_comment(line: &str) -> Option<(&'static str, &str)> {
    let line = line.trim_start();
    ["///", "//!"].into_iter().find_map(|marker| {
        let text = line.strip_prefix(marker)?;
        (!text.starts_with('/')).then(|| (marker, text.trim_start()))
    })
}

/// First word of a text, if it leaves the subject open.
fn open_word(text: &str) -> Option<&'static str> {
    let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
    FIRST_WORDS.iter().copied().find(|word| text.strip_prefix(word).is_some_and(ends))
}

/// Tests whose name leaves the subject open.
fn open_tests(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut is_test = false;
    for line in file.lines() {
        let code = line.code.trim_start();
        is_test |= code.starts_with("#[test]") || (code.starts_with("#[") && code.contains("::test"));
        let Some((_, rest)) = code.split_once("fn ").filter(|_| is_test) else { continue };
        is_test = false;
        if let Some(prefix) = TEST_PREFIXES.iter().find(|prefix| rest.starts_with(**prefix)) {
            let text = format!("test name begins with {prefix}: name the subject and the expectation");
            findings.push(Finding::error(&file.path, line.number, text));
        }
    }
    findings
}

/// Notes the public types that a file defines outside of tests.
fn define_types<'a>(file: &'a File, definitions: &mut Definitions<'a>) {
    for line in file.lines().filter(|line| !line.is_test) {
        if let Some(name) = type_name(line.code) {
            definitions.entry(name).or_default().push((&file.path, line.number));
        }
    }
}

/// Name of the public type that a line defines.
fn type_name(code: &str) -> Option<&str> {
    let mut words = code.split_whitespace();
    words.next().filter(|word| matches!(*word, "pub" | "pub(crate)"))?;
    let mut kind = words.next()?;
    if kind == "unsafe" {
        kind = words.next()?;
    }
    if !matches!(kind, "struct" | "enum" | "union" | "trait" | "type") {
        return None;
    }
    let name = words.next()?;
    let end = name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len());
    Some(&name[..end])
}

/// Definitions of a name after its first.
fn shared_types(definitions: &Definitions<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, places) in definitions {
        if SHARED_NAMES.iter().any(|(shared, _)| shared == name) {
            continue;
        }
        let Some(((first, number), others)) = places.split_first() else { continue };
        for (path, line) in others {
            let text = format!("{name} is also defined in {first}:{number}: one public type for each name");
            findings.push(Finding::error(path, *line, text));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doc_comments_begin_with_a_subject() {
        for (text, expected) in [
            ("/// What a request asks for.\n", vec![1]),
            ("    /// Whether it is open.\n", vec![1]),
            ("//! How.\n", vec![1]),
            ("/// It.\n/// That.\nfn a() {}\n/// Who.\n", vec![1, 4]),
            ("/// A line.\n/// What goes on.\n", vec![]),
            ("//! A file.\n\n/// Its length.\n", vec![3]),
            ("//! A file.\n/// Its length.\n", vec![2]),
            ("/// The same as above.\n", vec![1]),
            ("/// The sameness of all.\n", vec![]),
            ("/// Items.\n", vec![]),
            ("/// `What` is a type.\n", vec![]),
            ("// What the reason is.\n", vec![]),
            ("//// What.\n", vec![]),
            ("let text = \"/// What\";\n", vec![]),
            ("/// When the timer ends.\n", vec![1]),
        ] {
            let findings = open_comments(&Tree::of(&[("crates/a/src/lib.rs", text)]).files[0]);
            assert_eq!(findings.iter().map(|finding| finding.line).collect::<Vec<_>>(), expected, "{text}");
        }
    }

    #[test]
    fn test_names_begin_with_a_subject() {
        for (text, expected) in [
            ("#[test]\nfn it_works() {}\n", vec![2]),
            ("#[test]\n#[cfg(unix)]\nfn what_is_kept() {}\n", vec![3]),
            ("#[tokio::test(flavor = \"current_thread\")]\nasync fn who_comes() {}\n", vec![2]),
            ("#[test]\nfn items_are_kept() {}\n", vec![]),
            ("#[test]\nfn a() {}\nfn it_helps() {}\n", vec![]),
            ("fn it_helps() {}\n", vec![]),
        ] {
            let findings = open_tests(&Tree::of(&[("crates/a/src/lib.rs", text)]).files[0]);
            assert_eq!(findings.iter().map(|finding| finding.line).collect::<Vec<_>>(), expected, "{text}");
        }
    }

    #[test]
    fn public_types_of_a_crate_have_names_of_their_own() {
        for (path, text, expected) in [
            ("crates/a/src/b.rs", "pub enum Stage {}", 1),
            ("crates/a/src/b.rs", "pub(crate) type Stage<T> = Vec<T>;", 1),
            ("crates/a/src/b.rs", "pub unsafe trait Stage: Send {}", 1),
            ("crates/a/src/b.rs", "pub(super) struct Stage;", 0),
            ("crates/a/src/b.rs", "struct Stage;", 0),
            ("crates/a/src/b.rs", "// pub struct Stage;", 0),
            ("crates/a/src/b.rs", "#[cfg(test)]\nmod tests {\n    pub struct Stage;\n}", 0),
            ("crates/a/src/b.rs", "pub struct Stages;", 0),
            ("crates/a/src/b.rs", "pub struct Error;\npub struct Error;", 0),
            ("crates/b/src/b.rs", "pub struct Stage;", 0),
        ] {
            let tree = Tree::of(&[("crates/a/src/a.rs", "pub struct Stage;\n"), (path, text)]);
            assert_eq!(check(&tree).len(), expected, "{path}: {text}");
        }
    }

    #[test]
    fn crates_are_directories() {
        for (path, expected) in [
            ("crates/tw-conf/src/lib.rs", Some("tw-conf")),
            ("crates/tailwater/tests/it/main.rs", Some("tailwater")),
            ("xtask/src/main.rs", Some("xtask")),
            ("fuzz/fuzz_targets/a.rs", Some("fuzz")),
            ("build.rs", None),
        ] {
            assert_eq!(crate_name(path), expected, "{path}");
        }
    }
}
