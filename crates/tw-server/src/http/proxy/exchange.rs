//! From a request to the head of a response: one server after another is asked, until one answers or nobody is left.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Instant;

use bytes::Bytes;
use tw_base::Limit;
use tw_http::Method;
use tw_log::Level;
use tw_net::{ConnectOptions, Transport};
use tw_upstream::{BalanceKey, KeyKind, Lease, PeerChange, PeerOutcome, PeerSelection};

use super::bind::{Bind, bind_address};
use super::codec::{Codec, Event, Framing, Warning};
use super::failure::{Stage, UpstreamFailure};
use super::h2_pool;
use super::keepalive_pool::{KeepAlive, PoolKey};
use super::queue::{self, Queue};
use super::resolve::{self, Names};
use super::response;
use super::retry_conditions::RetryOn;
use super::send_request::{Lending, Outgoing, Sending, Unsent};
use super::settings::ProxySettings;
use super::sticky::{self, Belonging, Learning, Sticky};
use super::upstream_connection::{Read, UpstreamConnection};
use super::upstream_tls::{TlsPools, UpstreamTls};
use crate::config::location::Resolving;
use crate::config::upstream::StateFile;
use crate::event_loop::Loop;
use crate::http::application::INPUT_SIZE;
use crate::http::cache::Lookup;
use crate::http::plan::Outcome;
use crate::http::request::Request;
use crate::http::request_body::{self, BodyError, Source};
use crate::http::upstream_state::AttemptPeer;
use crate::vars::Template;

/// How often a request comes again that servers say they had no look at, beyond its tries.
const REFUSALS_MAX: u32 = 3;

pub(crate) const LIMITS: &[Limit] = &[Limit::count(
    "REFUSALS_MAX",
    REFUSALS_MAX as u64,
    "Times that a request is sent again for free, because an upstream server says that it had no look at it (HTTP/2)",
    "each further time counts as one of its tries",
)];

/// Bytes read of a connection at once.
pub(super) const READ_SIZE: usize = INPUT_SIZE;

/// The servers that requests may go to, and how.
pub struct UpstreamGroup {
    /// Who is asked next.
    pub peers: Arc<tw_upstream::Group>,
    /// `keepalive` and its kin.
    pub keepalive: KeepAlive,
    /// The key of `hash`.
    pub key: Option<Template>,
    /// Servers whose addresses are asked for.
    pub names: Names,
    /// Who is asked for them: `resolver` of the group. `None`: of the location.
    pub resolving: Option<Resolving>,
    /// `sticky`
    pub sticky: Option<Sticky>,
    /// `queue`
    pub queue: Option<Queue>,
    /// `state`
    pub state: Option<Arc<StateFile>>,
    /// Whether an `upstream` names it.
    pub is_named: bool,
}

impl UpstreamGroup {
    /// These servers, with nothing but the defaults.
    pub(crate) fn plain(peers: Arc<tw_upstream::Group>) -> Self {
        let (keepalive, names) = (KeepAlive::default(), Names::default());
        Self {
            peers,
            keepalive,
            key: None,
            names,
            resolving: None,
            sticky: None,
            queue: None,
            state: None,
            is_named: false,
        }
    }
}

/// A request to be passed on.
pub struct UpstreamRequest<'a, C> {
    /// How.
    pub settings: &'a Arc<ProxySettings>,
    /// To whom.
    pub group: Arc<UpstreamGroup>,
    /// How connections are secured, if they are.
    pub secured: Option<UpstreamTls>,
    /// For log lines: the scheme with `://`, and the path with arguments.
    pub url: (&'static str, Bytes),
    /// The head.
    pub head: Bytes,
    /// The body.
    pub body: RequestBody,
    /// How the body is framed.
    pub framing: Framing,
    /// Makes what is sent anew for each server, in the place of `head`, `body` and `framing` (`request_dynamic`).
    pub remake: Option<RequestBuilder<'a>>,
    /// Makes what reads one response.
    pub codec: C,
    /// What becomes of fields that name the upstream server.
    pub rewrite: &'a dyn RewriteFields,
    /// What a cache has to do with it.
    pub lookup: Option<Box<Lookup>>,
}

impl<'a, C> UpstreamRequest<'a, C> {
    /// The same, whose response is read by another codec.
    pub fn read_by<D>(self, codec: D) -> UpstreamRequest<'a, D> {
        let UpstreamRequest {
            settings,
            group,
            secured,
            url,
            head,
            body,
            framing,
            remake,
            rewrite,
            lookup,
            ..
        } = self;
        UpstreamRequest { settings, group, secured, url, head, body, framing, remake, codec, rewrite, lookup }
    }
}

/// Makes a request for the server that was chosen last; the error is the status of a request that cannot be sent.
pub type RequestBuilder<'a> = &'a dyn Fn(&Request) -> Result<BuiltRequest, u16>;

/// A request as it is sent.
pub struct BuiltRequest {
    /// The head.
    pub head: Bytes,
    /// The body.
    pub body: RequestBody,
    /// How the body is framed.
    pub framing: Framing,
}

/// The body of a request to an upstream server.
pub enum RequestBody {
    /// None.
    Nothing,
    /// The client's.
    Client,
    /// This one.
    Bytes(Bytes),
}

/// What a gateway knows of its upstream server: it changes fields of a response that name it, and tells it in keys.
pub trait RewriteFields {
    /// A `Location` or, with `is_refresh`, the URL in a `Refresh`. `None`: it stays as it is.
    fn location(&self, r: &Request, value: &[u8], is_refresh: bool) -> Option<Vec<u8>>;

    /// Appends the key of the response to `r` in a cache, where none is configured.
    fn key(&self, r: &Request, out: &mut Vec<u8>);

    /// A `Set-Cookie`. `None`: it stays as it is.
    fn cookie(&self, r: &Request, value: &[u8]) -> Option<Vec<u8>>;
}

/// An exchange whose response has begun.
pub(super) struct Exchange<C> {
    pub(super) connection: Rc<UpstreamConnection>,
    pub(super) lease: Lease,
    pub(super) codec: C,
    /// What was read and not looked at.
    pub(super) input: Bytes,
    pub(super) sending: Sending,
    pub(super) owner: PoolKey,
    pub(super) keepalive: KeepAlive,
    /// When the server was chosen.
    pub(super) begun: Instant,
    /// What is learned when it ends.
    pub(super) learning: Option<Learning>,
}

/// The server that is being asked, for whoever gives up meanwhile.
struct PendingAttempt {
    connection: Rc<UpstreamConnection>,
    /// The client's body, as far as it was taken.
    body: Lending,
}

impl PendingAttempt {
    /// Tells the request and the server what went to and fro.
    fn give_up(self, r: &mut Request) {
        let (sent, received) = self.connection.traffic();
        if let Some(attempt) = r.facts.upstream.current() {
            (attempt.sent, attempt.received) = (sent, received);
            if let AttemptPeer::Peer(peer) = &attempt.to {
                let counters = &peer.state().counters;
                counters.sent.add(sent);
                counters.received.add(received);
            }
        }
        if let Some(body) = self.body.take() {
            body.give_back(r);
        }
    }
}

/// Why there is no response.
enum Failed {
    /// One server has failed.
    Upstream { failure: UpstreamFailure, stage: Stage, lease: Option<Lease>, is_reused: bool, was_sent: bool },
    /// The client's body.
    Client(BodyError),
    /// There is no request that could be sent; the status tells.
    Unwritten(u16),
}

/// Passes `order` on: asks servers until one answers. Waits for them, and for the client's body.
pub async fn pass<C: Codec + Clone>(r: &mut Request, mut order: UpstreamRequest<'_, C>) -> Outcome {
    // DIFF(nginx): a client that asks for a tunnel asks no server behind this one for something.
    if r.method() == Method::Connect && !order.codec.opens_at_once() {
        return Outcome::Status(405);
    }
    r.facts.upstream.url = Some(order.url.clone());
    let lookup = order.lookup.take();
    // A response that is kept is not only for who has asked.
    let is_for_others = lookup.as_ref().is_some_and(|lookup| lookup.leads());
    let mut asked = None;
    // DIFF(nginx): a client that closes its side right behind a body which is not buffered is gone, too.
    let sought = if order.settings.ignore_client_abort || is_for_others {
        Ok(seek(r, &order, &mut asked).await)
    } else {
        let wire = r.wire().clone();
        // By reference: who waits has it once.
        wire.unless_gone(pin!(seek(r, &order, &mut asked))).await
    };
    sticky::set_cookie(r);
    match sought {
        Ok(Ok(exchange)) => response::respond(r, order.settings, order.rewrite, exchange, lookup),
        Ok(Err(Unanswered { status, failure })) => {
            match lookup.and_then(|lookup| lookup.instead(r, &order.settings.cache, failure)) {
                Some(ready) => response::ready(r, order.settings, order.rewrite, ready),
                None => Outcome::Status(status),
            }
        }
        Err(gone) => {
            if let Some(asked) = asked {
                asked.give_up(r);
            }
            if let Some(attempt) = r.facts.upstream.current() {
                attempt.end();
            }
            r.log(Level::Info, format_args!("{gone}, so upstream connection is closed too"));
            Outcome::Status(499)
        }
    }
}

/// Nobody has answered.
struct Unanswered {
    /// The status for the client.
    status: u16,
    /// Why, as `cache_use_stale` has it.
    failure: RetryOn,
}

/// What is looked for, and where from.
struct Search {
    looking: PeerSelection,
    belonging: Belonging,
    /// How connections are opened, if that was computed once for all (`bind`).
    socket: Option<ConnectOptions>,
}

/// Asks servers until one answers; `asked` is the one of the moment.
async fn seek<C: Codec + Clone>(
    r: &mut Request,
    order: &UpstreamRequest<'_, C>,
    asked: &mut Option<PendingAttempt>,
) -> Result<Exchange<C>, Unanswered> {
    let began = tw_rt::clock::now();
    if order.group.peers.has_host_names() {
        let named = Box::pin(name(r, order)).await;
        named.map_err(|status| Unanswered { status, failure: RetryOn::ERROR })?;
    }
    let sticky = order.group.sticky.as_ref();
    let mut search = Search {
        looking: begin(r, order),
        belonging: sticky.map(|sticky| sticky.belonging(r)).unwrap_or_default(),
        socket: order.settings.binds_once().then(|| connect_options(r, order.settings)),
    };
    let mut refusals = 0;
    loop {
        *asked = None;
        let answer = ask(r, order, &mut search, asked).await;
        let looking = &mut search.looking;
        let (failure, stage, lease, is_reused, was_sent) = match answer {
            Ok(mut exchange) => match refused(r, order, looking, began) {
                None => {
                    let belonging = search.belonging;
                    exchange.learning =
                        sticky.and_then(|sticky| sticky.learning(r, belonging, &exchange.lease));
                    return Ok(exchange);
                }
                Some(failure) => {
                    give_back(r, exchange.sending);
                    if let Some(attempt) = r.facts.upstream.current() {
                        (attempt.sent, attempt.received) = exchange.connection.traffic();
                    }
                    let is_reused = exchange.connection.is_reused();
                    (failure, Stage::ReadingHead, Some(exchange.lease), is_reused, true)
                }
            },
            Err(Failed::Client(error)) => {
                return Err(Unanswered { status: request_body::failed(r, error), failure: RetryOn::NONE });
            }
            Err(Failed::Unwritten(status)) => return Err(Unanswered { status, failure: RetryOn::NONE }),
            Err(Failed::Upstream { failure, stage, lease, is_reused, was_sent }) => {
                (failure, stage, lease, is_reused, was_sent)
            }
        };
        if let Some(attempt) = r.facts.upstream.current() {
            attempt.end();
            attempt.status = failure.status();
        }
        r.facts.upstream.note(failure.cause());
        if let Some(level) = failure.level() {
            r.log(level, format_args!("{}", failure.line(stage)));
        }
        let is_refused = matches!(failure, UpstreamFailure::Refused(_));
        let may_go_on = goes_on(r, order, &failure, was_sent && !is_refused, began);
        // DIFF(nginx): what a kept connection suffers while the server closes it is not held against the server.
        let is_stale = match is_refused {
            true => refusals < REFUSALS_MAX,
            false => is_reused && matches!(failure.next(), RetryOn::ERROR),
        };
        refusals += u32::from(is_refused);
        if let Some(lease) = lease {
            end(r, lease, &failure, is_stale, stage);
        }
        if is_stale {
            looking.grant_try();
        }
        if !may_go_on || looking.tries_left() == 0 {
            return Err(Unanswered { status: failure.status(), failure: failure.stale() });
        }
    }
}

/// Sees to it that servers with names have addresses.
async fn name<C>(r: &mut Request, order: &UpstreamRequest<'_, C>) -> Result<(), u16> {
    let own = order.group.resolving.as_ref();
    let resolving = own.unwrap_or(&r.plan().core.resolving).clone();
    let pool = r.generation().disks.default_disk().pool().clone();
    let Err(failure) = resolve::ready(&order.group.names, &order.group.peers, &resolving, &pool).await else {
        return Ok(());
    };
    // Of a name that is no group nobody was asked: `$upstream_*` say nothing of it.
    if own.is_some() {
        r.facts.upstream.begin(AttemptPeer::Nobody(order.group.peers.name().clone()), None);
        if let Some(attempt) = r.facts.upstream.current() {
            attempt.end();
            attempt.status = failure.status();
        }
    }
    r.log(Level::Error, format_args!("{}", failure.line(Stage::Connecting)));
    Err(failure.status())
}

/// Begins to look for a server.
fn begin<C>(r: &Request, order: &UpstreamRequest<'_, C>) -> PeerSelection {
    let mut text = Vec::new();
    if let Some(template) = &order.group.key {
        template.eval(r, &mut text);
    }
    let tries = u32::try_from(order.settings.next_tries).unwrap_or(u32::MAX);
    let key = match order.group.peers.method().key_kind() {
        KeyKind::Nothing => BalanceKey::None,
        KeyKind::Client => {
            r.client_addr().inet().map_or(BalanceKey::None, |addr| BalanceKey::Client(addr.ip()))
        }
        KeyKind::Text => BalanceKey::Text(text),
    };
    order.group.peers.start_selection(key, None, tries)
}

/// Ends a lease after `failure`.
fn end(r: &Request, lease: Lease, failure: &UpstreamFailure, is_stale: bool, stage: Stage) {
    if let Some(attempt) = r.facts.upstream.attempts.last() {
        lease.sent(attempt.sent);
        lease.received(attempt.received);
    }
    let end = match failure {
        _ if is_stale => return drop(lease),
        // Nobody has asked it.
        failure if failure.is_local() => return drop(lease),
        UpstreamFailure::Status(403 | 404) => PeerOutcome::Next,
        _ => PeerOutcome::Failed,
    };
    if let UpstreamFailure::Status(status) = failure {
        lease.status(*status);
    }
    if lease.done(end, now_ms()) == PeerChange::Disabled {
        r.log(Level::Warn, format_args!("upstream server temporarily disabled {stage}"));
    }
}

/// Whether a status sends the request to the next server.
fn refused<C>(
    r: &Request,
    order: &UpstreamRequest<'_, C>,
    looking: &PeerSelection,
    began: Instant,
) -> Option<UpstreamFailure> {
    let status = r.facts.upstream.answer.status;
    let failure = UpstreamFailure::Status(status);
    let is_named = failure.next() != RetryOn::NONE;
    (is_named && looking.tries_left() > 0 && goes_on(r, order, &failure, true, began)).then_some(failure)
}

/// Whether the request may go to another server after `failure`.
fn goes_on<C>(
    r: &Request,
    order: &UpstreamRequest<'_, C>,
    failure: &UpstreamFailure,
    was_sent: bool,
    began: Instant,
) -> bool {
    let settings = order.settings;
    let is_risky = was_sent && matches!(r.method(), Method::Post | Method::Lock | Method::Patch);
    let what = if is_risky { failure.next().and(RetryOn::NON_IDEMPOTENT) } else { failure.next() };
    // What was taken of a body that is not kept is gone, whether the server got it or not.
    let is_touched = was_sent || r.body.received() > 0;
    let is_spent = matches!(order.body, RequestBody::Client) && !r.body.is_kept() && is_touched;
    let is_late = !settings.next_timeout.is_zero()
        && tw_rt::clock::now().saturating_duration_since(began) >= settings.next_timeout;
    failure.next() != RetryOn::NONE && settings.next.has(what) && !is_spent && !is_late
}

/// Gives a body that was not sent to its end back to the request.
pub(super) fn give_back(r: &mut Request, sending: Sending) {
    if let Some(body) = sending.end() {
        body.give_back(r);
    }
}

/// Asks one server, until the head of its response is there.
async fn ask<C: Codec + Clone>(
    r: &mut Request,
    order: &UpstreamRequest<'_, C>,
    Search { looking, belonging, socket }: &mut Search,
    asked: &mut Option<PendingAttempt>,
) -> Result<Exchange<C>, Failed> {
    let settings = order.settings;
    let home = r.client().home.clone();
    let mut codec = order.codec.clone();
    let sticky = order.group.sticky.as_ref();
    if let Some(sticky) = sticky {
        sticky.bind(looking, belonging);
    }
    let (selected, queued) = queue::select(&order.group, looking, &home).await;
    let mut lease = match selected {
        Ok(lease) => lease,
        Err(failure) => {
            r.facts.upstream.begin(AttemptPeer::Nobody(order.group.peers.name().clone()), queued);
            return Err(Failed::Upstream {
                failure,
                stage: Stage::Connecting,
                lease: None,
                is_reused: false,
                was_sent: false,
            });
        }
    };
    let begun = tw_rt::clock::now();
    r.facts.upstream.begin(AttemptPeer::Peer(lease.peer().clone()), queued);
    if !settings.allows(r) {
        let (failure, stage) = (UpstreamFailure::Denied, Stage::Connecting);
        // That says nothing of the server.
        return Err(Failed::Upstream { failure, stage, lease: None, is_reused: false, was_sent: false });
    }
    if let Some(sticky) = sticky {
        sticky.chosen(r, &lease);
    }
    let made = match order.remake {
        Some(remake) => Some(remake(r).map_err(Failed::Unwritten)?),
        None => None,
    };
    let keepalive = order.group.keepalive;
    let owner = PoolKey {
        group: order.group.peers.name().clone(),
        location: if keepalive.is_local { settings.number } else { 0 },
        secured: match &order.secured {
            Some(_) if settings.names_each() => settings.secured(r, b""),
            secured => secured.clone(),
        },
    };
    let kept = match order.codec.is_carried() {
        // Apart: what it needs is no part of requests that need it not.
        true => {
            let options = socket.clone().unwrap_or_else(|| connect_options(r, settings));
            match Box::pin(h2_pool::acquire_stream(r, order, &home, &owner, &lease, options)).await {
                Ok(connection) => Some(connection),
                Err((failure, stage)) => {
                    let lease = Some(lease);
                    return Err(Failed::Upstream {
                        failure,
                        stage,
                        lease,
                        is_reused: false,
                        was_sent: false,
                    });
                }
            }
        }
        // What waits has carried another language.
        false if codec.opens_at_once() => None,
        false => home.app.idle.take(&owner, lease.peer()),
    };
    let connection = match kept {
        Some(connection) => connection,
        None => {
            let options = socket.clone().unwrap_or_else(|| connect_options(r, settings));
            // Apart: most requests find a connection, and are smaller without what this needs.
            let secured = owner.secured.as_ref().map(|secured| (secured, TlsPools::of(r.generation())));
            let opened = UpstreamConnection::open(
                &home,
                lease.peer().addr(),
                &options,
                settings.connect_timeout,
                secured,
            );
            match Box::pin(opened).await {
                Ok(connection) => Rc::new(connection),
                Err((failure, stage)) => {
                    return Err(Failed::Upstream {
                        failure,
                        stage,
                        lease: Some(lease),
                        is_reused: false,
                        was_sent: false,
                    });
                }
            }
        }
    };
    lease.connected(now_ms());
    connection.sent.set(0);
    connection.received.set(0);
    if let Some(attempt) = r.facts.upstream.current() {
        attempt.connected = Some(attempt.elapsed());
    }
    if codec.opens_at_once() {
        return Ok(at_once(
            r,
            Exchange {
                connection,
                lease,
                codec,
                input: Bytes::new(),
                sending: Sending::nothing(),
                owner,
                keepalive,
                begun,
                learning: None,
            },
        ));
    }
    let (head, body, framing) = match &made {
        Some(made) => (&made.head, &made.body, made.framing),
        None => (&order.head, &order.body, order.framing),
    };
    let body = match body {
        RequestBody::Nothing => Source::None,
        RequestBody::Client => r.body.take(),
        RequestBody::Bytes(bytes) => Source::of_bytes(bytes.clone()),
    };
    let outgoing = Outgoing {
        home: home.clone(),
        head: head.clone(),
        body,
        framing,
        terms: r.body_limits(),
        kept_max: r.plan().core.client_body.buffer_size,
        timeout: settings.send_timeout,
    };
    let is_reused = connection.is_reused();
    if codec.is_carried()
        && let Some(stream) = connection.stream()
    {
        codec.follow(stream);
    }
    let mut sending = match Sending::begin(&connection, outgoing) {
        Ok(sending) => sending,
        Err(failure) => {
            let (stage, was_sent) = (Stage::Sending, false);
            return Err(Failed::Upstream { failure, stage, lease: Some(lease), is_reused, was_sent });
        }
    };
    *asked = Some(PendingAttempt { connection: connection.clone(), body: sending.lending() });
    match read_head(r, &home, &connection, &mut sending, &mut codec, settings).await {
        Ok(input) => {
            lease.header(now_ms());
            if let Some(attempt) = r.facts.upstream.current() {
                attempt.header = Some(attempt.elapsed());
            }
            Ok(Exchange { connection, lease, codec, input, sending, owner, keepalive, begun, learning: None })
        }
        Err(unsent) => {
            let stage = if sending.is_sent() { Stage::ReadingHead } else { Stage::Sending };
            give_back(r, sending);
            if let Some(attempt) = r.facts.upstream.current() {
                (attempt.sent, attempt.received) = (connection.sent.get(), connection.received.get());
            }
            match unsent {
                Unsent::Client(error) => Err(Failed::Client(error)),
                Unsent::Upstream(failure) => {
                    let was_sent = connection.sent.get() > 0;
                    // What has begun to answer was there: nothing is wrong with how old the connection is.
                    let is_reused = is_reused && connection.received.get() == 0;
                    Err(Failed::Upstream { failure, stage, lease: Some(lease), is_reused, was_sent })
                }
            }
        }
    }
}

/// An exchange in which nothing is asked and nothing is awaited: the server is there, and that is the answer.
fn at_once<C: Codec>(r: &mut Request, mut exchange: Exchange<C>) -> Exchange<C> {
    let answer = &mut r.facts.upstream.answer;
    answer.status = 200;
    exchange.lease.header(now_ms());
    if let Some(attempt) = r.facts.upstream.current() {
        attempt.header = Some(attempt.elapsed());
    }
    exchange
}

/// Sends the request and reads, whichever is possible, until a head is there; what was read behind it is returned.
async fn read_head<C: Codec>(
    r: &mut Request,
    home: &Rc<Loop>,
    connection: &Rc<UpstreamConnection>,
    sending: &mut Sending,
    codec: &mut C,
    settings: &ProxySettings,
) -> Result<Bytes, Unsent> {
    // Until the request is sent, the server is not late; from then on it has one span for the whole head (nginx: the same).
    let mut reads = false;
    let mut unsent = None;
    let mut hinted = 0;
    // What is read with the head is read at once: where a rate is set, that is no more than a head may have.
    let max = if settings.limit_rate.is_some() { settings.buffer_size } else { READ_SIZE };
    poll_fn(|cx| {
        if unsent.is_none()
            && let Poll::Ready(Err(error)) = sending.poll(cx)
        {
            match error {
                // It may have answered before it closed.
                Unsent::Upstream(UpstreamFailure::Send(_)) => unsent = Some(error),
                error => return Poll::Ready(Err(error)),
            }
        }
        // For the log, if the request is cut while it waits.
        if let Some(attempt) = r.facts.upstream.current() {
            (attempt.sent, attempt.received) = (connection.sent.get(), connection.received.get());
        }
        if !reads && sending.is_over() {
            connection.begin_reading(settings.read_timeout);
            reads = true;
        }
        loop {
            let waited = match &unsent {
                // Of a stream, whatever came is there by now.
                Some(_) if connection.stream().is_some() => Ok(()),
                // So it is of a connection, but the loop may not have heard of it yet. It hears of the end, too.
                _ if reads => ready!(connection.poll_readable(cx)),
                _ => ready!(connection.poll_came(cx)),
            };
            let (read, mut input) = match waited.and_then(|()| read_some(home, connection, max)) {
                Ok(came) => came,
                // That it could not be sent came first.
                Err(failure) => return Poll::Ready(Err(unsent.take().unwrap_or(failure.into()))),
            };
            let came = input.len();
            match read {
                Read::Some => {}
                Read::Nothing => match unsent.take_if(|_| connection.stream().is_some()) {
                    Some(failure) => return Poll::Ready(Err(failure)),
                    None => continue,
                },
                Read::Closed => {
                    let failure = unsent.take().unwrap_or(Unsent::Upstream(UpstreamFailure::Closed));
                    return Poll::Ready(Err(failure));
                }
            }
            loop {
                let event = codec.read(&mut input, &mut r.facts.upstream.answer);
                let warnings = std::mem::take(&mut r.facts.upstream.answer.warnings);
                tell_remarks(r, warnings, Stage::ReadingHead);
                match event? {
                    Event::NeedMore => break,
                    Event::Interim => response::interim(r, settings, &mut hinted),
                    Event::Head => return Poll::Ready(Ok(input)),
                    Event::Body(_) | Event::End => {
                        debug_assert!(false, "a codec says the head first");
                        break;
                    }
                }
            }
            // What comes in front of a head, such as an application's complaints, may be any amount.
            if !home.budget.may_copy(came) {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    })
    .await
}

/// Writes what is to be said of a response to the error log.
pub(super) fn tell_remarks(r: &Request, warnings: Vec<Warning>, stage: Stage) {
    for Warning { level, text } in warnings {
        r.log(level, format_args!("{text} {stage}"));
    }
}

/// Reads what is there, about `max` bytes of it at most.
pub(super) fn read_some(
    home: &Loop,
    connection: &UpstreamConnection,
    max: usize,
) -> Result<(Read, Bytes), UpstreamFailure> {
    connection.read_by(|transport| {
        read_bytes(home, transport, max).map_err(|error| match error.kind() {
            // The connection was cut, which TLS tells from its end.
            // DIFF(nginx): that is no end of a response without a length.
            io::ErrorKind::UnexpectedEof => UpstreamFailure::Closed,
            _ => UpstreamFailure::Receive(error),
        })
    })
}

/// Reads what is there of a connection.
pub(super) fn read_bytes(home: &Loop, from: &Transport, max: usize) -> io::Result<(Read, Bytes)> {
    let is_limited = max < READ_SIZE;
    let mut buffer = if is_limited { Vec::with_capacity(max) } else { home.app.take_input() };
    let read = tw_rt::watch::operation("reading from an upstream server", || from.try_read(&mut buffer));
    let bytes = take_read(&mut buffer);
    if !is_limited {
        home.app.give_back_input(buffer);
    }
    match read {
        Ok(0) => Ok((Read::Closed, bytes)),
        Ok(_) => Ok((Read::Some, bytes)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok((Read::Nothing, bytes)),
        Err(error) => Err(error),
    }
}

/// Takes what was read: with its buffer if that is half full or more, else as a copy, because whoever kept little would keep
/// all of the buffer.
fn take_read(buffer: &mut Vec<u8>) -> Bytes {
    if buffer.len() < buffer.capacity() / 2 {
        return Bytes::copy_from_slice(buffer);
    }
    std::mem::take(buffer).into()
}

/// How connections are opened for `r`.
pub(super) fn connect_options(r: &Request, settings: &ProxySettings) -> ConnectOptions {
    let mut options = settings.socket.clone();
    if let Bind::From { address, is_transparent } = &settings.bind {
        let text = address.value(r);
        match bind_address(&text) {
            Some(address) => (options.bind, options.transparent) = (Some(address), *is_transparent),
            None if text.is_empty() => {}
            None => r.log(Level::Error, format_args!("invalid local address \"{}\"", tw_log::Text(&text))),
        }
    }
    options
}

/// The clock of groups, in milliseconds.
pub(super) fn now_ms() -> u64 {
    tw_rt::clock::millis()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_that_was_read_does_not_keep_its_buffer() {
        for (len, goes) in [(0, false), (1, false), (8193, false), (READ_SIZE / 2, true), (READ_SIZE, true)] {
            let mut buffer = vec![b'x'; len];
            buffer.reserve_exact(READ_SIZE - len);
            assert_eq!(take_read(&mut buffer), vec![b'x'; len], "{len}");
            assert_eq!(buffer.capacity() == 0, goes, "{len}");
        }
    }
}
