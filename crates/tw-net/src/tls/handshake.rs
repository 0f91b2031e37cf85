//! TLS handshake in steps, on either side: the caller waits for the socket, and runs long computations where it likes.
//!
//! ```text
//! server: ClientHelloReader ─ hello ─► (choose certificate) ─► begin ─┐
//!                  └ no TLS at all: the bytes go on as they are      ├─► Handshake ─ Process* ─► Done ─► TlsStream
//! client: connect ────────────────────────────────────────────────┘
//! ```

use std::io::{self, IoSlice, Write};
use std::ops::DerefMut;

use rustls::{Connection, ConnectionCommon, HandshakeKind, ServerConnection, SideData};
use tw_rt::Socket;

use super::{Pipe, Records, TlsStream};

/// Error of a handshake.
#[derive(Debug)]
pub enum HandshakeError {
    /// The peer closed the connection.
    Closed,
    /// The connection failed.
    Io(io::Error),
    /// The handshake failed, and the peer got an alert.
    Tls(rustls::Error),
}

/// Handshake in progress: of a server, after the `ClientHello`, or of a client.
pub struct Handshake<S> {
    socket: Socket,
    session: Box<S>,
    /// First sent bytes, as far as they contain the session id.
    sent: Vec<u8>,
}

/// Result of sending handshake records.
#[derive(Debug)]
pub struct SentRecords(Vec<u8>);

/// Offset of the session id's length, if the first record begins with a server's hello: behind the heads of record and
/// message (5 and 4), the version (2) and the random bytes (32).
const ID_AT: usize = 5 + 4 + 2 + 32;
/// The longest id has 32 bytes.
const SENT_MAX: usize = ID_AT + 1 + 32;

/// Pipe that records the first bytes.
struct RecordingPipe<'a> {
    pipe: Pipe<'a>,
    sent: &'a mut Vec<u8>,
}

impl RecordingPipe<'_> {
    fn note(&mut self, bytes: &[u8]) {
        let room = SENT_MAX.saturating_sub(self.sent.len());
        self.sent.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

impl Write for RecordingPipe<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let count = self.pipe.write(data)?;
        self.note(&data[..count]);
        Ok(count)
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let count = self.pipe.write_vectored(parts)?;
        let mut remaining = count;
        for part in parts {
            let taken = remaining.min(part.len());
            self.note(&part[..taken]);
            remaining -= taken;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Next need of a handshake.
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

impl Handshake<ServerConnection> {
    /// Returns true if a session is resumed.
    pub fn is_resumed(&self) -> bool {
        self.session.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// Returns true if early data of the client came, and was accepted, before the end of the handshake.
    pub fn has_early_data(&mut self) -> bool {
        self.session.is_handshaking() && self.session.early_data().is_some()
    }
}

impl<S, D: SideData> Handshake<S>
where
    S: DerefMut<Target = ConnectionCommon<D>> + Into<Connection>,
{
    /// The handshake of `session` over `socket`.
    pub fn new(socket: Socket, session: Box<S>) -> Self {
        Self { socket, session, sent: Vec::new() }
    }

    /// Session id of the `ServerHello`, if there is one. In TLS 1.3 it is a value of the client for middleboxes that expect one.
    pub fn session_id(&self) -> Option<&[u8]> {
        let (size, rest) = self.sent.get(ID_AT..)?.split_first()?;
        rest.get(..usize::from(*size)).filter(|id| !id.is_empty())
    }

    /// The socket underneath.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Returns the session as far as it is negotiated.
    pub fn session(&self) -> &S {
        &self.session
    }

    /// Takes the handshake apart to run [`process`] elsewhere, see [`from_parts`](Self::from_parts).
    pub fn into_parts(self) -> (Socket, Box<S>, SentRecords) {
        (self.socket, self.session, SentRecords(self.sent))
    }

    /// Puts together the parts of [`into_parts`](Self::into_parts).
    pub fn from_parts(socket: Socket, session: Box<S>, SentRecords(sent): SentRecords) -> Self {
        Self { socket, session, sent }
    }

    /// Writes and reads as far as the socket goes without waiting.
    pub fn step(&mut self) -> Result<Step, HandshakeError> {
        if self.flush().map_err(HandshakeError::Io)? == Records::Waiting {
            return Ok(Step::Writable);
        }
        if !self.session.is_handshaking() {
            return Ok(Step::Done);
        }
        match self.session.read_tls(&mut Pipe(&self.socket)) {
            Ok(0) => Err(HandshakeError::Closed),
            Ok(_) => Ok(Step::Process),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(Step::Readable),
            Err(e) => Err(HandshakeError::Io(e)),
        }
    }

    /// Sends the alert of a session that has failed, if the socket takes it at once.
    pub fn refuse(mut self) {
        let _ = self.flush();
    }

    /// The socket and the session while the handshake goes on: for a client that has sent data early.
    pub fn into_session(self) -> (Socket, Connection) {
        (self.socket, (*self.session).into())
    }

    /// The connection, when the handshake is done.
    pub fn into_stream(self) -> TlsStream {
        TlsStream::new(self.socket, (*self.session).into())
    }

    fn flush(&mut self) -> io::Result<Records> {
        while self.session.wants_write() {
            let mut tap = RecordingPipe { pipe: Pipe(&self.socket), sent: &mut self.sent };
            match self.session.write_tls(&mut tap) {
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(Records::Waiting),
                Err(e) => return Err(e),
            }
        }
        Ok(Records::Gone)
    }
}
