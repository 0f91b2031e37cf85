//! Unsafe code: only in one crate, each block with a comment on why it is sound.

use super::Finding;
use super::tree::{Tree, has_word};

/// The only crate with unsafe code.
const HOME: &str = "crates/tw-sys/";

/// Largest distance in lines of a SAFETY comment from its block.
const REACH: usize = 8;

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        let lines: Vec<_> = file.lines().collect();
        for (index, line) in lines.iter().enumerate() {
            let code = line.code;
            if !file.path.starts_with(HOME) {
                if has_word(code, "unsafe") || code.contains("allow(unsafe_code)") {
                    findings.push(Finding::error(
                        &file.path,
                        line.number,
                        format!("unsafe code outside {HOME}"),
                    ));
                }
            } else if ["unsafe {", "unsafe impl"].iter().any(|start| code.contains(start)) {
                let above = &lines[index.saturating_sub(REACH)..=index];
                if !above.iter().any(|line| line.text.contains("SAFETY:")) {
                    findings.push(Finding::error(&file.path, line.number, "no SAFETY line above"));
                }
            }
        }
    }
    for file in tree.manifests().filter(|file| !file.path.starts_with(HOME)) {
        if !file.text.contains("[lints]\nworkspace = true") {
            findings.push(Finding::error(&file.path, 0, "does not take the lints of the workspace"));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_rust(path: &str, text: &str) -> Vec<String> {
        check(&Tree::of(&[(path, text)])).into_iter().map(|finding| finding.text).collect()
    }

    #[test]
    fn unsafe_has_one_home() {
        assert_eq!(
            check_rust("crates/tw-a/src/lib.rs", "unsafe { f() }"),
            ["unsafe code outside crates/tw-sys/"]
        );
        for text in [
            "// nothing unsafe here",
            "/* nothing\n   unsafe here */",
            "log(\"an unsafe URI\")",
            "log(r#\"an \"unsafe\" URI\"#)",
            "log(\"a\n unsafe URI\")",
        ] {
            assert_eq!(check_rust("crates/tw-a/src/lib.rs", text), [""; 0], "{text}");
        }
        assert_eq!(check_rust("crates/tw-a/src/lib.rs", "f('\"'); unsafe { g('\"') }").len(), 1);
        assert_eq!(check_rust("crates/tw-a/src/lib.rs", "#![forbid(unsafe_code)]"), [""; 0]);
    }

    #[test]
    fn unsafe_block_has_a_safety_comment() {
        assert_eq!(check_rust("crates/tw-sys/src/lib.rs", "unsafe { f() }"), ["no SAFETY line above"]);
        assert_eq!(
            check_rust("crates/tw-sys/src/lib.rs", "// SAFETY: f has no rules.\nunsafe { f() }"),
            [""; 0]
        );
    }

    #[test]
    fn manifests_take_the_lints() {
        assert_eq!(check_rust("crates/tw-a/Cargo.toml", "[lints]\nworkspace = true\n"), [""; 0]);
        assert_eq!(check_rust("crates/tw-a/Cargo.toml", "").len(), 1);
    }
}
