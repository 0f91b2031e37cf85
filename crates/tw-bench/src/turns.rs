//! Common parts of the bare loops: one thread, one epoll, level-triggered, a listener on loopback.
//!
//! A bare loop does the minimum for its task; it is the limit of all servers that do more, or a peer that costs them
//! little.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with, sockopt,
};
use rustix::process::{Pid, getppid};
use rustix::time::Timespec;

/// Events per call: nginx's default of `worker_connections`, and enough for one turn under full load.
const EVENT_COUNT: usize = 512;
const BACKLOG: i32 = 4096;

/// A listener, and the epoll that waits for it and for its connections.
pub(super) struct Turns {
    epoll: OwnedFd,
    listener: OwnedFd,
    /// A second one, at a path.
    at_path: Option<OwnedFd>,
    starter: Option<Pid>,
}

impl Turns {
    /// Listens on a port of loopback.
    pub(super) fn listen(port: u16) -> Result<Self, Errno> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let listener = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        sockopt::set_socket_reuseaddr(&listener, true)?;
        bind(&listener, &SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
        listen(&listener, BACKLOG)?;
        let turns =
            Self { epoll: epoll::create(CreateFlags::CLOEXEC)?, listener, at_path: None, starter: getppid() };
        turns.add(&turns.listener)?;
        Ok(turns)
    }

    /// Listens on a path, too.
    pub(super) fn listen_at(&mut self, path: &Path) -> Result<(), Errno> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let listener = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        bind(&listener, &SocketAddrUnix::new(path)?)?;
        listen(&listener, BACKLOG)?;
        self.add(&listener)?;
        self.at_path = Some(listener);
        Ok(())
    }

    /// The next connection to that path; not yet in the epoll. `None` also if the event with this number is another's.
    pub(super) fn accept_at(&self, number: usize) -> Result<Option<OwnedFd>, Errno> {
        let Some(listener) = self.at_path.as_ref().filter(|listener| number_of(listener) == number) else {
            return Ok(None);
        };
        match accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
            Ok(socket) => Ok(Some(socket)),
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Returns `true` if an event with this number is a connection to the Unix socket.
    pub(super) fn is_path(&self, number: usize) -> bool {
        self.at_path.as_ref().is_some_and(|listener| number_of(listener) == number)
    }

    /// Room for the events of one turn.
    pub(super) fn events() -> Vec<Event> {
        Vec::with_capacity(EVENT_COUNT)
    }

    /// Waits for events, at most a second; false once the process that started this one has ended.
    pub(super) fn wait(&self, events: &mut Vec<Event>) -> Result<bool, Errno> {
        const TURN_MAX: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
        events.clear();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), Some(&TURN_MAX)) {
            Ok(_) | Err(Errno::INTR) => Ok(getppid() == self.starter),
            Err(e) => Err(e),
        }
    }

    /// Returns `true` if an event with this number is a new connection.
    pub(super) fn is_listener(&self, number: usize) -> bool {
        number == number_of(&self.listener)
    }

    /// The next connection that waits to be accepted, without delay of small segments; not yet in the epoll.
    pub(super) fn accept(&self) -> Result<Option<OwnedFd>, Errno> {
        match accept_with(&self.listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
            Ok(socket) => {
                sockopt::set_tcp_nodelay(&socket, true)?;
                Ok(Some(socket))
            }
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Waits for bytes from a socket from now on.
    pub(super) fn add(&self, socket: &OwnedFd) -> Result<(), Errno> {
        epoll::add(&self.epoll, socket, EventData::new_u64(number_of(socket) as u64), EventFlags::IN)
    }

    /// Waits for something else of a socket from now on.
    pub(super) fn change(&self, socket: &OwnedFd, interest: EventFlags) -> Result<(), Errno> {
        epoll::modify(&self.epoll, socket, EventData::new_u64(number_of(socket) as u64), interest)
    }
}

/// Event data of a socket: the number of its descriptor.
pub(super) fn number_of(socket: &OwnedFd) -> usize {
    usize::try_from(socket.as_raw_fd()).unwrap_or_default()
}

/// Puts a value at its number, filling new lower numbers with `None`.
pub(super) fn put<T>(slots: &mut Vec<Option<T>>, number: usize, value: T) {
    if slots.len() <= number {
        slots.resize_with(number + 1, || None);
    }
    slots[number] = Some(value);
}
