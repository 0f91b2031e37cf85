//! Protocols that have streams.

use std::fmt;

use tw_base::memory::MemoryHolder;
use tw_http::Version;

/// Protocol of a connection that has streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamProtocol {
    /// HTTP/2.
    H2,
    /// HTTP/3.
    H3,
}

impl StreamProtocol {
    /// Name in debug lines.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::H2 => "http2",
            Self::H3 => "http3",
        }
    }

    /// Protocol for the account of memory.
    pub(crate) fn holder(self) -> MemoryHolder {
        match self {
            Self::H2 => MemoryHolder::Http2,
            Self::H3 => MemoryHolder::Http3,
        }
    }

    /// Version in request lines.
    pub(super) fn version(self) -> Version {
        match self {
            Self::H2 => Version::HTTP_2,
            Self::H3 => Version::HTTP_3,
        }
    }
}

impl fmt::Display for StreamProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::H2 => "HTTP/2",
            Self::H3 => "HTTP/3",
        })
    }
}
