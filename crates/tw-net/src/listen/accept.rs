//! Taking connections from a listening socket on a loop.

use std::fmt;
use std::io;
use std::time::Duration;

use rustix::io::Errno as Os;
use tokio::net::{TcpListener, UnixListener};
use tw_log::Errno;
use tw_rt::{Addr, Deadline, Stream};

use super::ListenSocket;

/// How long accepting pauses when the process or the system is out of descriptors (nginx's `accept_mutex_delay`).
const PAUSE: Duration = Duration::from_millis(500);

/// A connection just taken.
#[derive(Debug)]
pub struct Accepted {
    /// The connection, registered with this loop.
    pub stream: Stream,
    /// Who connected.
    pub peer: Addr,
}

/// `accept()` failed. Displays as nginx writes it: `accept4() failed (24: Too many open files)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcceptError {
    errno: Errno,
}

impl AcceptError {
    /// The error of the system.
    pub fn errno(&self) -> i32 {
        self.errno.0
    }

    /// Whether descriptors ran out (level `crit`, accepting pauses half a second) or something is wrong with the
    /// socket itself (level `alert`).
    pub fn is_exhaustion(&self) -> bool {
        [Os::MFILE, Os::NFILE].iter().any(|os| os.raw_os_error() == self.errno.0)
    }
}

impl fmt::Display for AcceptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "accept4() failed ({})", self.errno)
    }
}

impl std::error::Error for AcceptError {}

/// Takes connections from one listening socket on the loop that made it.
#[derive(Debug)]
pub struct Acceptor {
    listener: Listener,
    addr: Addr,
    multi_accept: bool,
    pause: Deadline,
}

#[derive(Debug)]
enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Acceptor {
    /// Registers `socket` with the loop of this thread.
    ///
    /// `multi_accept`: take all waiting connections before other tasks run; otherwise one, then everything else that
    /// is ready, then the next.
    pub fn new(socket: ListenSocket, multi_accept: bool) -> io::Result<Self> {
        let _ = (socket, multi_accept);
        Err(Os::INVAL.into())
    }

    /// The next connection, non-blocking and close-on-exec. Waits until there is one; connections that ended before
    /// they were taken are passed over. After an error, log it and call again: the pause it may need is in here.
    pub async fn accept(&mut self) -> Result<Accepted, AcceptError> {
        let _ = (&self.listener, self.multi_accept, &self.pause, PAUSE);
        std::future::pending().await
    }

    /// The address it listens on.
    pub fn addr(&self) -> &Addr {
        &self.addr
    }
}
