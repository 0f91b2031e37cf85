//! Attempts to connect to one peer after the other (`proxy_next_upstream`), until there is a connection.

use std::io;
use std::time::Instant;

use rustix::io::Errno;
use tw_connect::failure::{AttemptFailure, AttemptStage, UpstreamFailure};
use tw_connect::group::now_ms;
use tw_connect::upstream_tls::{TlsPools, UpstreamTls};
use tw_connect::{AttemptPeer, OpenParams, UpstreamConnection, UpstreamGroup, queue, upstream_names};
use tw_core::event_loop::{ConnectionPermit, Eviction};
use tw_core::session::Session;
use tw_log::Level;
use tw_net::{Addr, ConnectOptions, Transport, connect_datagrams};
use tw_rt::DatagramSocket;
use tw_upstream::{BalanceKey, KeyKind, Lease, PeerChange, PeerOutcome, PeerSelection};

use super::proxy_header::proxy_header;
use super::settings::ProxySettings;
use crate::protocol::Stream;
use crate::session::{SessionStatus, StreamSession};
use crate::session_handover::{InheritedSession, SessionRecord};

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
    let mut selection = begin_selection(s, group, settings);
    let options = settings.connection.options_once(s);
    // Datagrams have no handshake.
    let secured = match s.transport.connection() {
        Some(_) => settings.tls.for_host(s, group.peers.name().as_bytes()),
        None => None,
    };
    loop {
        let lease = select_peer(s, group, &mut selection).await?;
        let failure = match attempt(s, settings, lease, options.as_ref(), secured.as_ref()).await {
            Ok(connected) => return Ok(Box::new(connected)),
            Err(failure) => failure,
        };
        if let UpstreamFailure::ConnectionLimit(_) | UpstreamFailure::Identity(_) = failure.cause {
            return Err(SessionStatus::INTERNAL_SERVER_ERROR);
        }
        if !may_retry(settings, &selection, began) {
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
    let resolving = group.resolving.as_ref().unwrap_or(&s.server().settings.resolving).clone();
    let pool = s.client.generation.disks.default_disk().pool().clone();
    let ready = upstream_names::ensure_addresses(&group.names, &group.peers, &resolving, &pool).await;
    let Err(failure) = ready else { return Ok(()) };
    // DIFF(nginx): a single name that is not resolved is an attempt, too, so that a log has the name.
    if let Some(upstream) = &mut s.upstream {
        upstream.begin(AttemptPeer::Nobody(group.peers.name().clone()));
    }
    s.log(Level::Error, format_args!("{}", failure.line(AttemptStage::Connecting)));
    Err(if group.is_named { SessionStatus::BAD_GATEWAY } else { SessionStatus::INTERNAL_SERVER_ERROR })
}

/// Begins the selection of peers with the key that the balancing method needs.
fn begin_selection(
    s: &StreamSession,
    group: &UpstreamGroup<Stream>,
    settings: &ProxySettings,
) -> PeerSelection {
    let tries = u32::try_from(settings.retry.tries).unwrap_or(u32::MAX);
    let key = match group.peers.method().key_kind() {
        KeyKind::Nothing => BalanceKey::None,
        KeyKind::Client => {
            s.client_addr().inet().map_or(BalanceKey::None, |addr| BalanceKey::Client(addr.ip()))
        }
        KeyKind::Text => BalanceKey::Text(group.key.as_ref().map_or_else(Vec::new, |key| key.value(s))),
    };
    group.peers.start_selection(key, None, tries)
}

/// Selects the peer of the next attempt, and records the attempt.
async fn select_peer(
    s: &mut StreamSession,
    group: &UpstreamGroup<Stream>,
    selection: &mut PeerSelection,
) -> Result<Lease, SessionStatus> {
    let event_loop = s.client.event_loop.clone();
    let (selected, _) =
        queue::select(&group.peers, group.queue, selection, &event_loop.upstreams.random).await;
    let to = match &selected {
        Ok(lease) => AttemptPeer::Peer(lease.peer().clone()),
        Err(_) => AttemptPeer::Nobody(group.peers.name().clone()),
    };
    if let Some(upstream) = &mut s.upstream {
        upstream.begin(to);
    }
    selected.map_err(|failure| {
        s.log(Level::Error, format_args!("{}", failure.line(AttemptStage::Connecting)));
        SessionStatus::BAD_GATEWAY
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
            if let Some(level) = failure.cause.level() {
                s.log(level, format_args!("{failure}"));
            }
            end_lease(s, lease, &failure);
            if let Some(attempt) = s.upstream.as_mut().and_then(|upstream| upstream.current()) {
                attempt.end();
            }
            Err(failure)
        }
    }
}

/// Ends the lease of a failed attempt.
fn end_lease(s: &StreamSession, lease: Lease, failure: &AttemptFailure) {
    if failure.cause.is_local() {
        return drop(lease);
    }
    if lease.done(PeerOutcome::Failed, now_ms()) == PeerChange::Disabled {
        s.log(Level::Warn, format_args!("upstream server temporarily disabled {}", failure.stage));
    }
}

/// Returns true if the session may be passed to another peer.
fn may_retry(settings: &ProxySettings, selection: &PeerSelection, began: Instant) -> bool {
    let retry = &settings.retry;
    let is_past_deadline =
        !retry.timeout.is_zero() && tw_rt::clock::now().saturating_duration_since(began) >= retry.timeout;
    retry.is_on && selection.tries_left() > 0 && !is_past_deadline
}
