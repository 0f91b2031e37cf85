//! Begin of a server's handshake: the hello of the client, which chooses the settings of all that follows.

use std::io;
use std::sync::Arc;

use rustls::server::{Accepted, AcceptedAlert, Acceptor};
use rustls::{ServerConfig, ServerConnection};
use tw_rt::Socket;

use super::HandshakeError;

/// Bytes asked of the socket at once: most first flights fit.
const HELLO_READ: usize = 2048;
/// First byte of a TLS record of a handshake.
const HANDSHAKE_RECORD: u8 = 0x16;

/// Reader of the first message of a client.
pub struct ClientHelloReader {
    socket: Socket,
    acceptor: Acceptor,
    /// Bytes that were read and not parsed.
    early: Vec<u8>,
    /// All bytes that were read, if they are kept.
    kept: Option<Vec<u8>>,
    begun: Begun,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Begun {
    Nothing,
    Tls,
}

/// First message of a client.
pub enum ClientMessage {
    /// Complete `ClientHello`.
    Hello(Box<Accepted>),
    /// First bytes of another protocol, perhaps HTTP.
    Plain(Vec<u8>),
}

impl ClientHelloReader {
    /// Starts with a connection of which `early` was read already.
    pub fn new(socket: Socket, early: Vec<u8>) -> Self {
        Self { socket, acceptor: Acceptor::default(), early, kept: None, begun: Begun::Nothing }
    }

    /// Keeps the bytes of the message for [`take_bytes`](Self::take_bytes): as many as a message may have, and one read.
    pub fn keep_bytes(&mut self) {
        self.kept = Some(Vec::new());
    }

    /// Returns the bytes that were kept.
    pub fn take_bytes(&mut self) -> Option<Vec<u8>> {
        self.kept.take()
    }

    /// The socket underneath.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Returns the socket after the first message.
    pub fn into_socket(self) -> Socket {
        self.socket
    }

    /// Reads more of the message. `None` if the caller has to wait until the socket is readable.
    pub fn read(&mut self) -> Result<Option<ClientMessage>, HandshakeError> {
        loop {
            if self.early.is_empty() {
                self.early.reserve(HELLO_READ);
                match self.socket.try_read(&mut self.early) {
                    Ok(0) => return Err(HandshakeError::Closed),
                    Ok(_) => {}
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                        // A client that has sent nothing yet holds no buffer.
                        self.early = Vec::new();
                        return Ok(None);
                    }
                    Err(e) => return Err(HandshakeError::Io(e)),
                }
            }
            if self.begun == Begun::Nothing && self.early.first() != Some(&HANDSHAKE_RECORD) {
                return Ok(Some(ClientMessage::Plain(std::mem::take(&mut self.early))));
            }
            self.begun = Begun::Tls;
            if let Some(kept) = &mut self.kept {
                kept.extend_from_slice(&self.early);
            }
            let mut bytes = &self.early[..];
            while !bytes.is_empty() {
                self.acceptor.read_tls(&mut bytes).map_err(HandshakeError::Io)?;
                match self.acceptor.accept() {
                    Ok(None) => {}
                    // Bytes behind the ClientHello are not needed: they belong to a hello that has to be repeated, or
                    // are early data, which the acceptor has already.
                    Ok(Some(accepted)) => return Ok(Some(ClientMessage::Hello(Box::new(accepted)))),
                    Err((error, alert)) => {
                        // The alert is lost if the peer takes no bytes.
                        let _ = self.socket.try_write(&record_of(alert));
                        return Err(HandshakeError::Tls(error));
                    }
                }
            }
            self.early.clear();
        }
    }
}

/// Begins a session with the client's hello and what was chosen for it. May take as long as a signature, and runs on any thread.
///
/// # Errors
/// Why there can be none, and the record that tells the client.
pub fn begin(
    accepted: Accepted,
    config: Arc<ServerConfig>,
) -> Result<Box<ServerConnection>, (rustls::Error, Vec<u8>)> {
    accepted.into_connection(config).map(Box::new).map_err(|(error, alert)| (error, record_of(alert)))
}

fn record_of(mut alert: AcceptedAlert) -> Vec<u8> {
    let mut record = Vec::new();
    // Memory takes everything.
    let _ = alert.write_all(&mut record);
    record
}
