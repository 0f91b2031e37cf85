//! Lines of access logs whose file name has variables: what a request has to say about such a file.

use std::ffi::CStr;

use tw_log::{Pushed, Sink};

use super::request::Request;

/// Queues a line of `r` for the file at `path`: `sink` is one of [`Target::Files`](tw_log::Target::Files). It will be written if the root
/// directory of the request exists, and links on the way are what `disable_symlinks` allows.
pub fn push_to(sink: &Sink, r: &Request, path: &CStr, line: &[u8]) -> Pushed {
    let links = match super::files::links(r, path) {
        tw_disk::Links::Follow => tw_log::Links::Follow,
        tw_disk::Links::Refuse { from } => tw_log::Links::Refuse(from),
        tw_disk::Links::SameOwner { from } => tw_log::Links::SameOwner(from),
    };
    let root = &r.plan().core.root.path;
    match root.constant() {
        Some(root) => sink.push_to(path.to_bytes(), root, links, line),
        None => sink.push_to(path.to_bytes(), &root.value(r), links, line),
    }
}
