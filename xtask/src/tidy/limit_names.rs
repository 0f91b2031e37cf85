//! Compiled-in limits: the name in the record is that of the constant, so that readers of the record find the code.

use super::Finding;
use super::tree::Tree;

/// Constructors of the record of a constant; the name is their first argument.
const RECORDS: &[&str] = &["Limit::bytes(", "Limit::count(", "Limit::micros("];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let is_const = |name: &str| {
        let written = format!("const {name}:");
        tree.rust().any(|file| file.code.contains(&written))
    };
    let mut findings = Vec::new();
    for file in tree.rust() {
        for (at, record) in RECORDS.iter().flat_map(|record| file.text.match_indices(record)) {
            let Some(name) = name(&file.text[at + record.len()..]) else { continue };
            if !is_const(name) {
                let line = file.text[..at].matches('\n').count() + 1;
                findings.push(Finding::error(&file.path, line, format!("no constant is called {name}")));
            }
        }
    }
    findings
}

/// The name in quotes that a record begins with.
fn name(text: &str) -> Option<&str> {
    Some(text.trim_start().strip_prefix('"')?.split_once('"')?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_name_constants() {
        for (text, expected) in [
            ("const A_MAX: usize = 1;\nLimit::bytes(\"A_MAX\", A_MAX as u64, \"\", \"\")", 0),
            ("const A_MAX: usize = 1;\nLimit::count(\n    \"B_MAX\", A_MAX as u64, \"\", \"\")", 1),
            ("// const A_MAX: usize\nLimit::micros(\"A_MAX\", 1, \"\", \"\")", 1),
            ("const A_MAX_LEN: usize = 1;\nLimit::bytes(\"A_MAX\", 1, \"\", \"\")", 1),
            ("Limit::directive(\"a\", \"\", \"\")", 0),
            ("pub const fn bytes(name: &str)", 0),
        ] {
            let found = check(&Tree::of(&[("crates/a/src/lib.rs", text)]));
            assert_eq!(found.len(), expected, "{text}");
            assert!(found.iter().all(|finding| finding.line == 2), "{found:?}");
        }
    }
}
