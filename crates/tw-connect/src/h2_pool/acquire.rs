//! A stream for a request: on a connection of the pool that has room, or on a new one.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use tw_rt::Deadline;
use tw_rt::watch::Subject;

use super::connection::{Availability, ConnectionState, H2Connection, StreamPermit};
use super::connection_task::{self, ConnectParams};
use super::stream::UpstreamStream;
use super::table::StreamParams;
use crate::failure::{AttemptFailure, AttemptStage, UpstreamFailure};
use crate::keepalive_pool::PoolKey;
use crate::upstream_connections::UpstreamConnections;
use crate::upstream_tls::{TlsPools, UpstreamTls};

tw_base::limits! {
    /// Limits of this module.
    pub(super) const LIMITS;

    /// Connections of HTTP/2 that a request to an upstream server is offered, one after another, that have no room by the time
    /// they are open.
    const OFFERS_MAX: u32 = 3, count, "the server is taken for one that has refused the request";
}

/// Opens a stream on a connection of `owner`, or on a new one. Waits until that is open, at most for the connect timeout.
///
/// # Errors
/// No connection, or none in time.
pub async fn acquire_shared(
    connections: &Rc<UpstreamConnections>,
    owner: &PoolKey,
    params: StreamParams<'_>,
    pools: impl Fn() -> TlsPools,
) -> Result<Rc<UpstreamStream>, AttemptFailure> {
    let timeout = params.timeout;
    let mut deadline = Deadline::new();
    deadline.set(timeout);
    for _ in 0..OFFERS_MAX {
        let permit = match connections.h2_pool.take(owner, &params) {
            Some(permit) => permit,
            None => {
                let secured = owner.secured.clone().map(|secured| (secured, pools()));
                let connection = new_connection(&params, secured.is_some());
                connections.h2_pool.add(owner, connection.clone());
                spawn_connection(connections, connection, ConnectParams { timeout, secured })
            }
        };
        wait_until_open(&permit, &mut deadline).await?;
        // The SETTINGS of the server may have arrived meanwhile and allow fewer streams.
        if permit.0.can_send() {
            return Ok(Rc::new(UpstreamStream::new(permit)));
        }
    }
    Err(UpstreamFailure::Refused("upstream takes no requests".into()).at(AttemptStage::Connecting))
}

/// Opens a stream on a connection of its own, which ends with it.
///
/// # Errors
/// As [`acquire_shared`].
pub async fn open_dedicated(
    connections: &Rc<UpstreamConnections>,
    params: StreamParams<'_>,
    secured: Option<(UpstreamTls, TlsPools)>,
) -> Result<Rc<UpstreamStream>, AttemptFailure> {
    let timeout = params.timeout;
    let mut deadline = Deadline::new();
    deadline.set(timeout);
    let connection = new_connection(&params, secured.is_some());
    // No other request can find this connection, which ends with its stream.
    connection.retire();
    let permit = spawn_connection(connections, connection, ConnectParams { timeout, secured });
    wait_until_open(&permit, &mut deadline).await?;
    Ok(Rc::new(UpstreamStream::new(permit)))
}

/// Creates a connection that is not opened yet.
fn new_connection(params: &StreamParams<'_>, is_secured: bool) -> Rc<H2Connection> {
    Rc::new(H2Connection {
        peer: params.peer.id(),
        to: params.to.clone(),
        options: params.options.clone(),
        list_size: u32::try_from(params.head_size).unwrap_or(u32::MAX),
        is_secured,
        keepalive: params.keepalive,
        state: RefCell::new(ConnectionState::Opening),
        fate: Availability::Useful.into(),
        permits: 0.into(),
        requests: 0.into(),
        answered: 0.into(),
        resets: 0.into(),
        unwanted: 0.into(),
        opened: tw_rt::clock::now(),
        waiting: RefCell::default(),
        life: RefCell::default(),
    })
}

/// Spawns the task of a new connection, and leases its first permit.
fn spawn_connection(
    connections: &Rc<UpstreamConnections>,
    connection: Rc<H2Connection>,
    opening: ConnectParams,
) -> StreamPermit {
    let permit = connection.lease();
    let subject = Subject { kind: "http2 connection to an upstream server", id: connection.peer.0.into() };
    tw_rt::spawn_local(subject, connection_task::run(connections.clone(), connection, opening));
    permit
}

/// Waits until the connection of a permit is open.
async fn wait_until_open(permit: &StreamPermit, deadline: &mut Deadline) -> Result<(), AttemptFailure> {
    poll_fn(|cx| match permit.0.poll_open(cx) {
        Poll::Ready(ready) => Poll::Ready(ready),
        Poll::Pending => deadline
            .poll_elapsed(cx)
            .map(|()| Err(UpstreamFailure::ConnectTimeout.at(AttemptStage::Connecting))),
    })
    .await
}
