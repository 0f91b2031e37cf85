//! `xtask bench bare-loop --port N --response FILE`: the least a server can do, and so the limit of all others.
//!
//! One thread, one epoll, level-triggered; for each request one `recv` and one `send` of the same bytes from memory. It
//! looks at nothing but the end of the head. It ends when its starter does.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, accept_with, bind, listen, recv, send,
    socket_with, sockopt,
};
use rustix::process::getppid;
use rustix::time::Timespec;

use super::Outcome;
use super::options::Options;

/// As nginx's `worker_connections` default asks for per call, and enough for one turn under full load.
const EVENT_COUNT: usize = 512;
/// A request of a load generator is far shorter.
const REQUEST_SIZE_MAX: usize = 4096;
const BACKLOG: i32 = 4096;

/// A connection, and how much of the response is still to be sent.
struct Connection {
    socket: OwnedFd,
    rest: usize,
}

/// Serves until the starter ends.
pub(super) fn run(args: &[String]) -> Outcome {
    let options = Options::parse(args, &["port", "response"], &[])?;
    let port: u16 = options.number("port", 0)?;
    let response = fs::read(options.text("response").ok_or("--response FILE is needed")?)?;

    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let listener = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&listener, true)?;
    bind(&listener, &SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
    listen(&listener, BACKLOG)?;
    Ok(serve(&listener, &response)?)
}

fn serve(listener: &OwnedFd, response: &[u8]) -> Result<(), Errno> {
    const TURN_MAX: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
    let starter = getppid();
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, listener, EventData::new_u64(listener.as_raw_fd() as u64), EventFlags::IN)?;

    let mut connections: Vec<Option<Connection>> = Vec::new();
    let mut events = Vec::with_capacity(EVENT_COUNT);
    while getppid() == starter {
        events.clear();
        match epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), Some(&TURN_MAX)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
        for event in &events {
            let number = event.data.u64() as usize;
            if number == listener.as_raw_fd() as usize {
                accept_all(&epoll, listener, &mut connections)?;
            } else if let Some(slot) = connections.get_mut(number)
                && slot.as_mut().is_some_and(|connection| turn(&epoll, connection, response).is_err())
            {
                *slot = None;
            }
        }
    }
    Ok(())
}

fn accept_all(
    epoll: &OwnedFd,
    listener: &OwnedFd,
    connections: &mut Vec<Option<Connection>>,
) -> Result<(), Errno> {
    loop {
        let socket = match accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
            Ok(socket) => socket,
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => return Ok(()),
            Err(e) => return Err(e),
        };
        sockopt::set_tcp_nodelay(&socket, true)?;
        let number = socket.as_raw_fd() as usize;
        epoll::add(epoll, &socket, EventData::new_u64(number as u64), EventFlags::IN)?;
        if connections.len() <= number {
            connections.resize_with(number + 1, || None);
        }
        connections[number] = Some(Connection { socket, rest: 0 });
    }
}

/// Goes on with one connection; an error ends it.
fn turn(epoll: &OwnedFd, connection: &mut Connection, response: &[u8]) -> Result<(), Errno> {
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
        match send(&connection.socket, &response[response.len() - connection.rest..], SendFlags::NOSIGNAL) {
            Ok(count) => connection.rest -= count,
            Err(Errno::AGAIN) => break,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    let waits = connection.rest > 0;
    if waits != waited {
        let interest = if waits { EventFlags::OUT } else { EventFlags::IN };
        let number = connection.socket.as_raw_fd() as u64;
        epoll::modify(epoll, &connection.socket, EventData::new_u64(number), interest)?;
    }
    Ok(())
}
