//! Order of `tailwater purge`, as it goes to the master and from there to the worker process.

use serde::{Deserialize, Serialize};

/// Arguments of `tailwater purge`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Purge {
    /// The name of the cache.
    #[serde(with = "serde_bytes")]
    pub cache: Vec<u8>,
    /// Entries to purge.
    pub named: PurgeScope,
    /// Effect on them.
    pub mode: PurgeMode,
}

/// Entries to purge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PurgeScope {
    /// A key, or the beginning of keys and a `*`.
    Key(#[serde(with = "serde_bytes")] Vec<u8>),
    /// A tag of responses.
    Tag(#[serde(with = "serde_bytes")] Vec<u8>),
}

/// Effect on the entries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PurgeMode {
    /// Removed.
    #[default]
    Hard,
    /// Made stale.
    Soft,
}
