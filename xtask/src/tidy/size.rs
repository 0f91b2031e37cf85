//! Advice about files of more than 700 lines.

use super::Finding;
use super::tree::Tree;

/// Longer files are worth a thought; 120 to 400 lines are the norm.
const LINES_MAX: usize = 700;

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let sizes = tree.rust().map(|file| (file, file.text.lines().count()));
    sizes
        .filter(|(_, lines)| *lines > LINES_MAX)
        .map(|(file, lines)| {
            Finding::advice(&file.path, 0, format!("{lines} lines: what second thing lives here?"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_files_are_named() {
        let long = "\n".repeat(LINES_MAX + 1);
        let findings = check(&Tree::of(&[("a.rs", &long), ("b.rs", &long[1..]), ("c.md", &long)]));
        assert_eq!(findings, [Finding::advice("a.rs", 0, "701 lines: what second thing lives here?")]);
    }
}
