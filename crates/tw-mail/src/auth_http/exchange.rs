//! Exchange with the auth server: a server of the group, a connection, the request and the response.

use std::borrow::Cow;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use tw_connect::failure::{AttemptFailure, AttemptStage, UpstreamFailure};
use tw_connect::group::now_ms;
use tw_connect::keepalive_pool::PoolKey;
use tw_connect::reading::read_some;
use tw_connect::upstream_tls::{TlsPools, UpstreamTls};
use tw_connect::{ReadOutcome, UpstreamConnection, queue, upstream_names};
use tw_core::session::Session;
use tw_log::{Level, Text};
use tw_net::ConnectOptions;
use tw_net::proxy_protocol::Addrs;
use tw_tls::certificate::CertificateFields;
use tw_tls::names;
use tw_upstream::{BalanceKey, KeyKind, Lease, PeerOutcome, PeerSelection};
use zeroize::Zeroizing;

use super::request::{self, ClientFacts, HttpVersion, ProxyFacts, RequestTarget, TlsFacts};
use super::response::{self, AuthResponse};
use super::settings::{AuthHttp, AuthTarget};
use crate::phases::in_time;
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
    let asked = in_time(until, try_servers(s, &settings, &target, until)).await;
    asked.unwrap_or_else(|| {
        let name = target.group.peers.name();
        let text = format!("auth http server {name} timed out (110: Connection timed out)");
        Err(AuthFailure::Response(text))
    })
}

/// Asks one server after the other until one has answered.
async fn try_servers(
    s: &MailSession,
    settings: &AuthHttp,
    target: &AuthTarget,
    until: Instant,
) -> Result<AuthResponse, AuthFailure> {
    let group = &target.group;
    resolve_names(s, target).await?;
    let key = match group.peers.method().key_kind() {
        KeyKind::Nothing => BalanceKey::None,
        KeyKind::Client => {
            s.client_addr().inet().map_or(BalanceKey::None, |addr| BalanceKey::Client(addr.ip()))
        }
        KeyKind::Text => BalanceKey::Text(group.key.as_ref().map_or_else(Vec::new, |key| key.value(s))),
    };
    let mut selection = group.peers.start_selection(key, None, 0);
    loop {
        let lease = select(s, target, &mut selection).await?;
        let name = lease.peer().text().to_owned();
        match attempt(s, settings, target, lease, until).await {
            Ok(response) => return Ok(response),
            Err(ExchangeFailure::Response(text)) => {
                return Err(AuthFailure::Response(format!("auth http server {name} {text}")));
            }
            Err(ExchangeFailure::Attempt(failure)) => {
                if let Some(level) = failure.cause.level() {
                    s.log(level, format_args!("{}, auth http server {name}", failure.cause_line()));
                }
                if selection.tries_left() == 0 {
                    return Err(AuthFailure::Logged);
                }
            }
        }
    }
}

/// Line of a failure without the stage that requests of HTTP have.
trait CauseLine {
    fn cause_line(&self) -> String;
}

impl CauseLine for AttemptFailure {
    fn cause_line(&self) -> String {
        let line = self.to_string();
        let stage = self.stage.to_string();
        line.replacen(&stage, "", 1).trim_end().to_owned()
    }
}

async fn resolve_names(s: &MailSession, target: &AuthTarget) -> Result<(), AuthFailure> {
    let group = &target.group;
    if !group.peers.has_host_names() {
        return Ok(());
    }
    let resolving = group.resolving.as_ref().unwrap_or(&s.server().settings.resolving).clone();
    let pool = s.client.generation.disks.default_disk().pool().clone();
    let ready = upstream_names::ensure_addresses(&group.names, &group.peers, &resolving, &pool).await;
    ready.map_err(|failure| {
        s.log(Level::Error, format_args!("{}", failure.at(AttemptStage::Connecting).cause_line()));
        AuthFailure::Logged
    })
}

async fn select(
    s: &MailSession,
    target: &AuthTarget,
    selection: &mut PeerSelection,
) -> Result<Lease, AuthFailure> {
    let group = &target.group;
    let random = &s.event_loop().upstreams.random;
    let (selected, _) = queue::select(&group.peers, group.queue, selection, random).await;
    selected.map_err(|failure| {
        let name = group.peers.name();
        let line = failure.at(AttemptStage::Connecting).cause_line();
        s.log(Level::Error, format_args!("{line}, auth http server {name}"));
        AuthFailure::Logged
    })
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
    };
    let upstreams = s.event_loop().upstreams.clone();
    let idle = (keep.connections > 0).then(|| upstreams.idle.take(&owner, lease.peer())).flatten();
    let version = if keep.connections > 0 { HttpVersion::Http11 } else { HttpVersion::Http10 };
    let request = make_request(s, settings, target, version);
    if let Some(connection) = idle {
        // An idle connection that turns out to be closed says nothing about the server.
        if let Ok(response) = exchange(s, &connection, &request).await {
            return Ok(finish(s, response, (connection, owner), lease, target));
        }
    }
    let opened = open(s, &lease, secured.as_ref(), until).await;
    let connection = match opened {
        Ok(connection) => Rc::new(connection),
        Err(failure) => {
            end_lease(lease, &failure);
            return Err(ExchangeFailure::Attempt(failure));
        }
    };
    lease.connected(now_ms());
    match exchange(s, &connection, &request).await {
        Ok(response) => Ok(finish(s, response, (connection, owner), lease, target)),
        Err(failure) => {
            if let ExchangeFailure::Attempt(failure) = &failure {
                end_lease(lease, failure);
            }
            Err(failure)
        }
    }
}

/// Ends the lease of a failed attempt.
fn end_lease(lease: Lease, failure: &AttemptFailure) {
    if failure.cause.is_local() {
        return drop(lease);
    }
    // A server that is disabled now is said by the group's metrics.
    let _ = lease.done(PeerOutcome::Failed, now_ms());
}

async fn open(
    s: &MailSession,
    lease: &Lease,
    secured: Option<&UpstreamTls>,
    until: Instant,
) -> Result<UpstreamConnection, AttemptFailure> {
    let core = &s.event_loop().core;
    let options = ConnectOptions::default();
    let left = until.saturating_duration_since(tw_rt::clock::now());
    let pools = secured.map(|_| TlsPools::of(&s.client.generation.disks));
    UpstreamConnection::open(core, lease.peer().addr(), &options, left, secured.zip(pools)).await
}

/// Ends a successful attempt: the connection is kept if it can be used again.
fn finish(
    s: &MailSession,
    (response, is_reusable): (AuthResponse, Reuse),
    (connection, owner): (Rc<UpstreamConnection>, PoolKey),
    lease: Lease,
    target: &AuthTarget,
) -> AuthResponse {
    connection.requests.set(connection.requests.get() + 1);
    let peer = lease.peer().id();
    if is_reusable == Reuse::Yes {
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

/// Sends a request and reads the response.
async fn exchange(
    s: &MailSession,
    connection: &UpstreamConnection,
    request: &Secret,
) -> Result<(AuthResponse, Reuse), ExchangeFailure> {
    let failed = |stage| move |cause: UpstreamFailure| ExchangeFailure::Attempt(cause.at(stage));
    let mut rest = request.bytes();
    while !rest.is_empty() {
        match connection.write_now(rest).map_err(failed(AttemptStage::Sending))? {
            // The time of the whole exchange is limited.
            0 => connection.writable(Duration::MAX).await.map_err(failed(AttemptStage::Sending))?,
            count => rest = rest.get(count..).unwrap_or_default(),
        }
    }
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
        receive(s, connection, &mut received).await?;
    };
    let head = received.get(..head_len).unwrap_or_default();
    let parsed = response::parse(head).map_err(|error| ExchangeFailure::Response(error.to_string()))?;
    let Some(body_len) = parsed.body_len.filter(|len| *len <= RESPONSE_MAX - head_len) else {
        return Ok((parsed, Reuse::No));
    };
    // A body that does not come at once costs the connection, not the login.
    let mut reuse = Reuse::Yes;
    while received.len() < head_len + body_len {
        if receive(s, connection, &mut received).await.is_err() {
            reuse = Reuse::No;
            break;
        }
    }
    let is_exact = received.len() == head_len + body_len;
    Ok((parsed, if is_exact { reuse } else { Reuse::No }))
}

/// Appends bytes of the auth server.
async fn receive(
    s: &MailSession,
    connection: &UpstreamConnection,
    received: &mut Vec<u8>,
) -> Result<(), ExchangeFailure> {
    let failed = |cause: UpstreamFailure| ExchangeFailure::Attempt(cause.at(AttemptStage::ReadingHead));
    loop {
        let room = READ_SIZE.min(RESPONSE_MAX.saturating_sub(received.len()));
        let (outcome, bytes) = read_some(&s.event_loop().buffers, connection, room.max(1)).map_err(failed)?;
        received.extend_from_slice(&bytes);
        match outcome {
            ReadOutcome::Closed if bytes.is_empty() => return Err(failed(UpstreamFailure::Closed)),
            ReadOutcome::Some | ReadOutcome::Closed => return Ok(()),
            ReadOutcome::Nothing => {
                poll_fn(|cx| match connection.poll_input(cx) {
                    Poll::Ready(ready) => Poll::Ready(ready),
                    Poll::Pending => Poll::Pending,
                })
                .await
                .map_err(failed)?;
            }
        }
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
