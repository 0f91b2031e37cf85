//! Connection of an attempt: an idle one, a new one, or a stream on one that is shared.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant;

use tw_connect::failure::AttemptFailure;
use tw_connect::h2_pool::{self, StreamParams};
use tw_connect::keepalive_pool::PoolKey;
use tw_connect::upstream_connection::UpstreamConnection;
use tw_connect::upstream_tls::TlsPools;
use tw_net::ConnectOptions;
use tw_upstream::{Lease, PeerSelection};

use super::codec::Codec;
use super::upstream_request::{BuiltRequest, UpstreamRequest};
use tw_request::request::Request;
use tw_request::sticky::StickyId;

/// State that the attempts of one request share.
pub(super) struct AttemptContext {
    /// Peers tried and tries left.
    pub(super) selection: PeerSelection,
    /// Server that the request is bound to (`sticky`).
    pub(super) sticky_id: StickyId,
    /// Local address, if it is computed once for all attempts (`bind`).
    pub(super) local: Option<SocketAddr>,
}

/// An attempt that has a peer, and no connection yet.
pub(super) struct PendingAttempt {
    pub(super) lease: Lease,
    /// Time at which the peer was chosen.
    pub(super) begun: Instant,
    /// Request built for the peer; `None` if one was built for all.
    pub(super) built: Option<BuiltRequest>,
    /// Key of the connections that it may use.
    pub(super) pool_key: PoolKey,
}

/// Options of a new connection for an attempt.
fn connect_options<C>(request: &UpstreamRequest<'_, C>, pool_key: &PoolKey) -> ConnectOptions {
    request.settings.connection.options_from(pool_key.local)
}

/// Key of the connections that the next attempt of `r` may use.
pub(super) fn pool_key<C>(
    r: &Request,
    request: &UpstreamRequest<'_, C>,
    attempts: &AttemptContext,
) -> PoolKey {
    let settings = request.settings;
    PoolKey {
        group: request.group.peers.name().clone(),
        location: if request.group.keepalive.is_local { settings.number } else { 0 },
        secured: match &request.secured {
            Some(_) if settings.tls.has_dynamic_name() => settings.tls.for_host(r, b""),
            secured => secured.clone(),
        },
        local: settings.connection.next_local_address(r, attempts.local),
    }
}

/// Takes an idle connection to the peer of an attempt, or opens one if that never waits. `None` if it has to be waited for.
pub(super) fn open_at_once<C: Codec>(
    r: &Request,
    request: &UpstreamRequest<'_, C>,
    PendingAttempt { lease, pool_key, .. }: &PendingAttempt,
) -> Option<Result<Rc<UpstreamConnection>, AttemptFailure>> {
    if request.codec.is_multiplexed() {
        return None;
    }
    let event_loop = &r.client().event_loop;
    // A kept connection has carried another protocol than a tunnel's.
    if !request.codec.is_connect()
        && let Some(connection) = event_loop.upstreams.idle.take(pool_key, lease.peer())
    {
        return Some(Ok(connection));
    }
    if pool_key.secured.is_some() {
        return None;
    }
    UpstreamConnection::open_at_once(event_loop, lease.peer().addr(), || connect_options(request, pool_key))
}

/// Opens a connection to the peer of an attempt, or a stream on one.
pub(super) async fn open<C: Codec>(
    r: &Request,
    request: &UpstreamRequest<'_, C>,
    pending: &PendingAttempt,
) -> Result<Rc<UpstreamConnection>, AttemptFailure> {
    if request.codec.is_multiplexed() {
        return acquire_stream(r, request, pending).await;
    }
    let options = connect_options(request, &pending.pool_key);
    let secured = pending.pool_key.secured.as_ref();
    let secured = secured.map(|secured| (secured, TlsPools::of(&r.generation().disks)));
    let timeout = request.settings.timeouts.connect;
    let event_loop = r.client().event_loop.clone();
    let to = pending.lease.peer().addr();
    UpstreamConnection::open(&event_loop, to, &options, timeout, secured).await.map(Rc::new)
}

/// Opens a stream to the peer of an attempt, on a connection that others use, too, or will.
async fn acquire_stream<C>(
    r: &Request,
    request: &UpstreamRequest<'_, C>,
    PendingAttempt { lease, pool_key, .. }: &PendingAttempt,
) -> Result<Rc<UpstreamConnection>, AttemptFailure> {
    let params = StreamParams {
        peer: lease.peer(),
        to: lease.peer().addr(),
        options: connect_options(request, pool_key),
        keepalive: request.group.keepalive,
        head_size: request.settings.buffer_size,
        timeout: request.settings.timeouts.connect,
    };
    let pools = || TlsPools::of(&r.generation().disks);
    let stream = h2_pool::acquire_shared(&r.client().event_loop.upstreams, pool_key, params, pools).await?;
    Ok(Rc::new(UpstreamConnection::from_stream(stream)))
}
