//! Options of the commands, with long names.

use super::usage_error::UsageError;

/// A word of a command with long options, perhaps with its value: `--name=value`.
#[derive(Clone, Copy)]
pub(super) struct Long<'a> {
    pub(super) name: &'a [u8],
    pub(super) inline: Option<&'a [u8]>,
}

impl<'a> Long<'a> {
    pub(super) fn of(word: &'a [u8]) -> Self {
        match word.iter().position(|byte| *byte == b'=') {
            Some(at) if word.starts_with(b"--") => Self { name: &word[..at], inline: Some(&word[at + 1..]) },
            _ => Self { name: word, inline: None },
        }
    }

    /// The value: behind the equals sign, or the next word.
    pub(super) fn value(
        self,
        words: &mut impl Iterator<Item = Vec<u8>>,
        what: &str,
    ) -> Result<Vec<u8>, UsageError> {
        let missing =
            || UsageError::new(format!("option \"{}\" requires {what}", String::from_utf8_lossy(self.name)));
        self.inline.map(<[u8]>::to_vec).or_else(|| words.next()).ok_or_else(missing)
    }
}
