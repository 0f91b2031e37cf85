//! A connection to an upstream server: what carries its bytes, and until when it may keep us waiting.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tw_net::{Addr, ConnectOptions, Transport};
use tw_rt::Deadline;

use super::fault::{Fault, Stage};
use super::secure::{Doers, Secured};

/// A connection to an upstream server.
pub(crate) struct Link {
    pub(super) transport: Transport,
    /// Where it leads.
    pub(super) to: Addr,
    /// When it was opened.
    pub(super) opened: Instant,
    /// Requests sent on it before this one.
    pub(super) requests: Cell<u64>,
    pub(super) sent: Cell<u64>,
    pub(super) received: Cell<u64>,
    read: RefCell<Deadline>,
    write: RefCell<Deadline>,
}

impl Link {
    /// Connects to `to`, and shakes hands if the connection is to be secured; the time is for both. What takes long, the pool
    /// does.
    ///
    /// # Errors
    /// No connection, or none in time.
    pub(super) async fn open(
        to: &Addr,
        options: &ConnectOptions,
        timeout: Duration,
        secured: Option<(&Secured, Doers)>,
    ) -> Result<Self, (Fault, Stage)> {
        let mut link =
            Self::connect(to, options, timeout).await.map_err(|fault| (fault, Stage::Connecting))?;
        if let Some((secured, by)) = secured {
            link.transport = match link.transport {
                Transport::Plain(socket) => {
                    let stream = secured.shake_hands(socket, to, link.write.get_mut(), &by).await;
                    Transport::Tls(Box::new(stream.map_err(|fault| (fault, Stage::Handshaking))?))
                }
                secured => secured,
            };
        }
        Ok(link)
    }

    async fn connect(to: &Addr, options: &ConnectOptions, timeout: Duration) -> Result<Self, Fault> {
        let socket = tw_net::connect(to, options).map_err(Fault::Connect)?;
        let link = Self {
            transport: Transport::Plain(socket),
            to: to.clone(),
            opened: tw_rt::clock::now(),
            requests: Cell::new(0),
            sent: Cell::new(0),
            received: Cell::new(0),
            read: RefCell::new(Deadline::new()),
            write: RefCell::new(Deadline::new()),
        };
        link.writable(timeout).await.map_err(|fault| match fault {
            Fault::Send(error) => Fault::Connect(error),
            Fault::SendTimeout => Fault::ConnectTimeout,
            other => other,
        })?;
        link.transport.socket().take_error().map_err(Fault::Connect)?;
        Ok(link)
    }

    /// Whether a response to an earlier request came on it: the server may have closed it without us knowing.
    pub(super) fn is_reused(&self) -> bool {
        self.requests.get() > 0
    }

    /// Bytes sent and received for this request.
    pub(super) fn traffic(&self) -> (u64, u64) {
        (self.sent.get(), self.received.get())
    }

    /// Ready when bytes may be there, or the time is over that [`begin_reading`](Self::begin_reading) gave.
    pub(super) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        match self.transport.poll_readable(cx) {
            Poll::Ready(ready) => Poll::Ready(ready.map_err(Fault::Receive)),
            Poll::Pending => self.read.borrow_mut().poll_elapsed(cx).map(|()| Err(Fault::ReceiveTimeout)),
        }
    }

    /// From now on the server has `timeout` to send something.
    pub(super) fn begin_reading(&self, timeout: Duration) {
        self.read.borrow_mut().set(timeout);
    }

    /// Waits until the server may take bytes, at most `timeout`.
    pub(super) async fn writable(&self, timeout: Duration) -> Result<(), Fault> {
        self.write.borrow_mut().set(timeout);
        poll_fn(|cx| match self.transport.poll_writable(cx) {
            Poll::Ready(ready) => Poll::Ready(ready.map_err(Fault::Send)),
            Poll::Pending => self.write.borrow_mut().poll_elapsed(cx).map(|()| Err(Fault::SendTimeout)),
        })
        .await
    }

    /// Writes what the socket takes; 0 if it takes nothing now.
    pub(super) fn write_now(&self, bytes: &[u8]) -> Result<usize, Fault> {
        let written =
            tw_rt::watch::operation("writing to an upstream server", || self.transport.try_write(bytes));
        self.count_sent(written)
    }

    /// The same for several pieces.
    pub(super) fn write_parts_now(&self, parts: &[io::IoSlice<'_>]) -> Result<usize, Fault> {
        let write = || self.transport.try_write_vectored(parts);
        self.count_sent(tw_rt::watch::operation("writing to an upstream server", write))
    }

    fn count_sent(&self, written: io::Result<usize>) -> Result<usize, Fault> {
        match written {
            Ok(n) => {
                self.sent.set(self.sent.get() + n as u64);
                Ok(n)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            Err(error) => Err(Fault::Send(error)),
        }
    }
}

/// What a read brought.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Read {
    /// Bytes.
    Some,
    /// Nothing is there now.
    Nothing,
    /// The server has closed its side.
    Closed,
}
