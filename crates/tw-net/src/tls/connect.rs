//! Begin of a client's handshake: a session for a server of some name.

use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Error};

/// Begins a session with a server of this name, with a session of before if one is kept. Makes keys: some 0.1 ms.
///
/// # Errors
/// There is no randomness, or nothing that could be offered.
pub fn connect(config: Arc<ClientConfig>, name: ServerName<'static>) -> Result<Box<ClientConnection>, Error> {
    ClientConnection::new(config, name).map(Box::new)
}
