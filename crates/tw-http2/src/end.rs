//! Reasons for which streams and connections end early.

use std::error::Error;
use std::fmt;
use std::io;

use tw_base::Errno;

use crate::Reason;

/// Why a stream has ended before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The peer has reset it.
    Reset(Reason),
    /// This end has reset it. The words say what its peer has done ("sent …"); they are empty if nothing was wrong.
    Ours(Reason, &'static str),
    /// The peer leaves and has not looked at the request: it can be asked again elsewhere.
    Refused(Reason),
    /// Its connection has ended.
    Broken(Broken),
}

/// Why a connection has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// This end has broken it off. The words say what its peer has done ("sent …"); they are empty if nothing was wrong.
    Ours(Reason, &'static str),
    /// The peer has closed it.
    Closed,
    /// The transport has failed.
    Io(io::ErrorKind, Option<Errno>),
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        Self::Io(error.kind(), error.raw_os_error().map(Errno))
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reset(reason) => write!(f, "stream was reset by its peer: {reason}"),
            Self::Ours(reason, "") => write!(f, "stream was reset: {reason}"),
            Self::Ours(_, words) => write!(f, "peer {words}"),
            Self::Refused(reason) => write!(f, "stream was not looked at before GOAWAY: {reason}"),
            Self::Broken(broken) => broken.fmt(f),
        }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ours(reason, "") => write!(f, "connection was ended: {reason}"),
            Self::Ours(_, words) => write!(f, "peer {words}"),
            Self::Closed => f.write_str("peer closed connection"),
            Self::Io(_, Some(errno)) => write!(f, "connection failed ({errno})"),
            Self::Io(kind, None) => write!(f, "connection failed ({kind})"),
        }
    }
}

impl Error for Cut {}
impl Error for Broken {}
