//! Directories for temporary files.

use std::ffi::CString;

use tw_conf::{ConfError, Cx, Node};

/// A directory for temporary files with hashed levels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TempPath {
    /// The directory.
    pub path: CString,
    /// Digits of each level, 0 where there is none.
    pub levels: [u8; 3],
}

impl TempPath {
    /// Reads `path [level1 [level2 [level3]]]`.
    ///
    /// # Errors
    /// A level that is not 1, 2 or 3.
    pub fn parse(node: &Node, cx: &Cx<'_>) -> Result<Self, ConfError> {
        let mut levels = [0; 3];
        for (level, word) in levels.iter_mut().zip(node.args.iter().skip(1)) {
            let digits =
                word.number().filter(|n| (1..=3).contains(n)).ok_or_else(|| node.invalid_value(word))?;
            *level = digits as u8;
        }
        let path = tw_core::process::path_bytes(&cx.full_path(&node.arg(0)?.bytes));
        Ok(Self { path, levels })
    }
}
