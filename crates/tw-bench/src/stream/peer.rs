//! `xtask bench stream-peer --port N`: the server behind relays, over TCP and UDP on one port.
//!
//! The first byte of a TCP connection decides: [`ECHO`] has everything sent back, [`BULK`] has bytes sent until the client
//! has enough. Datagrams are sent back. It ends with its parent.

use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::OwnedFd;
use std::thread;

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::Outcome;
use crate::options::Options;
use crate::turns::{Turns, number_of, put};

/// First byte of a connection whose bytes are sent back.
pub(super) const ECHO: u8 = b'e';
/// First byte of a connection that wants as many bytes as it can get.
pub(super) const BULK: u8 = b'b';

const RECV_SIZE: usize = 64 * 1024;
const SEND_SIZE: usize = 256 * 1024;
/// Datagrams have at most so many bytes.
const DATAGRAM_SIZE: usize = 65_535;

struct Connection {
    socket: OwnedFd,
    is_bulk: bool,
}

/// Serves until the starter ends.
pub(crate) fn run(args: &[String]) -> Outcome {
    let options = Options::parse(args, &["port"], &[])?;
    let port = options.number("port", 0)?;
    let datagrams = UdpSocket::bind((Ipv4Addr::LOCALHOST, port))?;
    // The thread ends with the process.
    thread::spawn(move || send_back(&datagrams));
    Ok(serve(&Turns::listen(port)?)?)
}

fn send_back(socket: &UdpSocket) {
    let mut bytes = vec![0; DATAGRAM_SIZE];
    loop {
        // The error of another datagram: its sender is gone.
        if let Ok((len, from)) = socket.recv_from(&mut bytes) {
            let _ = socket.send_to(&bytes[..len], from);
        }
    }
}

fn serve(turns: &Turns) -> Result<(), Errno> {
    let mut connections: Vec<Option<Connection>> = Vec::new();
    let mut events = Turns::events();
    let mut scratch = vec![0; RECV_SIZE];
    let bulk = vec![b'x'; SEND_SIZE];
    while turns.wait(&mut events)? {
        for event in &events {
            let number = event.data.u64() as usize;
            if turns.is_listener(number) {
                while let Some(socket) = turns.accept()? {
                    turns.add(&socket)?;
                    put(&mut connections, number_of(&socket), Connection { socket, is_bulk: false });
                }
            } else if let Some(slot) = connections.get_mut(number)
                && let Some(connection) = slot
                && connection.turn(turns, &mut scratch, &bulk).is_err()
            {
                *slot = None;
            }
        }
    }
    Ok(())
}

impl Connection {
    /// Continues it; an error ends it.
    fn turn(&mut self, turns: &Turns, scratch: &mut [u8], bulk: &[u8]) -> Result<(), Errno> {
        if !self.is_bulk {
            let count = match recv(&self.socket, &mut *scratch, RecvFlags::empty()) {
                Ok((0, _)) => return Err(Errno::PIPE),
                Ok((count, _)) => count,
                Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
                Err(errno) => return Err(errno),
            };
            if scratch[0] == BULK {
                self.is_bulk = true;
                turns.change(&self.socket, EventFlags::OUT)?;
            } else {
                // The echo is short, so the socket takes it at once.
                send(&self.socket, &scratch[..count], SendFlags::NOSIGNAL)?;
                return Ok(());
            }
        }
        match send(&self.socket, bulk, SendFlags::NOSIGNAL) {
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}
