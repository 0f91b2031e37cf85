//! Attempts to connect to one peer after the other (`proxy_next_upstream`), until there is a connection.

use std::io;

use rustix::io::Errno;
use tw_connect::attempts::{self, AttemptingSession};
use tw_connect::failure::{AttemptFailure, AttemptStage, UpstreamFailure};
use tw_connect::group::now_ms;
use tw_connect::upstream_tls::{TlsPools, UpstreamTls};
use tw_connect::{AttemptPeer, OpenParams, UpstreamConnection, UpstreamGroup};
use tw_core::event_loop::{ConnectionPermit, Eviction};
use tw_net::{Addr, ConnectOptions, Transport, connect_datagrams};
use tw_rt::DatagramSocket;
use tw_upstream::{Lease, PeerOutcome};

use super::proxy_header::proxy_header;
use super::settings::ProxySettings;
use crate::protocol::Stream;
use crate::session::{SessionStatus, StreamSession};
use crate::session_record::{InheritedSession, SessionRecord};

/// A connection to the peer of a lease, or a socket for datagrams.
pub(super) struct ConnectedPeer<T> {
    pub(super) transport: T,
    pub(super) lease: Lease,
    /// Held while the connection is open.
    pub(super) permit: ConnectionPermit,
    /// PROXY protocol header that is still to be sent.
    pub(super) header: Vec<u8>,
}

/// Carrier of the bytes of a session to and from an upstream server.
pub(super) trait ServerTransport: Sized {
    /// Connects, over TLS if that is to be secured, and takes a place among `worker_connections`.
    async fn open(params: OpenParams<'_>) -> Result<(Self, ConnectionPermit), AttemptFailure>;
}

impl ServerTransport for Transport {
    async fn open(params: OpenParams<'_>) -> Result<(Self, ConnectionPermit), AttemptFailure> {
        UpstreamConnection::open_transport(params).await
    }
}

impl ServerTransport for DatagramSocket {
    async fn open(params: OpenParams<'_>) -> Result<(Self, ConnectionPermit), AttemptFailure> {
        let OpenParams { core, to, options, .. } = params;
        let connecting = |failure: UpstreamFailure| failure.at(AttemptStage::Connecting);
        let permit = core.reserve_upstream_connection().map_err(UpstreamFailure::ConnectionLimit);
        let permit = permit.map_err(connecting)?;
        let socket = match connect_datagrams(to, options) {
            // A session over datagrams has accepted no connection, so no descriptor was freed for it before.
            Err(error) if is_exhaustion(&error) && core.free_descriptor().await == Eviction::Done => {
                connect_datagrams(to, options)
            }
            socket => socket,
        };
        Ok((socket.map_err(UpstreamFailure::Connect).map_err(connecting)?, permit))
    }
}

/// Returns true if there was no descriptor left.
fn is_exhaustion(error: &io::Error) -> bool {
    let errno = error.raw_os_error();
    [Errno::MFILE, Errno::NFILE].iter().any(|exhausted| errno == Some(exhausted.raw_os_error()))
}

/// Connects `s` to a peer of `group`. The error is the end of the session, and is logged.
pub(super) async fn try_peers<T: ServerTransport>(
    s: &mut StreamSession,
    group: &UpstreamGroup<Stream>,
    settings: &ProxySettings,
) -> Result<Box<ConnectedPeer<T>>, SessionStatus> {
    let began = tw_rt::clock::now();
    resolve_names(s, group).await?;
    let limits = &settings.retry.limits;
    let mut selection = attempts::begin_selection(s, group, limits);
    let event_loop = s.client.event_loop.clone();
    let options = settings.connection.options_once(s);
    // Datagrams have no handshake.
    let secured = match s.transport.connection() {
        Some(_) => settings.tls.for_host(s, group.peers.name().as_bytes()),
        None => None,
    };
    loop {
        let lease = attempts::select_peer(s, group, &mut selection, &event_loop.upstreams.random).await;
        let lease = lease.map_err(|failure| {
            s.record_failure(&failure);
            SessionStatus::BAD_GATEWAY
        })?;
        let failure = match attempt(s, settings, lease, options.as_ref(), secured.as_ref()).await {
            Ok(connected) => return Ok(Box::new(connected)),
            Err(failure) => failure,
        };
        if let UpstreamFailure::ConnectionLimit(_) | UpstreamFailure::Identity(_) = failure.cause {
            return Err(SessionStatus::INTERNAL_SERVER_ERROR);
        }
        let may_retry = settings.retry.is_on && selection.tries_left() > 0 && !limits.is_past_deadline(began);
        if !may_retry {
            return Err(SessionStatus::BAD_GATEWAY);
        }
    }
}

/// Connects `s`, whose session another process has begun, to the peer of `group` that it had there. The error is the end of the session,
/// which is refused: the configuration has no such peer, or there is no room.
pub(super) async fn take_over(
    s: &mut StreamSession,
    group: &UpstreamGroup<Stream>,
    mut inherited: Box<InheritedSession>,
) -> Result<(Box<ConnectedPeer<DatagramSocket>>, SessionRecord), SessionStatus> {
    resolve_names(s, group).await?;
    let to = Addr::Inet(inherited.record().upstream);
    // The session is not logged, because it never ran in this process.
    let refused = SessionStatus::PASSED;
    let lease = group.peers.lease_by_address(&to, now_ms()).ok_or(refused)?;
    let permit = s.client.event_loop.reserve_upstream_connection().map_err(|_| refused)?;
    let transport = inherited.adopt_socket().ok_or(refused)?;
    let record = inherited.accept().ok_or(refused)?;
    if let Some(upstream) = &mut s.upstream {
        upstream.begin(AttemptPeer::Peer(lease.peer().clone()));
        if let Some(attempt) = upstream.current() {
            attempt.connected = record.connected;
        }
    }
    Ok((Box::new(ConnectedPeer { transport, lease, permit, header: Vec::new() }), record))
}

/// Resolves the names of servers, as far as there are no addresses yet.
async fn resolve_names(s: &mut StreamSession, group: &UpstreamGroup<Stream>) -> Result<(), SessionStatus> {
    if !group.peers.has_host_names() {
        return Ok(());
    }
    let resolving = s.server().settings.resolving.clone();
    let pool = s.client.generation.disks.default_disk().pool().clone();
    attempts::resolve_names(s, group, &resolving, &pool).await.map_err(|failure| {
        s.record_failure(&failure);
        if group.is_named { SessionStatus::BAD_GATEWAY } else { SessionStatus::INTERNAL_SERVER_ERROR }
    })
}

/// Connects to the peer of `lease`. A failure is logged and counts against the peer.
async fn attempt<T: ServerTransport>(
    s: &mut StreamSession,
    settings: &ProxySettings,
    mut lease: Lease,
    options: Option<&ConnectOptions>,
    secured: Option<&UpstreamTls>,
) -> Result<ConnectedPeer<T>, AttemptFailure> {
    let options = options.cloned().unwrap_or_else(|| settings.connection.options(s));
    let header = proxy_header(s, settings.proxy_protocol());
    let event_loop = s.client.event_loop.clone();
    let to = lease.peer().addr().clone();
    let pools = secured.map(|_| TlsPools::of(&s.client.generation.disks));
    let secured = secured.zip(pools.as_ref());
    // Without a handshake, the PROXY protocol header leaves with the first bytes of the session.
    let before = if secured.is_some() { &*header } else { &[] };
    let params = OpenParams {
        core: &event_loop,
        to: &to,
        options: &options,
        timeout: settings.connect_timeout,
        header: before,
        secured,
    };
    match T::open(params).await {
        Ok((transport, permit)) => {
            lease.connected(now_ms());
            if let Some(attempt) = s.upstream.as_mut().and_then(|upstream| upstream.current()) {
                attempt.connected = Some(attempt.elapsed());
            }
            let header = if secured.is_some() { Vec::new() } else { header };
            Ok(ConnectedPeer { transport, lease, permit, header })
        }
        Err(failure) => {
            s.record_failure(&failure);
            attempts::end_lease(s, lease, &failure, PeerOutcome::Failed);
            if let Some(attempt) = s.upstream.as_mut().and_then(|upstream| upstream.current()) {
                attempt.end();
            }
            Err(failure)
        }
    }
}
