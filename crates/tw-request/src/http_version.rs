//! Versions of HTTP, as metrics count them.

/// Major version of HTTP that a request came by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpVersion {
    /// HTTP/1.1 or before.
    Http1,
    /// HTTP/2.
    Http2,
    /// HTTP/3.
    Http3,
}

impl HttpVersion {
    /// All of them, in the order of the counters.
    pub const ALL: [Self; 3] = [Self::Http1, Self::Http2, Self::Http3];

    /// Name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Http1 => "HTTP/1",
            Self::Http2 => "HTTP/2",
            Self::Http3 => "HTTP/3",
        }
    }
}
