//! The documents that are made of records: are they fresh?
//!
//! `cargo xtask docs` runs these tests with `UPDATE=1`, which writes the files instead of comparing them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod completions;
mod directive_examples;
mod directives;
mod examples;
#[path = "../../../tailwater-ingress/src/options/records.rs"]
#[allow(unreachable_pub, reason = "the library of the program exports them")]
mod ingress_options;
mod limits;
mod manual;
mod messages;
mod metrics;
mod monitoring;
mod promises;
#[path = "../../../tailwater-top/src/options/records.rs"]
#[allow(unreachable_pub, dead_code, reason = "the library of the program exports them")]
mod top_options;
mod variables;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use tw_reference::MODULES;

/// The first line of every document.
const HEAD: &str =
    "<!-- Made by `cargo xtask docs` from the records in the code. Changes belong there. -->\n\n";

/// Note for files whose format has comments of its own.
const NOTE: &str = "Made by `cargo xtask docs` from the records in the code. Changes belong there.";

/// Compares `docs/NAME` with `text`, or writes it when `UPDATE` is set.
fn check(name: &str, text: &str) {
    check_file(&format!("docs/{name}"), &format!("{HEAD}{}\n", text.trim_end()));
}

/// Folder of the documents.
fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

/// True if the files are to be written.
fn updates() -> bool {
    std::env::var_os("UPDATE").is_some_and(|value| !value.is_empty())
}

/// Checks any file of the repository, with all its text.
fn check_file(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
    let written_text = fs::read_to_string(&path).unwrap_or_default();
    if written_text == text {
        return;
    }
    if updates() {
        fs::write(&path, text).unwrap();
        return;
    }
    let line = written_text.lines().zip(text.lines()).take_while(|(old, new)| old == new).count() + 1;
    panic!("{name} is not fresh from line {line} on; run `cargo xtask docs`");
}

/// The heading of a chapter: a subject with a capital letter, or the name of a module.
fn heading(title: &str) -> String {
    let stream = tw_modules::STREAM_MODULES.iter().map(|module| module.name);
    let mail = tw_modules::MAIL_MODULES.iter().map(|module| module.name);
    if tw_modules::MODULES
        .iter()
        .map(|module| module.name)
        .chain(stream)
        .chain(mail)
        .any(|name| name == title)
    {
        return format!("Module {title}");
    }
    let mut heading = title.to_owned();
    heading[..1].make_ascii_uppercase();
    heading
}

/// Text in a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

/// Beginning of a link to a heading of this text, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let mut anchor = String::new();
    for c in heading.to_lowercase().chars() {
        match c {
            ' ' => anchor.push('-'),
            c if c.is_alphanumeric() || c == '_' || c == '-' => anchor.push(c),
            _ => {}
        }
    }
    anchor
}

/// Rows `key \t words separated by blanks` of a table of nginx's facts.
fn rows(table: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let rows = table.lines().skip(1).filter_map(|line| line.split_once('\t'));
    rows.flat_map(|(key, words)| words.split(' ').map(move |word| (key, word)))
}

/// Names in alphabetical order as code, separated by blanks.
fn names(names: &BTreeSet<&str>, prefix: &str) -> String {
    names.iter().map(|name| format!("`{prefix}{name}`")).collect::<Vec<_>>().join(" ")
}
