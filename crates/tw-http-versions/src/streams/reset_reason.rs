//! Reasons for which this end resets streams.

/// Reason for which a stream is reset. Each protocol has its codes for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResetReason {
    /// Nothing was done: the client may send its request again (RFC 9113 section 8.7, RFC 9114 section 4.1.1).
    Refused,
    /// The client was too slow. As in nginx, it has violated the protocol then.
    TooSlow,
    /// The response is not complete.
    Incomplete,
}
