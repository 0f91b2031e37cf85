//! Ends of connections and streams.

use std::fmt;

use bytes::Bytes;
use quinn_proto as engine;

/// Error code of a TLS alert without its number (RFC 9001, section 4.8).
pub(crate) const TLS_ALERT: u64 = 0x100;

/// Reason why a connection is closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectionError {
    /// The peer's application has closed it.
    ClosedByPeer {
        /// Error code of the application protocol.
        code: u64,
        /// Reason phrase, as sent.
        reason: Bytes,
    },
    /// The peer's transport has closed it.
    FailedAtPeer {
        /// Error code of the transport (RFC 9000, section 20.1).
        code: u64,
        /// Reason phrase, as sent.
        reason: Bytes,
    },
    /// The peer has violated the protocol, or the TLS handshake has failed.
    Violation {
        /// Error code of the transport (RFC 9000, section 20.1); 0x100 and above are TLS alerts.
        code: u64,
        /// Explanation.
        reason: Box<str>,
    },
    /// The peer has lost its state (stateless reset).
    Reset,
    /// Nothing has arrived for the idle timeout.
    TimedOut,
    /// This side has closed it.
    Closed,
    /// The engine has failed: an error of ours.
    EngineFailed,
}

/// Error of an operation on a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamError {
    /// The peer has reset the stream (RESET_STREAM): there is nothing more to be read.
    Reset(u64),
    /// The peer takes no more data (STOP_SENDING).
    Stopped(u64),
    /// The stream is not open in this direction: it has ended, was reset or stopped here, or never existed.
    NotOpen,
    /// The connection is closed.
    Connection(ConnectionError),
}

impl From<ConnectionError> for StreamError {
    fn from(error: ConnectionError) -> Self {
        Self::Connection(error)
    }
}

impl From<engine::ConnectionError> for ConnectionError {
    fn from(error: engine::ConnectionError) -> Self {
        use engine::ConnectionError as Engine;
        match error {
            Engine::ApplicationClosed(close) => {
                Self::ClosedByPeer { code: close.error_code.into_inner(), reason: close.reason }
            }
            Engine::ConnectionClosed(close) => {
                Self::FailedAtPeer { code: close.error_code.into(), reason: close.reason }
            }
            Engine::TransportError(error) => {
                Self::Violation { code: error.code.into(), reason: error.reason.into() }
            }
            Engine::Reset => Self::Reset,
            Engine::TimedOut => Self::TimedOut,
            Engine::LocallyClosed => Self::Closed,
            Engine::VersionMismatch | Engine::CidsExhausted => Self::EngineFailed,
        }
    }
}

impl fmt::Display for ConnectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClosedByPeer { code, reason } => {
                write!(f, "client closed the connection with error {code:#x}{}", Phrase(reason))
            }
            Self::FailedAtPeer { code, reason } => {
                write!(f, "client closed the connection with transport error {code:#x}{}", Phrase(reason))
            }
            Self::Violation { code, reason } => {
                write!(f, "transport error {code:#x}{}", Phrase(reason.as_bytes()))
            }
            Self::Reset => f.write_str("stateless reset by client"),
            Self::TimedOut => f.write_str("connection timed out"),
            Self::Closed => f.write_str("connection is closed"),
            Self::EngineFailed => f.write_str("QUIC engine failed"),
        }
    }
}

impl std::error::Error for ConnectionError {}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reset(code) => write!(f, "client reset the stream with error {code:#x}"),
            Self::Stopped(code) => write!(f, "client stopped reading with error {code:#x}"),
            Self::NotOpen => f.write_str("stream is not open"),
            Self::Connection(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for StreamError {}

/// Reason phrase behind a colon, if there is one.
struct Phrase<'a>(&'a [u8]);

impl fmt::Display for Phrase<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => Ok(()),
            text => write!(f, ": {}", text.escape_ascii()),
        }
    }
}
