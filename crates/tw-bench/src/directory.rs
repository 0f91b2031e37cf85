//! Directories of measurements.

use std::path::{Path, PathBuf};

/// The directory of results, data and running servers.
pub(crate) fn home() -> PathBuf {
    root().join("target/bench")
}

/// The directory of the workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
