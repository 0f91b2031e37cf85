//! Unfinished code: no placeholders, no ignored test, no test that sleeps.

use super::Finding;
use super::tree::Tree;

/// Texts banned everywhere, and why.
const NOWHERE: &[(&str, &str)] = &[
    ("todo!", "finish it or leave it out"),
    ("unimplemented!", "finish it or leave it out"),
    ("#[ignore", "a test runs or does not exist"),
];

/// Texts banned in tests, and why.
const NOT_IN_TESTS: &[(&str, &str)] = &[
    ("thread::sleep", "wait for a condition with a deadline"),
    ("time::sleep(", "wait for a condition with a deadline"),
];

/// Home of the loop's timers, whose tests have to sleep.
const TIMERS: &str = "crates/tw-rt/";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        for line in file.lines() {
            let in_tests = NOT_IN_TESTS.iter().filter(|_| line.is_test && !file.path.starts_with(TIMERS));
            for (text, reason) in NOWHERE.iter().chain(in_tests) {
                if line.code.contains(text) {
                    findings.push(Finding::error(&file.path, line.number, format!("{text}: {reason}")));
                }
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_and_sleeps_are_found() {
        for (text, expected) in [
            ("todo!()", 1),
            ("unimplemented!(\"x\")", 1),
            ("#[ignore = \"slow\"]", 1),
            ("// todo!()", 0),
            ("tokio::time::sleep(span).await", 0),
            ("#[cfg(test)]\nmod tests { tokio::time::sleep(span).await }", 1),
            ("#[cfg(test)]\nmod tests { std::thread::sleep(span) }", 1),
        ] {
            assert_eq!(check(&Tree::of(&[("crates/a/src/lib.rs", text)])).len(), expected, "{text}");
        }
    }
}
