//! Reasons for which streams and connections end early.

use std::error::Error;
use std::fmt;

use crate::ErrorCode;
use crate::qpack;

/// Stream error (RFC 9114 section 8): reason for the early end of one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamError {
    /// The peer has reset it, or takes nothing more of it.
    Reset(ErrorCode),
    /// This end has reset it. The text says what the peer has done ("sent …"); it is empty if nothing was wrong.
    Local(ErrorCode, &'static str),
    /// The peer has sent `GOAWAY` and has not processed the request: it can be retried elsewhere.
    Refused,
    /// The connection has ended.
    Connection(ConnectionError),
}

/// Connection error (RFC 9114 section 8): reason for the end of a whole connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionError {
    /// This end has closed it. The text says what the peer has done ("sent …"); it is empty if nothing was wrong.
    Local(ErrorCode, &'static str),
    /// The peer has closed it with this code.
    Peer(ErrorCode),
    /// The transport has ended it.
    Closed,
    /// The peer has not been heard of for too long.
    TimedOut,
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reset(reason) => write!(f, "stream was reset by its peer: {reason}"),
            Self::Local(reason, "") => write!(f, "stream was reset: {reason}"),
            Self::Local(_, words) => write!(f, "peer {words}"),
            Self::Refused => f.write_str("stream was not processed before GOAWAY"),
            Self::Connection(connection_error) => connection_error.fmt(f),
        }
    }
}

impl fmt::Display for ConnectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(reason, "") => write!(f, "connection was ended: {reason}"),
            Self::Local(_, words) => write!(f, "peer {words}"),
            Self::Peer(ErrorCode::NO_ERROR) | Self::Closed => f.write_str("peer closed connection"),
            Self::Peer(reason) => write!(f, "peer closed connection: {reason}"),
            Self::TimedOut => f.write_str("connection timed out"),
        }
    }
}

impl Error for StreamError {}
impl Error for ConnectionError {}

/// Connection error for an error of the peer's encoding.
pub(crate) fn qpack_error(error: qpack::Error) -> ConnectionError {
    let (code, words) = error.parts();
    ConnectionError::Local(code, words)
}

/// Connection error for a frame that must not be sent where or when it was.
pub(crate) fn unexpected(words: &'static str) -> ConnectionError {
    ConnectionError::Local(ErrorCode::FRAME_UNEXPECTED, words)
}
