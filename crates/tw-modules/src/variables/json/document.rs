//! Values of a JSON document (RFC 8259). serde_json checks the document; the walk over it only follows paths, so that numbers,
//! objects and arrays are given as they are written.

use std::borrow::Cow;
use std::fmt;

use serde::Deserializer;
use serde::de::{Error, IgnoredAny, Visitor};

use super::path::PathNode;

/// Bytes of a document: what is checked and walked in one turn of a loop.
pub(super) const SIZE_MAX: usize = 256 << 10;

/// Document that gives no values.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unusable {
    /// No JSON, or too deep.
    Invalid,
    /// Larger than [`SIZE_MAX`].
    TooLarge,
}

/// Values at the ends of all paths, by their numbers, which are below `count`. A text is given without its quotes and escapes; of
/// several members with one name the last counts, as in nginx.
// DIFF(nginx): a document of more than 256 KiB is not parsed.
pub(super) fn extract(
    text: &[u8],
    paths: &PathNode,
    count: usize,
    max_depth: usize,
) -> Result<Vec<Option<Vec<u8>>>, Unusable> {
    if text.len() > SIZE_MAX {
        return Err(Unusable::TooLarge);
    }
    // Neither this nor the walk nests calls deeper than `max_depth`: serde_json ignores values without recursion.
    serde_json::from_slice::<IgnoredAny>(text).map_err(|_| Unusable::Invalid)?;
    let mut walk = Walk { text, at: 0, max_depth, values: vec![None; count] };
    walk.value(Some(paths), 0)?;
    Ok(walk.values)
}

/// The text that a string of JSON, with its quotes, stands for.
pub(super) fn unescape(string: &[u8]) -> Result<Cow<'_, [u8]>, Unusable> {
    let inner = string.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
    match inner {
        Some(inner) if !inner.contains(&b'\\') => Ok(Cow::Borrowed(inner)),
        _ => serde_json::Deserializer::from_slice(string)
            .deserialize_bytes(Bytes)
            .map(Cow::Owned)
            .map_err(|_| Unusable::Invalid),
    }
}

/// Takes the bytes of a string, be they UTF-8 or not.
struct Bytes;

impl Visitor<'_> for Bytes {
    type Value = Vec<u8>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
        Ok(bytes.to_vec())
    }
}

/// Walk over a document that is known to be well-formed. A document that is not ends it early with an error.
struct Walk<'a> {
    text: &'a [u8],
    at: usize,
    max_depth: usize,
    values: Vec<Option<Vec<u8>>>,
}

impl<'a> Walk<'a> {
    /// Passes over a value, which `node` is about, `depth` objects and arrays deep.
    fn value(&mut self, node: Option<&PathNode>, depth: usize) -> Result<(), Unusable> {
        let first = self.next_token();
        let start = self.at;
        match first {
            Some(b'{' | b'[') if depth == self.max_depth => return Err(Unusable::Invalid),
            Some(b'{') => self.members(node, depth + 1)?,
            Some(b'[') => self.elements(node, depth + 1)?,
            Some(b'"') => {
                self.string();
            }
            _ => self.scalar(),
        }
        let Some(node) = node.filter(|node| !node.targets.is_empty()) else { return Ok(()) };
        let text = self.text.get(start..self.at).unwrap_or_default();
        let value = if first == Some(b'"') { unescape(text)? } else { Cow::Borrowed(text) };
        for target in &node.targets {
            self.values[*target] = Some(value.to_vec());
        }
        Ok(())
    }

    fn members(&mut self, node: Option<&PathNode>, depth: usize) -> Result<(), Unusable> {
        self.at += 1;
        loop {
            match self.next_token() {
                Some(b'}') => break,
                Some(b',') => self.at += 1,
                Some(b'"') => {
                    let name = self.string();
                    self.next_token();
                    // The colon.
                    self.at += 1;
                    let inner = match node {
                        Some(node) => node.member(&unescape(name)?),
                        None => None,
                    };
                    self.value(inner, depth)?;
                }
                _ => return Err(Unusable::Invalid),
            }
        }
        self.at += 1;
        Ok(())
    }

    fn elements(&mut self, node: Option<&PathNode>, depth: usize) -> Result<(), Unusable> {
        self.at += 1;
        let mut index = 0;
        loop {
            match self.next_token() {
                Some(b']') => break,
                Some(b',') => self.at += 1,
                Some(_) => {
                    self.value(node.and_then(|node| node.element(index)), depth)?;
                    index += 1;
                }
                None => return Err(Unusable::Invalid),
            }
        }
        self.at += 1;
        Ok(())
    }

    /// Passes over white space; the byte behind it.
    fn next_token(&mut self) -> Option<u8> {
        while let Some(b' ' | b'\t' | b'\r' | b'\n') = self.text.get(self.at) {
            self.at += 1;
        }
        self.text.get(self.at).copied()
    }

    /// Passes over a string, which is returned with its quotes.
    fn string(&mut self) -> &'a [u8] {
        let start = self.at;
        self.at += 1;
        loop {
            match self.text.get(self.at) {
                Some(b'\\') => self.at += 2,
                Some(b'"') | None => break,
                Some(_) => self.at += 1,
            }
        }
        self.at = self.text.len().min(self.at + 1);
        self.text.get(start..self.at).unwrap_or_default()
    }

    /// Passes over a number, `true`, `false` or `null`.
    fn scalar(&mut self) {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let is_end = |byte: &u8| matches!(byte, b',' | b']' | b'}' | b' ' | b'\t' | b'\r' | b'\n');
        // The walk advances by at least one byte, so that it ends.
        self.at += rest.iter().position(is_end).unwrap_or(rest.len()).max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(text: &str, paths: &[&str], max_depth: usize) -> Result<Vec<Option<String>>, Unusable> {
        let mut root = PathNode::default();
        for (number, path) in paths.iter().enumerate() {
            root.insert(path.as_bytes(), number).unwrap();
        }
        let values = extract(text.as_bytes(), &root, paths.len(), max_depth)?;
        Ok(values.into_iter().map(|value| value.map(|value| String::from_utf8(value).unwrap())).collect())
    }

    #[test]
    fn values_are_found() {
        for (text, path, expected) in [
            (r#"{"a":"x"}"#, "a", Some("x")),
            (r#" { "a" : "x" } "#, "a", Some("x")),
            (r#"{"a":""}"#, "a", Some("")),
            (r#"{"a":1.50}"#, "a", Some("1.50")),
            (r#"{"a":-0e+7}"#, "a", Some("-0e+7")),
            (r#"{"a":123456789012345678901234567890}"#, "a", Some("123456789012345678901234567890")),
            (r#"{"a":true}"#, "a", Some("true")),
            (r#"{"a":null }"#, "a", Some("null")),
            (r#"{"a":{"b":[1, 2]}}"#, "a", Some(r#"{"b":[1, 2]}"#)),
            (r#"{"a":{"b":[1, 2]}}"#, "a.b", Some("[1, 2]")),
            (r#"{"a":{"b":[1, 2]}}"#, "a.b[1]", Some("2")),
            (r#"{"a":{"b":[1, 2]}}"#, "a.b[2]", None),
            (r#"{"a":{"b":[1, 2]}}"#, "a.b.c", None),
            (r#"{"a":{"b":[1, 2]}}"#, "b", None),
            (r#"[{"a":1},[],"x"]"#, "[0].a", Some("1")),
            (r#"[{"a":1},[],"x"]"#, "[1]", Some("[]")),
            (r#"[{"a":1},[],"x"]"#, "[2]", Some("x")),
            (r#"{"a":"\u00e9\n\"\\"}"#, "a", Some("é\n\"\\")),
            (r#"{"\u0061":"x"}"#, "a", Some("x")),
            (r#"{"a.b":1,"a":{"b":2}}"#, "[\"a.b\"]", Some("1")),
            (r#"{"a.b":1,"a":{"b":2}}"#, "a.b", Some("2")),
            // Brackets in strings are text.
            (r#"{"x":"}]{[\"","a":"ok"}"#, "a", Some("ok")),
            (r#"{"a":1,"a":2}"#, "a", Some("2")),
            (r#"{"a":{"b":1},"a":3}"#, "a.b", Some("1")),
            (r#""text""#, "a", None),
            ("17", "[0]", None),
            ("{}", "a", None),
            ("[]", "[0]", None),
        ] {
            let expected = Ok(vec![expected.map(str::to_owned)]);
            assert_eq!(values(text, &[path], 32), expected, "{text} {path}");
        }
    }

    #[test]
    fn several_paths_are_followed_at_once() {
        let text = r#"{"id":7,"user":{"name":"joe","tags":["a","b"]}}"#;
        let results =
            values(text, &["user.name", "id", "user", "user.tags[1]", "user.name", "none"], 32).unwrap();
        let expected = [
            Some("joe"),
            Some("7"),
            Some(r#"{"name":"joe","tags":["a","b"]}"#),
            Some("b"),
            Some("joe"),
            None,
        ];
        assert_eq!(results, expected.map(|value| value.map(str::to_owned)));
    }

    #[test]
    fn malformed_documents_give_nothing() {
        for text in [
            "",
            " ",
            "{",
            "[",
            "{\"a\"",
            "{\"a\":",
            "{\"a\":1",
            "{\"a\":1,}",
            "[1,]",
            "{a:1}",
            "{'a':1}",
            "01",
            "{\"a\":1}x",
            "{\"a\":\"\n\"}",
            "{\"a\":\"\\x\"}",
            "nul",
            "\"\\ud800",
            "{\"a\":1}{\"a\":2}",
            "\u{feff}{}",
        ] {
            assert_eq!(values(text, &["a"], 32), Err(Unusable::Invalid), "{text}");
            // Every beginning of one is refused or complete, and none panics.
            (0..text.len()).filter(|len| text.is_char_boundary(*len)).for_each(|len| {
                let _ = values(&text[..len], &["a"], 32);
            });
        }
    }

    #[test]
    fn depth_and_size_are_limited() {
        assert!(values("[[1]]", &["[0]"], 2).is_ok());
        assert_eq!(values("[[[1]]]", &["[0]"], 2), Err(Unusable::Invalid));
        // Values to which no path leads count, too.
        assert_eq!(values(r#"{"b":[[1]],"a":1}"#, &["a"], 2), Err(Unusable::Invalid));
        let deep = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(values(&deep(256), &["a"], 256).is_ok());
        assert_eq!(values(&deep(100_000), &["a"], 256), Err(Unusable::Invalid));
        let long = format!("\"{}\"", "x".repeat(SIZE_MAX - 2));
        assert!(values(&long, &["a"], 32).is_ok());
        assert_eq!(values(&format!("{long} "), &["a"], 32), Err(Unusable::TooLarge));
    }

    #[test]
    fn strings_that_are_not_utf_8_keep_their_bytes() {
        let mut root = PathNode::default();
        root.insert(b"a", 0).unwrap();
        let results = extract(b"{\"a\":\"\xff\\n\"}", &root, 1, 32).unwrap();
        assert_eq!(results, [Some(b"\xff\n".to_vec())]);
    }
}
