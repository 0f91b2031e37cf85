//! Deviations from nginx: each is marked in the code and has a row in the list, and every row has a mark.

use std::collections::BTreeMap;

use super::Finding;
use super::tree::Tree;

const LIST: &str = "docs/nginx-differences.md";
const MARK: &str = "DIFF(nginx):";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    // Path to (marks in the code, rows in the list).
    let mut places: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for file in tree.rust() {
        let marks = file.text.matches(MARK).count();
        if marks > 0 {
            places.entry(&file.path).or_default().0 = marks;
        }
    }
    for path in tree.get(LIST).iter().flat_map(|list| list.text.lines()).filter_map(place) {
        places.entry(path).or_default().1 += 1;
    }
    let unpaired = places.into_iter().filter(|(_, (marks, rows))| marks != rows);
    unpaired
        .map(|(path, (marks, rows))| {
            Finding::error(path, 0, format!("{marks} marks `{MARK}`, but {rows} rows in {LIST}"))
        })
        .collect()
}

/// The path in the last column of a row, in backquotes: where the mark is.
fn place(row: &str) -> Option<&str> {
    let last = row.strip_prefix('|')?.trim_end().strip_suffix('|')?.rsplit('|').next()?.trim();
    last.strip_prefix('`')?.strip_suffix('`').filter(|path| path.ends_with(".rs"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "| nginx | Tailwater | why | where |\n|---|---|---|---|\n";

    fn check_rows(rows: &str, code: &str) -> usize {
        let list = format!("{HEAD}{rows}");
        check(&Tree::of(&[(LIST, &list), ("crates/a/src/lib.rs", code)])).len()
    }

    #[test]
    fn marks_and_rows_come_in_pairs() {
        let row = "| a | b | c | `crates/a/src/lib.rs` |\n";
        let mark = "// DIFF(nginx): b\n";
        for (rows, code, expected) in [
            ("", "", 0),
            (row, mark, 0),
            (row, "", 1),
            ("", mark, 1),
            (row, &mark.repeat(2), 1),
            (&row.repeat(2), &mark.repeat(2), 0),
            ("| a | b | c | `crates/gone.rs` |\n", "", 1),
        ] {
            assert_eq!(check_rows(rows, code), expected, "{rows}{code}");
        }
    }
}
