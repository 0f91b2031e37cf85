//! `xtask bench responder --port N --socket PATH --size BYTES`: FastCGI application with a constant response, as fast
//! as a bare loop. It ends with its parent.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::Outcome;
use crate::data::noise;
use crate::options::Options;
use crate::turns::{Turns, number_of, put};

/// Bytes taken at once.
const RECV_SIZE: usize = 64 * 1024;
/// The end of a request without a body, and of any other.
const STDIN_END: &[u8] = &[1, 5, 0, 1, 0, 0, 0, 0];
/// Offset of the keep-connection flag in the first record.
const FLAGS_AT: usize = 10;

struct Connection {
    socket: OwnedFd,
    request: Vec<u8>,
    stays: bool,
    /// Bytes of the response that are still to be sent.
    rest: usize,
}

/// Serves until the starter ends.
pub(crate) fn run(args: &[String]) -> Outcome {
    let options = Options::parse(args, &["port", "socket", "size"], &[])?;
    let path = options.text("socket").ok_or("--socket is missing")?;
    let mut turns = Turns::listen(options.number("port", 0)?)?;
    turns.listen_at(Path::new(path))?;
    let size = usize::try_from(options.size("size", 1024)?)?;
    Ok(serve(&turns, &response(size))?)
}

/// A response as PHP would send it.
fn response(size: usize) -> Vec<u8> {
    let head = format!(
        "X-Powered-By: PHP/8.2\r\nContent-Type: text/html; charset=UTF-8\r\nContent-Length: {size}\r\n\r\n"
    );
    let output = [head.into_bytes(), noise(1, size)].concat();
    let mut bytes: Vec<u8> = output.chunks(32_768).flat_map(|chunk| record(6, chunk)).collect();
    bytes.extend(record(6, b""));
    bytes.extend(record(3, &[0; 8]));
    bytes
}

fn record(kind: u8, content: &[u8]) -> Vec<u8> {
    let [high, low] = u16::try_from(content.len()).unwrap_or(u16::MAX).to_be_bytes();
    [&[1, kind, 0, 1, high, low, 0, 0], content].concat()
}

fn serve(turns: &Turns, response: &[u8]) -> Result<(), Errno> {
    let mut connections: Vec<Option<Connection>> = Vec::new();
    let mut events = Turns::events();
    let mut scratch = vec![0; RECV_SIZE];
    while turns.wait(&mut events)? {
        for event in &events {
            let number = event.data.u64() as usize;
            if turns.is_listener(number) {
                // Connections over TCP only check whether the responder listens.
                while turns.accept()?.is_some() {}
            } else if turns.is_path(number) {
                while let Some(socket) = turns.accept_at(number)? {
                    turns.add(&socket)?;
                    let connection = Connection { socket, request: Vec::new(), stays: false, rest: 0 };
                    put(&mut connections, number_of(&connection.socket), connection);
                }
            } else if let Some(slot) = connections.get_mut(number)
                && let Some(found_connection) = slot
                && found_connection.turn(turns, response, &mut scratch).is_err()
            {
                *slot = None;
            }
        }
    }
    Ok(())
}

impl Connection {
    /// Continues the connection; an error ends it.
    fn turn(&mut self, turns: &Turns, response: &[u8], scratch: &mut [u8]) -> Result<(), Errno> {
        let waited = self.rest > 0;
        if !waited {
            let count = match recv(&self.socket, &mut *scratch, RecvFlags::empty()) {
                Ok((0, _)) => return Err(Errno::PIPE),
                Ok((count, _)) => count,
                Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
                Err(e) => return Err(e),
            };
            self.request.extend_from_slice(scratch.get(..count).unwrap_or_default());
            if !self.request.ends_with(STDIN_END) {
                return Ok(());
            }
            self.stays = self.request.get(FLAGS_AT) == Some(&1);
            self.request.clear();
            self.rest = response.len();
        }
        while self.rest > 0 {
            match send(&self.socket, &response[response.len() - self.rest..], SendFlags::NOSIGNAL) {
                Ok(count) => self.rest -= count,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e),
            }
        }
        let waits = self.rest > 0;
        if !waits && !self.stays {
            return Err(Errno::PIPE);
        }
        if waits != waited {
            turns.change(&self.socket, if waits { EventFlags::OUT } else { EventFlags::IN })?;
        }
        Ok(())
    }
}
