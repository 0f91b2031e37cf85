//! Intent of a client for a stream.

/// Intent of a client for a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Intent {
    /// A response.
    Answer,
    /// A switch to another protocol (RFC 8441, RFC 9113 section 8.5, RFC 9220).
    Tunnel,
}
