//! A connected byte stream: TCP or a Unix socket, read and written only when the kernel said it is ready.
//!
//! Reads and writes go straight to `recvfrom`, `sendto` and `sendmsg`, which fail on anything that is not a socket:
//! that lets the loop guard refuse `read` and `write`, which could wait for a file. A call that moves fewer bytes
//! than it was offered has emptied or filled the socket's buffer, so it also marks the stream not ready: one
//! request costs one read and one write and no call that returns `EAGAIN`.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketAddrAny, sockopt,
};
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};

/// A connected stream on the loop of the thread that made it. Dropping it closes the connection.
///
/// The loop watches it from the first wait on. A client that has sent its request when its
/// connection is taken, and whose response fits into the socket, costs no registration.
///
/// One task at a time may wait for each direction.
#[derive(Debug)]
pub struct Socket {
    kind: Kind,
    nodelay: Cell<NoDelay>,
    /// Input of which the loop will not be notified again.
    input: Cell<Input>,
    state: RefCell<State>,
}

/// Knowledge about input beside the notifications of the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Input {
    /// None: the notifications are complete.
    AsNotified,
    /// Some was seen and left there while the socket was watched for its end: the next read asks the kernel.
    LeftThere,
}

/// State of `TCP_NODELAY`. Without it, the kernel holds back a small segment only while an earlier one is not acknowledged: the
/// first write of a connection leaves at once in any case, so the option is set before the second one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NoDelay {
    /// Not wanted, and nothing was written.
    Untouched,
    /// Not wanted, and something was written.
    Written,
    /// Wanted, and nothing was written.
    Wanted,
    /// Wanted, and something was written: it is set before the next write.
    Due,
    /// Set.
    Set,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Tcp,
    Unix,
}

#[derive(Debug)]
enum State {
    /// No task has waited so far.
    Fresh(Fresh),
    /// The loop watches it.
    Tcp(TcpStream),
    /// The loop watches it.
    Unix(UnixStream),
    /// The loop could not watch it, and it was closed.
    Closed,
}

#[derive(Debug)]
struct Fresh {
    socket: OwnedFd,
    may_read: bool,
    may_write: bool,
}

/// Knowledge about the first bytes of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstBytes {
    /// They are likely to be there: the first read is tried at once.
    Likely,
    /// They are likely to come later: the first read waits until the loop says so.
    Later,
}

impl Socket {
    /// A connected, non-blocking TCP socket.
    pub fn tcp(socket: OwnedFd, first: FirstBytes) -> Self {
        Self::new(Kind::Tcp, socket, first)
    }

    /// A connected, non-blocking Unix stream socket.
    pub fn unix(socket: OwnedFd, first: FirstBytes) -> Self {
        Self::new(Kind::Unix, socket, first)
    }

    /// A non-blocking TCP socket that has begun to connect: the first write waits until it has come to an end, and
    /// [`take_error`](Self::take_error) tells which.
    pub fn connecting_tcp(socket: OwnedFd) -> Self {
        Self::fresh(Kind::Tcp, Fresh { socket, may_read: false, may_write: false })
    }

    fn new(kind: Kind, socket: OwnedFd, first: FirstBytes) -> Self {
        Self::fresh(kind, Fresh { socket, may_read: first == FirstBytes::Likely, may_write: true })
    }

    fn fresh(kind: Kind, fresh: Fresh) -> Self {
        let nodelay = match kind {
            Kind::Tcp => NoDelay::Untouched,
            // A Unix socket holds nothing back.
            Kind::Unix => NoDelay::Set,
        };
        let nodelay = Cell::new(nodelay);
        let input = Cell::new(Input::AsNotified);
        Self { kind, nodelay, input, state: RefCell::new(State::Fresh(fresh)) }
    }

    /// Calls `with` with its descriptor. Errors: it was closed because the loop could not watch it.
    pub fn with_fd<T>(&self, with: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>) -> io::Result<T> {
        with(self.state.borrow().fd()?)
    }

    /// The error that the connection has met since it was last asked for, such as that of a connect in the background. One
    /// system call, unless the loop says that the connection is writable without an error.
    pub fn take_error(&self) -> io::Result<()> {
        if self.state.borrow().is_writable_without_error() {
            return Ok(());
        }
        self.with_fd(|fd| match sockopt::socket_error(fd)? {
            Ok(()) => Ok(()),
            Err(error) => Err(error.into()),
        })
    }

    /// Duplicates the descriptor of the socket.
    pub fn try_clone(&self) -> io::Result<OwnedFd> {
        // Writes to the other descriptor are not seen here.
        self.settle_nodelay();
        self.with_fd(|fd| fd.try_clone_to_owned())
    }

    /// Reads into the spare capacity of `buf`, which must not be empty, and appends what came. 0 means the peer
    /// has closed its side. `WouldBlock` when nothing is there; no system call if that is known already.
    pub fn try_read(&self, buf: &mut Vec<u8>) -> io::Result<usize> {
        let room = buf.capacity() - buf.len();
        debug_assert!(room > 0, "a read into a full buffer looks like the end of the stream");
        self.try_io(Direction::Read, room, |fd| {
            let (n, _) = rustix::net::recv(fd, rustix::buffer::spare_capacity(buf), RecvFlags::empty())?;
            Ok(n)
        })
    }

    /// Reads into `buf` from its beginning, for callers with a buffer of their own, see [`try_read`](Self::try_read).
    pub fn try_read_into(&self, buf: &mut [u8]) -> io::Result<usize> {
        debug_assert!(!buf.is_empty(), "a read into nothing looks like the end of the stream");
        self.try_io(Direction::Read, buf.len(), |fd| {
            let (n, _) = rustix::net::recv(fd, &mut *buf, RecvFlags::empty())?;
            Ok(n)
        })
    }

    /// Looks whether the next read would give bytes, and takes none. 0 means the peer has closed its side. `WouldBlock` when
    /// nothing is there.
    fn try_peek(&self) -> io::Result<usize> {
        self.try_io(Direction::Read, 1, |fd| {
            let (n, _) = rustix::net::recv(fd, &mut [0; 1], RecvFlags::PEEK)?;
            Ok(n)
        })
    }

    /// Ready when the first bytes of the peer are there, or its end. Unlike [`poll_readable`](Self::poll_readable), it does not take a
    /// guess ([`FirstBytes::Likely`]) for that, but looks whether it is right.
    pub fn poll_first_bytes(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let is_guess = matches!(&*self.state.borrow(), State::Fresh(Fresh { may_read: true, .. }));
        match is_guess.then(|| self.try_peek()) {
            Some(Ok(_)) => Poll::Ready(Ok(())),
            // No bytes are there: from here on the loop watches the socket.
            Some(Err(e)) if e.kind() == io::ErrorKind::WouldBlock => self.poll_readable(cx),
            Some(Err(e)) => Poll::Ready(Err(e)),
            None => self.poll_readable(cx),
        }
    }

    /// Ready once the peer has closed its side of the connection, or the connection failed, also behind input that nobody
    /// has read: the error says which. What is there to be read stays there.
    pub fn poll_closed(&self, cx: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            if self.input.get() == Input::AsNotified {
                if let Err(e) = ready!(self.poll_readable(cx)) {
                    return Poll::Ready(e);
                }
                match self.try_peek() {
                    Ok(0) => return Poll::Ready(io::ErrorKind::UnexpectedEof.into()),
                    Ok(_) => {}
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
                    Err(e) => return Poll::Ready(e),
                }
            }
            // Input precedes the end: from here on only the notification of the end itself counts.
            self.input.set(Input::LeftThere);
            let mut state = self.state.borrow_mut();
            let watched = match state.watched(self.kind) {
                Ok(watched) => watched,
                Err(e) => return Poll::Ready(e),
            };
            if watched.is_read_closed() {
                return Poll::Ready(io::ErrorKind::UnexpectedEof.into());
            }
            watched.forget_input();
            if let Err(e) = ready!(watched.poll_read_ready(cx)) {
                return Poll::Ready(e);
            }
        }
    }

    /// Writes as much of `data` as the socket takes. `WouldBlock` when it takes nothing.
    pub fn try_write(&self, data: &[u8]) -> io::Result<usize> {
        self.try_io(Direction::Write, data.len(), |fd| Ok(rustix::net::send(fd, data, SendFlags::NOSIGNAL)?))
    }

    /// Writes as much of `parts`, in order, as the socket takes, with one system call. `WouldBlock` when it takes
    /// nothing. At most 1024 parts are looked at.
    pub fn try_write_vectored(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let parts = &parts[..parts.len().min(1024)];
        let len = parts.iter().map(|part| part.len()).sum();
        self.try_io(Direction::Write, len, |fd| {
            Ok(rustix::net::sendmsg(fd, parts, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)?)
        })
    }

    /// Writes as much of `data` as the socket takes, and lets it wait there for what follows at once. `WouldBlock` when it takes
    /// nothing.
    pub fn try_write_before(&self, data: &[u8]) -> io::Result<usize> {
        let flags = SendFlags::NOSIGNAL | SendFlags::MORE;
        self.try_io(Direction::Write, data.len(), |fd| Ok(rustix::net::send(fd, data, flags)?))
    }

    /// Calls `send`, which moves bytes from elsewhere to the descriptor it is given, if the socket may take some. Fewer than it
    /// had say nothing about the socket; its `WouldBlock` says that the socket takes nothing.
    pub fn try_send_by(&self, send: impl FnOnce(BorrowedFd<'_>) -> io::Result<usize>) -> io::Result<usize> {
        self.try_io(Direction::Write, 0, send)
    }

    /// Ready when a read may succeed: bytes, the end of the stream or an error are there, or nothing was tried yet.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.state.borrow_mut();
        let is_there = self.input.get() == Input::LeftThere;
        if is_there || matches!(&*state, State::Fresh(Fresh { may_read: true, .. })) {
            return Poll::Ready(Ok(()));
        }
        state.watched(self.kind)?.poll_read_ready(cx)
    }

    /// Ready when a write may succeed.
    pub fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.state.borrow_mut();
        if matches!(&*state, State::Fresh(Fresh { may_write: true, .. })) {
            return Poll::Ready(Ok(()));
        }
        match state.watched(self.kind)? {
            State::Tcp(stream) => stream.poll_write_ready(cx),
            State::Unix(stream) => stream.poll_write_ready(cx),
            State::Fresh(_) | State::Closed => Poll::Ready(Err(closed())),
        }
    }

    /// Returns true if there may be unread input, without asking the kernel.
    pub fn may_have_input(&self) -> bool {
        if self.input.get() == Input::LeftThere {
            return true;
        }
        // Neither asks the kernel nor forgets the readiness, and is not called without it.
        let is_ready = || Ok(());
        match &*self.state.borrow() {
            State::Fresh(fresh) => fresh.may_read,
            State::Closed => false,
            State::Tcp(stream) => stream.try_io(Interest::READABLE, is_ready).is_ok(),
            State::Unix(stream) => stream.try_io(Interest::READABLE, is_ready).is_ok(),
        }
    }

    /// Waits until [`try_read`](Self::try_read) may succeed.
    pub async fn readable(&self) -> io::Result<()> {
        poll_fn(|cx| self.poll_readable(cx)).await
    }

    /// Waits until [`try_write`](Self::try_write) may succeed.
    pub async fn writable(&self) -> io::Result<()> {
        poll_fn(|cx| self.poll_writable(cx)).await
    }

    /// Address of the peer; `None` of a Unix socket without a name.
    pub fn peer_addr(&self) -> io::Result<Option<SocketAddrAny>> {
        // For a peer without a name the kernel returns only the family.
        let is_named = |addr: &SocketAddrAny| {
            addr.address_family() != AddressFamily::UNIX || addr.addr_len() as usize > size_of::<u16>()
        };
        self.with_fd(|fd| Ok(rustix::net::getpeername(fd)?.filter(is_named)))
    }

    /// Address of our end.
    pub fn local_addr(&self) -> io::Result<SocketAddrAny> {
        self.with_fd(|fd| Ok(rustix::net::getsockname(fd)?))
    }

    /// Returns true for TCP. Options of TCP have no effect on other streams.
    pub fn is_tcp(&self) -> bool {
        self.kind == Kind::Tcp
    }

    /// `TCP_NODELAY`: small writes leave at once. The option is set before the second write, if there is one: a connection of one
    /// write saves the system call.
    pub fn set_nodelay(&self) {
        match self.nodelay.get() {
            NoDelay::Untouched => self.nodelay.set(NoDelay::Wanted),
            NoDelay::Written => self.nodelay.set(NoDelay::Due),
            NoDelay::Wanted | NoDelay::Due | NoDelay::Set => {}
        }
    }

    /// Sets `TCP_NODELAY` if that is wanted and was not done yet.
    fn settle_nodelay(&self) {
        if let NoDelay::Wanted | NoDelay::Due = self.nodelay.get() {
            self.nodelay.set(NoDelay::Set);
            // An error is ignored: without the option, bytes are only sent a little later.
            let _ = self.if_tcp(|fd| sockopt::set_tcp_nodelay(fd, true));
        }
    }

    /// Notes that something was written.
    fn note_written(&self) {
        match self.nodelay.get() {
            NoDelay::Untouched => self.nodelay.set(NoDelay::Written),
            NoDelay::Wanted => self.nodelay.set(NoDelay::Due),
            NoDelay::Written | NoDelay::Due | NoDelay::Set => {}
        }
    }

    /// `TCP_CORK`, which nginx calls `tcp_nopush`: only full segments leave until it is turned off.
    pub fn set_nopush(&self, on: bool) -> io::Result<()> {
        self.if_tcp(|fd| sockopt::set_tcp_cork(fd, on))
    }

    /// Makes the close of this stream a reset that drops unsent bytes, as `reset_timedout_connection` asks for.
    pub fn reset_on_close(&self) -> io::Result<()> {
        self.with_fd(|fd| Ok(sockopt::set_socket_linger(fd, Some(Duration::ZERO))?))
    }

    /// Tells the peer that nothing more will be sent. Reading goes on.
    pub fn shutdown_write(&self) -> io::Result<()> {
        self.with_fd(|fd| Ok(rustix::net::shutdown(fd, Shutdown::Write)?))
    }

    /// State of a TCP connection in the kernel, for `$tcpinfo_*`; `None` on other streams.
    pub fn tcp_info(&self) -> Option<tw_sys::sockopt::TcpInfo> {
        self.is_tcp().then(|| self.with_fd(|fd| tw_sys::sockopt::tcp_info(fd)).ok()).flatten()
    }

    /// Bytes that the peer has acknowledged in all; `None` if the socket is not TCP. One system call.
    pub fn bytes_acked(&self) -> Option<u64> {
        self.is_tcp().then(|| self.with_fd(|fd| tw_sys::sockopt::tcp_bytes_acked(fd)).ok()).flatten()
    }

    fn if_tcp(&self, set: impl FnOnce(BorrowedFd<'_>) -> rustix::io::Result<()>) -> io::Result<()> {
        if self.is_tcp() { self.with_fd(|fd| Ok(set(fd)?)) } else { Ok(()) }
    }

    /// Runs `call` if the stream is ready in that direction. Fewer than `wanted_number` bytes mean that it no longer is, which
    /// tokio is told by returning `WouldBlock` to it; the kernel then reports the next change.
    fn try_io(
        &self,
        direction: Direction,
        wanted_number: usize,
        call: impl FnOnce(BorrowedFd<'_>) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let is_short = |n| n < wanted_number && (n > 0 || direction == Direction::Write);
        let interest = match direction {
            Direction::Read => Interest::READABLE,
            Direction::Write => Interest::WRITABLE,
        };
        if direction == Direction::Read && self.input.get() == Input::LeftThere {
            let outcome = self.with_fd(call);
            // The read returned all bytes that were asked for: there may be more, of which the loop was notified
            // before.
            if !matches!(outcome, Ok(n) if n == wanted_number) {
                self.input.set(Input::AsNotified);
            }
            return outcome;
        }
        if direction == Direction::Write && self.nodelay.get() == NoDelay::Due {
            self.settle_nodelay();
        }
        let mut short = None;
        let attempt = |fd: BorrowedFd<'_>| {
            let n = call(fd)?;
            if is_short(n) {
                short = Some(n);
                return Err(io::ErrorKind::WouldBlock.into());
            }
            Ok(n)
        };
        let outcome = match &mut *self.state.borrow_mut() {
            State::Fresh(fresh) => fresh.try_io(direction, attempt),
            State::Tcp(stream) => stream.try_io(interest, || attempt(stream.as_fd())),
            State::Unix(stream) => stream.try_io(interest, || attempt(stream.as_fd())),
            State::Closed => Err(closed()),
        };
        let outcome = short.map_or(outcome, Ok);
        if direction == Direction::Write && outcome.is_ok() {
            self.note_written();
        }
        outcome
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
}

impl State {
    fn fd(&self) -> io::Result<BorrowedFd<'_>> {
        match self {
            State::Fresh(fresh) => Ok(fresh.socket.as_fd()),
            State::Tcp(stream) => Ok(stream.as_fd()),
            State::Unix(stream) => Ok(stream.as_fd()),
            State::Closed => Err(closed()),
        }
    }

    fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            State::Tcp(stream) => stream.poll_read_ready(cx),
            State::Unix(stream) => stream.poll_read_ready(cx),
            State::Fresh(_) | State::Closed => Poll::Ready(Err(closed())),
        }
    }

    /// Returns true if the loop was notified that the connection is writable, and of no failure of it.
    fn is_writable_without_error(&self) -> bool {
        let interest = Interest::WRITABLE.add(Interest::ERROR);
        let mut cx = Context::from_waker(Waker::noop());
        let polled = match self {
            State::Tcp(stream) => pin!(stream.ready(interest)).poll(&mut cx),
            State::Unix(stream) => pin!(stream.ready(interest)).poll(&mut cx),
            State::Fresh(_) | State::Closed => return false,
        };
        let is_good =
            |ready: tokio::io::Ready| ready.is_writable() && !ready.is_write_closed() && !ready.is_error();
        matches!(polled, Poll::Ready(Ok(ready)) if is_good(ready))
    }

    /// Returns true if the loop was notified that the peer closed its side, or that the connection failed.
    fn is_read_closed(&self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        let polled = match self {
            State::Tcp(stream) => pin!(stream.ready(Interest::READABLE)).poll(&mut cx),
            State::Unix(stream) => pin!(stream.ready(Interest::READABLE)).poll(&mut cx),
            State::Fresh(_) | State::Closed => return false,
        };
        matches!(polled, Poll::Ready(Ok(ready)) if ready.is_read_closed())
    }

    /// Waits for the next change, whatever is there to be read now.
    fn forget_input(&self) {
        let nothing = || Err::<(), _>(io::Error::from(io::ErrorKind::WouldBlock));
        // An operation that returns `WouldBlock` clears the readiness in tokio; its result says nothing more.
        let _ = match self {
            State::Tcp(stream) => stream.try_io(Interest::READABLE, nothing),
            State::Unix(stream) => stream.try_io(Interest::READABLE, nothing),
            State::Fresh(_) | State::Closed => Ok(()),
        };
    }

    /// Makes the loop watch it. An error closes it.
    fn watched(&mut self, kind: Kind) -> io::Result<&Self> {
        if let State::Fresh(_) = self
            && let State::Fresh(Fresh { socket, .. }) = std::mem::replace(self, State::Closed)
        {
            *self = match kind {
                Kind::Tcp => State::Tcp(TcpStream::from_std(socket.into())?),
                Kind::Unix => State::Unix(UnixStream::from_std(socket.into())?),
            };
        }
        Ok(self)
    }
}

impl Fresh {
    fn try_io(
        &mut self,
        direction: Direction,
        attempt: impl FnOnce(BorrowedFd<'_>) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let ready = match direction {
            Direction::Read => &mut self.may_read,
            Direction::Write => &mut self.may_write,
        };
        if !*ready {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let outcome = attempt(self.socket.as_fd());
        *ready = !outcome.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock);
        outcome
    }
}

fn closed() -> io::Error {
    io::ErrorKind::NotConnected.into()
}

#[cfg(test)]
mod tests;
