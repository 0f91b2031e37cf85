//! A connected byte stream: TCP or a Unix socket, read and written only when the kernel said it is ready.
//!
//! Reads and writes go straight to `recvfrom`, `sendto` and `sendmsg`, which fail on anything that is not a socket:
//! that lets the loop guard refuse `read` and `write`, which could wait for a file. A call that moves fewer bytes
//! than it was offered has emptied or filled the socket's buffer, so it also marks the stream not ready: one
//! request costs one read and one write and no call that returns `EAGAIN`.

use std::fmt;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, sockopt};
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};

/// The address of one end of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Addr {
    /// IP address and port.
    Inet(SocketAddr),
    /// Path of a Unix socket; `None` when that end has no name, as clients usually have not.
    Unix(Option<Box<Path>>),
}

impl Addr {
    /// The IP address and port, if it has them.
    pub fn inet(&self) -> Option<SocketAddr> {
        match self {
            Addr::Inet(addr) => Some(*addr),
            Addr::Unix(_) => None,
        }
    }
}

impl From<SocketAddr> for Addr {
    fn from(addr: SocketAddr) -> Self {
        Addr::Inet(addr)
    }
}

impl From<tokio::net::unix::SocketAddr> for Addr {
    fn from(addr: tokio::net::unix::SocketAddr) -> Self {
        Addr::Unix(addr.as_pathname().map(Into::into))
    }
}

/// As nginx writes addresses: `192.0.2.1:80`, `[2001:db8::1]:80`, `unix:/run/app.sock`, `unix:`.
impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Addr::Inet(addr) => addr.fmt(f),
            Addr::Unix(Some(path)) => write!(f, "unix:{}", path.display()),
            Addr::Unix(None) => f.write_str("unix:"),
        }
    }
}

/// A connected stream, registered with the loop of the thread that made it. Dropping it closes the connection.
///
/// One task at a time may wait for each direction.
#[derive(Debug)]
pub enum Stream {
    /// TCP.
    Tcp(TcpStream),
    /// A Unix stream socket.
    Unix(UnixStream),
}

impl From<TcpStream> for Stream {
    fn from(stream: TcpStream) -> Self {
        Stream::Tcp(stream)
    }
}

impl From<UnixStream> for Stream {
    fn from(stream: UnixStream) -> Self {
        Stream::Unix(stream)
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }
}

impl Stream {
    /// Reads into the spare capacity of `buf`, which must not be empty, and appends what came. 0 means the peer
    /// has closed its side. `WouldBlock` when nothing is there; no system call if that is known already.
    pub fn try_read(&self, buf: &mut Vec<u8>) -> io::Result<usize> {
        let room = buf.capacity() - buf.len();
        debug_assert!(room > 0, "a read into a full buffer looks like the end of the stream");
        self.try_io(Interest::READABLE, room, true, |fd| {
            let (n, _) = rustix::net::recv(fd, rustix::buffer::spare_capacity(buf), RecvFlags::empty())?;
            Ok(n)
        })
    }

    /// Writes as much of `data` as the socket takes. `WouldBlock` when it takes nothing.
    pub fn try_write(&self, data: &[u8]) -> io::Result<usize> {
        self.try_io(Interest::WRITABLE, data.len(), false, |fd| {
            Ok(rustix::net::send(fd, data, SendFlags::NOSIGNAL)?)
        })
    }

    /// Writes as much of `parts`, in order, as the socket takes, with one system call. `WouldBlock` when it takes
    /// nothing. At most 1024 parts are looked at.
    pub fn try_write_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let parts = &parts[..parts.len().min(1024)];
        let len = parts.iter().map(|part| part.len()).sum();
        self.try_io(Interest::WRITABLE, len, false, |fd| {
            Ok(rustix::net::sendmsg(fd, parts, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)?)
        })
    }

    /// Ready when a read may succeed: bytes, the end of the stream or an error are there, or nothing was tried yet.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Stream::Tcp(stream) => stream.poll_read_ready(cx),
            Stream::Unix(stream) => stream.poll_read_ready(cx),
        }
    }

    /// Ready when a write may succeed.
    pub fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Stream::Tcp(stream) => stream.poll_write_ready(cx),
            Stream::Unix(stream) => stream.poll_write_ready(cx),
        }
    }

    /// Waits until [`try_read`](Self::try_read) may succeed.
    pub async fn readable(&self) -> io::Result<()> {
        std::future::poll_fn(|cx| self.poll_readable(cx)).await
    }

    /// Waits until [`try_write`](Self::try_write) may succeed.
    pub async fn writable(&self) -> io::Result<()> {
        std::future::poll_fn(|cx| self.poll_writable(cx)).await
    }

    /// Address of the peer.
    pub fn peer_addr(&self) -> io::Result<Addr> {
        match self {
            Stream::Tcp(stream) => stream.peer_addr().map(Addr::from),
            Stream::Unix(stream) => stream.peer_addr().map(Addr::from),
        }
    }

    /// Address of our end.
    pub fn local_addr(&self) -> io::Result<Addr> {
        match self {
            Stream::Tcp(stream) => stream.local_addr().map(Addr::from),
            Stream::Unix(stream) => stream.local_addr().map(Addr::from),
        }
    }

    /// Whether this is TCP: the options below that are about TCP do nothing on other streams.
    pub fn is_tcp(&self) -> bool {
        matches!(self, Stream::Tcp(_))
    }

    /// `TCP_NODELAY`: small writes leave at once.
    pub fn set_nodelay(&self, on: bool) -> io::Result<()> {
        self.if_tcp(|fd| sockopt::set_tcp_nodelay(fd, on))
    }

    /// `TCP_CORK`, which nginx calls `tcp_nopush`: only full segments leave until it is turned off.
    pub fn set_nopush(&self, on: bool) -> io::Result<()> {
        self.if_tcp(|fd| sockopt::set_tcp_cork(fd, on))
    }

    /// Makes the close of this stream a reset that drops unsent bytes, as `reset_timedout_connection` asks for.
    pub fn reset_on_close(&self) -> io::Result<()> {
        Ok(sockopt::set_socket_linger(self.as_fd(), Some(Duration::ZERO))?)
    }

    /// Tells the peer that nothing more will be sent. Reading goes on.
    pub fn shutdown_write(&self) -> io::Result<()> {
        Ok(rustix::net::shutdown(self.as_fd(), Shutdown::Write)?)
    }

    /// What the kernel knows about a TCP connection, for `$tcpinfo_*`; `None` on other streams.
    pub fn tcp_info(&self) -> Option<tw_sys::sockopt::TcpInfo> {
        self.is_tcp().then(|| tw_sys::sockopt::tcp_info(self.as_fd()).ok()).flatten()
    }

    fn if_tcp(&self, set: impl FnOnce(BorrowedFd<'_>) -> rustix::io::Result<()>) -> io::Result<()> {
        if self.is_tcp() { Ok(set(self.as_fd())?) } else { Ok(()) }
    }

    /// Runs `call` if the stream is ready for `interest`. Fewer than `wanted` bytes mean that it no longer is, which
    /// tokio is told by returning `WouldBlock` to it; the kernel then reports the next change.
    fn try_io(
        &self,
        interest: Interest,
        wanted: usize,
        reading: bool,
        call: impl FnOnce(BorrowedFd<'_>) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut short = None;
        let attempt = || {
            let n = call(self.as_fd())?;
            if n < wanted && (n > 0 || !reading) {
                short = Some(n);
                return Err(io::ErrorKind::WouldBlock.into());
            }
            Ok(n)
        };
        let outcome = match self {
            Stream::Tcp(stream) => stream.try_io(interest, attempt),
            Stream::Unix(stream) => stream.try_io(interest, attempt),
        };
        match short {
            Some(n) => Ok(n),
            None => outcome,
        }
    }
}
