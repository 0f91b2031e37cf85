//! I/O of one connection: bytes of the transport go to the HTTP/2 state machine, and frames of all streams leave in one call
//! when the task has nothing more to do for now.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tw_http2::{Connection, ConnectionError};
use tw_net::Transport;
use tw_rt::watch;

use super::connection::H2Connection;
use crate::upstream_connections::UpstreamConnections;

/// So many bytes may come for one of a head or a body.
const TALK_FACTOR: u64 = 8;

tw_base::limits! {
    /// Limits of this module.
    pub(super) const LIMITS;

    /// Bytes of answers to settings and pings that an upstream server of HTTP/2 does not take.
    const ANSWERS_MAX: usize = 1 << 20, bytes, "nothing more is read of it until they have left";
    /// Bytes of frames of an upstream server beyond eight times those of heads and bodies: settings, pings, empty frames.
    const IDLE_TALK_MAX: u64 = 128 << 10, bytes, "the connection is closed, and its requests fail (502)";
}

/// Bytes of one connection.
pub(super) struct ConnectionIo {
    transport: Transport,
    connections: Rc<UpstreamConnections>,
    h2_connection: Rc<H2Connection>,
    /// Bytes that came.
    came: u64,
    /// Bytes that the connection had to say to what came, since the last time that all had left.
    answers: usize,
}

/// Reason why a connection cannot be used any more.
pub(super) enum CloseCause {
    /// HTTP/2 connection error.
    Broken(ConnectionError),
    /// More came than heads and bodies can be the reason for.
    Flooded,
}

impl ConnectionIo {
    pub(super) fn new(
        transport: Transport,
        connections: Rc<UpstreamConnections>,
        h2_connection: Rc<H2Connection>,
    ) -> Self {
        Self { transport, connections, h2_connection, came: 0, answers: 0 }
    }

    /// Returns true if the server has sent more than `worth` bytes of heads and bodies and the rest of abandoned responses
    /// account for.
    fn is_flooded(&self, worth: u64) -> bool {
        self.came.saturating_sub(self.h2_connection.unwanted.get()) / TALK_FACTOR > worth + IDLE_TALK_MAX
    }

    /// Tells that nothing is read until answers have left.
    pub(super) fn is_deaf(&self) -> bool {
        self.answers >= ANSWERS_MAX
    }

    /// Hands on what is there; ready when nothing more may come.
    pub(super) fn poll_read(&mut self, connection: &Connection, cx: &mut Context<'_>) -> Poll<CloseCause> {
        // A server that does not read the answers to its frames is not read from either.
        while !self.is_deaf() {
            // A server that sends faster than we read does not keep the loop.
            if !self.connections.core.budget.may_copy(0) {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let mut scratch = self.connections.core.buffers.scratch.borrow_mut();
            let read = || self.transport.try_read_into(&mut scratch);
            match watch::operation("reading from an upstream server", read) {
                Ok(0) => return Poll::Ready(CloseCause::Broken(ConnectionError::Closed)),
                Ok(n) => {
                    let _ = self.connections.core.budget.may_copy(n);
                    self.came += n as u64;
                    let before = connection.out_len();
                    let received = connection.receive(scratch.get(..n).unwrap_or_default());
                    self.answers += connection.out_len().saturating_sub(before);
                    if let Err(broken) = received {
                        return Poll::Ready(CloseCause::Broken(broken));
                    }
                    if self.is_flooded(connection.payload_bytes()) {
                        return Poll::Ready(CloseCause::Flooded);
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    if let Err(e) = ready!(self.transport.poll_readable(cx)) {
                        return Poll::Ready(CloseCause::Broken(e.into()));
                    }
                }
                Err(e) => return Poll::Ready(CloseCause::Broken(e.into())),
            }
        }
        Poll::Pending
    }

    /// Writes what waits; ready when all of it has left.
    pub(super) fn poll_write(
        &mut self,
        connection: &Connection,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while connection.out_len() > 0 {
            let write = || connection.write(|parts| self.transport.try_write_vectored(parts));
            match watch::operation("writing to an upstream server", write) {
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => ready!(self.transport.poll_writable(cx))?,
                Err(e) => return Poll::Ready(Err(e)),
            }
        }
        self.answers = 0;
        Poll::Ready(Ok(()))
    }

    /// Nothing more is written. A server that was faster has ended it already.
    pub(super) fn end(&self) {
        let _ = self.transport.shutdown_write();
    }
}
