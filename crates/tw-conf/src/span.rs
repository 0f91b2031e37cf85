//! Places of words: spans, and the texts they point into.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;

/// Largest number of places listed in one message.
const MAX_PLACES: usize = 8;

/// A stretch of one source text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Span {
    /// Index of the text in [`Sources`].
    pub file: u32,
    /// Line in nginx's messages, counted from 1: the line of the *directive's* `;` or `{`, for each of its words too.
    /// The word's own line follows from `start`.
    pub line: u32,
    /// First byte.
    pub start: u32,
    /// The byte after the last one.
    pub end: u32,
}

/// Origin of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A file, under the name by which it was opened.
    File(Box<[u8]>),
    /// The `-g` option.
    CommandLine,
}

/// One text of the configuration.
#[derive(Clone, Debug)]
pub struct SourceFile {
    /// Origin of the text.
    pub origin: Origin,
    /// All of it.
    pub text: Arc<[u8]>,
}

/// Every text of a configuration, in the order in which it was first opened; a file included twice is kept once.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    files: Vec<SourceFile>,
    names: HashMap<Box<[u8]>, u32>,
}

impl Sources {
    /// Adds a text and returns its index. A file name that is already there keeps its first text.
    pub(crate) fn add(&mut self, origin: Origin, text: Arc<[u8]>) -> u32 {
        let index = self.files.len() as u32;
        if let Origin::File(name) = &origin {
            if let Some(&known_value) = self.names.get(name) {
                return known_value;
            }
            self.names.insert(name.clone(), index);
        }
        self.files.push(SourceFile { origin, text });
        index
    }

    /// The index of the file of this name, if it has been read.
    pub(crate) fn find(&self, name: &[u8]) -> Option<u32> {
        self.names.get(name).copied()
    }

    /// The text of an index, if there is one.
    pub fn file(&self, index: u32) -> Option<&SourceFile> {
        self.files.get(index as usize)
    }

    /// All texts, in the order in which they were first opened.
    pub fn iter(&self) -> std::slice::Iter<'_, SourceFile> {
        self.files.iter()
    }

    /// The end of a message about this place: ` in /etc/nginx/nginx.conf:3` or ` in command line`.
    pub fn tail(&self, span: Span) -> String {
        match self.file(span.file).map(|file| &file.origin) {
            Some(Origin::File(name)) => format!(" in {}:{}", String::from_utf8_lossy(name), span.line),
            Some(Origin::CommandLine) => " in command line".to_owned(),
            None => String::new(),
        }
    }

    /// Several places: a file is named once, its lines follow.
    pub(crate) fn places(&self, places: &[Span]) -> String {
        let mut out = String::new();
        let mut last = None;
        let mut known_values = HashSet::new();
        let places = places.iter().map(|span| (span.file, span.line));
        let seen_values: Vec<_> = places.filter(|place| known_values.insert(*place)).collect();
        for &(file, line) in seen_values.iter().take(MAX_PLACES) {
            let gap = if out.is_empty() { "" } else { ", " };
            out += &match self.file(file).map(|source| &source.origin) {
                Some(Origin::File(_)) if last == Some(file) => format!("{gap}{line}"),
                Some(Origin::File(name)) => format!("{gap}{}:{line}", String::from_utf8_lossy(name)),
                Some(Origin::CommandLine) | None => format!("{gap}the command line"),
            };
            last = Some(file);
        }
        match seen_values.len().saturating_sub(MAX_PLACES) {
            0 => out,
            more => format!("{out} and {more} more"),
        }
    }

    /// Writes every file as `nginx -T` does: `# configuration file PATH:`, the text, an empty line.
    ///
    /// # Errors
    /// Errors of `out`.
    pub fn dump(&self, out: &mut dyn io::Write) -> io::Result<()> {
        for file in &self.files {
            let Origin::File(name) = &file.origin else { continue };
            out.write_all(b"# configuration file ")?;
            out.write_all(name)?;
            out.write_all(b":\n")?;
            out.write_all(&file.text)?;
            out.write_all(b"\n")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dump_lists_each_file_once_and_no_command_line() {
        let mut sources = Sources::default();
        let file = |name: &str| Origin::File(name.as_bytes().into());
        assert_eq!(sources.add(Origin::CommandLine, (*b"daemon off;").into()), 0);
        assert_eq!(sources.add(file("/a"), (*b"include b;\n").into()), 1);
        assert_eq!(sources.add(file("/b"), (*b"user u;").into()), 2);
        assert_eq!(sources.add(file("/a"), (*b"changed").into()), 1);

        let mut out = Vec::new();
        sources.dump(&mut out).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "# configuration file /a:\ninclude b;\n\n# configuration file /b:\nuser u;\n"
        );
    }

    #[test]
    fn places_end_a_message() {
        let mut sources = Sources::default();
        sources.add(Origin::CommandLine, Arc::default());
        sources.add(Origin::File((*b"/n.conf").into()), Arc::default());
        let at = |file| Span { file, line: 7, start: 0, end: 0 };
        assert_eq!(sources.tail(at(0)), " in command line");
        assert_eq!(sources.tail(at(1)), " in /n.conf:7");
        assert_eq!(sources.tail(at(2)), "");
    }
}
