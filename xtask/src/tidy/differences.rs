//! Deviations from nginx: each is marked in the code and has a row in the list, and every row has a mark and is made of
//! sentences.

use std::collections::BTreeMap;

use super::Finding;
use super::tree::Tree;

const LIST: &str = "docs/nginx-differences.md";
const MARK: &str = "DIFF(nginx):";

/// First words of a cell that leave its subject open.
const OPEN_WORDS: &[&str] =
    &["It ", "They ", "One ", "Those ", "That ", "What ", "Who ", "Whoever ", "Nobody ", "At most "];

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
    let unpaired = unpaired.map(|(path, (marks, rows))| {
        Finding::error(path, 0, format!("{marks} marks `{MARK}`, but {rows} rows in {LIST}"))
    });
    unpaired.chain(tree.get(LIST).into_iter().flat_map(|list| riddles(&list.text))).collect()
}

/// Rows whose cells are no sentences with a subject.
fn riddles(list: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, row) in list.lines().enumerate().filter(|(_, line)| place(line).is_some()) {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [nginx, ours, why, _] = &cells[..] else {
            let text = format!("{} cells: a row has nginx, Tailwater, why, where", cells.len());
            findings.push(Finding::error(LIST, index + 1, text));
            continue;
        };
        let is_open = [nginx, ours].iter().any(|cell| OPEN_WORDS.iter().any(|word| cell.starts_with(word)));
        if is_open || [nginx, ours, why].iter().any(|cell| !cell.ends_with('.')) {
            let text = "write whole sentences that begin with their subject, such as the directive";
            findings.push(Finding::error(LIST, index + 1, text));
        }
    }
    findings
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
        let row = "| A. | B. | C. | `crates/a/src/lib.rs` |\n";
        let mark = "// DIFF(nginx): b\n";
        for (rows, code, expected) in [
            ("", "", 0),
            (row, mark, 0),
            (row, "", 1),
            ("", mark, 1),
            (row, &mark.repeat(2), 1),
            (&row.repeat(2), &mark.repeat(2), 0),
            ("| A. | B. | C. | `crates/gone.rs` |\n", "", 1),
        ] {
            assert_eq!(check_rows(rows, code), expected, "{rows}{code}");
        }
    }

    #[test]
    fn cells_are_sentences_with_a_subject() {
        for (cells, expected) in [
            ("A file is read. | The file is not read. | A reason.", 0),
            ("A file is read. | It is not. | A reason.", 1),
            ("A list is read. | At most 3 entries. | A reason.", 1),
            ("A file is read. | The file is not read. | No full stop", 1),
            ("A file is read. | The file is not read.", 1),
        ] {
            let row = format!("| {cells} | `crates/a/src/lib.rs` |\n");
            assert_eq!(check_rows(&row, "// DIFF(nginx): b\n"), expected, "{cells}");
        }
    }
}
