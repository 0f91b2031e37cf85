//! Loss of a client while its request is served.

use std::fmt;
use std::io;

/// Loss of the client: it closed its side of the connection or reset its stream, or the connection failed.
#[derive(Debug)]
pub struct ClientGone(io::Error);

impl ClientGone {
    /// Client whose connection has failed with `error`.
    pub fn new(error: io::Error) -> Self {
        Self(error)
    }
}

impl From<ClientGone> for io::Error {
    fn from(client_gone: ClientGone) -> Self {
        client_gone.0
    }
}

/// nginx's text in the error log.
impl fmt::Display for ClientGone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("client prematurely closed connection")?;
        match self.0.raw_os_error() {
            Some(errno) => write!(f, " ({})", tw_base::Errno(errno)),
            None => Ok(()),
        }
    }
}
