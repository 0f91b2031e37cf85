//! `xtask bench echo --port N`: gRPC echo server, as fast as a bare loop. It only parses frames: all requests are
//! treated alike, so the response needs no HPACK decoding. It ends with its parent.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::Outcome;
use crate::options::Options;
use crate::turns::{Turns, number_of, put};

/// Bytes taken at once.
const RECV_SIZE: usize = 64 * 1024;
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_HEAD: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
/// As large as a window can be, beyond the one a connection begins with.
const WINDOW: u32 = (1 << 31) - 1 - 65_535;
/// Number of bytes after which the window is opened again by as many.
const WINDOW_STEP: u32 = 1 << 24;

struct Connection {
    socket: OwnedFd,
    came: Vec<u8>,
    goes: Vec<u8>,
    greeted: bool,
    /// Bytes received since the last window update.
    taken: u32,
}

/// Serves until the starter ends.
pub(crate) fn run(args: &[String]) -> Outcome {
    let options = Options::parse(args, &["port"], &[])?;
    let turns = Turns::listen(options.number("port", 0)?)?;
    Ok(serve(&turns)?)
}

fn serve(turns: &Turns) -> Result<(), Errno> {
    let mut connections: Vec<Option<Connection>> = Vec::new();
    let mut events = Turns::events();
    let mut scratch = vec![0; RECV_SIZE];
    while turns.wait(&mut events)? {
        for event in &events {
            let number = event.data.u64() as usize;
            if turns.is_listener(number) {
                while let Some(socket) = turns.accept()? {
                    turns.add(&socket)?;
                    let connection = Connection::new(socket);
                    put(&mut connections, number_of(&connection.socket), connection);
                }
            } else if let Some(slot) = connections.get_mut(number)
                && let Some(found_connection) = slot
                && found_connection.turn(&mut scratch).is_err()
            {
                *slot = None;
            }
        }
    }
    Ok(())
}

impl Connection {
    fn new(socket: OwnedFd) -> Self {
        let mut goes = Vec::new();
        // SETTINGS_INITIAL_WINDOW_SIZE and SETTINGS_MAX_CONCURRENT_STREAMS.
        push(&mut goes, SETTINGS, 0, 0, &[0, 4, 0x7f, 0xff, 0xff, 0xff, 0, 3, 0, 0, 1, 0]);
        push(&mut goes, WINDOW_UPDATE, 0, 0, &WINDOW.to_be_bytes());
        Self { socket, came: Vec::new(), goes, greeted: false, taken: 0 }
    }

    /// Takes and sends what can be. The error ends the connection.
    fn turn(&mut self, scratch: &mut [u8]) -> Result<(), Errno> {
        loop {
            match recv(&self.socket, &mut *scratch, RecvFlags::empty()) {
                Ok((0, _)) => return Err(Errno::CONNRESET),
                Ok((count, _)) => self.came.extend_from_slice(&scratch[..count]),
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error),
            }
        }
        if !self.greeted && self.came.len() >= PREFACE.len() {
            self.came.drain(..PREFACE.len());
            self.greeted = true;
        }
        if self.greeted {
            self.answer();
        }
        while !self.goes.is_empty() {
            match send(&self.socket, &self.goes, SendFlags::NOSIGNAL) {
                Ok(count) => drop(self.goes.drain(..count)),
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Answers all frames that are complete.
    fn answer(&mut self) {
        let mut at = 0;
        while let Some(&[high, mid, low, kind, flags, a, b, c, d]) = self.came.get(at..at + FRAME_HEAD) {
            let len = u32::from_be_bytes([0, high, mid, low]) as usize;
            let stream = u32::from_be_bytes([a, b, c, d]);
            let Some(payload) = self.came.get(at + FRAME_HEAD..at + FRAME_HEAD + len) else { break };
            match kind {
                SETTINGS if flags & ACK == 0 => push(&mut self.goes, SETTINGS, ACK, 0, &[]),
                PING if flags & ACK == 0 => push(&mut self.goes, PING, ACK, 0, payload),
                HEADERS => {
                    // `:status: 200` of the static table, and one field as it is.
                    let head = literal(&[0x88], b"content-type", b"application/grpc");
                    push(&mut self.goes, HEADERS, END_HEADERS, stream, &head);
                }
                DATA => {
                    self.taken += len as u32;
                    push(&mut self.goes, DATA, 0, stream, payload);
                }
                _ => {}
            }
            if matches!(kind, HEADERS | DATA) && flags & END_STREAM != 0 {
                let end = literal(&[], b"grpc-status", b"0");
                push(&mut self.goes, HEADERS, END_HEADERS | END_STREAM, stream, &end);
            }
            at += FRAME_HEAD + len;
        }
        self.came.drain(..at);
        if self.taken > WINDOW_STEP {
            push(&mut self.goes, WINDOW_UPDATE, 0, 0, &self.taken.to_be_bytes());
            self.taken = 0;
        }
    }
}

fn push(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let [_, high, mid, low] = (payload.len() as u32).to_be_bytes();
    out.extend_from_slice(&[high, mid, low, kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// Literal field without indexing after `before`; name and value are short.
fn literal(before: &[u8], name: &[u8], value: &[u8]) -> Vec<u8> {
    [before, &[0, name.len() as u8], name, &[value.len() as u8], value].concat()
}
