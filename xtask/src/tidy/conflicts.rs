//! Committed conflict marks.

use super::Finding;
use super::tree::Tree;

/// Marks that git puts before the sides of a conflict. The line between them, `=======`, is also a heading of
/// Markdown.
const MARKS: &[&str] = &["<<<<<<< ", "||||||| ", ">>>>>>> "];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().chain(&tree.others) {
        for (index, line) in file.text.lines().enumerate() {
            if let Some(mark) = MARKS.iter().find(|mark| line.starts_with(**mark)) {
                findings.push(Finding::error(
                    &file.path,
                    index + 1,
                    format!("{mark}: a conflict that nobody solved"),
                ));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_found_in_every_kind_of_file() {
        for (path, text, expected) in [
            ("a.rs", "<<<<<<< main\na\n||||||| base\n=======\nb\n>>>>>>> side\n", vec![1, 3, 6]),
            ("a.conf", "<<<<<<< main\n", vec![1]),
            ("docs/a.md", "Title\n=======\n", vec![]),
            ("a.rs", "let a = \"<<<<<<< main\";\n<<<<<<<\n", vec![]),
        ] {
            let findings = check(&Tree::of(&[(path, text)]));
            assert_eq!(findings.iter().map(|finding| finding.line).collect::<Vec<_>>(), expected, "{text}");
        }
    }
}
