//! Paths into a JSON document, as a tree: what several paths have in common is followed once.

use std::borrow::Cow;

use tw_conf::{ConfError, Word};

use super::document::unescape;

/// Point in a document that paths lead to or through.
#[derive(Debug, Default)]
pub(super) struct PathNode {
    children: Vec<(Step, PathNode)>,
    /// Numbers of the values whose paths end here.
    pub(super) targets: Vec<usize>,
}

/// Step of a path.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Member of an object.
    Member(Box<[u8]>),
    /// Element of an array.
    Element(usize),
}

/// Path that cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PathError {
    Empty,
    Invalid,
}

impl PathError {
    /// nginx's error for this path.
    pub(super) fn into_error(self, path: &Word) -> ConfError {
        let message = match self {
            Self::Empty => "empty json_set path".to_owned(),
            Self::Invalid => format!("invalid json_set path \"{path}\""),
        };
        ConfError::new(message).at(path.span)
    }
}

impl PathNode {
    /// Adds a path, at whose end stands the value with the number `target`.
    pub(super) fn insert(&mut self, path: &[u8], target: usize) -> Result<(), PathError> {
        if path.is_empty() {
            return Err(PathError::Empty);
        }
        let mut node = self;
        let mut rest = path;
        let mut is_first = true;
        while !rest.is_empty() {
            let step;
            (step, rest) = next_step(rest, is_first).ok_or(PathError::Invalid)?;
            node = node.child_to_build(step);
            is_first = false;
        }
        node.targets.push(target);
        Ok(())
    }

    /// The node of a member of an object.
    pub(super) fn member(&self, name: &[u8]) -> Option<&Self> {
        self.child(|step| matches!(step, Step::Member(known_name) if **known_name == *name))
    }

    /// The node of an element of an array.
    pub(super) fn element(&self, index: usize) -> Option<&Self> {
        self.child(|step| *step == Step::Element(index))
    }

    fn child(&self, is_step: impl Fn(&Step) -> bool) -> Option<&Self> {
        self.children.iter().find(|(step, _)| is_step(step)).map(|(_, node)| node)
    }

    fn child_to_build(&mut self, step: Step) -> &mut Self {
        let at = self.children.iter().position(|(known_step, _)| *known_step == step).unwrap_or_else(|| {
            self.children.push((step, Self::default()));
            self.children.len() - 1
        });
        &mut self.children[at].1
    }
}

/// Reads a step: `name`, `[0]` or `["name"]`. Behind the first one, a name begins with a dot.
fn next_step(path: &[u8], is_first: bool) -> Option<(Step, &[u8])> {
    if let [b'[', inner @ ..] = path {
        return bracketed(inner);
    }
    let name = if is_first { path } else { path.strip_prefix(b".")? };
    if matches!(name.first(), None | Some(b'.' | b'[' | b'$')) {
        return None;
    }
    let len = name.iter().position(|byte| matches!(byte, b'.' | b'[')).unwrap_or(name.len());
    let (name, rest) = name.split_at(len);
    Some((Step::Member(name.into()), rest))
}

/// Reads a step behind its `[`.
fn bracketed(inner: &[u8]) -> Option<(Step, &[u8])> {
    if inner.first() == Some(&b'"') {
        let len = quoted_len(inner)?;
        let (quoted, rest) = inner.split_at(len);
        let name: Cow<'_, [u8]> = unescape(quoted).ok()?;
        return Some((Step::Member((*name).into()), rest.strip_prefix(b"]")?));
    }
    let len = inner.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (index, rest) = inner.split_at(len);
    let index = str::from_utf8(index).ok()?.parse().ok()?;
    Some((Step::Element(index), rest.strip_prefix(b"]")?))
}

/// Length of a text in quotes, with them.
fn quoted_len(text: &[u8]) -> Option<usize> {
    let mut at = 1;
    loop {
        match text.get(at)? {
            b'\\' => at += 2,
            b'"' => return Some(at + 1),
            _ => at += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read_as_nginx_documents() {
        for (path, expected) in [
            ("a", Ok(vec!["a"])),
            ("a.b", Ok(vec!["a", "b"])),
            ("a b.c-d", Ok(vec!["a b", "c-d"])),
            ("a[0]", Ok(vec!["a", "#0"])),
            ("[12][3].x", Ok(vec!["#12", "#3", "x"])),
            ("a[\"b.c\"].d", Ok(vec!["a", "b.c", "d"])),
            ("[\"a\\\"b\\u0041\"]", Ok(vec!["a\"bA"])),
            ("[\"\"]", Ok(vec![""])),
            ("a$b", Ok(vec!["a$b"])),
            ("a]", Ok(vec!["a]"])),
            ("", Err(PathError::Empty)),
            (".a", Err(PathError::Invalid)),
            ("$.a", Err(PathError::Invalid)),
            ("a.", Err(PathError::Invalid)),
            ("a..b", Err(PathError::Invalid)),
            ("a.[0]", Err(PathError::Invalid)),
            ("a.$b", Err(PathError::Invalid)),
            ("a[", Err(PathError::Invalid)),
            ("a[]", Err(PathError::Invalid)),
            ("a[0", Err(PathError::Invalid)),
            ("a[x]", Err(PathError::Invalid)),
            ("a[-1]", Err(PathError::Invalid)),
            ("a[0]b", Err(PathError::Invalid)),
            ("a[99999999999999999999]", Err(PathError::Invalid)),
            ("a[\"b", Err(PathError::Invalid)),
            ("a[\"b\"", Err(PathError::Invalid)),
            ("a[\"b\"x]", Err(PathError::Invalid)),
            ("a[\"\\", Err(PathError::Invalid)),
            ("a[\"\\x\"]", Err(PathError::Invalid)),
        ] {
            let mut root = PathNode::default();
            let read = root.insert(path.as_bytes(), 7).map(|()| {
                let mut node = &root;
                let mut steps = Vec::new();
                while let [(step, next)] = &node.children[..] {
                    steps.push(match step {
                        Step::Member(name) => String::from_utf8_lossy(name).into_owned(),
                        Step::Element(index) => format!("#{index}"),
                    });
                    node = next;
                }
                assert_eq!(node.targets, [7]);
                steps
            });
            let expected = expected.map(|steps| steps.into_iter().map(str::to_owned).collect::<Vec<_>>());
            assert_eq!(read, expected, "{path}");
        }
    }

    #[test]
    fn common_parts_of_paths_are_one_node() {
        let mut root = PathNode::default();
        for (number, path) in ["a.b", "a.c", "[\"a\"].b", "a[0]"].into_iter().enumerate() {
            root.insert(path.as_bytes(), number).unwrap();
        }
        let a = root.member(b"a").unwrap();
        assert_eq!(root.children.len(), 1);
        assert_eq!(a.member(b"b").unwrap().targets, [0, 2]);
        assert_eq!(a.member(b"c").unwrap().targets, [1]);
        assert_eq!(a.element(0).unwrap().targets, [3]);
        assert!(a.member(b"0").is_none());
    }
}
