//! Files that a configuration names: certificates, keys, passwords. Their names are digests of their contents, so that a new configuration
//! never changes a file of the one in use.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{SHA256, digest as sha256};

/// Files by path.
#[derive(Debug, Clone, Default)]
pub struct Files {
    dir: PathBuf,
    contents: BTreeMap<PathBuf, Vec<u8>>,
}

impl Files {
    /// No files, in a directory.
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), contents: BTreeMap::new() }
    }

    /// Adds a file. Returns its path as a word of the configuration.
    pub fn add(&mut self, kind: &str, content: Vec<u8>) -> String {
        let path = self.dir.join(format!("{}.{kind}", digest(&content)));
        let word = path.display().to_string();
        self.contents.insert(path, content);
        word
    }

    /// Files by path.
    pub fn contents(&self) -> &BTreeMap<PathBuf, Vec<u8>> {
        &self.contents
    }
}

/// The first half of a SHA-256, in hexadecimal.
pub fn digest(bytes: &[u8]) -> String {
    sha256(&SHA256, bytes).as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}
