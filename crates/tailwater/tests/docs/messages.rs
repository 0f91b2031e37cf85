//! `docs/messages.md`: messages of a test, of a start and of the error log, with what to do about each.
//!
//! A file in a folder of `docs/messages` is a configuration that causes one message. Comments at its head are the text of the page;
//! those that begin with `#:` are [`Step`]s. The program runs with the file, and the page shows what it has written.

mod recorded;
mod step;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use self::recorded::Recorded;
use self::step::Step;
use crate::{anchor, check};

/// Folders with the titles of their parts of the page.
const SECTIONS: [(&str, &str); 6] = [
    ("syntax", "Syntax"),
    ("directives", "Directives and values"),
    ("servers", "Servers, locations and addresses"),
    ("files", "Certificates and other files"),
    ("upstream", "Upstream servers"),
    ("error-log", "Error log"),
];

const INTRO: &str = "\
What the frequent messages mean, and what you do about them. `tailwater -t` prints the messages about a configuration; the last part has those of the
error log. Search this page for a part of a message without names, numbers and paths.

The wording is that of nginx where nginx has such a message. Below the message of a test, the line of the configuration is shown, often with a
suggestion. `tailwater help NAME` explains a directive or a variable.
";

/// A configuration that causes a message.
struct Case {
    name: String,
    /// Advice to the reader.
    text: String,
    steps: Vec<Step>,
    configuration: String,
}

impl Case {
    fn read(path: &Path) -> Self {
        let whole = fs::read_to_string(path).unwrap();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let (head, configuration) =
            whole.split_once("\n\n").unwrap_or_else(|| panic!("{name} has no comment and no blank line"));
        let mut text = String::new();
        let mut steps = Vec::new();
        for line in head.lines() {
            match (line.strip_prefix("#: "), line.strip_prefix('#')) {
                (Some(step), _) => steps.push(Step::parse(step).unwrap_or_else(|| panic!("{name}: {step}"))),
                (None, Some(line)) => writeln!(text, "{}", line.strip_prefix(' ').unwrap_or(line)).unwrap(),
                (None, None) => panic!("{name}: {line} is no comment"),
            }
        }
        Self { name, text, steps, configuration: configuration.to_owned() }
    }
}

/// Files of a section, in the order of their names.
fn files(section: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(crate::docs().join("messages").join(section)).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn messages_are_documented() {
    let mut contents = String::new();
    let mut entries = String::new();
    let mut anchors = BTreeSet::new();
    for (section, title) in SECTIONS {
        writeln!(contents, "**{title}**\n").unwrap();
        for path in files(section) {
            let case = Case::read(&path);
            let Recorded { message, output } = recorded::run(&case);
            let anchor = anchor(&message);
            writeln!(contents, "- [`{message}`](#{anchor})").unwrap();
            assert!(anchors.insert(anchor), "{}: the page has \"{message}\" already", case.name);
            writeln!(entries, "## `{message}`\n\n{}\n```\n{output}\n```\n", case.text).unwrap();
        }
        contents.push('\n');
    }
    check("messages.md", &format!("# Messages\n\n{INTRO}\n{contents}{entries}"));
}

#[test]
fn folders_of_messages_are_sections() {
    for entry in fs::read_dir(crate::docs().join("messages")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(SECTIONS.iter().any(|(section, _)| *section == name), "docs/messages/{name} is no section");
    }
}
