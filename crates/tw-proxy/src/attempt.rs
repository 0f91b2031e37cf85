//! One attempt to get a response from one server: selects a peer, connects, sends the request and reads the response head.

use std::rc::Rc;

use bytes::Bytes;
use tw_connect::attempts;
use tw_connect::failure::{AttemptFailure, AttemptStage, UpstreamFailure};
use tw_connect::group::now_ms;
use tw_connect::queue;
use tw_connect::upstream_connection::UpstreamConnection;
use tw_upstream::Lease;

use super::codec::Codec;
use super::connect::{self, AttemptContext, PendingAttempt};
use super::exchange::{Exchange, record_traffic};
use super::read_head::read_head;
use super::send_request::{RequestSender, SendError, SendTerms};
use super::upstream_request::{BuiltRequest, UpstreamRequest, UpstreamRequestBody};
use tw_request::local_future::boxed;
use tw_request::request::Request;
use tw_request::request_body::{BodyError, Source};

/// Error of an attempt.
pub(super) enum AttemptError {
    /// The attempt failed; another server may be tried.
    Failed(FailedAttempt),
    /// The client's body could not be read.
    Client(BodyError),
    /// No request could be built for the chosen server; the status for the client.
    Unbuildable(u16),
}

/// A failed attempt: cause and stage, and the facts that decide on a retry.
pub(super) struct FailedAttempt {
    pub(super) failure: AttemptFailure,
    /// Lease of the peer; `None` if the failure says nothing about a peer.
    pub(super) lease: Option<Lease>,
    pub(super) connection: ConnectionUse,
    pub(super) request: RequestProgress,
}

/// Earlier use of the connection on which an attempt failed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionUse {
    /// A new connection, none, or one on which this response had begun.
    First,
    /// A kept connection without a byte of the response: the server may have closed it while it was idle.
    Reused,
}

/// Progress of the request when an attempt failed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestProgress {
    /// The server has received nothing of it.
    NotSent,
    /// The server may have begun to process it.
    Sent,
}

impl AttemptError {
    /// Failure before anything was sent.
    fn before_sending(failure: AttemptFailure, lease: Option<Lease>) -> Self {
        let connection = ConnectionUse::First;
        let request = RequestProgress::NotSent;
        Self::Failed(FailedAttempt { failure, lease, connection, request })
    }
}

impl FailedAttempt {
    /// Failure of an exchange because of its response head. Gives the request body back.
    pub(super) fn after_head<C>(r: &mut Request, exchange: Exchange<C>, failure: UpstreamFailure) -> Self {
        let Exchange { connection, lease, sending, .. } = exchange;
        sending.give_back(r);
        record_traffic(r, &connection);
        let failure = failure.at(AttemptStage::ReadingHead);
        let connection = ConnectionUse::of(connection.is_reused());
        Self { failure, lease: Some(lease), connection, request: RequestProgress::Sent }
    }
}

impl ConnectionUse {
    fn of(is_reused: bool) -> Self {
        if is_reused { Self::Reused } else { Self::First }
    }
}

/// Runs one attempt until the response head has been read. `slot` has the exchange from the moment when there is a connection.
///
/// The future is small, because thousands of requests may wait for a response: functions do what never waits, and the futures that
/// seldom wait are boxed.
pub(super) async fn run<C: Codec + Clone>(
    r: &mut Request,
    request: &UpstreamRequest<'_, C>,
    attempts: &mut AttemptContext,
    slot: &mut Option<Exchange<C>>,
) -> Result<(), AttemptError> {
    let lease = match select_peer(r, request, attempts)? {
        Some(lease) => lease,
        None => Box::pin(wait_for_peer(r, request, attempts)).await?,
    };
    if let Some(pending) = begin(r, request, attempts, lease, slot)? {
        boxed(|| open_connection(r, request, pending, slot)).await?;
    }
    if let Some(exchange) = slot.as_mut().filter(|exchange| !exchange.codec.is_connect())
        && let Err(unsent) = read_head(r, exchange, request).await
    {
        return Err(end_unanswered(r, slot.take(), unsent));
    }
    if let Some(exchange) = slot {
        exchange.lease.header(now_ms());
    }
    if let Some(attempt) = r.upstream.current() {
        attempt.header = Some(attempt.elapsed());
    }
    Ok(())
}

/// Selects the peer of the next attempt and records the attempt. `None` if the request has to wait in the queue of the group.
fn select_peer<C>(
    r: &mut Request,
    request: &UpstreamRequest<'_, C>,
    AttemptContext { selection, sticky_id, .. }: &mut AttemptContext,
) -> Result<Option<Lease>, AttemptError> {
    if let Some(sticky) = &request.group.sticky {
        sticky.bind(selection, sticky_id);
    }
    let group = request.group;
    let selected = queue::select_now(&group.peers, selection, &r.client().event_loop.upstreams.random);
    if selected.is_err() && group.queue.is_some() {
        return Ok(None);
    }
    let lease = attempts::record_selection(r, group, selected, None);
    lease.map(Some).map_err(|failure| AttemptError::before_sending(failure, None))
}

/// Waits in the queue of the group for the peer of the next attempt, and records the attempt.
async fn wait_for_peer<C>(
    r: &mut Request,
    request: &UpstreamRequest<'_, C>,
    AttemptContext { selection, .. }: &mut AttemptContext,
) -> Result<Lease, AttemptError> {
    let random = &r.client().event_loop.clone().upstreams.random;
    let lease = attempts::select_peer(r, request.group, selection, random).await;
    lease.map_err(|failure| AttemptError::before_sending(failure, None))
}

/// Begins an attempt at the peer of `lease`, if there is a connection to it or can be one at once; else returns it.
fn begin<C: Codec + Clone>(
    r: &mut Request,
    request: &UpstreamRequest<'_, C>,
    attempts: &AttemptContext,
    lease: Lease,
    slot: &mut Option<Exchange<C>>,
) -> Result<Option<PendingAttempt>, AttemptError> {
    let begun = tw_rt::clock::now();
    if !request.settings.connection.allows(r) {
        // The failure is one of the configuration, not of the server.
        let failure = UpstreamFailure::Denied.at(AttemptStage::Connecting);
        return Err(AttemptError::before_sending(failure, None));
    }
    if let Some(sticky) = &request.group.sticky {
        sticky.prepare_cookie(r, &lease);
    }
    let built = request.rebuild.map(|rebuild| rebuild(r)).transpose().map_err(AttemptError::Unbuildable)?;
    let pending = PendingAttempt { lease, begun, built, pool_key: connect::pool_key(r, request, attempts) };
    match connect::open_at_once(r, request, &pending) {
        None => Ok(Some(pending)),
        Some(connected) => begin_exchange(r, request, connected, pending, slot).map(|()| None),
    }
}

/// Opens a connection for an attempt, and begins it.
async fn open_connection<C: Codec + Clone>(
    r: &mut Request,
    request: &UpstreamRequest<'_, C>,
    pending: PendingAttempt,
    slot: &mut Option<Exchange<C>>,
) -> Result<(), AttemptError> {
    let connected = connect::open(r, request, &pending).await;
    begin_exchange(r, request, connected, pending, slot)
}

/// Begins an exchange on the connection of an attempt: puts it into `slot`, and begins to send the request.
fn begin_exchange<C: Codec + Clone>(
    r: &mut Request,
    request: &UpstreamRequest<'_, C>,
    connected: Result<Rc<UpstreamConnection>, AttemptFailure>,
    pending: PendingAttempt,
    slot: &mut Option<Exchange<C>>,
) -> Result<(), AttemptError> {
    let PendingAttempt { mut lease, begun, built, pool_key } = pending;
    let connection = match connected {
        Ok(connection) => connection,
        Err(failure) => return Err(AttemptError::before_sending(failure, Some(lease))),
    };
    lease.connected(now_ms());
    begin_on(r, &connection);
    let exchange = slot.insert(Exchange {
        connection,
        lease,
        codec: request.codec.clone(),
        input: Bytes::new(),
        sending: RequestSender::nothing(),
        pool_key,
        keepalive: request.group.keepalive,
        begun,
        session: None,
        retry: None,
    });
    if exchange.codec.is_connect() {
        r.upstream.answer.status = 200;
        return Ok(());
    }
    let connection_use = ConnectionUse::of(exchange.connection.is_reused());
    begin_sending(r, request, built.as_ref(), exchange).map_err(|failure| {
        AttemptError::Failed(FailedAttempt {
            failure: failure.at(AttemptStage::Sending),
            lease: slot.take().map(|exchange| exchange.lease),
            connection: connection_use,
            request: RequestProgress::NotSent,
        })
    })
}

/// Resets the traffic counters of a connection that now serves `r`, and records the time to connect.
fn begin_on(r: &mut Request, connection: &UpstreamConnection) {
    connection.sent.set(0);
    connection.received.set(0);
    if let Some(attempt) = r.upstream.current() {
        attempt.connected = Some(attempt.elapsed());
    }
}

/// Begins to send the request: the one built for this server, or the one built once for all. Takes the client's body.
fn begin_sending<C: Codec>(
    r: &mut Request,
    request: &UpstreamRequest<'_, C>,
    built: Option<&BuiltRequest>,
    exchange: &mut Exchange<C>,
) -> Result<(), UpstreamFailure> {
    let (head, body, framing) = match built {
        Some(built) => (&built.head, &built.body, built.framing),
        None => (&request.head, &request.body, request.framing),
    };
    let body = match body {
        UpstreamRequestBody::Nothing => Source::None,
        UpstreamRequestBody::Client => r.body.take(),
        UpstreamRequestBody::Bytes(bytes) => Source::of_bytes(bytes.clone()),
    };
    if exchange.codec.is_multiplexed()
        && let Some(stream) = exchange.connection.stream()
    {
        exchange.codec.attach(stream);
    }
    let terms = SendTerms {
        event_loop: &r.client().event_loop,
        framing,
        client: r.body_limits(),
        kept_max: r.plan().core.client_body.buffer_size,
        timeout: request.settings.timeouts.send,
    };
    exchange.sending = RequestSender::begin(&exchange.connection, head, body, terms)?;
    Ok(())
}

/// Ends an attempt that failed before the response head was complete. Gives the body back.
fn end_unanswered<C>(r: &mut Request, exchange: Option<Exchange<C>>, unsent: SendError) -> AttemptError {
    let mut stage = AttemptStage::Sending;
    let mut traffic = (0, 0);
    let mut lease = None;
    let mut connection_use = ConnectionUse::First;
    if let Some(exchange) = exchange {
        if exchange.sending.is_sent() {
            stage = AttemptStage::ReadingHead;
        }
        exchange.sending.give_back(r);
        record_traffic(r, &exchange.connection);
        connection_use = ConnectionUse::of(exchange.connection.is_reused());
        (traffic, lease) = (exchange.connection.traffic(), Some(exchange.lease));
    }
    let (sent, received) = traffic;
    match unsent {
        SendError::Client(error) => AttemptError::Client(error),
        SendError::Upstream(failure) => AttemptError::Failed(FailedAttempt {
            failure: failure.at(stage),
            lease,
            // A server that has begun to respond had not closed the connection while it was idle.
            connection: if received == 0 { connection_use } else { ConnectionUse::First },
            request: if sent > 0 { RequestProgress::Sent } else { RequestProgress::NotSent },
        }),
    }
}
