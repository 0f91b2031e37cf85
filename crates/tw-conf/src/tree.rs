//! Configuration as a tree: directives with their words and blocks.
//!
//! [`write_nodes`] writes it back in a form that reads as the same tree.

use crate::error::ConfError;
use crate::span::{Sources, Span};
use crate::units;
use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

/// File number of nodes that are in no file; there are never so many files.
const NO_FILE: u32 = u32::MAX;

/// A whole configuration: the `-g` directives first, then the main file with its includes in place.
#[derive(Debug, Default)]
pub struct Tree {
    /// The directives of the main context, in order.
    pub nodes: Vec<Node>,
    /// Texts of the nodes.
    pub sources: Sources,
    /// Failures of reading, in order; [markers](Node::failure) take their place in the tree.
    pub failures: Vec<ConfError>,
    /// Notes about the texts.
    pub notes: Vec<ConfError>,
    /// Files, by their index in the sources, of which a brace is missing or too many.
    pub unbalanced: Vec<u32>,
}

/// One directive.
#[derive(Clone, Debug)]
pub struct Node {
    /// First word.
    pub name: Word,
    /// The other words.
    pub args: Vec<Word>,
    /// Directives between the braces; `None` if the directive ends with `;`.
    pub block: Option<Vec<Node>>,
    /// From the name to the `;` or `{`.
    pub span: Span,
    /// The `;`, or the `}` of the block: the place nginx names when the block as a whole is wrong.
    pub end: Span,
}

/// One word, with quotes removed and escapes resolved.
#[derive(Clone, Debug)]
pub struct Word {
    /// Bytes of the word, not only UTF-8.
    pub bytes: Box<[u8]>,
    /// Place of the word, without its quotes.
    pub span: Span,
    /// True if the word was written in quotes.
    pub quoted: bool,
}

impl Word {
    /// The word as text, if it is UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.bytes).ok()
    }

    /// The word as text, for messages.
    pub fn lossy(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.bytes)
    }

    /// Returns `true` if the word equals this text.
    pub fn is(&self, text: &str) -> bool {
        *self.bytes == *text.as_bytes()
    }

    /// The value of a `name=value` word.
    pub fn param(&self, name: &str) -> Option<&[u8]> {
        self.bytes.strip_prefix(name.as_bytes())?.strip_prefix(b"=")
    }

    /// `on` or `off` in any case of letters.
    pub fn flag(&self) -> Option<bool> {
        units::flag(&self.bytes)
    }

    /// A whole number, see [`units::number`].
    pub fn number(&self) -> Option<u64> {
        units::number(&self.bytes)
    }

    /// Bytes, with `k` or `m`, see [`units::size`].
    pub fn size(&self) -> Option<u64> {
        units::size(&self.bytes)
    }

    /// Bytes, with `k`, `m` or `g`, see [`units::offset`].
    pub fn offset(&self) -> Option<u64> {
        units::offset(&self.bytes)
    }

    /// A time with milliseconds, see [`units::msec`].
    pub fn msec(&self) -> Option<Duration> {
        units::msec(&self.bytes)
    }

    /// A time in whole seconds, see [`units::sec`].
    pub fn sec(&self) -> Option<Duration> {
        units::sec(&self.bytes)
    }

    /// The value listed for this word; letters of any case, as nginx compares them.
    pub fn one_of<T: Copy>(&self, list: &[(&str, T)]) -> Option<T> {
        list.iter()
            .find(|(text, _)| self.bytes.eq_ignore_ascii_case(text.as_bytes()))
            .map(|(_, value)| *value)
    }
}

impl fmt::Display for Word {
    /// The word itself, for messages; bytes that are not UTF-8 are replaced.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lossy())
    }
}

impl Node {
    /// Makes the marker node of a failure.
    pub(crate) fn marker(failure: usize) -> Self {
        let span = Span { file: NO_FILE, line: 0, start: failure as u32, end: failure as u32 };
        Self {
            name: Word { bytes: Box::default(), span, quoted: false },
            args: Vec::new(),
            block: None,
            span,
            end: span,
        }
    }

    /// Number of the failure ([`Tree::failures`]) that this marker stands for; `None` for directives.
    pub fn failure(&self) -> Option<usize> {
        (self.span.file == NO_FILE).then_some(self.span.start as usize)
    }

    /// An argument, counted from 0.
    ///
    /// # Errors
    /// The directive has fewer arguments.
    pub fn arg(&self, index: usize) -> Result<&Word, ConfError> {
        self.args.get(index).ok_or_else(|| self.invalid_count())
    }

    /// All arguments of a directive that takes exactly `N`: `let [name, size] = node.words()?`.
    ///
    /// # Errors
    /// The directive has another number of arguments.
    pub fn words<const N: usize>(&self) -> Result<&[Word; N], ConfError> {
        self.args.as_slice().try_into().map_err(|_| self.invalid_count())
    }

    /// Directives between the braces.
    ///
    /// # Errors
    /// The directive ended with `;`.
    pub fn children(&self) -> Result<&[Node], ConfError> {
        self.block.as_deref().ok_or_else(|| self.no_block())
    }

    /// An error about this directive, in the caller's words.
    pub fn fail(&self, message: impl Into<String>) -> ConfError {
        ConfError::new(message).at(self.span)
    }

    /// An error in the form `"NAME" directive WHAT`, as in `"root" directive is duplicate`.
    pub fn error(&self, what: &str) -> ConfError {
        self.fail(format!("\"{}\" directive {what}", self.name))
    }

    /// An error in the form `invalid value "WORD"`, pointing at the word.
    pub fn invalid_value(&self, word: &Word) -> ConfError {
        ConfError::new(format!("invalid value \"{word}\"")).at(word.span)
    }

    /// An error in the form `invalid parameter "WORD"`, pointing at the word.
    pub fn invalid_parameter(&self, word: &Word) -> ConfError {
        ConfError::new(format!("invalid parameter \"{word}\"")).at(word.span)
    }

    /// The error of a wrong number of arguments.
    pub fn invalid_count(&self) -> ConfError {
        self.fail(format!("invalid number of arguments in \"{}\" directive", self.name))
    }

    /// The error of a directive that lacks its block.
    pub fn no_block(&self) -> ConfError {
        self.fail(format!("directive \"{}\" has no opening \"{{\"", self.name))
    }

    /// The first argument as `on` or `off`.
    ///
    /// # Errors
    /// The argument is missing or another word.
    pub fn flag(&self) -> Result<bool, ConfError> {
        let word = self.arg(0)?;
        word.flag().ok_or_else(|| {
            ConfError::new(format!(
                "invalid value \"{word}\" in \"{}\" directive, it must be \"on\" or \"off\"",
                self.name
            ))
            .at(word.span)
        })
    }

    /// The first argument as a whole number.
    ///
    /// # Errors
    /// The argument is missing or no number.
    pub fn number(&self) -> Result<u64, ConfError> {
        let word = self.arg(0)?;
        word.number().ok_or_else(|| self.error("invalid number").at(word.span))
    }

    /// The first argument as bytes with `k` or `m`.
    ///
    /// # Errors
    /// The argument is missing or no size.
    pub fn size(&self) -> Result<u64, ConfError> {
        self.read(Word::size)
    }

    /// The first argument as bytes with `k`, `m` or `g`.
    ///
    /// # Errors
    /// The argument is missing or no size.
    pub fn offset(&self) -> Result<u64, ConfError> {
        self.read(Word::offset)
    }

    /// The first argument as a time with milliseconds.
    ///
    /// # Errors
    /// The argument is missing or no time.
    pub fn msec(&self) -> Result<Duration, ConfError> {
        self.read(Word::msec)
    }

    /// The first argument as a time in whole seconds.
    ///
    /// # Errors
    /// The argument is missing or no time.
    pub fn sec(&self) -> Result<Duration, ConfError> {
        self.read(Word::sec)
    }

    /// The first argument as one of the listed words.
    ///
    /// # Errors
    /// The argument is missing or not in the list.
    pub fn one_of<T: Copy>(&self, list: &[(&str, T)]) -> Result<T, ConfError> {
        let word = self.arg(0)?;
        word.one_of(list).ok_or_else(|| self.invalid_value(word))
    }

    fn read<T>(&self, reader: fn(&Word) -> Option<T>) -> Result<T, ConfError> {
        let word = self.arg(0)?;
        reader(word).ok_or_else(|| self.error("invalid value").at(word.span))
    }
}

/// Writes directives one per line, blocks indented by four spaces. The output reads as the same tree, except for
/// places, comments and quoting.
pub fn write_nodes(nodes: &[Node], out: &mut Vec<u8>) {
    write_indented(nodes, 0, out);
}

/// Recurses once per block, of which [`crate::MAX_BLOCK_DEPTH`] may nest.
fn write_indented(nodes: &[Node], depth: usize, out: &mut Vec<u8>) {
    let indent = |out: &mut Vec<u8>| out.resize(out.len() + 4 * depth, b' ');
    for node in nodes {
        indent(out);
        write_word(&node.name, out);
        for word in &node.args {
            out.push(b' ');
            write_word(word, out);
        }
        match &node.block {
            None => out.extend_from_slice(b";\n"),
            Some(children) => {
                out.extend_from_slice(b" {\n");
                write_indented(children, depth + 1, out);
                indent(out);
                out.extend_from_slice(b"}\n");
            }
        }
    }
}

/// Writes a word unquoted if it reads as the same, else in double quotes.
fn write_word(word: &Word, out: &mut Vec<u8>) {
    let plain = |(at, &byte): (usize, &u8)| match byte {
        b' ' | b'\t' | b'\r' | b'\n' | b';' | b'{' | b'}' | b'"' | b'\'' | b'#' => false,
        // Stays a backslash before most bytes: a regular expression needs no quotes.
        b'\\' => !matches!(word.bytes.get(at + 1), None | Some(b'\\' | b't' | b'r' | b'n')),
        _ => true,
    };
    if !word.bytes.is_empty() && word.bytes.iter().enumerate().all(plain) {
        out.extend_from_slice(&word.bytes);
        return;
    }
    out.push(b'"');
    for &byte in &word.bytes {
        if matches!(byte, b'"' | b'\\') {
            out.push(b'\\');
        }
        out.push(byte);
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryFiles, Reader};

    fn tree(text: &str) -> Tree {
        let mut tree = Tree::default();
        Reader::new(&MemoryFiles::default(), b"").text(&mut tree, b"n", text.as_bytes()).unwrap();
        tree
    }

    #[test]
    fn written_tree_reads_back_equal() {
        let table = [
            ("a;", "a;\n"),
            ("a b{c;d{}}", "a b {\n    c;\n    d {\n    }\n}\n"),
            (
                "a '' \"b\" 'c d' 'e\"f' g\\.h ${i} j#k;",
                "a \"\" b \"c d\" \"e\\\"f\" g\\.h \"${i}\" \"j#k\";\n",
            ),
            ("if ($a = \"b\") { }", "if ($a = b ) {\n}\n"),
        ];
        for (text, expected) in table {
            let mut once = Vec::new();
            write_nodes(&tree(text).nodes, &mut once);
            let once = String::from_utf8(once).unwrap();
            assert_eq!(once, expected, "{text}");

            let mut twice = Vec::new();
            write_nodes(&tree(&once).nodes, &mut twice);
            assert_eq!(String::from_utf8(twice).unwrap(), once, "{text}");
        }
    }

    #[test]
    fn words_of_a_directive() {
        let tree = tree("zone one size=10m On { }");
        let node = &tree.nodes[0];
        let [one, size, on] = node.words().unwrap();
        assert!(one.is("one") && !one.is("On"));
        assert_eq!(size.param("size"), Some(&b"10m"[..]));
        assert_eq!((size.param("siz"), size.param("time"), one.param("one")), (None, None, None));
        assert_eq!(on.one_of(&[("off", 0), ("on", 1)]), Some(1));
        assert_eq!(node.children().map(<[Node]>::len), Ok(0));

        let errors = [
            (node.words::<2>().unwrap_err(), "invalid number of arguments in \"zone\" directive"),
            (node.arg(3).unwrap_err(), "invalid number of arguments in \"zone\" directive"),
            (node.error("is bad"), "\"zone\" directive is bad"),
            (node.invalid_value(size), "invalid value \"size=10m\""),
            (node.invalid_parameter(size), "invalid parameter \"size=10m\""),
        ];
        for (error, expected) in errors {
            assert_eq!(error.message, expected);
        }
    }
}
