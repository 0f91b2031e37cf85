//! The words of `trust`.

use super::long_option::Long;
use super::{Command, UsageError, invalid};
use crate::commands::authority::Change;

/// Words of `tailwater trust`.
#[derive(Debug, PartialEq, Eq)]
pub struct TrustOptions {
    /// Change of the trust in it.
    pub change: Change,
    /// `--store`: a directory in the place of the system's store.
    pub store: Option<Vec<u8>>,
}

/// Reads the words after `trust`.
pub(super) fn parse(mut words: impl Iterator<Item = Vec<u8>>) -> Result<Command, UsageError> {
    let mut options = TrustOptions { change: Change::Added, store: None };
    while let Some(word) = words.next() {
        let Long { name, inline } = Long::of(&word);
        match name {
            b"--store" => options.store = Some(Long { name, inline }.value(&mut words, "directory name")?),
            _ if inline.is_some() => return Err(invalid(&word)),
            b"-h" | b"-?" | b"--help" => return Ok(Command::TrustHelp),
            b"--remove" => options.change = Change::Removed,
            _ => return Err(invalid(&word)),
        }
    }
    Ok(Command::Trust(options))
}
