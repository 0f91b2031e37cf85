//! One attempt to get a response from one server: selects a peer, connects, sends the request and reads the response head.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, ready};
use std::time::Instant;

use bytes::Bytes;
use tw_base::memory;
use tw_connect::attempts;
use tw_connect::failure::{AttemptFailure, AttemptStage, UpstreamFailure};
use tw_connect::group::now_ms;
use tw_connect::h2_pool::{self, StreamParams};
use tw_connect::keepalive_pool::PoolKey;
use tw_connect::queue;
use tw_connect::reading::{READ_SIZE, read_some};
use tw_connect::upstream_connection::{ReadOutcome, UpstreamConnection};
use tw_connect::upstream_tls::TlsPools;
use tw_net::ConnectOptions;
use tw_upstream::{Lease, PeerSelection};

use super::codec::{Codec, Event};
use super::early_hints;
use super::exchange::Exchange;
use super::send_request::{RequestSender, SendError, SendTerms};
use super::sticky::StickyId;
use super::upstream_request::{BuiltRequest, UpstreamRequest, UpstreamRequestBody};
use super::warnings::log_warnings;
use crate::http::request::Request;
use crate::http::request_body::{BodyError, Source};

/// State that the attempts of one request share.
pub(super) struct AttemptContext {
    /// Peers tried and tries left.
    pub(super) selection: PeerSelection,
    /// Server that the request is bound to (`sticky`).
    pub(super) sticky_id: StickyId,
    /// Socket options, if they are computed once for all attempts (`bind`).
    pub(super) options: Option<Box<ConnectOptions>>,
}

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

impl AttemptContext {
    /// Options of a new connection.
    fn connect_options<C>(&self, r: &Request, request: &UpstreamRequest<'_, C>) -> ConnectOptions {
        self.options.as_deref().cloned().unwrap_or_else(|| request.settings.connection.options(r))
    }
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

/// Ends a cancelled attempt: records its traffic and gives the body back.
pub(super) fn give_up<C>(r: &mut Request, exchange: Exchange<C>) {
    let Exchange { connection, lease, sending, .. } = exchange;
    record_traffic(r, &connection);
    let (sent, received) = connection.traffic();
    lease.sent(sent);
    lease.received(received);
    sending.give_back(r);
}

/// An attempt that has a peer, and no connection yet.
struct PendingAttempt {
    lease: Lease,
    /// Time at which the peer was chosen.
    begun: Instant,
    /// Request built for the peer; `None` if one was built for all.
    built: Option<BuiltRequest>,
    pool_key: PoolKey,
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
        Box::pin(open_connection(r, request, attempts, pending, slot)).await?;
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
    let pending = PendingAttempt { lease, begun, built, pool_key: pool_key(r, request) };
    match connect_at_once(r, request, attempts, &pending) {
        None => Ok(Some(pending)),
        Some(connected) => begin_exchange(r, request, connected, pending, slot).map(|()| None),
    }
}

/// Opens a connection for an attempt, and begins it.
async fn open_connection<C: Codec + Clone>(
    r: &mut Request,
    request: &UpstreamRequest<'_, C>,
    attempts: &AttemptContext,
    pending: PendingAttempt,
    slot: &mut Option<Exchange<C>>,
) -> Result<(), AttemptError> {
    let connected = if request.codec.is_multiplexed() {
        acquire_stream(r, request, attempts, &pending).await
    } else {
        let options = attempts.connect_options(r, request);
        let secured = pending.pool_key.secured.as_ref();
        let secured = secured.map(|secured| (secured, TlsPools::of(&r.generation().disks)));
        let timeout = request.settings.timeouts.connect;
        let event_loop = r.client().event_loop.clone();
        let opened =
            UpstreamConnection::open(&event_loop, pending.lease.peer().addr(), &options, timeout, secured)
                .await;
        opened.map(Rc::new)
    };
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

/// Key of the connections that `r` may use.
fn pool_key<C>(r: &Request, request: &UpstreamRequest<'_, C>) -> PoolKey {
    let settings = request.settings;
    PoolKey {
        group: request.group.peers.name().clone(),
        location: if request.group.keepalive.is_local { settings.number } else { 0 },
        secured: match &request.secured {
            Some(_) if settings.tls.has_dynamic_name() => settings.tls.for_host(r, b""),
            secured => secured.clone(),
        },
    }
}

/// Takes an idle connection to the peer of an attempt, or opens one if that never waits. `None` if it has to be waited for.
fn connect_at_once<C: Codec>(
    r: &Request,
    request: &UpstreamRequest<'_, C>,
    attempts: &AttemptContext,
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
    UpstreamConnection::open_at_once(event_loop, lease.peer().addr(), || attempts.connect_options(r, request))
}

/// Opens a stream to the peer of an attempt, on a connection that others use, too, or will.
async fn acquire_stream<C>(
    r: &Request,
    request: &UpstreamRequest<'_, C>,
    attempts: &AttemptContext,
    PendingAttempt { lease, pool_key, .. }: &PendingAttempt,
) -> Result<Rc<UpstreamConnection>, AttemptFailure> {
    let wanted = StreamParams {
        peer: lease.peer(),
        to: lease.peer().addr(),
        options: attempts.connect_options(r, request),
        keepalive: request.group.keepalive,
        head_size: request.settings.buffer_size,
        timeout: request.settings.timeouts.connect,
    };
    let pools = || TlsPools::of(&r.generation().disks);
    let stream = h2_pool::acquire_shared(&r.client().event_loop.upstreams, pool_key, wanted, pools).await?;
    Ok(Rc::new(UpstreamConnection::from_stream(stream)))
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

/// Records the bytes sent and received so far for the variables and the log.
fn record_traffic(r: &mut Request, connection: &UpstreamConnection) {
    if let Some(attempt) = r.upstream.current() {
        (attempt.sent, attempt.received) = connection.traffic();
    }
}

/// Sends the request and reads, whichever is possible, until the head is complete. The bytes read behind it are the input of the
/// exchange then.
async fn read_head<C: Codec>(
    r: &mut Request,
    exchange: &mut Exchange<C>,
    request: &UpstreamRequest<'_, C>,
) -> Result<(), SendError> {
    let event_loop = r.client().event_loop.clone();
    let Exchange { connection, sending, codec, input: rest, .. } = exchange;
    let settings = request.settings;
    // The read timeout starts when the request is sent, and is one span for the whole head (nginx: the same).
    let mut is_timed = false;
    let mut unsent = None;
    let mut hinted = 0;
    // Bytes behind the head are read with it: with a rate limit, or while memory is tight, no more than a head may have.
    let is_limited = request.response.is_some_and(|response| response.limit_rate.is_some());
    let max = || {
        if is_limited || memory::level() != memory::MemoryLevel::Plenty {
            settings.buffer_size
        } else {
            READ_SIZE
        }
    };
    poll_fn(|cx| {
        if unsent.is_none()
            && let Poll::Ready(Err(error)) = sending.poll(cx)
        {
            match error {
                // The server may have responded before it closed.
                SendError::Upstream(UpstreamFailure::Send(_)) => unsent = Some(error),
                error => return Poll::Ready(Err(error)),
            }
        }
        // The traffic is recorded for the log, in case the request is cancelled while it waits.
        record_traffic(r, connection);
        if !is_timed && sending.is_over() {
            connection.begin_reading(settings.timeouts.read);
            is_timed = true;
        }
        loop {
            let waited = match &unsent {
                // Everything that a stream received is in its queue by now.
                Some(_) if connection.stream().is_some() => Ok(()),
                // A socket may have bytes that the loop has not been notified of yet, or an end, which it is notified of, too.
                _ if is_timed => ready!(connection.poll_readable(cx)),
                _ => ready!(connection.poll_input(cx)),
            };
            let (read, input) = match waited.and_then(|()| read_some(&event_loop.buffers, connection, max()))
            {
                Ok(came) => came,
                // The failure to send came first.
                Err(failure) => return Poll::Ready(Err(unsent.take().unwrap_or(failure.into()))),
            };
            match read {
                ReadOutcome::Some => {}
                ReadOutcome::Nothing => match unsent.take_if(|_| connection.stream().is_some()) {
                    Some(failure) => return Poll::Ready(Err(failure)),
                    None => continue,
                },
                ReadOutcome::Closed => {
                    let failure = unsent.take().unwrap_or(SendError::Upstream(UpstreamFailure::Closed));
                    return Poll::Ready(Err(failure));
                }
            }
            let size = input.len();
            if let Some(behind) = parse_head(r, codec, input, request, &mut hinted)? {
                *rest = behind;
                return Poll::Ready(Ok(()));
            }
            // Interim responses, or an application's error output, may be of any length in front of a head.
            if !event_loop.budget.may_copy(size) {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    })
    .await
}

/// Parses `input` up to the end of the head, and forwards early hints. Returns the bytes behind the head; `None` if it is not
/// complete. `hinted` counts the bytes of early hints.
fn parse_head<C: Codec>(
    r: &mut Request,
    codec: &mut C,
    mut input: Bytes,
    request: &UpstreamRequest<'_, C>,
    hinted: &mut usize,
) -> Result<Option<Bytes>, UpstreamFailure> {
    loop {
        let event = codec.read(&mut input, &mut r.upstream.answer);
        let warnings = std::mem::take(&mut r.upstream.answer.warnings);
        log_warnings(r, warnings, AttemptStage::ReadingHead);
        match event? {
            Event::NeedMore => return Ok(None),
            Event::Interim => {
                if let Some(response) = request.response {
                    early_hints::forward(r, response, request.settings.buffer_size, hinted);
                }
            }
            Event::Head => return Ok(Some(input)),
            Event::Body(_) | Event::End => {
                debug_assert!(false, "a codec returns the head first");
                return Ok(None);
            }
        }
    }
}
