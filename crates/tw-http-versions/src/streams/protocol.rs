//! Description of a protocol that has streams. Each protocol has one of its own.

use std::fmt;

use tw_base::memory::MemoryHolder;
use tw_http::Version;

use super::ReceivedHead;
use tw_request::generation::{ListenGroup, Server};
use tw_request::http_version::HttpVersion;

/// Protocol of a connection that has streams.
pub(crate) struct StreamProtocol {
    /// Name in the error log.
    pub(crate) name: &'static str,
    /// Name in debug lines.
    pub(crate) debug_name: &'static str,
    /// Version in request lines.
    pub(crate) version: Version,
    /// Version in metrics.
    pub(crate) counted_as: HttpVersion,
    /// Protocol for the account of memory.
    pub(crate) holder: MemoryHolder,
    /// Returns true if a server speaks the protocol with the sender of such a head at this address.
    pub(crate) is_spoken: fn(&ReceivedHead, &ListenGroup, &Server) -> bool,
}

impl fmt::Display for StreamProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
