//! The server's side of a handshake, step by step: whoever takes the steps does the waiting, and the work that takes long
//! where it likes.
//!
//! ```text
//! Greeting ─ said hello ─► (choose certificate) ─► Handshake ─ Process* ─► Done ─► TlsStream
//!          └ no TLS at all: the bytes go on as they are
//! ```

use std::io;
use std::sync::Arc;

use rustls::server::{Accepted, AcceptedAlert, Acceptor};
use rustls::{ServerConfig, ServerConnection};
use tw_rt::Socket;

use super::{Pipe, Records, TlsStream};

/// Bytes asked of the socket at once: most first flights fit.
const HELLO_READ: usize = 2048;
/// What a TLS record of a handshake begins with.
const HANDSHAKE_RECORD: u8 = 0x16;

/// A connection whose client has not said what it wants.
pub struct Greeting {
    socket: Socket,
    acceptor: Acceptor,
    /// Bytes that were read and not looked at.
    early: Vec<u8>,
    begun: Begun,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Begun {
    Nothing,
    Tls,
}

/// What a client said first.
pub enum Said {
    /// Its hello, whole.
    Hello(Box<Accepted>),
    /// Something that is no TLS, perhaps HTTP: these are its first bytes.
    Plain(Vec<u8>),
}

/// Why a handshake came to its end.
#[derive(Debug)]
pub enum Failure {
    /// The peer closed the connection.
    Closed,
    /// The connection failed.
    Io(io::Error),
    /// The peer was told why.
    Tls(rustls::Error),
}

impl Greeting {
    /// A connection of which `early` was read already.
    pub fn new(socket: Socket, early: Vec<u8>) -> Self {
        Self { socket, acceptor: Acceptor::default(), early, begun: Begun::Nothing }
    }

    /// The socket underneath.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// The socket, once the client has said something.
    pub fn into_socket(self) -> Socket {
        self.socket
    }

    /// Reads on. `None`: wait until the socket is readable.
    pub fn read(&mut self) -> Result<Option<Said>, Failure> {
        loop {
            if self.early.is_empty() {
                self.early.reserve(HELLO_READ);
                match self.socket.try_read(&mut self.early) {
                    Ok(0) => return Err(Failure::Closed),
                    Ok(_) => {}
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                        // Who has said nothing holds no buffer.
                        self.early = Vec::new();
                        return Ok(None);
                    }
                    Err(e) => return Err(Failure::Io(e)),
                }
            }
            if self.begun == Begun::Nothing && self.early.first() != Some(&HANDSHAKE_RECORD) {
                return Ok(Some(Said::Plain(std::mem::take(&mut self.early))));
            }
            self.begun = Begun::Tls;
            let mut bytes = &self.early[..];
            while !bytes.is_empty() {
                self.acceptor.read_tls(&mut bytes).map_err(Failure::Io)?;
                match self.acceptor.accept() {
                    Ok(None) => {}
                    // Of what follows a hello nothing is needed: who sends it at once is told to do so again, or has early
                    // data, which is in the acceptor already.
                    Ok(Some(accepted)) => return Ok(Some(Said::Hello(Box::new(accepted)))),
                    Err((error, alert)) => {
                        // A peer that takes nothing need not know.
                        let _ = self.socket.try_write(&record_of(alert));
                        return Err(Failure::Tls(error));
                    }
                }
            }
            self.early.clear();
        }
    }
}

/// A handshake that goes on after the client's hello.
pub struct Handshake {
    socket: Socket,
    session: Box<ServerConnection>,
}

/// What a handshake needs next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Wait until the socket is readable.
    Readable,
    /// Wait until the socket is writable.
    Writable,
    /// [`process`] what was read.
    Process,
    /// Nothing: it is complete, and all of it has left.
    Done,
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

/// Processes what a session has read. May take as long as a signature or the look through a chain of certificates, and runs on
/// any thread.
pub fn process(mut session: Box<ServerConnection>) -> (Box<ServerConnection>, Result<(), rustls::Error>) {
    let processed = session.process_new_packets().map(|_| ());
    (session, processed)
}

impl Handshake {
    /// The handshake of `session` over `socket`.
    pub fn new(socket: Socket, session: Box<ServerConnection>) -> Self {
        Self { socket, session }
    }

    /// The socket underneath.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// What was agreed on so far.
    pub fn session(&self) -> &ServerConnection {
        &self.session
    }

    /// Socket and session, for a session that is processed elsewhere.
    pub fn into_parts(self) -> (Socket, Box<ServerConnection>) {
        (self.socket, self.session)
    }

    /// Writes and reads as far as the socket goes without waiting.
    pub fn step(&mut self) -> Result<Step, Failure> {
        if self.flush().map_err(Failure::Io)? == Records::Waiting {
            return Ok(Step::Writable);
        }
        if !self.session.is_handshaking() {
            return Ok(Step::Done);
        }
        match self.session.read_tls(&mut Pipe(&self.socket)) {
            Ok(0) => Err(Failure::Closed),
            Ok(_) => Ok(Step::Process),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(Step::Readable),
            Err(e) => Err(Failure::Io(e)),
        }
    }

    /// Sends the alert of a session that has failed, if the socket takes it at once.
    pub fn refuse(mut self) {
        let _ = self.flush();
    }

    /// The connection, when the handshake is done.
    pub fn into_stream(self) -> TlsStream {
        TlsStream::new(self.socket, (*self.session).into())
    }

    fn flush(&mut self) -> io::Result<Records> {
        while self.session.wants_write() {
            match self.session.write_tls(&mut Pipe(&self.socket)) {
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(Records::Waiting),
                Err(e) => return Err(e),
            }
        }
        Ok(Records::Gone)
    }
}
