//! Tables of contents: every heading is listed, and nothing else.

use super::Finding;
use super::tree::Tree;

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let documents = tree.files.iter().filter(|file| file.path.ends_with(".md"));
    documents.flat_map(|file| of_document(&file.path, &file.text)).collect()
}

/// Compares the links before the first heading of the second level with the headings.
fn of_document(path: &str, text: &str) -> Vec<Finding> {
    let mut listed = Vec::new();
    let mut headings = Vec::new();
    let mut is_code = false;
    for (index, line) in text.lines().enumerate() {
        is_code ^= line.starts_with("```");
        if is_code {
            continue;
        }
        if let Some(heading) = line.strip_prefix("## ") {
            headings.push((index + 1, anchor(heading)));
        } else if headings.is_empty()
            && let Some((_, link)) = line.strip_prefix("- [").and_then(|rest| rest.split_once("](#"))
        {
            listed.push((index + 1, link.split(')').next().unwrap_or_default().to_owned()));
        }
    }
    // A list whose links are all to other levels is no table of these headings.
    if listed.is_empty() || !listed.iter().any(|(_, link)| headings.iter().any(|(_, anchor)| anchor == link))
    {
        return Vec::new();
    }
    let lacks = |all: &[(usize, String)], one: &str| !all.iter().any(|(_, other)| other == one);
    let missing = headings.iter().filter(|(_, anchor)| lacks(&listed, anchor));
    let missing =
        missing.map(|(line, anchor)| Finding::error(path, *line, format!("not in the contents: #{anchor}")));
    let wrong = listed.iter().filter(|(_, link)| lacks(&headings, link));
    missing
        .chain(wrong.map(|(line, link)| Finding::error(path, *line, format!("no such heading: #{link}"))))
        .collect()
}

/// Returns the anchor of a heading.
pub(super) fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_name_every_heading() {
        for (text, expected) in [
            ("# A\n\n- [B c](#b-c)\n- [D](#d)\n\n## B c\n\n## D\n", vec![]),
            ("# A\n\n- [B c](#b-c)\n\n## B c\n\n## D\n\n```\n## no heading\n```\n", vec![7]),
            ("# A\n\n- [B](#b)\n- [E](#e)\n\n## B\n", vec![4]),
            ("# A\n\n## B\n\n- [C](#c)\n", vec![]),
            ("# A\n\n- [x](#x)\n\n## B\n", vec![]),
        ] {
            let findings = of_document("docs/a.md", text);
            assert_eq!(findings.iter().map(|finding| finding.line).collect::<Vec<_>>(), expected, "{text}");
        }
    }
}
