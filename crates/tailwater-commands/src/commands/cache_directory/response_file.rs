//! File of one response in the directory of a cache.

use std::path::PathBuf;

use tw_cache::Key;

/// File of one response.
#[derive(Clone, Debug)]
pub(super) struct ResponseFile {
    /// Path of the file.
    pub(super) path: PathBuf,
    /// Key that the name has.
    pub(super) key: Key,
    /// Bytes on the disk.
    pub(super) size: u64,
    /// Time of the last change, in seconds since 1970: when it was stored or validated.
    pub(super) changed: i64,
}
