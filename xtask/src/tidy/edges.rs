//! Dependencies between crates: exactly those listed in docs/dependencies.md.

use std::collections::BTreeSet;

use super::Finding;
use super::tree::Tree;

/// The list is in here, in a fence that begins with [`FENCE`]: one line `crate → crate crate` for each crate, and
/// `tests of crate → crate` for tests that use more than [`FOR_TESTS`].
const MAP: &str = "docs/dependencies.md";
const FENCE: &str = "```edges";

/// Crate that tests of every crate may use.
const FOR_TESTS: &str = "tw-testkit";

type Edge = (String, String);

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let listed = tree.get(MAP).map(|map| listed(&map.text)).unwrap_or_default();
    let mut findings = Vec::new();
    let mut real = BTreeSet::new();
    for file in tree.manifests() {
        for (line, edge) in dependencies(&file.text) {
            if !listed.contains(&edge) {
                findings.push(Finding::error(
                    &file.path,
                    line,
                    format!("{} may not depend on {}: {MAP} does not list it", edge.0, edge.1),
                ));
            }
            real.insert(edge);
        }
    }
    for (from, to) in listed.difference(&real) {
        findings.push(Finding::error(MAP, 0, format!("lists {from} → {to}, which no manifest has")));
    }
    findings
}

/// The edges between crates of this workspace in a manifest, with their lines.
fn dependencies(manifest: &str) -> Vec<(usize, Edge)> {
    let mut section = "";
    let mut name = "";
    let mut edges = Vec::new();
    for (index, line) in manifest.lines().enumerate() {
        let key = line.split(['=', '.', ' ']).next().unwrap_or_default();
        if line.starts_with('[') {
            section = line;
        } else if section == "[package]" && key == "name" {
            name = line.split('"').nth(1).unwrap_or_default();
        } else if section.ends_with("dependencies]")
            && (key.starts_with("tw-") || key.starts_with("tailwater"))
        {
            let is_for_tests = section == "[dev-dependencies]";
            if key != name && !(is_for_tests && key == FOR_TESTS) {
                let from = if is_for_tests { format!("tests of {name}") } else { name.to_owned() };
                edges.push((index + 1, (from, key.to_owned())));
            }
        }
    }
    edges
}

fn listed(map: &str) -> BTreeSet<Edge> {
    let lines = map.lines().skip_while(|line| *line != FENCE).skip(1).take_while(|line| *line != "```");
    lines
        .filter_map(|line| line.split_once('→'))
        .flat_map(|(from, to)| to.split_whitespace().map(|to| (from.trim().to_owned(), to.to_owned())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "[package]\nname = \"tw-b\"\n\n[dependencies]\ntw-a = { workspace = true }\nbytes = \"1\"\n\n\
        [dev-dependencies]\ntw-testkit = { workspace = true }\n";

    fn check_map(edges: &str) -> Vec<String> {
        let map = format!("# Map\n\n```edges\n{edges}\n```\n");
        let tree = Tree::of(&[(MAP, &map), ("crates/tw-b/Cargo.toml", MANIFEST)]);
        check(&tree).into_iter().map(|finding| finding.text).collect()
    }

    #[test]
    fn listed_edges_pass() {
        assert_eq!(check_map("tw-b → tw-a"), [""; 0]);
    }

    #[test]
    fn unlisted_and_stale_edges_fail() {
        let unlisted = "tw-b may not depend on tw-a: docs/dependencies.md does not list it";
        assert_eq!(check_map(""), [unlisted]);
        assert_eq!(check_map("tw-b → tw-a tw-c"), ["lists tw-b → tw-c, which no manifest has"]);
        assert_eq!(check_map("tw-a → tw-b"), [unlisted, "lists tw-a → tw-b, which no manifest has"]);
    }

    #[test]
    fn tests_use_the_test_kit_and_listed_crates() {
        let manifest = "[package]\nname = \"tw-b\"\n[dev-dependencies]\ntw-a.workspace = true\n";
        assert_eq!(dependencies(manifest), [(4, ("tests of tw-b".into(), "tw-a".into()))]);
    }
}
