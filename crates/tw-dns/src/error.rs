//! Errors of resolving a name, in nginx's words.

use std::fmt;

use rustix::io::Errno as Os;
use tw_base::Errno;

/// Why a name could not be resolved. Displays as nginx writes it between its parentheses: `3: Host not found`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResolveError {
    /// The server could not read the question, or we could not read its answer.
    Format,
    /// The server has a problem of its own.
    ServerFailure,
    /// No such name, no records of the requested type, or a chain of aliases without an end.
    NotFound,
    /// The server does not know this kind of question.
    NotImplemented,
    /// The server does not answer us.
    Refused,
    /// Another response code of the server.
    Other(u16),
    /// No server has answered in time.
    TimedOut,
    /// The servers could not be reached, or we have no room for one more question.
    System(Errno),
}

impl ResolveError {
    /// Too many questions are open: see `FLIGHTS_MAX`.
    pub(crate) const BUSY: Self = Self::System(Errno(Os::AGAIN.raw_os_error()));

    /// nginx's number of it.
    pub fn code(self) -> i32 {
        match self {
            Self::Format => 1,
            Self::ServerFailure => 2,
            Self::NotFound => 3,
            Self::NotImplemented => 4,
            Self::Refused => 5,
            Self::Other(code) => i32::from(code),
            Self::TimedOut => Os::TIMEDOUT.raw_os_error(),
            Self::System(Errno(number)) => number,
        }
    }

    /// Returns `true` if no server has answered: then a stale answer is better than none.
    pub(crate) fn is_timeout(self) -> bool {
        matches!(self, Self::TimedOut | Self::System(_))
    }
}

impl fmt::Display for ResolveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Format => "Format error",
            Self::ServerFailure => "Server failure",
            Self::NotFound => "Host not found",
            Self::NotImplemented => "Unimplemented",
            Self::Refused => "Operation refused",
            Self::Other(_) => "Unknown error",
            Self::TimedOut => "Operation timed out",
            Self::System(errno) => return errno.fmt(f),
        };
        write!(f, "{}: {text}", self.code())
    }
}

impl std::error::Error for ResolveError {}

/// A name and why it has no addresses, as nginx logs it: `www.example.com could not be resolved (3: Host not found)`.
#[derive(Debug, Clone, Copy)]
pub struct ResolveFailure<'a> {
    /// Name as requested.
    pub name: &'a [u8],
    /// Why.
    pub error: ResolveError,
}

impl fmt::Display for ResolveFailure<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} could not be resolved ({})", self.name.escape_ascii(), self.error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_the_text_of_nginx() {
        for (error, expected) in [
            (ResolveError::Format, "1: Format error"),
            (ResolveError::ServerFailure, "2: Server failure"),
            (ResolveError::NotFound, "3: Host not found"),
            (ResolveError::NotImplemented, "4: Unimplemented"),
            (ResolveError::Refused, "5: Operation refused"),
            (ResolveError::Other(9), "9: Unknown error"),
            (ResolveError::TimedOut, "110: Operation timed out"),
            (ResolveError::System(Errno(111)), "111: Connection refused"),
            (ResolveError::BUSY, "11: Resource temporarily unavailable"),
        ] {
            assert_eq!(error.to_string(), expected);
            assert!(expected.starts_with(&format!("{}:", error.code())));
        }
        let line = ResolveFailure { name: b"a.example", error: ResolveError::NotFound };
        assert_eq!(line.to_string(), "a.example could not be resolved (3: Host not found)");
    }
}
