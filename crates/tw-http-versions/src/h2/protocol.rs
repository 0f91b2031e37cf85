//! HTTP/2 as a protocol that has streams.

use tw_base::memory::MemoryHolder;
use tw_http::Version;

use crate::streams::StreamProtocol;
use tw_request::http_version::HttpVersion;

/// Description of HTTP/2.
pub(super) static PROTOCOL: StreamProtocol = StreamProtocol {
    name: "HTTP/2",
    debug_name: "http2",
    version: Version::HTTP_2,
    counted_as: HttpVersion::Http2,
    holder: MemoryHolder::Http2,
    is_spoken: |_, group, server| group.speaks_http2(server),
};
