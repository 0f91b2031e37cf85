//! Failure to send a response.

use std::io;

use super::client_gone::ClientGone;

/// Failure to send a response to its end.
pub enum SendError {
    /// The client took nothing for `send_timeout`.
    Timeout,
    /// The client takes less than `send_min_rate`.
    TooSlow,
    /// The connection to the client failed.
    Gone(io::Error),
    /// The body could not be read.
    Body(io::Error),
}

impl From<ClientGone> for SendError {
    fn from(client_gone: ClientGone) -> Self {
        Self::Gone(client_gone.into())
    }
}
