//! Links of documents: each leads to a file, and to a heading if it names one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use super::Finding;
use super::contents::anchor;
use super::tree::{File, Tree};
use crate::root;

/// The list of pages of the site, whose targets are places in the site.
const SUMMARY: &str = "docs/SUMMARY.md";

/// Folder of texts that become parts of pages in another folder.
const TEXTS: (&str, &str) = ("crates/tw-reference/directives/", "docs/directives/");

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let documents = || tree.files.iter().filter(|file| file.path.ends_with(".md") && file.path != SUMMARY);
    let headings: BTreeMap<_, _> =
        documents().map(|file| (file.path.as_str(), anchors(&file.text))).collect();
    documents().flat_map(|file| of_document(file, &headings, |path| root().join(path).exists())).collect()
}

/// Links of a document that lead nowhere.
fn of_document(
    file: &File,
    headings: &BTreeMap<&str, BTreeSet<String>>,
    exists: impl Fn(&str) -> bool,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    // Texts are part of the page that has the same name.
    let place = match file.path.strip_prefix(TEXTS.0) {
        Some(name) => format!("{}{name}", TEXTS.1),
        None => file.path.clone(),
    };
    let mut is_code = false;
    for (index, line) in file.text.lines().enumerate() {
        is_code ^= line.trim_start().starts_with("```");
        if is_code {
            continue;
        }
        for link in targets(line) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let path = if path.is_empty() { place.clone() } else { resolve(path, &place) };
            if !exists(&path) {
                findings.push(Finding::error(&file.path, index + 1, format!("no such file: {link}")));
            } else if let Some(known_names) = headings.get(path.as_str())
                && !anchor.is_empty()
                && !known_names.contains(anchor)
            {
                findings.push(Finding::error(&file.path, index + 1, format!("no such heading: {link}")));
            }
        }
    }
    findings
}

/// Relative targets of the links in a line.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    // Code in a line may look like a link.
    let texts = line.split('`').step_by(2);
    let links = texts.flat_map(|text| text.split("](").skip(1)).filter_map(|rest| rest.split(')').next());
    links.filter(|link| !link.contains("://") && !link.starts_with("mailto:") && !link.is_empty())
}

/// Path from the root of a file that the document at `place` names.
fn resolve(path: &str, place: &str) -> String {
    let dir = Path::new(place).parent().unwrap_or(Path::new(""));
    let mut whole = PathBuf::new();
    for component in dir.join(path).components() {
        match component {
            Component::ParentDir => drop(whole.pop()),
            other => whole.push(other),
        }
    }
    whole.to_string_lossy().into_owned()
}

/// Anchors of all headings of a document. The second heading of one text gets a number.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let mut is_code = false;
    for line in text.lines() {
        is_code ^= line.trim_start().starts_with("```");
        let title = line.trim_start_matches('#');
        if is_code || title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let name = anchor(title.trim());
        let number = (1..).find(|number| !all.contains(&format!("{name}-{number}")));
        match number {
            Some(number) if all.contains(&name) => all.insert(format!("{name}-{number}")),
            _ => all.insert(name),
        };
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_files_and_headings() {
        let headings = BTreeMap::from([("docs/b.md", anchors("# B\n\n## C `d`\n\n## C d\n"))]);
        for (text, expected) in [
            ("[b](b.md) [b](b.md#c-d) [b](b.md#c-d-1) [x](https://example.com/x)", vec![]),
            ("[b](b.md#e)", vec![1]),
            ("\n[e](e.md)", vec![2]),
            ("`[e](e.md)`\n\n```\n[e](e.md)\n```\n", vec![]),
            ("[root](../README.md)", vec![]),
        ] {
            let file = File::new("docs/a.md".to_owned(), text.to_owned());
            let exists = |path: &str| ["docs/a.md", "docs/b.md", "README.md"].contains(&path);
            let findings = of_document(&file, &headings, exists);
            assert_eq!(findings.iter().map(|finding| finding.line).collect::<Vec<_>>(), expected, "{text}");
        }
    }
}
