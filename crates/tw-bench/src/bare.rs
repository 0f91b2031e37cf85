//! `xtask bench bare-loop --port N --response FILE [--body FILE]`: the least a server can do, and so the limit of all
//! others.
//!
//! For each request one `recv` and one `send` of the same bytes from memory, and with a body one more `sendfile` of
//! that file, which is in memory, too. It only looks for the end of the head. It ends with its parent.

use std::fs::{self, File};
use std::os::fd::OwnedFd;

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::Outcome;
use super::options::Options;
use super::turns::{Turns, number_of, put};

/// A request of a load generator is far shorter.
const REQUEST_SIZE_MAX: usize = 4096;

/// Response to send: bytes, followed by a file of this size.
struct Response {
    bytes: Vec<u8>,
    body: Option<(File, usize)>,
}

/// A connection, and how much of the response is still to be sent.
struct Connection {
    socket: OwnedFd,
    rest: usize,
}

/// Serves until the starter ends.
pub(super) fn run(args: &[String]) -> Outcome {
    let options = Options::parse(args, &["port", "response", "body"], &[])?;
    let port: u16 = options.number("port", 0)?;
    let bytes = fs::read(options.text("response").ok_or("--response FILE is needed")?)?;
    let body = match options.text("body") {
        Some(path) => {
            let file = File::open(path)?;
            let size = usize::try_from(file.metadata()?.len())?;
            Some((file, size))
        }
        None => None,
    };
    Ok(serve(&Turns::listen(port)?, &Response { bytes, body })?)
}

impl Response {
    fn len(&self) -> usize {
        self.bytes.len() + self.body.as_ref().map_or(0, |(_, size)| *size)
    }

    /// Sends the bytes after the first `sent` ones, as many as the socket accepts.
    fn send(&self, socket: &OwnedFd, sent: usize) -> Result<usize, Errno> {
        match (self.bytes.get(sent..), &self.body) {
            (Some(bytes @ [_, ..]), None) => send(socket, bytes, SendFlags::NOSIGNAL),
            (Some(bytes @ [_, ..]), Some(_)) => send(socket, bytes, SendFlags::NOSIGNAL | SendFlags::MORE),
            (_, Some((file, size))) => {
                let at = sent - self.bytes.len();
                rustix::fs::sendfile(socket, file, Some(&mut (at as u64)), size - at)
            }
            (_, None) => Ok(0),
        }
    }
}

fn serve(turns: &Turns, response: &Response) -> Result<(), Errno> {
    let mut connections: Vec<Option<Connection>> = Vec::new();
    let mut events = Turns::events();
    while turns.wait(&mut events)? {
        for event in &events {
            let number = event.data.u64() as usize;
            if turns.is_listener(number) {
                while let Some(socket) = turns.accept()? {
                    turns.add(&socket)?;
                    put(&mut connections, number_of(&socket), Connection { socket, rest: 0 });
                }
            } else if let Some(slot) = connections.get_mut(number)
                && slot.as_mut().is_some_and(|connection| turn(turns, connection, response).is_err())
            {
                *slot = None;
            }
        }
    }
    Ok(())
}

/// Continues one connection; an error ends it.
fn turn(turns: &Turns, connection: &mut Connection, response: &Response) -> Result<(), Errno> {
    let waited = connection.rest > 0;
    if !waited {
        let mut request = [0; REQUEST_SIZE_MAX];
        let (count, _) = match recv(&connection.socket, &mut request[..], RecvFlags::empty()) {
            Ok(got) => got,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(e) => return Err(e),
        };
        if !request[..count].ends_with(b"\r\n\r\n") {
            return Err(Errno::PIPE);
        }
        connection.rest = response.len();
    }
    while connection.rest > 0 {
        match response.send(&connection.socket, response.len() - connection.rest) {
            Ok(count) => connection.rest -= count,
            Err(Errno::AGAIN) => break,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    let waits = connection.rest > 0;
    if waits != waited {
        turns.change(&connection.socket, if waits { EventFlags::OUT } else { EventFlags::IN })?;
    }
    Ok(())
}
