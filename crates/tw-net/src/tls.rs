//! A TLS connection over a socket: rustls, which does no I/O, driven as far as the socket goes without waiting.
//!
//! ```text
//!            try_write            encrypt             flush
//! plaintext ──────────► session ──────────► records ─────────► socket
//! ```
//! Records that the session has made cannot be given back, and the socket may take less of them. So that the caller
//! still learns when all it gave has left, the last byte is counted only then (`State::held`).

mod accept;
mod connect;
mod handshake;
#[cfg(test)]
mod tests;

pub use accept::{ClientHelloReader, ClientMessage, begin};
pub use connect::{connect, connect_here};
pub use handshake::{Handshake, HandshakeError, SentRecords, Step, process};

use std::cell::{Cell, RefCell};
use std::io::{self, BufRead, IoSlice, Read, Write};
use std::rc::Rc;
use std::task::{Context, Poll};

use rustls::Connection;
use tw_rt::Socket;

/// Most that is encrypted before the socket has taken what was: memory that a client which reads slowly can hold.
const WRITE_MAX: usize = 64 << 10;
/// Bytes encrypted at once after the socket has not taken everything: one record.
const WRITE_SLOW: usize = 16 << 10;
/// Parts that are encrypted as one.
const PARTS_MAX: usize = 8;

/// A TLS connection after its handshake. Dropping it says so to the peer, if the socket takes that at once, and closes the
/// connection.
#[derive(Debug)]
pub struct TlsStream {
    socket: Socket,
    state: RefCell<State>,
}

#[derive(Debug)]
struct State {
    session: Connection,
    /// Bytes that the session took and the caller will give once more: 1 while records of what it gave wait for the socket.
    repeated_len: usize,
    /// Bytes encrypted at once.
    window: usize,
    /// Early data (RFC 8446, section 2.3), if the handshake still goes on.
    early: Option<Early>,
}

/// Early data of a client.
#[derive(Debug)]
struct Early {
    /// Early data that was read and not taken yet; the session bounds it.
    bytes: Vec<u8>,
    /// True while the handshake still goes on, for callers that have to know.
    goes_on: Rc<Cell<bool>>,
}

impl TlsStream {
    /// The connection over `socket` whose handshake is complete, and whose last records may still wait to be sent.
    pub fn new(socket: Socket, mut session: Connection) -> Self {
        // Bounded here.
        session.set_buffer_limit(None);
        Self {
            socket,
            state: RefCell::new(State { session, repeated_len: 0, window: WRITE_MAX, early: None }),
        }
    }

    /// Makes the transport while the handshake goes on, for a client with early data. `goes_on` is set to false at the end of the
    /// handshake: until then the data may be a replay.
    pub fn with_early_data(socket: Socket, session: Connection, goes_on: Rc<Cell<bool>>) -> Self {
        let mut this = Self::new(socket, session);
        let state = this.state.get_mut();
        state.early = Some(Early { bytes: Vec::new(), goes_on });
        state.take_early();
        this
    }

    /// The socket underneath.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Looks at what was agreed on.
    pub fn with_session<T>(&self, look: impl FnOnce(&Connection) -> T) -> T {
        look(&self.state.borrow().session)
    }

    /// As [`Socket::try_read`]. A peer that closes without having said so (`close_notify`) has come to its end for a server;
    /// for a client, which could not tell a response that was cut from a whole one, it is `UnexpectedEof`. What breaks the
    /// protocol is `InvalidData`, with the reason.
    pub fn try_read(&self, buf: &mut Vec<u8>) -> io::Result<usize> {
        self.read_by(|state| state.take_plaintext(buf))
    }

    /// Reads into `buf` from its beginning, as [`Socket::try_read_into`].
    pub fn try_read_into(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.read_by(|state| {
            let is_server = matches!(state.session, Connection::Server(_));
            match state.session.reader().read(buf) {
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof && is_server => Ok(0),
                read => read,
            }
        })
    }

    /// Takes what was decrypted, and decrypts more if there is nothing.
    fn read_by(&self, mut take: impl FnMut(&mut State) -> io::Result<usize>) -> io::Result<usize> {
        let state = &mut *self.state.borrow_mut();
        loop {
            match take(state) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                taken => return taken,
            }
            state.session.read_tls(&mut Pipe(&self.socket))?;
            let processed = state.session.process_new_packets();
            state.take_early();
            // Alerts and responses of the session itself; bytes that the socket does not take now go with the next
            // ones. A peer that takes nothing more may still have sent something, so an error is left to the writer.
            let _ = state.flush(&self.socket);
            processed.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
    }

    /// Writes like [`Socket::try_write`]: after a partial write the caller passes the rest again, beginning with the same bytes.
    pub fn try_write(&self, data: &[u8]) -> io::Result<usize> {
        self.try_write_vectored(&[IoSlice::new(data)])
    }

    /// As [`Socket::try_write_vectored`]; the parts leave in common records.
    pub fn try_write_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let state = &mut *self.state.borrow_mut();
        if state.flush(&self.socket)? == Records::Waiting {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let mut done = std::mem::take(&mut state.repeated_len).min(len);
        while done < len {
            let (from, parts) = window(parts, done, state.window);
            done += state.session.writer().write_vectored(&from[..parts])?;
            if state.flush(&self.socket)? == Records::Waiting {
                state.repeated_len = 1;
                state.window = WRITE_SLOW;
                return match done - state.repeated_len {
                    0 => Err(io::ErrorKind::WouldBlock.into()),
                    n => Ok(n),
                };
            }
            state.window = WRITE_MAX;
        }
        Ok(done)
    }

    /// As [`Socket::poll_readable`].
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.state.borrow_mut().has_input() { Poll::Ready(Ok(())) } else { self.socket.poll_readable(cx) }
    }

    /// As [`Socket::may_have_input`]. Of a client, what the server says of the session itself (tickets, new keys) is taken, and
    /// is no input: a server may say it whenever it likes.
    pub fn may_have_input(&self) -> bool {
        let state = &mut *self.state.borrow_mut();
        if state.has_input() {
            return true;
        }
        match state.session {
            Connection::Client(_) => {
                self.socket.may_have_input() && state.absorb(&self.socket) == Input::Some
            }
            Connection::Server(_) => self.socket.may_have_input(),
        }
    }

    /// Tells the peer that nothing more will be sent, in TLS and in TCP. Reading goes on.
    pub fn shutdown_write(&self) -> io::Result<()> {
        self.say_goodbye();
        self.socket.shutdown_write()
    }

    /// Sends `close_notify`. Without it the peer could not distinguish the end from a truncated connection.
    fn say_goodbye(&self) {
        let state = &mut *self.state.borrow_mut();
        state.session.send_close_notify();
        // A peer that takes nothing more need not know.
        let _ = state.flush(&self.socket);
    }
}

impl Drop for TlsStream {
    fn drop(&mut self) {
        self.say_goodbye();
    }
}

/// Availability of input, including its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Input {
    Some,
    None,
}

/// Presence of records that the socket has not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Records {
    Gone,
    Waiting,
}

impl State {
    /// Writes records as far as the socket takes them.
    fn flush(&mut self, socket: &Socket) -> io::Result<Records> {
        while self.session.wants_write() {
            match self.session.write_tls(&mut Pipe(socket)) {
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(Records::Waiting),
                Err(e) => return Err(e),
            }
        }
        Ok(Records::Gone)
    }

    /// Reads what has come, as long as it is of the session itself.
    fn absorb(&mut self, socket: &Socket) -> Input {
        loop {
            match self.session.read_tls(&mut Pipe(socket)) {
                Ok(n) if n > 0 => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Input::None,
                Ok(_) | Err(_) => return Input::Some,
            }
            let processed = self.session.process_new_packets();
            let _ = self.flush(socket);
            if processed.is_err() || self.has_input() {
                return Input::Some;
            }
        }
    }

    /// Looks for early data, and for the end of the handshake.
    fn take_early(&mut self) {
        let (Some(early), Connection::Server(session)) = (&mut self.early, &mut self.session) else { return };
        if let Some(mut data) = session.early_data() {
            // The early data is in memory and bounded, so one read takes all of it.
            let _ = data.read_to_end(&mut early.bytes);
        }
        if !session.is_handshaking() {
            early.goes_on.set(false);
            if early.bytes.is_empty() {
                self.early = None;
            }
        }
    }

    /// Appends what was decrypted, as far as there is room.
    fn take_plaintext(&mut self, buf: &mut Vec<u8>) -> io::Result<usize> {
        if let Some(early) = self.early.as_mut().filter(|early| !early.bytes.is_empty()) {
            let taken = early.bytes.len().min(buf.capacity() - buf.len());
            buf.extend(early.bytes.drain(..taken));
            return Ok(taken);
        }
        let is_server = matches!(self.session, Connection::Server(_));
        let mut reader = self.session.reader();
        let mut taken = 0;
        loop {
            let room = buf.capacity() - buf.len();
            let chunk = match reader.fill_buf() {
                Ok(chunk) => &chunk[..chunk.len().min(room)],
                Err(_) if taken > 0 => return Ok(taken),
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof && is_server => return Ok(0),
                Err(e) => return Err(e),
            };
            if chunk.is_empty() {
                return Ok(taken);
            }
            buf.extend_from_slice(chunk);
            let len = chunk.len();
            reader.consume(len);
            taken += len;
        }
    }

    /// Returns true if reading would give bytes, or the end, without asking the socket.
    fn has_input(&mut self) -> bool {
        if self.early.as_ref().is_some_and(|early| !early.bytes.is_empty()) {
            return true;
        }
        !matches!(self.session.reader().into_first_chunk(), Err(e) if e.kind() == io::ErrorKind::WouldBlock)
    }
}

/// At most `max` bytes of `parts` from `start` on, in the first so many of the slices.
fn window<'a>(parts: &'a [IoSlice<'a>], start: usize, max: usize) -> ([IoSlice<'a>; PARTS_MAX], usize) {
    let mut io_slices = [IoSlice::new(&[]); PARTS_MAX];
    let mut skip = start;
    let mut room = max;
    let mut count = 0;
    for part in parts {
        if count == PARTS_MAX || room == 0 {
            break;
        }
        let skipped = skip.min(part.len());
        skip -= skipped;
        let rest = &part[skipped..];
        let rest = &rest[..rest.len().min(room)];
        if !rest.is_empty() {
            io_slices[count] = IoSlice::new(rest);
            room -= rest.len();
            count += 1;
        }
    }
    (io_slices, count)
}

/// A socket as rustls reads and writes it.
struct Pipe<'a>(&'a Socket);

impl Read for Pipe<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.try_read_into(buf)
    }
}

impl Write for Pipe<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.0.try_write(data)
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match parts {
            [part] => self.0.try_write(part),
            parts => self.0.try_write_vectored(parts),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
