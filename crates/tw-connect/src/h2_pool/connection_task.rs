//! Task of one connection.
//!
//! ```text
//! opening ─► open: frames come and go ─┬─ no request for too long, one connection too many ─► GOAWAY ─► closed
//!    └─► failed                        ├─ its server ends it, breaks the protocol, floods ─────────► closed
//!                                      └─ nothing can be written ─► what came before is read ──────► closed
//! ```

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tw_core::event_loop::ConnectionPermit;
use tw_http2::{Config, Connection, ConnectionError, ErrorCode};
use tw_net::Transport;
use tw_rt::Deadline;

use super::connection::{
    Availability, CONNECTION_WINDOW, ConnectionState, FIELD_LIST_FACTOR, GATHERED_MAX, H2Connection,
    STREAM_WINDOW,
};
use super::io::{CloseCause, ConnectionIo};
use crate::failure::AttemptFailure;
use crate::upstream_connection::{OpenParams, UpstreamConnection};
use crate::upstream_connections::UpstreamConnections;
use crate::upstream_tls::{TlsPools, UpstreamTls};

/// Longest time to send a last GOAWAY, and to read the frames that a server sent before a write failed.
const LAST_WAIT: Duration = Duration::from_secs(5);

/// Parameters of a new connection.
pub(super) struct ConnectParams {
    /// Time for the connection and the handshake.
    pub(super) timeout: Duration,
    /// TLS of the connection; `None` is plain text.
    pub(super) secured: Option<(UpstreamTls, TlsPools)>,
}

/// Opens `h2_connection` and keeps it for as long as it is of use.
pub(super) async fn run(
    connections: Rc<UpstreamConnections>,
    h2_connection: Rc<H2Connection>,
    opening: ConnectParams,
) {
    let guard = PoolRemoval { connections: connections.clone(), h2_connection: h2_connection.clone() };
    let (transport, permit) = match open(&connections, &h2_connection, opening).await {
        Ok(opened) => opened,
        Err(AttemptFailure { cause, stage }) => {
            return h2_connection.set_state(ConnectionState::Failed(Rc::new(cause), stage));
        }
    };
    let connection = Rc::new(Connection::client(terms(&h2_connection)));
    h2_connection.set_state(ConnectionState::Open(connection.clone()));
    let io = ConnectionIo::new(transport, connections.clone(), h2_connection.clone());
    let mut life = ConnectionTask {
        connections,
        h2_connection,
        io,
        _permit: permit,
        connection,
        stage: TaskStage::Open,
        deadline: Deadline::new(),
        unsent: None,
    };
    poll_fn(|cx| life.poll(cx)).await;
    life.io.end();
    drop(guard);
}

async fn open(
    connections: &UpstreamConnections,
    h2_connection: &H2Connection,
    opening: ConnectParams,
) -> Result<(Transport, ConnectionPermit), AttemptFailure> {
    let ConnectParams { timeout, secured } = opening;
    let secured = secured.as_ref().map(|(secured, by)| (secured, by));
    let H2Connection { to, options, .. } = h2_connection;
    let params = OpenParams { core: &connections.core, to, options, timeout, header: &[], secured };
    UpstreamConnection::open_transport(params).await
}

/// HTTP/2 settings that the server is told.
fn terms(h2_connection: &H2Connection) -> Config {
    Config {
        // A server begins none.
        streams_max: 0,
        window: STREAM_WINDOW,
        connection_window: CONNECTION_WINDOW,
        list_max: h2_connection.list_size.saturating_mul(FIELD_LIST_FACTOR),
        out_max: GATHERED_MAX,
    }
}

/// Removes the connection from the pool when its task ends, however it ends.
struct PoolRemoval {
    connections: Rc<UpstreamConnections>,
    h2_connection: Rc<H2Connection>,
}

impl Drop for PoolRemoval {
    fn drop(&mut self) {
        self.connections.h2_pool.remove(&self.h2_connection);
        self.h2_connection.close(None);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum TaskStage {
    Open,
    /// No request is under way; the time until it is closed runs.
    Idle,
    /// A GOAWAY tells the server that no more requests come.
    Closing,
    /// Nothing more can be written; what came before is read.
    Unwritable,
}

/// An open connection.
struct ConnectionTask {
    connections: Rc<UpstreamConnections>,
    h2_connection: Rc<H2Connection>,
    io: ConnectionIo,
    _permit: ConnectionPermit,
    connection: Rc<Connection>,
    stage: TaskStage,
    deadline: Deadline,
    /// Error of the last write.
    unsent: Option<io::Error>,
}

impl ConnectionTask {
    /// Continues; ready when the connection cannot be used any more.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // Streams need not wake this task while it drives the connection.
        self.connection.set_driver(None);
        self.h2_connection.set_waker(cx.waker());
        ready!(self.drive(cx));
        // Pending frames, such as GOAWAY, are sent as far as the socket takes them.
        let _ = self.io.poll_write(&self.connection, cx);
        Poll::Ready(())
    }

    fn drive(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if let Poll::Ready(cause) = self.io.poll_read(&self.connection, cx) {
                self.end(cause);
                return Poll::Ready(());
            }
            if self.stage == TaskStage::Unwritable {
                if self.io.is_deaf() || self.deadline.poll_elapsed(cx).is_ready() {
                    self.connection.fail(self.unsent.take().map_or(ConnectionError::Closed, Into::into));
                    return Poll::Ready(());
                }
                return Poll::Pending;
            }
            let has_left = match self.io.poll_write(&self.connection, cx) {
                Poll::Ready(Err(error)) => {
                    // The server may have sent something before, which the loop has not been notified of yet. It will
                    // be notified of the end, too.
                    self.unsent = Some(error);
                    self.stage = TaskStage::Unwritable;
                    self.deadline.set(LAST_WAIT);
                    self.connections.h2_pool.remove(&self.h2_connection);
                    continue;
                }
                polled => polled.is_ready(),
            };
            if self.connection.is_over() && has_left {
                return Poll::Ready(());
            }
            if self.rest(cx) {
                continue;
            }
            if self.stage == TaskStage::Closing && (has_left || self.deadline.poll_elapsed(cx).is_ready()) {
                return Poll::Ready(());
            }
            self.connection.set_driver(Some(cx.waker()));
            return Poll::Pending;
        }
    }

    /// Ends it for what its server has done.
    fn end(&self, cause: CloseCause) {
        match cause {
            CloseCause::Broken(broken) => self.connection.fail(broken),
            CloseCause::Flooded => {
                // The streams report this reason.
                self.h2_connection.close(Some("upstream sent too many frames without content"));
                self.connection.close(ErrorCode::ENHANCE_YOUR_CALM);
            }
        }
    }

    /// Rests while no request is under way. Whether there is something to say now.
    fn rest(&mut self, cx: &mut Context<'_>) -> bool {
        if self.stage == TaskStage::Closing {
            return false;
        }
        if !self.h2_connection.is_idle() {
            self.stage = TaskStage::Open;
            return false;
        }
        if self.stage == TaskStage::Open {
            self.stage = TaskStage::Idle;
            self.deadline.set(self.h2_connection.keepalive.timeout);
        }
        let is_over = self.h2_connection.fate.get() == Availability::Retired
            || self.connections.h2_pool.has_too_many_idle(&self.h2_connection)
            || self.deadline.poll_elapsed(cx).is_ready();
        if is_over {
            self.stage = TaskStage::Closing;
            self.deadline.set(LAST_WAIT);
            self.connections.h2_pool.remove(&self.h2_connection);
            self.h2_connection.set_state(ConnectionState::Closed(None));
            self.connection.send_goaway();
        }
        is_over
    }
}

/// Whoever has a stream learns of it, be it that the loop has ended.
impl Drop for ConnectionTask {
    fn drop(&mut self) {
        self.connection.fail(ConnectionError::Closed);
    }
}
