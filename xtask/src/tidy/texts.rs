//! Advice about directives without a text: pages have more to say about each than its record.

use std::collections::BTreeSet;

use super::Finding;
use super::tree::Tree;

/// Generated pages, one for each module.
const PAGES: &str = "docs/directives/";
/// Texts about the directives of each module.
const TEXTS: &str = "crates/tw-reference/directives/";
/// Beginning of the line that leads to the text about another directive.
const COUNTERPART: &str = "More: [";
/// Beginning of the line of a directive's heading.
const HEADING: &str = "## ";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &tree.files {
        let Some(module) = file.path.strip_prefix(PAGES) else { continue };
        let path = format!("{TEXTS}{module}");
        let texts = tree.files.iter().find(|file| file.path == path).map_or("", |file| file.text.as_str());
        let headings: BTreeSet<_> = texts.lines().filter_map(|line| line.strip_prefix(HEADING)).collect();
        for name in without_counterpart(&file.text).filter(|name| !headings.contains(name)) {
            findings.push(Finding::advice(&path, 0, format!("no text about \"{name}\"")));
        }
    }
    findings
}

/// Directives of a page that it does not lead away from.
fn without_counterpart(page: &str) -> impl Iterator<Item = &str> {
    let sections = page.split("\n## ").skip(1);
    sections.filter(|section| !section.contains(COUNTERPART)).filter_map(|section| section.lines().next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_without_a_text_are_named() {
        let page =
            "# Directives of a\n\n## one\n\nText.\n\n## two\n\nMore: [proxy_two](proxy.md)\n\n## three\n";
        let findings = check(&Tree::of(&[
            ("crates/tw-reference/directives/a.md", "Texts.\n\n## one\n\nText.\n"),
            ("docs/directives/a.md", page),
            ("docs/directives/b.md", "# Directives of b\n\n## four\n"),
        ]));
        let advice = |path, name: &str| Finding::advice(path, 0, format!("no text about \"{name}\""));
        let expected = [
            advice("crates/tw-reference/directives/a.md", "three"),
            advice("crates/tw-reference/directives/b.md", "four"),
        ];
        assert_eq!(findings, expected);
    }
}
