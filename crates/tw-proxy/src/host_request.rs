//! Requests to a host that is known only while requests are served, such as those of scripts: its addresses are looked up, a forward proxy
//! may be in between, and connections may be kept.
//!
//! ```text
//! kept connection ──────────────────────────────────────────────┐
//! resolver ─► connection to the host ───────────────────────────┼─► exchange ─► kept, if both sides agree
//!          └► connection to the proxy ─► CONNECT, if secured ───┘
//! ```

use std::rc::Rc;

use bytes::Bytes;
use tw_connect::Resolving;
use tw_connect::failure::{AttemptFailure, AttemptStage, UpstreamFailure};
use tw_connect::keepalive_pool::{HostKey, KeepaliveSettings, PoolKey};
use tw_connect::upstream_connection::UpstreamConnection;
use tw_connect::upstream_tls::{TlsPools, UpstreamTls};
use tw_http::Method;
use tw_net::{Addr, ConnectOptions};
use tw_request::event_loop::Loop;

use super::codec::Codec;
use super::codec::http1::Http1Codec;
use super::own_request::{OwnRequest, OwnResponse, exchange};

/// Host of one request.
pub struct HostTarget {
    /// Name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// TLS of the connection.
    pub secured: Option<UpstreamTls>,
    /// Proxy that the request goes through.
    pub proxy: Option<ForwardProxy>,
    /// Connections that are kept; `None` if each request opens one.
    pub keepalive: Option<HostKeepalive>,
    /// Method of the request.
    pub method: Method,
    /// Bytes of the head of the response.
    pub head_max: usize,
}

/// Forward proxy. A request that is not secured has to name its host in its target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForwardProxy {
    /// Name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Header fields for the proxy in lines, such as `Proxy-Authorization`.
    pub fields: String,
}

/// Connections that are kept for later requests.
#[derive(Debug, Clone)]
pub struct HostKeepalive {
    /// Owner of the connections.
    pub owner: PoolKey,
    /// Number of connections, and the time for which they are kept.
    pub settings: KeepaliveSettings,
}

/// Sends a request to the first address of its host that takes one.
///
/// # Errors
/// No address, no connection, or no response, in words for the script that asked.
pub async fn send_to_host(
    event_loop: &Rc<Loop>,
    resolving: &Resolving,
    target: &HostTarget,
    request: OwnRequest,
) -> Result<OwnResponse, String> {
    let total = request.total;
    let late = |_| Err("read timed out: the response has not ended".to_owned());
    tw_rt::time::timeout(total, send(event_loop, resolving, target, request)).await.unwrap_or_else(late)
}

async fn send(
    event_loop: &Rc<Loop>,
    resolving: &Resolving,
    target: &HostTarget,
    request: OwnRequest,
) -> Result<OwnResponse, String> {
    if let Some(connection) = target.take_kept(event_loop) {
        match ask(event_loop, target, &connection, request.clone()).await {
            // The server may close a connection that waits at any time.
            Err(failure) if is_stale(&failure, &connection) && target.method.is_idempotent() => {}
            answered => return answered.map_err(|failure| error_text(&failure)),
        }
    }
    let connection = Rc::new(connect(event_loop, resolving, target, &request).await?);
    ask(event_loop, target, &connection, request).await.map_err(|failure| error_text(&failure))
}

/// Returns true if the server has closed a kept connection before it has answered.
fn is_stale(failure: &AttemptFailure, connection: &UpstreamConnection) -> bool {
    let is_end = matches!(
        failure.cause,
        UpstreamFailure::Send(_) | UpstreamFailure::Receive(_) | UpstreamFailure::Closed
    );
    is_end && connection.received.get() == 0
}

/// Sends a request on a connection, and keeps that for the next one.
async fn ask(
    event_loop: &Rc<Loop>,
    target: &HostTarget,
    connection: &Rc<UpstreamConnection>,
    request: OwnRequest,
) -> Result<OwnResponse, AttemptFailure> {
    connection.received.set(0);
    let mut codec = Http1Codec::new(target.method, target.head_max, false);
    let response = exchange(event_loop, connection, &mut codec, request, |_| true).await?;
    if codec.keeps_alive()
        && let Some(keepalive) = &target.keepalive
    {
        connection.requests.set(connection.requests.get() + 1);
        let HostKeepalive { owner, settings } = keepalive;
        event_loop.upstreams.keep_for_host(owner, target.key(), connection.clone(), settings);
    }
    Ok(response)
}

/// Connects to the host or to its proxy.
async fn connect(
    event_loop: &Rc<Loop>,
    resolving: &Resolving,
    target: &HostTarget,
    request: &OwnRequest,
) -> Result<UpstreamConnection, String> {
    let (host, port) = match &target.proxy {
        Some(proxy) => (&proxy.host, proxy.port),
        None => (&target.host, target.port),
    };
    let pool = event_loop.generation().disks.default_disk().pool().clone();
    let (service, timeout) = resolving.service(true, &pool).await;
    let addresses = service.addresses(host.as_bytes(), timeout).await;
    let addresses = addresses.map_err(|error| format!("\"{host}\" could not be resolved ({error})"))?;
    let mut failed = format!("connect failed: \"{host}\" has no address");
    for ip in addresses.iter() {
        let to = Addr::Inet((ip, port).into());
        match connect_to(event_loop, &to, target, request).await {
            Ok(connection) => return Ok(connection),
            Err(text) => failed = text,
        }
    }
    Err(failed)
}

/// Connects to one address.
async fn connect_to(
    event_loop: &Rc<Loop>,
    to: &Addr,
    target: &HostTarget,
    request: &OwnRequest,
) -> Result<UpstreamConnection, String> {
    let options = ConnectOptions::default();
    let pools = || TlsPools::of(&event_loop.generation().disks);
    let secured = target.secured.as_ref();
    if target.proxy.is_none() || secured.is_none() {
        let secured = secured.map(|secured| (secured, pools()));
        let opened = UpstreamConnection::open(event_loop, to, &options, request.timeout, secured).await;
        return opened.map_err(|failure| error_text(&failure));
    }
    let connection = UpstreamConnection::open(event_loop, to, &options, request.timeout, None).await;
    let connection = connection.map_err(|failure| error_text(&failure))?;
    open_tunnel(event_loop, &connection, target, request).await?;
    let Some(secured) = secured else { return Ok(connection) };
    let shaken = connection.secure(secured, &pools(), request.timeout).await;
    shaken.map_err(|failure| error_text(&failure))
}

/// Has the proxy make a tunnel of the connection (RFC 9110 section 9.3.6).
async fn open_tunnel(
    event_loop: &Rc<Loop>,
    connection: &UpstreamConnection,
    target: &HostTarget,
    request: &OwnRequest,
) -> Result<(), String> {
    let host = match target.host.contains(':') {
        true => format!("[{}]:{}", target.host, target.port),
        false => format!("{}:{}", target.host, target.port),
    };
    let fields = target.proxy.as_ref().map_or("", |proxy| &proxy.fields);
    let head = format!("CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n");
    let order = OwnRequest { head: head.into(), body: Bytes::new(), size_max: 0, ..request.clone() };
    let mut codec = Http1Codec::new(Method::Connect, target.head_max, false);
    let answered = exchange(event_loop, connection, &mut codec, order, |_| false).await;
    match answered.map_err(|failure| error_text(&failure))?.head.status {
        200..=299 => Ok(()),
        status => Err(format!("proxy CONNECT failed with status {status}")),
    }
}

impl HostTarget {
    fn key(&self) -> HostKey {
        let proxy = self.proxy.as_ref();
        HostKey {
            host: self.host.clone(),
            port: self.port,
            secured: self.secured.clone(),
            proxy: proxy.map(|proxy| (proxy.host.clone(), proxy.port, proxy.fields.clone())),
        }
    }

    fn take_kept(&self, event_loop: &Loop) -> Option<Rc<UpstreamConnection>> {
        let keepalive = self.keepalive.as_ref()?;
        event_loop.upstreams.idle.take_for_host(&keepalive.owner, &self.key())
    }
}

/// Failure in the words that scripts of njs know, with details behind them.
fn error_text(failure: &AttemptFailure) -> String {
    let cause = &failure.cause;
    match (failure.stage, cause) {
        (AttemptStage::Connecting | AttemptStage::Handshaking, _) => format!("connect failed: {failure}"),
        (_, UpstreamFailure::SendTimeout) => "write timed out".to_owned(),
        (_, UpstreamFailure::ReceiveTimeout) => "read timed out".to_owned(),
        (_, UpstreamFailure::Closed) => "prematurely closed connection".to_owned(),
        (_, UpstreamFailure::Send(error)) => format!("write failed: {error}"),
        (_, UpstreamFailure::Receive(error)) => format!("read failed: {error}"),
        (_, UpstreamFailure::Invalid(text)) => text.to_string(),
        _ => failure.to_string(),
    }
}
