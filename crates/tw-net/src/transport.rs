//! Bytes to and from a peer, whatever carries them.
//!
//! A closed set, told apart by one predictable branch: nothing above knows what is underneath. What carries bytes without
//! changing them has a descriptor that `sendfile` may write to.

use std::io::{self, IoSlice};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::task::{Context, Poll};

use tw_rt::Socket;
use tw_sys::sockopt::TcpInfo;

use crate::Addr;
use crate::tls::TlsStream;

/// Carrier of the bytes of a connection.
#[derive(Debug)]
pub enum Transport {
    /// The socket itself.
    Plain(Socket),
    /// TLS over it.
    Tls(Box<TlsStream>),
}

impl Transport {
    /// The socket underneath, for options and addresses.
    pub fn socket(&self) -> &Socket {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => stream.socket(),
        }
    }

    /// Returns true if written bytes leave as they are, so that the kernel may write to the socket by itself.
    pub fn is_plain(&self) -> bool {
        matches!(self, Self::Plain(_))
    }

    /// The connection of TLS, if there is one.
    pub fn tls(&self) -> Option<&TlsStream> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(stream) => Some(stream),
        }
    }

    /// A second descriptor that takes the same bytes as [`try_write`](Self::try_write) does, for a thread that may wait;
    /// `None` if there is no such thing, or no descriptor is left.
    pub fn try_clone(&self) -> Option<OwnedFd> {
        match self {
            Self::Plain(socket) => socket.try_clone().ok(),
            Self::Tls(_) => None,
        }
    }

    /// See [`Socket::try_read`].
    pub fn try_read(&self, buf: &mut Vec<u8>) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.try_read(buf),
            Self::Tls(stream) => stream.try_read(buf),
        }
    }

    /// See [`Socket::try_read_into`].
    pub fn try_read_into(&self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.try_read_into(buf),
            Self::Tls(stream) => stream.try_read_into(buf),
        }
    }

    /// See [`Socket::try_write`].
    pub fn try_write(&self, data: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.try_write(data),
            Self::Tls(stream) => stream.try_write(data),
        }
    }

    /// See [`Socket::try_write_vectored`].
    pub fn try_write_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.try_write_vectored(parts),
            Self::Tls(stream) => stream.try_write_vectored(parts),
        }
    }

    /// See [`Socket::try_write_before`].
    pub fn try_write_before(&self, data: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.try_write_before(data),
            Self::Tls(stream) => stream.try_write(data),
        }
    }

    /// See [`Socket::try_send_by`]; `None` if there is no descriptor that takes the same bytes as [`try_write`](Self::try_write)
    /// does.
    pub fn try_send_by(
        &self,
        send: impl FnOnce(BorrowedFd<'_>) -> io::Result<usize>,
    ) -> Option<io::Result<usize>> {
        match self {
            Self::Plain(socket) => Some(socket.try_send_by(send)),
            Self::Tls(_) => None,
        }
    }

    /// See [`Socket::poll_readable`].
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(socket) => socket.poll_readable(cx),
            Self::Tls(stream) => stream.poll_readable(cx),
        }
    }

    /// See [`Socket::poll_writable`].
    pub fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(socket) => socket.poll_writable(cx),
            // Writing encrypted bytes depends on the socket alone.
            Self::Tls(stream) => stream.socket().poll_writable(cx),
        }
    }

    /// See [`Socket::poll_closed`].
    pub fn poll_closed(&self, cx: &mut Context<'_>) -> Poll<io::Error> {
        match self {
            Self::Plain(socket) => socket.poll_closed(cx),
            // The end of the socket, whatever records stand in front of it.
            Self::Tls(stream) => stream.socket().poll_closed(cx),
        }
    }

    /// See [`Socket::may_have_input`].
    pub fn may_have_input(&self) -> bool {
        match self {
            Self::Plain(socket) => socket.may_have_input(),
            Self::Tls(stream) => stream.may_have_input(),
        }
    }

    /// Tells the peer that nothing more will be sent. Reading goes on.
    pub fn shutdown_write(&self) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.shutdown_write(),
            Self::Tls(stream) => stream.shutdown_write(),
        }
    }

    /// Address of our end. One system call.
    pub fn local_addr(&self) -> io::Result<Addr> {
        self.socket().local_addr().map(|addr| Some(addr).into())
    }

    /// Returns the kernel's facts about a TCP connection; `None` on others. One system call.
    pub fn tcp_info(&self) -> Option<TcpInfo> {
        self.socket().tcp_info()
    }
}
