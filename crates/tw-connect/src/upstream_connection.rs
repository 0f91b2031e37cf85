//! A connection to an upstream server: what carries its bytes, and until when it may keep us waiting.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tw_core::event_loop::{ConnectionPermit, LoopCore};
use tw_net::{Addr, ConnectOptions, Transport};
use tw_rt::{Deadline, Socket};

use crate::failure::{AttemptFailure, AttemptStage, UpstreamFailure};
use crate::h2_pool::UpstreamStream;
use crate::upstream_tls::{TlsPools, UpstreamTls};

/// Transport of a request.
enum UpstreamTransport {
    /// A connection of its own, with its place among `worker_connections`.
    Own(Transport, ConnectionPermit),
    /// A stream of one that others use, too.
    Stream(Rc<UpstreamStream>),
}

/// A connection to an upstream server, or what stands for one.
pub struct UpstreamConnection {
    transport: UpstreamTransport,
    /// Address of the server.
    pub to: Addr,
    /// Time at which it was opened.
    pub opened: Instant,
    /// Requests sent on it before this one.
    pub requests: Cell<u64>,
    /// Bytes sent for this request.
    pub sent: Cell<u64>,
    /// Bytes received for this request.
    pub received: Cell<u64>,
    read: RefCell<Deadline>,
    write: RefCell<Deadline>,
}

/// Parameters of a connection that is opened.
#[derive(Clone, Copy)]
pub struct OpenParams<'a> {
    /// Loop of the connection.
    pub core: &'a LoopCore,
    /// Address of the server.
    pub to: &'a Addr,
    /// Socket options.
    pub options: &'a ConnectOptions,
    /// Time for connecting and the handshake together.
    pub timeout: Duration,
    /// Bytes that are sent before a handshake.
    pub header: &'a [u8],
    /// TLS, if the connection is secured.
    pub secured: Option<(&'a UpstreamTls, &'a TlsPools)>,
}

impl UpstreamConnection {
    /// Connects to `to`, and shakes hands if the connection is to be secured; the time is for both. What takes long, the pool
    /// does.
    ///
    /// # Errors
    /// No connection, or none in time.
    pub async fn open(
        core: &LoopCore,
        to: &Addr,
        options: &ConnectOptions,
        timeout: Duration,
        secured: Option<(&UpstreamTls, TlsPools)>,
    ) -> Result<Self, AttemptFailure> {
        let secured = secured.as_ref().map(|(secured, by)| (*secured, by));
        let params = OpenParams { core, to, options, timeout, header: &[], secured };
        let (transport, permit) = Self::open_transport(params).await?;
        Ok(Self::new(UpstreamTransport::Own(transport, permit), to))
    }

    /// Shakes hands with the server at the other end of a tunnel that the connection has become. One that is secured stays as it is.
    ///
    /// # Errors
    /// No agreement, or none in time.
    pub async fn secure(
        self,
        secured: &UpstreamTls,
        pools: &TlsPools,
        timeout: Duration,
    ) -> Result<Self, AttemptFailure> {
        let UpstreamTransport::Own(Transport::Plain(socket), permit) = self.transport else {
            return Ok(self);
        };
        let mut deadline = Deadline::new();
        deadline.set(timeout);
        let stream = secured.handshake(socket, &self.to, &mut deadline, pools).await;
        let stream = stream.map_err(|failure| failure.at(AttemptStage::Handshaking))?;
        Ok(Self::new(UpstreamTransport::Own(Transport::Tls(Box::new(stream)), permit), &self.to))
    }

    /// Gives back the timers of its reads and writes: a tunnel has its own.
    pub fn drop_timers(&self) {
        self.read.take();
        self.write.take();
    }

    /// Opens a connection to `to` if that never waits: a Unix socket is connected at once or not at all. `None` for other addresses.
    ///
    /// # Errors
    /// No connection, or none that may be opened.
    pub fn open_at_once(
        core: &LoopCore,
        to: &Addr,
        options: impl FnOnce() -> ConnectOptions,
    ) -> Option<Result<Rc<Self>, AttemptFailure>> {
        let Addr::Unix(_) = to else { return None };
        let opened = Self::reserve(core).and_then(|permit| {
            let socket = tw_net::connect(to, &options()).map_err(UpstreamFailure::Connect)?;
            Ok(Rc::new(Self::new(UpstreamTransport::Own(Transport::Plain(socket), permit), to)))
        });
        Some(opened.map_err(|failure| failure.at(AttemptStage::Connecting)))
    }

    fn reserve(core: &LoopCore) -> Result<ConnectionPermit, UpstreamFailure> {
        core.reserve_upstream_connection().map_err(UpstreamFailure::ConnectionLimit)
    }

    /// The link that a stream is.
    pub fn from_stream(stream: Rc<UpstreamStream>) -> Self {
        let (to, requests) = (stream.to().clone(), u64::from(stream.is_reused()));
        let connection = Self::new(UpstreamTransport::Stream(stream), &to);
        connection.requests.set(requests);
        connection
    }

    fn new(transport: UpstreamTransport, to: &Addr) -> Self {
        Self {
            transport,
            to: to.clone(),
            opened: tw_rt::clock::now(),
            requests: Cell::new(0),
            sent: Cell::new(0),
            received: Cell::new(0),
            read: RefCell::new(Deadline::new()),
            write: RefCell::new(Deadline::new()),
        }
    }

    /// Transport of a new connection, as [`open`](Self::open) makes it, and its place among `worker_connections`.
    ///
    /// # Errors
    /// No connection, none in time, or none that may be opened.
    pub async fn open_transport(
        params: OpenParams<'_>,
    ) -> Result<(Transport, ConnectionPermit), AttemptFailure> {
        let OpenParams { core, to, options, timeout, header, secured } = params;
        let mut deadline = Deadline::new();
        let connecting = |failure: UpstreamFailure| failure.at(AttemptStage::Connecting);
        let permit = Self::reserve(core).map_err(connecting)?;
        let socket = Self::connect(to, options, timeout, &mut deadline).await.map_err(connecting)?;
        if !header.is_empty() {
            let sent = Self::send_header(&socket, header, &mut deadline).await;
            sent.map_err(|failure| failure.at(AttemptStage::Sending))?;
        }
        match secured {
            None => Ok((Transport::Plain(socket), permit)),
            Some((secured, by)) => {
                let stream = secured.handshake(socket, to, &mut deadline, by).await;
                let stream = stream.map_err(|failure| failure.at(AttemptStage::Handshaking))?;
                Ok((Transport::Tls(Box::new(stream)), permit))
            }
        }
    }

    async fn connect(
        to: &Addr,
        options: &ConnectOptions,
        timeout: Duration,
        deadline: &mut Deadline,
    ) -> Result<Socket, UpstreamFailure> {
        let socket = tw_net::connect(to, options).map_err(UpstreamFailure::Connect)?;
        deadline.set(timeout);
        poll_fn(|cx| match socket.poll_writable(cx) {
            Poll::Ready(ready) => Poll::Ready(ready.map_err(UpstreamFailure::Connect)),
            Poll::Pending => deadline.poll_elapsed(cx).map(|()| Err(UpstreamFailure::ConnectTimeout)),
        })
        .await?;
        // A Unix socket is connected at once or not at all.
        if let Addr::Inet(_) = to {
            socket.take_error().map_err(UpstreamFailure::Connect)?;
        }
        Ok(socket)
    }

    async fn send_header(
        socket: &Socket,
        mut header: &[u8],
        deadline: &mut Deadline,
    ) -> Result<(), UpstreamFailure> {
        while !header.is_empty() {
            match socket.try_write(header) {
                Ok(n) => header = header.get(n..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    poll_fn(|cx| match socket.poll_writable(cx) {
                        Poll::Ready(ready) => Poll::Ready(ready.map_err(UpstreamFailure::Send)),
                        Poll::Pending => {
                            deadline.poll_elapsed(cx).map(|()| Err(UpstreamFailure::SendTimeout))
                        }
                    })
                    .await?;
                }
                Err(error) => return Err(UpstreamFailure::Send(error)),
            }
        }
        Ok(())
    }

    /// Transport of a connection of its own; `None` for a stream.
    pub fn transport(&self) -> Option<&Transport> {
        match &self.transport {
            UpstreamTransport::Own(transport, _) => Some(transport),
            UpstreamTransport::Stream(_) => None,
        }
    }

    /// The stream, if it is one.
    pub fn stream(&self) -> Option<&Rc<UpstreamStream>> {
        match &self.transport {
            UpstreamTransport::Own(..) => None,
            UpstreamTransport::Stream(stream) => Some(stream),
        }
    }

    /// Returns true if there may be unsolicited input.
    pub fn may_have_input(&self) -> bool {
        self.transport().is_none_or(Transport::may_have_input)
    }

    /// Returns true if a response to an earlier request came on it: the server may have closed it meanwhile.
    pub fn is_reused(&self) -> bool {
        self.requests.get() > 0
    }

    /// Bytes sent and received for this request.
    pub fn traffic(&self) -> (u64, u64) {
        (self.sent.get(), self.received.get())
    }

    /// Ready when bytes may be there, or the time is over that [`begin_reading`](Self::begin_reading) gave.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<Result<(), UpstreamFailure>> {
        match self.poll_input(cx) {
            Poll::Ready(ready) => Poll::Ready(ready),
            Poll::Pending => self.read.borrow_mut().poll_elapsed(cx).map(|()| {
                if let UpstreamTransport::Stream(stream) = &self.transport {
                    // After a timeout it is unknown whether the connection still works, so it takes no new streams.
                    stream.retire_connection();
                }
                Err(UpstreamFailure::ReceiveTimeout)
            }),
        }
    }

    /// Ready when bytes may be there, whenever that is.
    pub fn poll_input(&self, cx: &mut Context<'_>) -> Poll<Result<(), UpstreamFailure>> {
        match &self.transport {
            UpstreamTransport::Own(transport, _) => {
                transport.poll_readable(cx).map_err(UpstreamFailure::Receive)
            }
            UpstreamTransport::Stream(stream) => stream.poll_input(cx).map(Ok),
        }
    }

    /// Reads available bytes with `read`, which gets the transport; content and events of a stream are there already.
    pub fn read_by(
        &self,
        read: impl FnOnce(&Transport) -> Result<(ReadOutcome, Bytes), UpstreamFailure>,
    ) -> Result<(ReadOutcome, Bytes), UpstreamFailure> {
        let (came, bytes) = match &self.transport {
            UpstreamTransport::Own(transport, _) => read(transport)?,
            UpstreamTransport::Stream(stream) => match stream.take()? {
                Some(bytes) => (ReadOutcome::Some, bytes),
                None => (ReadOutcome::Nothing, Bytes::new()),
            },
        };
        self.received.set(self.received.get() + bytes.len() as u64);
        Ok((came, bytes))
    }

    /// Starts the time that the server has to send something.
    pub fn begin_reading(&self, timeout: Duration) {
        self.read.borrow_mut().set(timeout);
    }

    /// Waits until the server may take bytes, at most `timeout`.
    pub async fn writable(&self, timeout: Duration) -> Result<(), UpstreamFailure> {
        self.write.borrow_mut().set(timeout);
        let UpstreamTransport::Own(transport, _) = &self.transport else { return Ok(()) };
        poll_fn(|cx| match transport.poll_writable(cx) {
            Poll::Ready(ready) => Poll::Ready(ready.map_err(UpstreamFailure::Send)),
            Poll::Pending => {
                self.write.borrow_mut().poll_elapsed(cx).map(|()| Err(UpstreamFailure::SendTimeout))
            }
        })
        .await
    }

    /// Sends all of `bytes`. The caller limits the time.
    ///
    /// # Errors
    /// The connection is broken.
    pub async fn send_all(&self, mut bytes: &[u8]) -> Result<(), UpstreamFailure> {
        while !bytes.is_empty() {
            match self.write_now(bytes)? {
                0 => self.writable(Duration::MAX).await?,
                count => bytes = bytes.get(count..).unwrap_or_default(),
            }
        }
        Ok(())
    }

    /// Writes what the socket takes; 0 if it takes nothing now.
    pub fn write_now(&self, bytes: &[u8]) -> Result<usize, UpstreamFailure> {
        let UpstreamTransport::Own(transport, _) = &self.transport else { return Err(not_in_bytes()) };
        let result = tw_rt::watch::operation("writing to an upstream server", || transport.try_write(bytes));
        self.count_sent(result)
    }

    /// Writes what the socket takes of several pieces; 0 if it takes nothing now.
    pub fn write_parts_now(&self, parts: &[io::IoSlice<'_>]) -> Result<usize, UpstreamFailure> {
        let UpstreamTransport::Own(transport, _) = &self.transport else { return Err(not_in_bytes()) };
        let write = || transport.try_write_vectored(parts);
        self.count_sent(tw_rt::watch::operation("writing to an upstream server", write))
    }

    fn count_sent(&self, result: io::Result<usize>) -> Result<usize, UpstreamFailure> {
        match result {
            Ok(n) => {
                self.sent.set(self.sent.get() + n as u64);
                Ok(n)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            Err(error) => Err(UpstreamFailure::Send(error)),
        }
    }
}

/// Error for bytes written to a connection whose messages are frames of a stream.
fn not_in_bytes() -> UpstreamFailure {
    UpstreamFailure::Send(io::ErrorKind::Unsupported.into())
}

/// Result of a read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ReadOutcome {
    /// Bytes.
    Some,
    /// Nothing is there now.
    Nothing,
    /// The server has closed its side.
    Closed,
}
