//! Work of the transport for a connection: streams that it opens for this end, and frames of QUIC that it sends.

use crate::ErrorCode;

/// Unidirectional streams of this end. The owner opens them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalStream {
    /// Settings and `GOAWAY`.
    Control,
    /// Acknowledgements of the peer's field sections.
    QpackDecoder,
}

/// Frames of QUIC that the transport has to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// `RESET_STREAM`: nothing more is sent on the stream.
    Reset {
        /// Number of the stream.
        stream: u64,
        /// Error code for the peer.
        code: ErrorCode,
    },
    /// `STOP_SENDING`: nothing more is read of the stream.
    StopSending {
        /// Number of the stream.
        stream: u64,
        /// Error code for the peer.
        code: ErrorCode,
    },
}
