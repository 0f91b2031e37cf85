//! Directories as tests look at them.

use std::fs;
use std::path::{Path, PathBuf};

/// Every file at any depth below `dir`. Files may come and go meanwhile; panics if a directory cannot be read.
pub(crate) fn files_below(dir: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(dir).unwrap().filter_map(|entry| Some(entry.ok()?.path()));
    paths.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

/// Names in `dir`, sorted. Panics if it cannot be read.
pub(crate) fn names_in(dir: impl AsRef<Path>) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
