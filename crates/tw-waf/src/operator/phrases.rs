//! Lists of phrases: `@pm`.

use aho_corasick::{AhoCorasick, MatchKind};

/// Phrases that are looked for at once, whatever their letter case.
pub(crate) struct Phrases {
    searcher: AhoCorasick,
    list: Vec<Vec<u8>>,
}

impl Phrases {
    /// Parses phrases with spaces between them. `|41 42|` are bytes in hexadecimal digits.
    pub(super) fn parse(text: &[u8]) -> Result<Self, String> {
        let mut list = Vec::new();
        let mut rest = text.trim_ascii();
        while let Some(first) = rest.first() {
            let (phrase, behind) = if *first == b'"'
                && let Some(end) = memchr::memchr(b'"', rest.get(1..).unwrap_or_default())
            {
                (rest.get(1..=end).unwrap_or_default(), rest.get(end + 2..).unwrap_or_default())
            } else {
                let end = rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len());
                rest.split_at(end)
            };
            list.push(phrase.to_vec());
            rest = behind.trim_ascii_start();
        }
        Self::of(list)
    }

    /// Parses a file with one phrase a line.
    pub(super) fn lines(text: &[u8]) -> Result<Self, String> {
        let lines = text.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        Self::of(
            lines
                .filter(|line| !line.trim_ascii().is_empty() && !line.starts_with(b"#"))
                .map(<[u8]>::to_vec)
                .collect(),
        )
    }

    fn of(list: Vec<Vec<u8>>) -> Result<Self, String> {
        if list.is_empty() {
            return Err("no phrases".to_owned());
        }
        let searcher = AhoCorasick::builder()
            .ascii_case_insensitive(true)
            .match_kind(MatchKind::LeftmostFirst)
            .build(&list)
            .map_err(|error| error.to_string())?;
        Ok(Self { searcher, list })
    }

    /// The first phrase in `value`, as it is there.
    pub(super) fn find<'a>(&self, value: &'a [u8]) -> Option<&'a [u8]> {
        value.get(self.searcher.find(value)?.range())
    }

    /// The phrases.
    pub(crate) fn list(&self) -> &[Vec<u8>] {
        &self.list
    }
}
