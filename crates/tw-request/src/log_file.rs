//! Access logs of requests: the default log of a server, and messages about log files whose names have variables.

use std::ffi::CStr;

use tw_core::log::LoggedSession;
use tw_log::{PushResult, Sink};

use super::request::Request;

impl LoggedSession for Request {
    const FORMAT: Option<(&'static str, &'static str)> = Some((
        "combined",
        "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \
         \"$http_referer\" \"$http_user_agent\"",
    ));
    const FILE: Option<&'static str> = Some("logs/access.log");

    /// The line will be written if the root directory of the request exists, and links on the way are what
    /// `disable_symlinks` allows.
    fn push_to(&self, sink: &Sink, path: &CStr, line: &[u8]) -> PushResult {
        let links = match super::files::links(self, path) {
            tw_disk::Links::Follow => tw_log::Links::Follow,
            tw_disk::Links::Refuse { from } => tw_log::Links::Refuse(from),
            tw_disk::Links::SameOwner { from } => tw_log::Links::SameOwner(from),
        };
        let root = &self.plan().core.root.path;
        match root.constant() {
            Some(root) => sink.push_to(path.to_bytes(), root, links, line),
            None => sink.push_to(path.to_bytes(), &root.value(self), links, line),
        }
    }
}
