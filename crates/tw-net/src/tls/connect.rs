//! Begin of a client's handshake: a session for a server of some name.

use std::future::poll_fn;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Error};
use tw_rt::Socket;

use super::{Handshake, HandshakeError, Step, TlsStream, process};

/// Begins a session with a server of this name, with a session of before if one is kept. Makes keys: some 0.1 ms.
///
/// # Errors
/// There is no randomness, or nothing that could be offered.
pub fn connect(config: Arc<ClientConfig>, name: ServerName<'static>) -> Result<Box<ClientConnection>, Error> {
    ClientConnection::new(config, name).map(Box::new)
}

/// Connects to a TLS server by this name, and verifies that it is the one. Not for a thread that runs an event loop: it calculates
/// where it is.
///
/// # Errors
/// The handshake failed, or the connection did.
pub async fn connect_here(
    socket: Socket,
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
) -> Result<TlsStream, HandshakeError> {
    let mut handshake = Handshake::new(socket, connect(config, name).map_err(HandshakeError::Tls)?);
    loop {
        match handshake.step()? {
            Step::Done => return Ok(handshake.into_stream()),
            Step::Readable => {
                poll_fn(|cx| handshake.socket().poll_readable(cx)).await.map_err(HandshakeError::Io)?;
            }
            Step::Writable => {
                poll_fn(|cx| handshake.socket().poll_writable(cx)).await.map_err(HandshakeError::Io)?;
            }
            Step::Process => {
                let (socket, session, sent) = handshake.into_parts();
                let (session, processed) = process(session);
                handshake = Handshake::from_parts(socket, session, sent);
                if let Err(error) = processed {
                    handshake.refuse();
                    return Err(HandshakeError::Tls(error));
                }
            }
        }
    }
}
