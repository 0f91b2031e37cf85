//! `xtask bench relay --port N --origin N`: the least a proxy can do, and so the limit of all others.
//!
//! Each client has a connection of its own to the origin, and bytes are forwarded in both directions, unread. It ends
//! with its parent.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::Outcome;
use crate::options::Options;
use crate::turns::{Turns, number_of, put};

/// Bytes taken at once.
const RECV_SIZE: usize = 64 * 1024;

/// One of two connections that belong together.
struct End {
    socket: OwnedFd,
    /// Number of the other one.
    other: usize,
    /// Bytes that this side has not accepted yet. The other side is not read until they are sent.
    unsent: Vec<u8>,
}

type Ends = Vec<Option<End>>;

/// Relays until the starter ends.
pub(crate) fn run(args: &[String]) -> Outcome {
    let options = Options::parse(args, &["port", "origin"], &[])?;
    let turns = Turns::listen(options.number("port", 0)?)?;
    let origin = SocketAddr::from((Ipv4Addr::LOCALHOST, options.number("origin", 0)?));

    let mut ends: Ends = Vec::new();
    let mut events = Turns::events();
    let mut scratch = vec![0; RECV_SIZE];
    while turns.wait(&mut events)? {
        for event in &events {
            let number = event.data.u64() as usize;
            if turns.is_listener(number) {
                while let Some(client) = turns.accept()? {
                    open(&turns, &mut ends, client, origin)?;
                }
            } else if turn(&turns, &mut ends, number, event.flags, &mut scratch).is_err()
                && let Some(end) = ends.get_mut(number).and_then(Option::take)
                && let Some(other) = ends.get_mut(end.other)
            {
                *other = None;
            }
        }
    }
    Ok(())
}

/// Connects a client to the origin. Waits for that, which on loopback takes no time worth an event.
fn open(turns: &Turns, ends: &mut Ends, client: OwnedFd, origin: SocketAddr) -> Outcome {
    let stream = TcpStream::connect(origin)?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    let server = OwnedFd::from(stream);
    for socket in [&client, &server] {
        turns.add(socket)?;
    }
    let from = number_of(&client);
    let to = number_of(&server);
    put(ends, from, End { socket: client, other: to, unsent: Vec::new() });
    put(ends, to, End { socket: server, other: from, unsent: Vec::new() });
    Ok(())
}

/// Continues one side; an error ends both.
fn turn(
    turns: &Turns,
    ends: &mut Ends,
    number: usize,
    flags: EventFlags,
    scratch: &mut [u8],
) -> Result<(), Errno> {
    // Taken out, so that both ends can be changed. An event of an end that this turn has closed means nothing.
    let Some(mut end) = ends.get_mut(number).and_then(Option::take) else { return Ok(()) };
    let done = match ends.get_mut(end.other) {
        Some(Some(other)) => end.go_on(turns, other, flags, scratch),
        _ => Err(Errno::PIPE),
    };
    put(ends, number, end);
    done
}

impl End {
    fn go_on(
        &mut self,
        turns: &Turns,
        other: &mut Self,
        flags: EventFlags,
        scratch: &mut [u8],
    ) -> Result<(), Errno> {
        if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
            return Err(Errno::PIPE);
        }
        if flags.contains(EventFlags::OUT) && !self.unsent.is_empty() {
            let count = sent(&self.socket, &self.unsent)?;
            self.unsent.drain(..count);
            if self.unsent.is_empty() {
                turns.change(&self.socket, self.interest(other))?;
                turns.change(&other.socket, other.interest(self))?;
            }
        }
        if flags.contains(EventFlags::IN) && other.unsent.is_empty() {
            let count = match recv(&self.socket, &mut *scratch, RecvFlags::empty()) {
                Ok((0, _)) => return Err(Errno::PIPE),
                Ok((count, _)) => count,
                Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
                Err(e) => return Err(e),
            };
            let bytes = scratch.get(..count).unwrap_or_default();
            let count = sent(&other.socket, bytes)?;
            if count < bytes.len() {
                other.unsent.extend_from_slice(&bytes[count..]);
                turns.change(&self.socket, self.interest(other))?;
                turns.change(&other.socket, other.interest(self))?;
            }
        }
        Ok(())
    }

    /// Events to wait for: readable while the other side accepts bytes, writable while there are bytes to send.
    fn interest(&self, other: &Self) -> EventFlags {
        let mut interest = EventFlags::empty();
        interest.set(EventFlags::IN, other.unsent.is_empty());
        interest.set(EventFlags::OUT, !self.unsent.is_empty());
        interest
    }
}

/// Number of bytes that the socket accepted.
fn sent(socket: &OwnedFd, bytes: &[u8]) -> Result<usize, Errno> {
    match send(socket, bytes, SendFlags::NOSIGNAL) {
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        sent => sent,
    }
}
