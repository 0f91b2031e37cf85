//! Reasons for which streams and connections end early.

use std::error::Error;
use std::fmt;
use std::io;

use tw_base::Errno;

use crate::ErrorCode;

/// Stream error (RFC 9113 section 5.4.2): reason for the early end of one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamError {
    /// The peer has reset it.
    Reset(ErrorCode),
    /// This end has reset it. The text says what the peer has done ("sent …"); it is empty if nothing was wrong.
    Local(ErrorCode, &'static str),
    /// The peer has sent `GOAWAY` and has not processed the request: it can be retried elsewhere.
    Refused(ErrorCode),
    /// The connection has ended.
    Connection(ConnectionError),
}

/// Connection error (RFC 9113 section 5.4.1): reason for the end of a whole connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionError {
    /// This end has closed it. The text says what the peer has done ("sent …"); it is empty if nothing was wrong.
    Local(ErrorCode, &'static str),
    /// The peer has closed it.
    Closed,
    /// The transport has failed.
    Io(io::ErrorKind, Option<Errno>),
}

impl From<io::Error> for ConnectionError {
    fn from(error: io::Error) -> Self {
        Self::Io(error.kind(), error.raw_os_error().map(Errno))
    }
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reset(reason) => write!(f, "stream was reset by its peer: {reason}"),
            Self::Local(reason, "") => write!(f, "stream was reset: {reason}"),
            Self::Local(_, words) => write!(f, "peer {words}"),
            Self::Refused(reason) => write!(f, "stream was not looked at before GOAWAY: {reason}"),
            Self::Connection(connection_error) => connection_error.fmt(f),
        }
    }
}

impl fmt::Display for ConnectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(reason, "") => write!(f, "connection was ended: {reason}"),
            Self::Local(_, words) => write!(f, "peer {words}"),
            Self::Closed => f.write_str("peer closed connection"),
            Self::Io(_, Some(errno)) => write!(f, "connection failed ({errno})"),
            Self::Io(kind, None) => write!(f, "connection failed ({kind})"),
        }
    }
}

impl Error for StreamError {}
impl Error for ConnectionError {}
