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
use tokio::task::coop::unconstrained;

/// A connected stream on the loop of the thread that made it. Dropping it closes the connection.
///
/// The loop watches it from the first wait on. A client that has sent its request when its
/// connection is taken, and whose response fits into the socket, costs no registration.
///
/// One task at a time may wait for each direction.
#[derive(Debug)]
pub struct Socket {
    kind: Kind,
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
        Self { kind, input: Cell::new(Input::AsNotified), state: RefCell::new(State::Fresh(fresh)) }
    }

    /// Calls `with` with its descriptor. Errors: it was closed because the loop could not watch it.
    pub fn with_fd<T>(&self, with: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>) -> io::Result<T> {
        with(self.state.borrow().fd()?)
    }

    /// The error that the connection has met since it was last asked for, such as that of a connect in the background. One
    /// system call.
    pub fn take_error(&self) -> io::Result<()> {
        self.with_fd(|fd| match sockopt::socket_error(fd)? {
            Ok(()) => Ok(()),
            Err(error) => Err(error.into()),
        })
    }

    /// Duplicates the descriptor of the socket.
    pub fn try_clone(&self) -> io::Result<OwnedFd> {
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
            // There is input in front of the end: only what the loop is told of the end itself counts from here on.
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
        match &*self.state.borrow() {
            State::Fresh(fresh) => fresh.may_read,
            State::Closed => false,
            watched => {
                // A task that has had its share of the turn would be told that there is nothing.
                let ready = unconstrained(poll_fn(|cx| watched.poll_read_ready(cx)));
                pin!(ready).poll(&mut Context::from_waker(Waker::noop())).is_ready()
            }
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
        // Of one without a name the kernel tells the family alone.
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

    fn if_tcp(&self, set: impl FnOnce(BorrowedFd<'_>) -> rustix::io::Result<()>) -> io::Result<()> {
        if self.is_tcp() { self.with_fd(|fd| Ok(set(fd)?)) } else { Ok(()) }
    }

    /// Runs `call` if the stream is ready in that direction. Fewer than `wanted` bytes mean that it no longer is, which
    /// tokio is told by returning `WouldBlock` to it; the kernel then reports the next change.
    fn try_io(
        &self,
        direction: Direction,
        wanted: usize,
        call: impl FnOnce(BorrowedFd<'_>) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let is_short = |n| n < wanted && (n > 0 || direction == Direction::Write);
        let interest = match direction {
            Direction::Read => Interest::READABLE,
            Direction::Write => Interest::WRITABLE,
        };
        if direction == Direction::Read && self.input.get() == Input::LeftThere {
            let outcome = self.with_fd(call);
            // As much as was asked for: there may be more, which the loop was told of before.
            if !matches!(outcome, Ok(n) if n == wanted) {
                self.input.set(Input::AsNotified);
            }
            return outcome;
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
        match short {
            Some(n) => Ok(n),
            None => outcome,
        }
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
        // That is how tokio is told; there is nothing to know of the outcome.
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
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::Ipv4Addr;

    use tokio::net::TcpListener;

    use crate::testing::on_loop;

    async fn tcp_pair() -> (Socket, std::net::TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        (Socket::tcp(stream.into_std().unwrap().into(), FirstBytes::Likely), peer)
    }

    fn unix_pair() -> (Socket, std::os::unix::net::UnixStream) {
        let (ours, peer) = std::os::unix::net::UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (Socket::unix(ours.into(), FirstBytes::Later), peer)
    }

    async fn check_read(stream: &Socket, mut peer: impl Write) {
        let mut buf = Vec::with_capacity(8);
        assert_eq!(stream.try_read(&mut buf).unwrap_err().kind(), io::ErrorKind::WouldBlock);

        peer.write_all(b"0123456789").unwrap();
        stream.readable().await.unwrap();
        // A full buffer leaves the stream ready: the rest needs no new event.
        assert_eq!(stream.try_read(&mut buf).unwrap(), 8);
        buf.clear();
        stream.readable().await.unwrap();
        assert_eq!(stream.try_read(&mut buf).unwrap(), 2);
        assert_eq!(buf, b"89");
        // A short read has emptied the socket.
        assert_eq!(stream.try_read(&mut buf).unwrap_err().kind(), io::ErrorKind::WouldBlock);

        peer.write_all(b"ab").unwrap();
        drop(peer);
        buf.clear();
        stream.readable().await.unwrap();
        assert_eq!(stream.try_read(&mut buf).unwrap(), 2);
        stream.readable().await.unwrap();
        assert_eq!(stream.try_read(&mut buf).unwrap(), 0);
    }

    #[test]
    fn reads_follow_readiness() {
        on_loop(|| async {
            let (stream, peer) = tcp_pair().await;
            check_read(&stream, peer).await;
            let (stream, peer) = unix_pair();
            check_read(&stream, peer).await;
        });
    }

    #[test]
    fn unread_input_is_known_when_the_poll_budget_is_spent() {
        on_loop(|| async {
            let (stream, mut peer) = tcp_pair().await;
            let mut buf = Vec::with_capacity(8);
            assert!(stream.try_read(&mut buf).is_err() && !stream.may_have_input());
            peer.write_all(b"x").unwrap();
            stream.readable().await.unwrap();
            let mut cx = Context::from_waker(Waker::noop());
            let is_spent = || stream.poll_readable(&mut cx).is_pending();
            assert!(std::iter::repeat_with(is_spent).take(1000).any(|is_spent| is_spent));
            assert!(stream.may_have_input());
        });
    }

    async fn check_write(stream: &Socket, mut peer: impl Read + Send + 'static) {
        stream.writable().await.unwrap();
        let parts = [IoSlice::new(b"head"), IoSlice::new(b""), IoSlice::new(b"body")];
        assert_eq!(stream.try_write_vectored(&parts).unwrap(), 8);
        let mut got = [0; 8];
        peer.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"headbody");

        // Until the socket is full; then it must become writable again by itself.
        let data = vec![b'x'; 1 << 20];
        let mut sent = 0;
        loop {
            match stream.try_write(&data) {
                Ok(n) => sent += n,
                Err(e) => {
                    assert_eq!(e.kind(), io::ErrorKind::WouldBlock);
                    break;
                }
            }
        }
        let reader = std::thread::spawn(move || io::copy(&mut peer, &mut io::sink()).unwrap());
        stream.writable().await.unwrap();
        sent += stream.try_write(b"end").unwrap();
        stream.shutdown_write().unwrap();
        assert_eq!(reader.join().unwrap(), sent as u64);
    }

    #[test]
    fn writes_follow_readiness() {
        on_loop(|| async {
            let (stream, peer) = tcp_pair().await;
            check_write(&stream, peer).await;
            let (stream, peer) = unix_pair();
            check_write(&stream, peer).await;
        });
    }

    #[test]
    fn writing_to_a_peer_that_is_gone_is_an_error_not_a_signal() {
        on_loop(|| async {
            let (stream, peer) = unix_pair();
            drop(peer);
            stream.writable().await.unwrap();
            assert_eq!(stream.try_write(b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        });
    }

    #[test]
    fn a_reset_close_reaches_the_peer_as_a_reset() {
        on_loop(|| async {
            let (stream, mut peer) = tcp_pair().await;
            stream.reset_on_close().unwrap();
            drop(stream);
            assert_eq!(peer.read(&mut [0; 1]).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        });
    }

    #[test]
    fn addresses_and_options() {
        on_loop(|| async {
            let (stream, peer) = tcp_pair().await;
            assert_eq!(stream.peer_addr().unwrap(), Some(peer.local_addr().unwrap().into()));
            assert_eq!(stream.local_addr().unwrap(), peer.peer_addr().unwrap().into());
            stream.set_nodelay(true).unwrap();
            stream.set_nopush(true).unwrap();
            stream
                .with_fd(|fd| {
                    assert!(sockopt::tcp_nodelay(fd)? && sockopt::tcp_cork(fd)?);
                    Ok(())
                })
                .unwrap();
            assert!(stream.tcp_info().is_some_and(|info| info.snd_cwnd > 0));

            let (stream, _peer) = unix_pair();
            stream.set_nodelay(true).unwrap();
            stream.set_nopush(true).unwrap();
            assert_eq!(stream.tcp_info(), None);
        });
    }

    #[test]
    fn close_is_seen_behind_unread_input() {
        async fn check(socket: Socket, mut peer: impl Write) {
            let still_open = |socket: &Socket| {
                let mut cx = Context::from_waker(Waker::noop());
                assert!(socket.poll_closed(&mut cx).is_pending());
            };
            still_open(&socket);
            peer.write_all(b"next request").unwrap();
            socket.readable().await.unwrap();
            still_open(&socket);
            still_open(&socket);
            assert!(socket.may_have_input());
            let mut buf = Vec::with_capacity(5);
            assert_eq!(socket.try_read(&mut buf).unwrap(), 5);
            still_open(&socket);
            drop(peer);
            poll_fn(|cx| socket.poll_closed(cx)).await;
            let mut rest = Vec::with_capacity(100);
            socket.readable().await.unwrap();
            assert_eq!(socket.try_read(&mut rest).unwrap(), 7);
            assert_eq!((&*buf, &*rest), (&b"next "[..], &b"request"[..]));
            socket.readable().await.unwrap();
            assert_eq!(socket.try_read(&mut rest).unwrap(), 0);
        }
        on_loop(|| async {
            let (socket, peer) = tcp_pair().await;
            check(socket, peer).await;
            let (socket, peer) = unix_pair();
            check(socket, peer).await;
        });
    }

    #[test]
    fn close_and_failure_are_seen_without_input() {
        on_loop(|| async {
            let (socket, peer) = tcp_pair().await;
            drop(peer);
            let error = poll_fn(|cx| socket.poll_closed(cx)).await;
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
            let (socket, peer) = tcp_pair().await;
            sockopt::set_socket_linger(&peer, Some(Duration::ZERO)).unwrap();
            drop(peer);
            let error = poll_fn(|cx| socket.poll_closed(cx)).await;
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        });
    }
}
