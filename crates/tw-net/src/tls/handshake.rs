//! A handshake step by step, on either side: whoever takes the steps does the waiting, and the work that takes long where it
//! likes.
//!
//! ```text
//! server: Greeting ─ said hello ─► (choose certificate) ─► begin ─┐
//!                  └ no TLS at all: the bytes go on as they are      ├─► Handshake ─ Process* ─► Done ─► TlsStream
//! client: connect ────────────────────────────────────────────────┘
//! ```

use std::io;
use std::ops::DerefMut;

use rustls::{Connection, ConnectionCommon, SideData};
use tw_rt::Socket;

use super::{Pipe, Records, TlsStream};

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

/// A handshake that is under way: of a server, after its client's hello, or of a client.
pub struct Handshake<S> {
    socket: Socket,
    session: Box<S>,
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

/// Processes what a session has read. May take as long as a signature or the look through a chain of certificates, and runs on
/// any thread.
pub fn process<S, D: SideData>(mut session: Box<S>) -> (Box<S>, Result<(), rustls::Error>)
where
    S: DerefMut<Target = ConnectionCommon<D>>,
{
    let processed = session.process_new_packets().map(|_| ());
    (session, processed)
}

impl<S, D: SideData> Handshake<S>
where
    S: DerefMut<Target = ConnectionCommon<D>> + Into<Connection>,
{
    /// The handshake of `session` over `socket`.
    pub fn new(socket: Socket, session: Box<S>) -> Self {
        Self { socket, session }
    }

    /// The socket underneath.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// What was agreed on so far.
    pub fn session(&self) -> &S {
        &self.session
    }

    /// Socket and session, for a session that is processed elsewhere.
    pub fn into_parts(self) -> (Socket, Box<S>) {
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
