//! Differences between two sets of files, line by line.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use tw_fleet::{ConfigurationVersion, FilesOfVersion};

/// Lines of `local` that the version does not have, with `+`, and those that only the version has, with `-`.
pub(super) fn text(version: &ConfigurationVersion, local: &FilesOfVersion) -> String {
    let mut text = String::new();
    let names: BTreeSet<_> = version.files.keys().chain(local.keys()).collect();
    for name in names {
        let old = version.files.get(name);
        let new = local.get(name);
        if old == new {
            continue;
        }
        // Writing into a String does not fail.
        let _ = writeln!(text, "--- version {} {name}\n+++ {name}", version.number);
        let lines = |file: Option<&Vec<u8>>| -> Vec<String> {
            let file = String::from_utf8_lossy(file.map_or(&[][..], |file| file)).into_owned();
            file.lines().map(ToOwned::to_owned).collect()
        };
        compare(&lines(old), &lines(new), &mut text);
    }
    if text.is_empty() {
        let _ = writeln!(text, "no difference from version {}", version.number);
    }
    text
}

/// Writes the lines between the common beginning and the common end.
fn compare(old: &[String], new: &[String], text: &mut String) {
    let begin = old.iter().zip(new).take_while(|(old, new)| old == new).count();
    let old = &old[begin..];
    let new = &new[begin..];
    let end = old.iter().rev().zip(new.iter().rev()).take_while(|(old, new)| old == new).count();
    let _ = writeln!(text, "@@ line {} @@", begin + 1);
    for (sign, lines) in [('-', &old[..old.len() - end]), ('+', &new[..new.len() - end])] {
        for line in lines {
            let _ = writeln!(text, "{sign}{line}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_lines_are_shown_with_their_files() {
        let files = |list: &[(&str, &str)]| -> FilesOfVersion {
            list.iter().map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec())).collect()
        };
        let version = ConfigurationVersion {
            fleet: String::new(),
            number: 2,
            author: String::new(),
            time_ms: 0,
            main: "a".to_owned(),
            files: files(&[("a", "1\n2\n3\n"), ("b", "x\n"), ("c", "same")]),
        };
        let local = files(&[("a", "1\ntwo\n3\n"), ("c", "same"), ("d", "new")]);
        assert_eq!(
            text(&version, &local),
            "--- version 2 a\n+++ a\n@@ line 2 @@\n-2\n+two\n--- version 2 b\n+++ b\n@@ line 1 @@\n-x\n\
             --- version 2 d\n+++ d\n@@ line 1 @@\n+new\n"
        );
        assert_eq!(text(&version, &version.files), "no difference from version 2\n");
    }
}
