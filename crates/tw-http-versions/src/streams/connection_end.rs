//! Line in the error log for the end of a connection.

use std::fmt;

use tw_base::Errno;
use tw_log::Level;

use super::StreamProtocol;

/// Reason for the end of a connection, in nginx's words.
pub(crate) enum EndReason<'a> {
    /// The client has closed the connection while it had requests.
    ClosedByClient,
    /// The client has sent nothing, or has taken nothing, for too long.
    TimedOut,
    /// The client has broken a rule: its action, as a verb with its object.
    Violation(&'static str),
    /// The socket cannot be read.
    ReceiveFailed(Errno),
    /// The socket cannot be written.
    SendFailed(Errno),
    /// Any other reason.
    Other(&'a dyn fmt::Display),
}

/// Writes the reason into the error log of the connection, by `log`.
pub(crate) fn log_end(
    log: impl FnOnce(Level, fmt::Arguments<'_>),
    protocol: &StreamProtocol,
    reason: &EndReason<'_>,
) {
    log(Level::Info, format_args!("{reason} while processing {protocol} connection"));
}

impl fmt::Display for EndReason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClosedByClient => f.write_str("client prematurely closed connection"),
            Self::TimedOut => f.write_str("client timed out (110: Connection timed out)"),
            Self::Violation(action) => write!(f, "client {action}"),
            Self::ReceiveFailed(errno) => write!(f, "recv() failed ({errno})"),
            Self::SendFailed(errno) => write!(f, "send() failed ({errno})"),
            Self::Other(reason) => reason.fmt(f),
        }
    }
}
