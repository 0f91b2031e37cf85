//! Datagram sockets on a loop: received in batches when the kernel said that there is something, sent in batches at any time.
//!
//! A listening socket is a [`DatagramSocket`], which receives, and a [`DatagramSender`] with a descriptor of its own, which sessions
//! share. They may outlive the receiver: another loop or process receives by then, and their answers still leave.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrAny, sockopt};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tw_sys::datagram::{Joining, OutgoingMessage, ReceiveBatch, SEGMENTS_MAX, joined_count};

/// Peers of a datagram socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramPeers {
    /// One: the socket is connected, and the network reports errors.
    One,
    /// Any.
    Many,
}

/// A datagram socket that the loop of this thread watches.
#[derive(Debug)]
pub struct DatagramSocket {
    /// For readiness alone, which does not depend on the family.
    watched: UdpSocket,
    segments: SegmentUse,
    peers: DatagramPeers,
    event: Cell<ErrorEvent>,
    /// True if the next call receives whatever is known of the readiness.
    asks_kernel: Cell<bool>,
}

/// Knowledge about errors that the network has reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ErrorEvent {
    /// There was none.
    None,
    /// There was one: the loop does not notify of the next one.
    Seen,
}

/// The sending half of a datagram socket, which no loop watches.
#[derive(Debug)]
pub struct DatagramSender {
    fd: OwnedFd,
    segments: SegmentUse,
}

/// Use of messages of several datagrams by a socket.
#[derive(Debug)]
struct SegmentUse {
    /// False once the kernel or the interface has refused one.
    is_on: Cell<bool>,
    /// True if the socket is one of UDP; `None` until that matters.
    is_udp: Cell<Option<bool>>,
}

/// Result of sending a batch.
#[derive(Debug, Default)]
pub struct SendOutcome {
    /// Messages that are done with: sent or failed. Those behind them would have to wait.
    pub done: usize,
    /// Datagrams that were sent.
    pub datagrams: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Error of the first message that failed.
    pub error: Option<io::Error>,
}

impl DatagramSocket {
    /// Brings a non-blocking datagram socket to the loop of this thread.
    ///
    /// # Errors
    /// The loop cannot watch it.
    pub fn new(fd: OwnedFd, peers: DatagramPeers) -> io::Result<Self> {
        let watched = UdpSocket::from_std(fd.into())?;
        let event = Cell::new(ErrorEvent::None);
        let asks_kernel = Cell::new(false);
        Ok(Self { watched, segments: SegmentUse::on(), peers, event, asks_kernel })
    }

    /// A sending half with a descriptor of its own.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn sender(&self) -> io::Result<DatagramSender> {
        let fd = self.watched.as_fd().try_clone_to_owned()?;
        Ok(DatagramSender { fd, segments: SegmentUse::on() })
    }

    /// A descriptor of its own for the same socket, such as one to be handed to another process.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn duplicate(&self) -> io::Result<OwnedFd> {
        self.watched.as_fd().try_clone_to_owned()
    }

    /// Gives the socket back: the loop does not watch it any more.
    ///
    /// # Errors
    /// The loop cannot let it go.
    pub fn into_fd(self) -> io::Result<OwnedFd> {
        self.watched.into_std().map(OwnedFd::from)
    }

    /// Ready when datagrams may be there, or the network may have reported an error.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let readable = self.watched.poll_recv_ready(cx);
        if readable.is_ready() || self.peers == DatagramPeers::Many || self.event.get() == ErrorEvent::Seen {
            return readable;
        }
        // The kernel reports an error together with the readiness to send, which it reports anew with every event.
        let event = self.watched.poll_send_ready(cx);
        if event.is_ready() {
            self.forget_writable();
            // After an error the socket stays writable.
            let is_error = self.watched.poll_send_ready(cx).is_ready();
            self.event.set(if is_error { ErrorEvent::Seen } else { ErrorEvent::None });
            self.asks_kernel.set(true);
        }
        event
    }

    /// Ready when datagrams can be sent, after some could not.
    pub fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.watched.poll_send_ready(cx)
    }

    /// Returns true if the loop notifies of the next error of the network, also of one that has stopped a batch: the socket need not
    /// be asked.
    fn tells_errors(&self) -> bool {
        self.peers == DatagramPeers::Many || self.event.get() == ErrorEvent::None
    }

    /// Receives what is there, one batch at most, and returns the number of messages.
    ///
    /// # Errors
    /// `WouldBlock` if there is nothing; for a connected socket what the network has reported, such as a port without a
    /// listener.
    pub fn try_receive(&self, batch: &mut ReceiveBatch) -> io::Result<usize> {
        if self.asks_kernel.take() {
            return batch.receive(&self.watched);
        }
        let mut received = 0;
        let outcome = self.watched.try_io(Interest::READABLE, || {
            received = batch.receive(&self.watched)?;
            if received < tw_sys::datagram::BATCH && self.tells_errors() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            Ok(received)
        });
        if received > 0 && received < tw_sys::datagram::BATCH && self.peers == DatagramPeers::One {
            // The readiness to send came with that to receive, and means nothing more. After an error it stays.
            self.forget_writable();
        }
        if received > 0 { Ok(received) } else { outcome }
    }

    /// Sends messages as far as the socket takes them, see [`DatagramSender::send`].
    pub fn send(&self, messages: &[OutgoingMessage<'_>]) -> SendOutcome {
        let outcome = self.segments.send(self.watched.as_fd(), messages);
        if outcome.done < messages.len() {
            self.forget_writable();
        }
        outcome
    }

    /// Waits for the next event that tells the readiness to send.
    fn forget_writable(&self) {
        // An operation that returns `WouldBlock` clears the readiness in tokio; its result says nothing more.
        let _ = self.watched.try_io(Interest::WRITABLE, || Err::<(), _>(io::ErrorKind::WouldBlock.into()));
    }

    /// Address of the socket.
    ///
    /// # Errors
    /// The errors of `getsockname()`.
    pub fn local_addr(&self) -> io::Result<SocketAddrAny> {
        Ok(rustix::net::getsockname(&self.watched)?)
    }
}

impl DatagramSender {
    /// Sends messages as far as the socket takes them. A message that fails is passed over, as the network might lose it. One of
    /// several datagrams that the kernel or the interface refuses is sent datagram by datagram.
    pub fn send(&self, messages: &[OutgoingMessage<'_>]) -> SendOutcome {
        self.segments.send(self.fd.as_fd(), messages)
    }

    /// Waits until the socket may take messages again, after it has not taken some. Registers a descriptor for that time alone: a socket
    /// is seldom full, and no sender is watched otherwise.
    ///
    /// # Errors
    /// No descriptor is left, or the loop cannot watch it.
    pub async fn writable(&self) -> io::Result<()> {
        UdpSocket::from_std(self.fd.try_clone()?.into())?.writable().await
    }
}

impl SegmentUse {
    fn on() -> Self {
        Self { is_on: Cell::new(true), is_udp: Cell::new(None) }
    }

    /// Decides whether several of `messages` may leave as one.
    fn joining(&self, fd: BorrowedFd<'_>, messages: &[OutgoingMessage<'_>]) -> Joining {
        if messages.len() < 2 || !self.is_on.get() {
            return Joining::Separate;
        }
        let is_udp = self.is_udp.get().unwrap_or_else(|| {
            // A Unix socket would send one datagram with the bytes of all.
            let family = sockopt::socket_domain(fd);
            let is_udp = matches!(family, Ok(AddressFamily::INET | AddressFamily::INET6));
            self.is_udp.set(Some(is_udp));
            is_udp
        });
        if is_udp { Joining::Join } else { Joining::Separate }
    }

    fn send(&self, fd: BorrowedFd<'_>, messages: &[OutgoingMessage<'_>]) -> SendOutcome {
        let mut outcome = SendOutcome::default();
        while let Some(rest @ [first, ..]) = messages.get(outcome.done..) {
            let may_be_sent = self.is_on.get() && datagrams(first) <= SEGMENTS_MAX as u64;
            if first.segment.is_some() && !may_be_sent {
                match self.send_split(fd, first, &mut outcome) {
                    BatchRoom::Some => continue,
                    BatchRoom::Full => break,
                }
            }
            let joining = self.joining(fd, rest);
            match tw_sys::datagram::send(fd, rest, joining) {
                Ok(0) => break,
                Ok(count) => rest.iter().take(count).for_each(|message| outcome.count(message)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if first.segment.is_some() && is_of_segments(&error) => {
                    if Errno::from_io_error(&error) == Some(Errno::IO) {
                        self.is_on.set(false);
                    }
                    if self.send_split(fd, first, &mut outcome) == BatchRoom::Full {
                        break;
                    }
                }
                Err(error) if is_of_segments(&error) && joined_count(rest, joining) > 1 => {
                    if Errno::from_io_error(&error) == Some(Errno::IO) {
                        self.is_on.set(false);
                    }
                    let joined = rest.get(..joined_count(rest, joining)).unwrap_or_default();
                    if self.send_separately(fd, joined, &mut outcome) == BatchRoom::Full {
                        break;
                    }
                }
                Err(error) => outcome.fail(error),
            }
        }
        outcome
    }

    /// Sends messages that were refused together each for itself.
    fn send_separately(
        &self,
        fd: BorrowedFd<'_>,
        messages: &[OutgoingMessage<'_>],
        outcome: &mut SendOutcome,
    ) -> BatchRoom {
        let mut outgoing_messages = messages;
        while !outgoing_messages.is_empty() {
            match tw_sys::datagram::send(fd, outgoing_messages, Joining::Separate) {
                Ok(0) => return BatchRoom::Full,
                Ok(count) => {
                    outgoing_messages.iter().take(count).for_each(|message| outcome.count(message));
                    outgoing_messages = outgoing_messages.get(count..).unwrap_or_default();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return BatchRoom::Full,
                Err(error) => {
                    outcome.fail(error);
                    outgoing_messages = outgoing_messages.get(1..).unwrap_or_default();
                }
            }
        }
        BatchRoom::Some
    }

    /// Sends the datagrams of one message each for itself. What the socket does not take of them is lost.
    fn send_split(
        &self,
        fd: BorrowedFd<'_>,
        message: &OutgoingMessage<'_>,
        outcome: &mut SendOutcome,
    ) -> BatchRoom {
        let size = usize::from(message.segment.unwrap_or(u16::MAX)).max(1);
        let parts =
            message.bytes.chunks(size).map(|bytes| OutgoingMessage { bytes, segment: None, ..*message });
        let parts: Vec<_> = parts.collect();
        let sent = self.send(fd, &parts);
        if sent.done == 0 && !parts.is_empty() {
            return BatchRoom::Full;
        }
        outcome.done += 1;
        outcome.datagrams += sent.datagrams;
        outcome.bytes += sent.bytes;
        outcome.error = outcome.error.take().or(sent.error);
        BatchRoom::Some
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum BatchRoom {
    Some,
    Full,
}

impl SendOutcome {
    fn count(&mut self, message: &OutgoingMessage<'_>) {
        self.done += 1;
        self.datagrams += datagrams(message);
        self.bytes += message.bytes.len() as u64;
    }

    fn fail(&mut self, error: io::Error) {
        self.done += 1;
        self.error.get_or_insert(error);
    }
}

/// Number of datagrams in a message.
fn datagrams(message: &OutgoingMessage<'_>) -> u64 {
    match message.segment {
        Some(size) => message.bytes.len().div_ceil(usize::from(size.max(1))) as u64,
        None => 1,
    }
}

/// Returns true for errors that say nothing of a datagram, but of several in one message: an interface without checksums, segments
/// larger than the path takes, an old kernel.
fn is_of_segments(error: &io::Error) -> bool {
    let of_segments = [Errno::IO, Errno::INVAL, Errno::MSGSIZE, Errno::OPNOTSUPP, Errno::NOPROTOOPT];
    Errno::from_io_error(error).is_some_and(|errno| of_segments.contains(&errno))
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::net::UdpSocket;

    use super::{DatagramPeers, DatagramSocket, Errno, OutgoingMessage, ReceiveBatch, io};
    use crate::testing::on_loop;

    fn socket() -> UdpSocket {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        socket
    }

    #[test]
    fn datagrams_are_received_and_answered() {
        on_loop(|| async {
            let ours = socket();
            let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
            let to = ours.local_addr().unwrap();
            let ours = DatagramSocket::new(ours.into(), DatagramPeers::Many).unwrap();
            let mut batch = ReceiveBatch::default();
            for round in 0..3 {
                assert_eq!(ours.try_receive(&mut batch).unwrap_err().kind(), io::ErrorKind::WouldBlock);
                for _ in 0..20 {
                    peer.send_to(b"x", to).unwrap();
                }
                let mut count = 0;
                while count < 20 {
                    poll_fn(|cx| ours.poll_readable(cx)).await.unwrap();
                    count += ours.try_receive(&mut batch).unwrap_or(0);
                }
                let message = batch.iter().next().unwrap();
                let answer =
                    OutgoingMessage { bytes: b"answer", to: message.peer, from: None, segment: None, ecn: 0 };
                let sent = ours.sender().unwrap().send(&[answer, answer]);
                assert_eq!((sent.done, sent.datagrams, sent.bytes), (2, 2, 12), "{round}");
                assert_eq!(peer.recv(&mut [0; 9]).unwrap(), 6);
                assert_eq!(peer.recv(&mut [0; 9]).unwrap(), 6);
            }
        });
    }

    #[test]
    fn refused_port_is_an_error_of_a_connected_socket() {
        on_loop(|| async {
            let nobody = tw_testkit::ports::Port::reserve().unwrap();
            let ours = socket();
            ours.connect(("127.0.0.1", nobody.number())).unwrap();
            let ours = DatagramSocket::new(ours.into(), DatagramPeers::One).unwrap();
            let message = OutgoingMessage { bytes: b"x", to: None, from: None, segment: None, ecn: 0 };
            assert_eq!(ours.send(&[message]).datagrams, 1);
            let mut batch = ReceiveBatch::default();
            let error = loop {
                poll_fn(|cx| ours.poll_readable(cx)).await.unwrap();
                match ours.try_receive(&mut batch) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    outcome => break outcome.unwrap_err(),
                }
            };
            assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        });
    }

    #[test]
    fn message_that_fails_is_passed_over() {
        on_loop(|| async {
            let ours = socket();
            let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
            ours.connect(peer.local_addr().unwrap()).unwrap();
            let ours = DatagramSocket::new(ours.into(), DatagramPeers::One).unwrap();
            let large = vec![0; 65_508];
            let message = |bytes| OutgoingMessage { bytes, to: None, from: None, segment: None, ecn: 0 };
            let sent = ours.send(&[message(b"a"), message(&large), message(b"b")]);
            assert_eq!((sent.done, sent.datagrams), (3, 2));
            let too_large = Some(Errno::MSGSIZE.raw_os_error());
            assert_eq!(sent.error.and_then(|error| error.raw_os_error()), too_large);
        });
    }

    #[test]
    fn segments_that_are_refused_are_sent_one_by_one() {
        on_loop(|| async {
            let ours = socket();
            let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
            ours.connect(peer.local_addr().unwrap()).unwrap();
            let ours = DatagramSocket::new(ours.into(), DatagramPeers::One).unwrap();
            ours.segments.is_on.set(false);
            let message =
                OutgoingMessage { bytes: b"aaabbbc", to: None, from: None, segment: Some(3), ecn: 0 };
            let sent = ours.send(&[message]);
            assert_eq!((sent.done, sent.datagrams, sent.bytes), (1, 3, 7));
            let sizes = [0; 3].map(|_: u8| peer.recv(&mut [0; 9]).unwrap());
            assert_eq!(sizes, [3, 3, 1]);
        });
    }
}
