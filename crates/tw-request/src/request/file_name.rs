//! File name of a request: `root` or `alias` of its location, and a URI.

use std::ffi::CStr;

use super::{AliasEnd, Request};
use crate::config::location::{Root, RootKind};

impl Request {
    /// Writes the file name of the current URI into `path`, NUL-terminated.
    pub fn filename<'p>(&self, path: &'p mut Vec<u8>) -> &'p CStr {
        self.filename_of(&self.uri.path, path)
    }

    /// Writes the file name of `uri` at this location into `path`, NUL-terminated. Returns an empty name, which no file
    /// has, should a NUL be in it.
    pub fn filename_of<'p>(&self, uri: &[u8], path: &'p mut Vec<u8>) -> &'p CStr {
        path.clear();
        self.append_filename(uri, path);
        path.push(0);
        CStr::from_bytes_with_nul(path).unwrap_or_default()
    }

    /// Appends the file name of `uri`.
    pub fn append_filename(&self, uri: &[u8], path: &mut Vec<u8>) {
        let Root { path: root, kind, .. } = &self.plan().core.root;
        root.eval(self, path);
        match kind {
            RootKind::Root => path.extend_from_slice(uri),
            RootKind::Alias(len) => path.extend_from_slice(uri.get(*len..).unwrap_or_default()),
            RootKind::Whole if self.state.alias_end == AliasEnd::Uri => path.extend_from_slice(uri),
            RootKind::Whole => {}
        }
    }
}
