//! Exchange with the auth server: a server of the group, a connection, the request and the response.

use std::borrow::Cow;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tw_connect::failure::{AttemptFailure, AttemptStage, UpstreamFailure};
use tw_connect::group::now_ms;
use tw_connect::keepalive_pool::PoolKey;
use tw_connect::upstream_tls::{TlsPools, UpstreamTls};
use tw_connect::{AttemptLimits, AttemptingSession, UpstreamConnection, attempts};
use tw_log::{Level, Text};
use tw_net::ConnectOptions;
use tw_net::proxy_protocol::Addrs;
use tw_rt::Deadline;
use tw_tls::certificate::CertificateFields;
use tw_tls::names;
use tw_upstream::{Lease, PeerOutcome};
use zeroize::Zeroizing;

use super::request::{self, ClientFacts, HttpVersion, ProxyFacts, RequestTarget, TlsFacts};
use super::response::{self, AuthResponse};
use super::settings::{AuthHttp, AuthTarget};
use crate::secret::Secret;
use crate::session::MailSession;

tw_base::limits! {
    /// Limits of this module.
    pub(super) const LIMITS;

    /// Bytes of a response of the auth server.
    const RESPONSE_MAX: usize = 16 << 10, bytes, "the client gets an internal error";
}

/// Bytes read of the auth server at once.
const READ_SIZE: usize = 4096;

/// Reason why the auth server did not decide.
#[derive(Debug)]
pub(crate) enum AuthFailure {
    /// The attempt failed; the reason is logged.
    Logged,
    /// The response cannot be used.
    Response(String),
}

impl AuthFailure {
    /// Line for the log that is still missing.
    pub(crate) fn line(&self) -> Option<(Level, Cow<'_, str>)> {
        match self {
            Self::Logged => None,
            Self::Response(text) => Some((Level::Error, text.into())),
        }
    }
}

/// Failure of one attempt.
enum ExchangeFailure {
    /// Connection, or time.
    Attempt(AttemptFailure),
    /// Response that cannot be read: the end of a line of the log.
    Response(String),
}

/// Asks the auth server about the login of a session.
pub(crate) async fn ask(s: &mut MailSession) -> Result<AuthResponse, AuthFailure> {
    let settings = s.server().auth_http.clone();
    let Some(target) = settings.target.clone() else { return Err(AuthFailure::Logged) };
    let now = tw_rt::clock::now();
    let until = now.checked_add(settings.timeout).unwrap_or(now);
    let mut deadline = Deadline::new();
    deadline.set_at(until);
    let asked = deadline.guard(try_servers(s, &settings, &target, until)).await;
    asked.unwrap_or_else(|_| {
        let name = target.group.peers.name();
        let text = format!("auth http server {name} timed out (110: Connection timed out)");
        Err(AuthFailure::Response(text))
    })
}

/// Asks one server after the other until one has answered.
async fn try_servers(
    s: &mut MailSession,
    settings: &AuthHttp,
    target: &AuthTarget,
    until: Instant,
) -> Result<AuthResponse, AuthFailure> {
    let group = &target.group;
    let event_loop = s.event_loop().clone();
    let failed = |s: &mut MailSession, failure: AttemptFailure| {
        s.record_failure(&failure);
        AuthFailure::Logged
    };
    if group.peers.has_host_names() {
        let resolving = s.server().settings.resolving.clone();
        let pool = s.client.generation.disks.default_disk().pool().clone();
        let ready = attempts::resolve_names(s, group, &resolving, &pool).await;
        ready.map_err(|failure| failed(s, failure))?;
    }
    let limits = AttemptLimits { tries: 0, timeout: Duration::ZERO };
    let mut selection = attempts::begin_selection(s, group, &limits);
    loop {
        let selected = attempts::select_peer(s, group, &mut selection, &event_loop.upstreams.random).await;
        let lease = selected.map_err(|failure| failed(s, failure))?;
        let name = lease.peer().text().to_owned();
        match attempt(s, settings, target, lease, until).await {
            Ok(response) => return Ok(response),
            Err(ExchangeFailure::Response(text)) => {
                return Err(AuthFailure::Response(format!("auth http server {name} {text}")));
            }
            Err(ExchangeFailure::Attempt(failure)) => {
                let failure = failed(s, failure);
                if selection.tries_left() == 0 {
                    return Err(failure);
                }
            }
        }
    }
}

/// Asks one server, on an idle connection if there is one. A connection that the server has closed meanwhile is replaced.
async fn attempt(
    s: &MailSession,
    settings: &AuthHttp,
    target: &AuthTarget,
    mut lease: Lease,
    until: Instant,
) -> Result<AuthResponse, ExchangeFailure> {
    let secured = settings.tls.for_host(s, &target.host).filter(|_| target.is_secured);
    let keep = target.group.keepalive;
    let owner = PoolKey {
        group: target.group.peers.name().clone(),
        location: if keep.is_local { target.number } else { 0 },
        secured: secured.clone(),
        local: None,
    };
    let upstreams = s.event_loop().upstreams.clone();
    let idle = (keep.connections > 0).then(|| upstreams.idle.take(&owner, lease.peer())).flatten();
    let version = if keep.connections > 0 { HttpVersion::Http11 } else { HttpVersion::Http10 };
    let request = make_request(s, settings, target, version);
    if let Some(connection) = idle {
        // An idle connection that turns out to be closed says nothing about the server.
        if let Ok(exchanged) = exchange(&connection, &request).await {
            return Ok(finish(s, exchanged, connection, owner, lease, target));
        }
    }
    let opened = open(s, &lease, secured.as_ref(), until).await;
    let connection = match opened {
        Ok(connection) => Rc::new(connection),
        Err(failure) => {
            attempts::end_lease(s, lease, &failure, PeerOutcome::Failed);
            return Err(ExchangeFailure::Attempt(failure));
        }
    };
    lease.connected(now_ms());
    match exchange(&connection, &request).await {
        Ok(exchanged) => Ok(finish(s, exchanged, connection, owner, lease, target)),
        Err(failure) => {
            if let ExchangeFailure::Attempt(failure) = &failure {
                attempts::end_lease(s, lease, failure, PeerOutcome::Failed);
            }
            Err(failure)
        }
    }
}

async fn open(
    s: &MailSession,
    lease: &Lease,
    secured: Option<&UpstreamTls>,
    until: Instant,
) -> Result<UpstreamConnection, AttemptFailure> {
    let core = &s.event_loop().core;
    let options = ConnectOptions::default();
    let remaining = until.saturating_duration_since(tw_rt::clock::now());
    let pools = secured.map(|_| TlsPools::of(&s.client.generation.disks));
    UpstreamConnection::open(core, lease.peer().addr(), &options, remaining, secured.zip(pools)).await
}

/// Ends a successful attempt: the connection is kept if it can be used again.
fn finish(
    s: &MailSession,
    exchanged: Exchanged,
    connection: Rc<UpstreamConnection>,
    owner: PoolKey,
    mut lease: Lease,
    target: &AuthTarget,
) -> AuthResponse {
    let Exchanged { response, reuse, sent, received } = exchanged;
    lease.header(now_ms());
    lease.status(response.http_status);
    lease.sent(sent as u64);
    lease.received(received as u64);
    connection.requests.set(connection.requests.get() + 1);
    let peer = lease.peer().id();
    if reuse == Reuse::Yes {
        s.event_loop().upstreams.keep(&owner, peer, connection, &target.group.keepalive);
    }
    let _ = lease.done(PeerOutcome::Success, now_ms());
    response
}

/// Further use of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reuse {
    /// None: the connection closes.
    No,
    /// All of the response was read.
    Yes,
}

/// A response with the facts of its exchange.
struct Exchanged {
    response: AuthResponse,
    reuse: Reuse,
    /// Bytes of the request.
    sent: usize,
    /// Bytes of the response.
    received: usize,
}

/// Sends a request and reads the response.
async fn exchange(connection: &UpstreamConnection, request: &Secret) -> Result<Exchanged, ExchangeFailure> {
    let sent = request.len();
    let failed = |stage| move |cause: UpstreamFailure| ExchangeFailure::Attempt(cause.at(stage));
    // The time of the whole exchange is limited.
    connection.send_all(request.bytes()).await.map_err(failed(AttemptStage::Sending))?;
    // The response may contain a password.
    let mut received = Zeroizing::new(Vec::with_capacity(RESPONSE_MAX));
    let mut scanned = 0;
    let head_len = loop {
        if let Some(len) = response::head_len(&received, &mut scanned) {
            break len;
        }
        if received.len() >= RESPONSE_MAX {
            return Err(ExchangeFailure::Response("sent too big response".to_owned()));
        }
        receive(connection, &mut received, RESPONSE_MAX).await.map_err(failed(AttemptStage::ReadingHead))?;
    };
    let head = received.get(..head_len).unwrap_or_default();
    let parsed = response::parse(head).map_err(|error| ExchangeFailure::Response(error.to_string()))?;
    let Some(body_len) = parsed.body_len.filter(|len| *len <= RESPONSE_MAX - head_len) else {
        return Ok(Exchanged { response: parsed, reuse: Reuse::No, sent, received: received.len() });
    };
    // A body that does not come at once costs the connection, not the login.
    let mut reuse = Reuse::Yes;
    while received.len() < head_len + body_len {
        if receive(connection, &mut received, RESPONSE_MAX).await.is_err() {
            reuse = Reuse::No;
            break;
        }
    }
    if received.len() != head_len + body_len {
        reuse = Reuse::No;
    }
    Ok(Exchanged { response: parsed, reuse, sent, received: received.len() })
}

/// Appends bytes of the auth server, up to `max` in all. They go nowhere else: a response may contain a password.
pub(crate) async fn receive(
    connection: &UpstreamConnection,
    received: &mut Vec<u8>,
    max: usize,
) -> Result<(), UpstreamFailure> {
    let Some(transport) = connection.transport() else { return Err(UpstreamFailure::Closed) };
    let len = received.len();
    loop {
        received.resize((len + READ_SIZE).min(max), 0);
        let read = transport.try_read_into(received.get_mut(len..).unwrap_or_default());
        received.truncate(len + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => return Err(UpstreamFailure::Closed),
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(UpstreamFailure::Receive(error)),
        }
        poll_fn(|cx| connection.poll_input(cx)).await?;
    }
}

/// Makes the request for the login of a session.
fn make_request(s: &MailSession, settings: &AuthHttp, target: &AuthTarget, version: HttpVersion) -> Secret {
    let facts = ClientFacts {
        address: s.client.addr_text().to_owned(),
        host: s.host.clone(),
        attempt: s.attempts,
        proxy: s.client.proxy.get().and_then(|header| header.addrs.as_ref()).map(proxy_facts),
        tls: tls_facts(s, settings.passes_certificate),
    };
    let target = RequestTarget { version, uri: &target.uri, host: &target.host, headers: &settings.headers };
    request::write(&target, s.server().protocol, &s.login, &facts)
}

fn proxy_facts(addrs: &Addrs) -> ProxyFacts {
    ProxyFacts {
        client: (addrs.src.ip().to_string(), addrs.src.port()),
        server: (addrs.dst.ip().to_string(), addrs.dst.port()),
    }
}

fn tls_facts(s: &MailSession, passes_certificate: bool) -> Option<TlsFacts> {
    let tls = s.client.tls()?;
    let mut facts = TlsFacts {
        protocol: tls.version.map(|version| names::protocol(version).to_string()).unwrap_or_default(),
        cipher: tls.suite.map(|suite| names::suite(suite).to_string()).unwrap_or_default(),
        ..TlsFacts::default()
    };
    if s.server().ssl.clients.is_none() {
        return Some(facts);
    }
    let Some(client) = &tls.client else {
        facts.verify = "NONE".to_owned();
        return Some(facts);
    };
    facts.verify = match client.verdict {
        tw_tls::Verdict::Good => "SUCCESS".to_owned(),
        verdict => format!("FAILED:{verdict}"),
    };
    if let Some(fields) = CertificateFields::of(&client.der) {
        facts.subject = fields.subject();
        facts.issuer = fields.issuer();
        facts.serial = fields.serial();
        facts.fingerprint = fields.fingerprint();
        if passes_certificate {
            facts.certificate = fields.pem();
        }
    }
    Some(facts)
}

/// Text of an address that the auth server has sent, for the log.
pub(crate) fn shown(text: &[u8]) -> String {
    Text(text).to_string()
}
