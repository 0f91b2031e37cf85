//! Files of YAML in block style, as this repository writes them: keys, values, items and blocks of text. Everything else that YAML has is
//! a finding, so that a file that passes means the same to every reader.

use super::Finding;

/// A line with a key, a value or both.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line<'a> {
    /// Counted from 1.
    pub(super) number: usize,
    /// Spaces before the key, where the mark of an item counts as two.
    pub(super) depth: usize,
    /// Empty in an item that is only a value.
    pub(super) key: &'a str,
    /// Text after the key, without a comment. A block of text has `|` or `>` here.
    pub(super) value: &'a str,
    /// Text after `#`.
    pub(super) comment: &'a str,
}

/// Keys that a mapping has already, by depth; deeper ones are forgotten when a line is less deep.
#[derive(Default)]
struct Mappings<'a>(Vec<(usize, Vec<&'a str>)>);

/// Reads a file. Finds errors of its form on the way.
pub(super) fn read<'a>(path: &str, text: &'a str) -> (Vec<Line<'a>>, Vec<Finding>) {
    let mut lines: Vec<Line<'a>> = Vec::new();
    let mut findings = Vec::new();
    let mut mappings = Mappings::default();
    // Depth of the key whose block of text goes on.
    let mut block: Option<usize> = None;
    for (index, raw) in text.lines().enumerate() {
        let number = index + 1;
        let indentation = raw.len() - raw.trim_start_matches(' ').len();
        if raw.trim().is_empty() || block.is_some_and(|depth| indentation > depth) {
            continue;
        }
        block = None;
        let (content, comment) = split_comment(raw);
        if content.trim().is_empty() {
            continue;
        }
        if content == "---" {
            mappings = Mappings::default();
            continue;
        }
        let mut complain = |what: &str| findings.push(Finding::error(path, number, what));
        let (depth, is_item, rest) = item(content);
        if content.contains('\t') || indentation % 2 != 0 {
            complain("YAML: indentation by pairs of spaces");
        }
        if !is_closed(rest) {
            complain("YAML: a quotation mark or a bracket is not closed");
        }
        let (key, value) = split_key(rest);
        let before = lines.last().map(|line| (line.depth, line.value));
        if before.is_some_and(|(above, value)| depth > above && !value.is_empty()) {
            complain("YAML: deeper than a line that has a value already");
        }
        if !mappings.add(depth, key, is_item) {
            complain("YAML: a key for the second time");
        }
        if value.starts_with(['|', '>']) {
            block = Some(depth);
        }
        lines.push(Line { number, depth, key, value, comment });
    }
    (lines, findings)
}

impl<'a> Mappings<'a> {
    /// Returns `false` if the mapping has the key already.
    fn add(&mut self, depth: usize, key: &'a str, is_item: bool) -> bool {
        // An item begins a mapping of its own.
        self.0.retain(|(other, _)| *other < depth || (*other == depth && !is_item));
        if key.is_empty() {
            return true;
        }
        match self.0.last_mut().filter(|(other, _)| *other == depth) {
            Some((_, keys)) if keys.contains(&key) => return false,
            Some((_, keys)) => keys.push(key),
            None => self.0.push((depth, vec![key])),
        }
        true
    }
}

/// Content and comment of a line.
fn split_comment(line: &str) -> (&str, &str) {
    let mut quote = None;
    let mut before = ' ';
    for (at, c) in line.char_indices() {
        match (quote, c) {
            (None, '"' | '\'') if before == ' ' || before == '[' || before == '{' => quote = Some(c),
            (None, '#') if before == ' ' => return (line[..at].trim_end(), line[at + 1..].trim()),
            (Some(open), _) if open == c && before != '\\' => quote = None,
            _ => {}
        }
        before = c;
    }
    (line.trim_end(), "")
}

/// Depth of a line, whether it begins an item, and its text after the marks.
fn item(content: &str) -> (usize, bool, &str) {
    let mut rest = content.trim_start_matches(' ');
    let mut depth = content.len() - rest.len();
    let mut is_item = false;
    while let Some(after) = rest.strip_prefix("- ") {
        rest = after;
        depth += 2;
        is_item = true;
    }
    (depth, is_item, rest)
}

/// Key and value of a text; a text without a key is a value.
fn split_key(text: &str) -> (&str, &str) {
    if text.starts_with(['"', '\'', '{', '[']) && !text.contains("\": ") {
        return ("", text);
    }
    match text.split_once(": ") {
        Some((key, value)) => (key, value.trim()),
        None => text.strip_suffix(':').map_or(("", text), |key| (key, "")),
    }
}

/// Returns `true` if quotation marks and brackets of a value are in pairs. Values without a quotation mark at their start are plain text.
fn is_closed(text: &str) -> bool {
    let (_, value) = split_key(text);
    match value.chars().next() {
        Some(quote @ ('"' | '\'')) => value.len() > 1 && value.ends_with(quote),
        Some('[') => value.ends_with(']'),
        Some('{') => value.ends_with('}'),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_depth_key_value_and_comment() {
        let text = "# a\non:\n  push:\njobs:\n  - uses: a/b@c # v1\n    run: |\n      x: y\n       z\n  - \"a # b\"\n";
        let (lines, findings) = read("a.yml", text);
        let line = |number, depth, key, value, comment| Line { number, depth, key, value, comment };
        assert_eq!(
            lines,
            [
                line(2, 0, "on", "", ""),
                line(3, 2, "push", "", ""),
                line(4, 0, "jobs", "", ""),
                line(5, 4, "uses", "a/b@c", "v1"),
                line(6, 4, "run", "|", ""),
                line(9, 4, "", "\"a # b\"", ""),
            ]
        );
        assert_eq!(findings, []);
    }

    #[test]
    fn errors_of_form_are_found() {
        for (text, expected) in [
            ("a: 1\nb: 2\n", vec![]),
            ("a: 1\na: 2\n", vec![2]),
            ("a: 1\n---\na: 2\n", vec![]),
            ("a:\n  b: 1\nc:\n  b: 2\n", vec![]),
            ("a:\n  - b: 1\n  - b: 2\n", vec![]),
            ("a:\n  - b: 1\n    b: 2\n", vec![3]),
            ("a: 1\n  b: 2\n", vec![2]),
            ("a:\n   b: 2\n", vec![2]),
            ("a:\n\tb: 2\n", vec![2]),
            ("a: \"b\n", vec![1]),
            ("a: [b, c\n", vec![1]),
            ("a: it's\n", vec![]),
            ("a: 'b # c'\n", vec![]),
            ("a: |\n  b: [\n  b: [\nc: 1\n", vec![]),
        ] {
            let (_, findings) = read("a.yml", text);
            assert_eq!(findings.iter().map(|finding| finding.line).collect::<Vec<_>>(), expected, "{text}");
        }
    }
}
