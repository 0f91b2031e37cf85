//! HTTP/3 as a protocol that has streams.

use tw_base::memory::MemoryHolder;
use tw_http::Version;

use crate::streams::{ReceivedHead, StreamProtocol};
use tw_request::http_version::HttpVersion;

/// Description of HTTP/3.
pub(super) static PROTOCOL: StreamProtocol = StreamProtocol {
    name: "HTTP/3",
    debug_name: "http3",
    version: Version::HTTP_3,
    counted_as: HttpVersion::Http3,
    holder: MemoryHolder::Http3,
    is_spoken: |head, _, server| match head {
        ReceivedHead::Fields(_) => server.protocols.http3,
        ReceivedHead::Line(_) => server.protocols.hq,
    },
};
