//! Configuration as a tree of directives, so that the smallest part of it that shows a difference can be found.

use std::collections::BTreeSet;
use std::fmt::Write;

/// Directive with its arguments, and its block if it has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node {
    /// Name and arguments, as written.
    words: String,
    block: Option<Vec<Self>>,
}

/// Directive without a block.
pub(crate) fn line(words: impl Into<String>) -> Node {
    Node { words: words.into(), block: None }
}

/// Directive with a block.
pub(crate) fn block(words: impl Into<String>, nodes: Vec<Node>) -> Node {
    Node { words: words.into(), block: Some(nodes) }
}

/// Text of these directives.
pub(crate) fn render(nodes: &[Node]) -> String {
    let mut text = String::new();
    write_nodes(nodes, 0, &mut text);
    text
}

fn write_nodes(nodes: &[Node], depth: usize, text: &mut String) {
    let indent = "    ".repeat(depth);
    for node in nodes {
        let words = &node.words;
        match &node.block {
            // A short block may be written in one line.
            None if words.ends_with('}') => {
                let _ = writeln!(text, "{indent}{words}");
            }
            None => {
                let _ = writeln!(text, "{indent}{words};");
            }
            Some(inner) => {
                let _ = writeln!(text, "{indent}{words} {{");
                write_nodes(inner, depth + 1, text);
                let _ = writeln!(text, "{indent}}}");
            }
        }
    }
}

/// Number of directives, with those in blocks.
pub(crate) fn count(nodes: &[Node]) -> usize {
    nodes.iter().map(|node| 1 + node.block.as_deref().map_or(0, count)).sum()
}

/// The tree without one directive, counted from the root in the order of the text.
pub(crate) fn without(nodes: &[Node], index: usize) -> Vec<Node> {
    let mut nodes = nodes.to_vec();
    let mut remaining = index;
    edit(&mut nodes, &mut remaining, false);
    nodes
}

/// The tree with the contents of one block in its place. `None` if that directive has no block.
pub(crate) fn opened(nodes: &[Node], index: usize) -> Option<Vec<Node>> {
    let mut opened = nodes.to_vec();
    let mut remaining = index;
    edit(&mut opened, &mut remaining, true);
    (opened != nodes).then_some(opened)
}

/// Removes or opens the directive at `remaining`; returns `true` once that is done.
fn edit(nodes: &mut Vec<Node>, remaining: &mut usize, opens: bool) -> bool {
    let mut at = 0;
    while at < nodes.len() {
        if *remaining == 0 {
            let node = nodes.remove(at);
            match (opens, node.block) {
                (false, _) => {}
                (true, None) => nodes.insert(at, line(node.words)),
                (true, Some(inner)) => drop(nodes.splice(at..at, inner)),
            }
            return true;
        }
        *remaining -= 1;
        let inner = nodes.get_mut(at).and_then(|node| node.block.as_mut());
        if inner.is_some_and(|inner| edit(inner, remaining, opens)) {
            return true;
        }
        at += 1;
    }
    false
}

/// Names of all directives.
pub(crate) fn names(nodes: &[Node]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for node in nodes {
        names.extend(node.words.split(' ').next().map(str::to_owned));
        // The lines of these blocks are entries and not directives.
        let is_table =
            ["map ", "geo ", "split_clients ", "types"].iter().any(|name| node.words.starts_with(name));
        if !is_table {
            names.extend(node.block.as_deref().map(self::names).unwrap_or_default());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Vec<Node> {
        vec![line("a 1"), block("b", vec![line("c"), block("d /", vec![line("e")])]), line("f")]
    }

    #[test]
    fn trees_are_written_as_configurations() {
        assert_eq!(render(&tree()), "a 1;\nb {\n    c;\n    d / {\n        e;\n    }\n}\nf;\n");
        assert_eq!(count(&tree()), 6);
        assert_eq!(names(&tree()).into_iter().collect::<String>(), "abcdef");
    }

    #[test]
    fn directives_are_removed_and_opened_by_their_position() {
        assert_eq!(without(&tree(), 1), [line("a 1"), line("f")]);
        assert_eq!(
            without(&tree(), 4),
            [line("a 1"), block("b", vec![line("c"), block("d /", vec![])]), line("f")]
        );
        assert_eq!(without(&tree(), 6), tree());
        assert_eq!(
            opened(&tree(), 3).unwrap(),
            [line("a 1"), block("b", vec![line("c"), line("e")]), line("f")]
        );
        assert_eq!(opened(&tree(), 0), None);
    }
}
