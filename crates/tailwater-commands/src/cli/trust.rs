//! The words of `trust`.

use super::long_option::Long;
use super::usage_error::{UsageError, invalid};

/// Words of `tailwater trust`.
#[derive(Debug, PartialEq, Eq)]
pub struct TrustOptions {
    /// Change of the trust in it.
    pub change: TrustChange,
    /// `--store`: a directory in the place of the system's store.
    pub store: Option<Vec<u8>>,
}

/// Change of the trust in the local authority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrustChange {
    /// A certificate was added.
    Added,
    /// A certificate was removed.
    Removed,
}

/// Reads the words after `trust`. `None` asks for help.
pub(super) fn parse(mut words: impl Iterator<Item = Vec<u8>>) -> Result<Option<TrustOptions>, UsageError> {
    let mut options = TrustOptions { change: TrustChange::Added, store: None };
    while let Some(word) = words.next() {
        let Long { name, inline } = Long::of(&word);
        match name {
            b"--store" => options.store = Some(Long { name, inline }.value(&mut words, "directory name")?),
            _ if inline.is_some() => return Err(invalid(&word)),
            b"-h" | b"-?" | b"--help" => return Ok(None),
            b"--remove" => options.change = TrustChange::Removed,
            _ => return Err(invalid(&word)),
        }
    }
    Ok(Some(options))
}
