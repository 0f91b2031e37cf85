//! One connection of HTTP/1: its transport, how long it waits for either direction, and whether its client is still there.

use std::cell::{Cell, OnceCell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tw_disk::SocketFd;
use tw_net::{Addr, Transport};
use tw_rt::Deadline;

use crate::config::location::Location;
use crate::http::client::Client;
use crate::http::client_gone::ClientGone;

/// A connection of HTTP/1.
pub struct Http1Connection {
    /// Client of the connection.
    pub(crate) client: Rc<Client>,
    /// Transport.
    pub(crate) transport: Transport,
    /// Longest wait for the next request.
    pub(super) keepalive_timeout: Cell<Duration>,
    /// Least wait for the next request while the loop stops.
    pub(super) keepalive_min_timeout: Cell<Duration>,
    /// Until when the client may keep us waiting for bytes of it.
    pub(super) read_deadline: RefCell<Deadline>,
    /// Until when it may keep us waiting before it takes bytes.
    write_deadline: RefCell<Deadline>,
    fd: OnceCell<Option<SocketFd>>,
}

/// Failure to wait for a connection.
#[derive(Debug)]
pub(crate) enum SocketWaitError {
    /// The time was over.
    Timeout,
    /// The connection failed.
    Io(io::Error),
}

impl Http1Connection {
    /// The connection of a client.
    pub(crate) fn new(client: Rc<Client>, transport: Transport) -> Rc<Self> {
        Rc::new(Self {
            client,
            transport,
            keepalive_timeout: Cell::new(Duration::ZERO),
            keepalive_min_timeout: Cell::new(Duration::ZERO),
            read_deadline: RefCell::new(Deadline::new()),
            write_deadline: RefCell::new(Deadline::new()),
            fd: OnceCell::new(),
        })
    }

    /// A second descriptor that takes the bytes of the connection, for a pool thread to write to; `None` if there is none.
    pub(super) fn fd(&self) -> Option<&SocketFd> {
        self.fd.get_or_init(|| self.transport.try_clone().map(Arc::new)).as_ref()
    }

    /// Waits until bytes of the client may be there, at most `timeout`.
    pub(crate) async fn readable(&self, timeout: Duration) -> Result<(), SocketWaitError> {
        within(&self.read_deadline, timeout, |cx| self.transport.poll_readable(cx)).await
    }

    /// Waits until the client may take bytes, at most `timeout`.
    pub(crate) async fn writable(&self, timeout: Duration) -> Result<(), SocketWaitError> {
        within(&self.write_deadline, timeout, |cx| self.transport.poll_writable(cx)).await
    }

    /// Waits until the client is gone: it closed its side, even behind unread input, or the connection failed.
    pub(crate) async fn gone(&self) -> ClientGone {
        ClientGone::new(poll_fn(|cx| self.transport.poll_closed(cx)).await)
    }

    /// Waits for `future`, unless the client goes away first.
    pub(crate) async fn unless_gone<F: Future>(&self, future: F) -> Result<F::Output, ClientGone> {
        let mut future = pin!(future);
        poll_fn(|cx| {
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(Ok(output));
            }
            self.transport.poll_closed(cx).map(|error| Err(ClientGone::new(error)))
        })
        .await
    }

    /// Sleeps, as `limit_rate` does, unless the client goes away meanwhile.
    pub(crate) async fn sleep(&self, span: Duration) -> Result<(), ClientGone> {
        self.write_deadline.borrow_mut().set(span);
        self.unless_gone(poll_fn(|cx| self.write_deadline.borrow_mut().poll_elapsed(cx))).await
    }

    /// Lets small writes leave at once, if the location asks for that (`tcp_nodelay`).
    pub(super) fn send_at_once(&self, core: &Location) {
        if core.send.tcp_nodelay {
            self.transport.socket().set_nodelay();
        }
    }

    /// Makes the close a reset, if the location asks for that (`reset_timedout_connection`).
    pub(super) fn set_reset_on_close(&self, core: &Location) {
        if core.send.reset_timedout_connection {
            // A plain close does as well, only later.
            let _ = self.transport.socket().reset_on_close();
        }
    }

    /// Takes `addr` for the address the client connected to.
    pub(crate) fn pretend_local(&self, addr: Addr) {
        // Asked for already, it stays what it was.
        self.client.local_or(|| Some(addr));
    }
}

/// Waits for `ready`, at most `timeout`.
async fn within(
    deadline: &RefCell<Deadline>,
    timeout: Duration,
    mut ready: impl FnMut(&mut Context<'_>) -> Poll<io::Result<()>>,
) -> Result<(), SocketWaitError> {
    deadline.borrow_mut().set(timeout);
    poll_fn(|cx| {
        if let Poll::Ready(ready) = ready(cx) {
            return Poll::Ready(ready.map_err(SocketWaitError::Io));
        }
        deadline.borrow_mut().poll_elapsed(cx).map(|()| Err(SocketWaitError::Timeout))
    })
    .await
}
