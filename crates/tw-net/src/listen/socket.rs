//! Opening listening sockets, with nginx's order of calls, retries and words.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno as Os;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tw_log::Errno;
use tw_rt::Addr;

use super::{Keepalive, ListenOptions};

/// How often a `bind()` that finds its address in use is tried, and the pause between two tries: a program that is
/// being replaced gets two seconds to leave.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(500);

/// `deferred` waits this long for the first bytes. The kernel cannot tell how long a connection has waited already,
/// so the shortest time it knows.
const DEFER_SECS: u32 = 1;

/// What an opened socket is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To take connections.
    Serve,
    /// `-t`: to see whether it could be opened. An address in use is no error, and no socket file is left behind.
    Test,
}

/// A step that failed. Displays as nginx writes it: `bind() to 0.0.0.0:80 failed (98: Address already in use)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenError {
    what: String,
    errno: Errno,
    hint: Option<&'static str>,
}

impl ListenError {
    fn new(what: String, error: &io::Error) -> Self {
        Self { what, errno: Errno::from(error), hint: None }
    }

    /// The error of the system.
    pub fn errno(&self) -> i32 {
        self.errno.0
    }
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed ({})", self.what, self.errno)?;
        match self.hint {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ListenError {}

/// What [`open_all`] tells its caller on the way; each displays as the line to log.
#[derive(Debug)]
pub enum Report {
    /// The socket could not be opened. Level `emerg`.
    Failed(ListenError),
    /// An option could not be set; the socket works without it. Level `alert`.
    Ignored(ListenError),
    /// All failed sockets are tried once more after half a second. Level `notice`.
    TryAgain,
    /// An address stayed in use. Level `emerg`.
    GaveUp,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Report::Failed(error) => error.fmt(f),
            Report::Ignored(error) => write!(f, "{error}, ignored"),
            Report::TryAgain => f.write_str("try again to bind() after 500ms"),
            Report::GaveUp => f.write_str("still could not bind()"),
        }
    }
}

/// A bound socket that listens, not yet on any loop. Dropping it closes this descriptor.
#[derive(Debug)]
pub struct ListenSocket {
    socket: Socket,
    addr: Addr,
}

/// Opens every socket, in order. Addresses in use are tried five times, half a second apart.
///
/// `None` when one could not be opened: then none stays open, and `report` was told why. Waits up to 2 s: never on
/// a loop.
pub fn open_all(
    wanted: &[(Addr, ListenOptions)],
    purpose: Purpose,
    report: &mut dyn FnMut(Report),
) -> Option<Vec<ListenSocket>> {
    let _ = (wanted, purpose, report, TRIES, PAUSE);
    None
}

impl ListenSocket {
    /// Opens a socket on `addr`. Options the kernel refuses are reported and left out.
    ///
    /// An explicit `reuseport` shares the address with every socket that asks for it too. Without it the address
    /// must be free, but [`sibling`](Self::sibling)s may be added afterwards.
    pub fn open(
        addr: &Addr,
        options: &ListenOptions,
        report: &mut dyn FnMut(Report),
    ) -> Result<Self, ListenError> {
        let socket = Self::bound(addr, options, options.reuseport)?;
        let this = Self { socket, addr: addr.clone() };
        this.listen(options)?;
        this.configure(options, report);
        Ok(this)
    }

    /// One more socket on the address of this TCP one, with a queue of its own: the kernel spreads connections over
    /// all of them. Errors: not for Unix sockets; the address is not shared when another user owns the first.
    pub fn sibling(
        &self,
        options: &ListenOptions,
        report: &mut dyn FnMut(Report),
    ) -> Result<Self, ListenError> {
        let _ = (options, report);
        Err(ListenError::new("sibling".into(), &Os::INVAL.into()))
    }

    /// The same socket once more, for another loop or process. All share one queue.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { socket: self.socket.try_clone()?, addr: self.addr.clone() })
    }

    /// A socket that was opened and set up elsewhere: handed over by the master, a former binary or systemd.
    /// Errors: it is no stream socket that listens.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        let _ = fd;
        Err(Os::INVAL.into())
    }

    /// Sets the options that may change while the socket is open: after a reload, or on an inherited one.
    pub fn configure(&self, options: &ListenOptions, report: &mut dyn FnMut(Report)) {
        let _ = (options, report, DEFER_SECS, Keepalive::System);
    }

    /// The address it is bound to: with port 0, the one the kernel chose.
    pub fn addr(&self) -> &Addr {
        &self.addr
    }

    fn listen(&self, options: &ListenOptions) -> Result<(), ListenError> {
        let _ = options;
        Ok(())
    }

    fn bound(addr: &Addr, options: &ListenOptions, share: bool) -> Result<Socket, ListenError> {
        let _ = (addr, options, share, Domain::IPV4, Protocol::MPTCP, Type::STREAM, Path::new(""));
        let _: Option<SockAddr> = None;
        Err(ListenError::new(String::new(), &Os::INVAL.into()))
    }
}

impl AsFd for ListenSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl From<ListenSocket> for OwnedFd {
    fn from(socket: ListenSocket) -> Self {
        socket.socket.into()
    }
}
