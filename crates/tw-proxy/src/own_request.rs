//! Requests of the server's own, such as OCSP and the export of traces: one request, and the content of its response. Every wait
//! has a limit.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tw_connect::Resolving;
use tw_connect::failure::{AttemptFailure, AttemptStage, UpstreamFailure};
use tw_connect::group::now_ms;
use tw_connect::h2_pool::{self, StreamEnd, StreamParams, UpstreamStream};
use tw_connect::keepalive_pool::{KeepaliveSettings, PoolKey};
use tw_connect::reading::{READ_SIZE, read_some};
use tw_connect::upstream_connection::{ReadOutcome, UpstreamConnection};
use tw_connect::upstream_tls::{TlsPools, UpstreamTls};
use tw_connect::{queue, upstream_names};
use tw_http::Method;
use tw_net::ConnectOptions;
use tw_upstream::{BalanceKey, Lease, PeerOutcome};

use super::codec::http1::Http1Codec;
use super::codec::http2::{Http2Codec, Trailers};
use super::codec::{Codec, Event};
use tw_request::config::upstream::UpstreamGroup;
use tw_request::event_loop::Loop;
use tw_request::upstream_response::UpstreamResponse;

/// Request, and limits of its response.
#[derive(Clone)]
pub struct OwnRequest {
    /// Head, in lines.
    pub head: Bytes,
    /// Body; its length is in the head.
    pub body: Bytes,
    /// Time of each wait.
    pub timeout: Duration,
    /// Time of the exchange on a connection.
    pub total: Duration,
    /// Bytes of the body of the response.
    pub size_max: usize,
}

/// Response, with its body as far as it was read.
pub struct OwnResponse {
    /// Head and trailers.
    pub head: UpstreamResponse,
    /// Body.
    pub body: Vec<u8>,
}

/// Protocol of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnProtocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2, as gRPC needs it.
    Http2,
}

/// Server of requests of the server's own.
pub struct OwnServer {
    /// Addresses of the server.
    pub group: Arc<UpstreamGroup>,
    /// TLS of the connections.
    pub secured: Option<UpstreamTls>,
    /// Protocol of the server.
    pub protocol: OwnProtocol,
    /// Bytes of the head of a response.
    pub head_max: usize,
}

impl OwnServer {
    /// Sends a request that is neither HEAD nor CONNECT on a connection that is kept for the next one. `resolving` is for a server that has a name.
    ///
    /// # Errors
    /// No connection, or no response.
    pub async fn send(
        &self,
        event_loop: &Rc<Loop>,
        resolving: &Resolving,
        request: OwnRequest,
    ) -> Result<OwnResponse, AttemptFailure> {
        let mut lease = self.select_peer(event_loop, resolving).await?;
        let sent = async {
            let connection = self.connect(event_loop, &lease, request.timeout).await?;
            lease.connected(now_ms());
            let mut codec = self.codec();
            let total = request.total;
            let answered = exchange(event_loop, &connection, &mut *codec, request, |_| true);
            let answered = tw_rt::time::timeout(total, answered).await;
            let late = |_| Err(UpstreamFailure::ReceiveTimeout.at(AttemptStage::ReadingHead));
            let response = answered.unwrap_or_else(late).inspect_err(|_| {
                // The connection may be dead: the next request opens another one.
                connection.stream().iter().for_each(|stream| stream.retire_connection());
            })?;
            lease.header(now_ms());
            if codec.keeps_alive() {
                connection.requests.set(connection.requests.get() + 1);
                let keepalive = self.keepalive();
                event_loop.upstreams.keep(&self.pool_key(), lease.peer().id(), connection, &keepalive);
            }
            Ok(response)
        };
        let sent = sent.await;
        let outcome = if sent.is_ok() { PeerOutcome::Success } else { PeerOutcome::Failed };
        lease.done(outcome, now_ms());
        sent
    }

    async fn select_peer(
        &self,
        event_loop: &Rc<Loop>,
        resolving: &Resolving,
    ) -> Result<Lease, AttemptFailure> {
        let group = &self.group;
        let failed = |failure: UpstreamFailure| failure.at(AttemptStage::Connecting);
        if group.peers.has_host_names() {
            let resolving = group.resolving.as_ref().unwrap_or(resolving);
            let pool = event_loop.generation().disks.default_disk().pool().clone();
            let ready = upstream_names::ensure_addresses(&group.names, &group.peers, resolving, &pool);
            ready.await.map_err(failed)?;
        }
        let mut selection = group.peers.start_selection(BalanceKey::None, None, 1);
        let random = &event_loop.upstreams.random;
        queue::select(&group.peers, group.queue, &mut selection, random).await.0.map_err(failed)
    }

    async fn connect(
        &self,
        event_loop: &Rc<Loop>,
        lease: &Lease,
        timeout: Duration,
    ) -> Result<Rc<UpstreamConnection>, AttemptFailure> {
        let key = self.pool_key();
        let to = lease.peer().addr();
        let options = ConnectOptions::default();
        let pools = || TlsPools::of(&event_loop.generation().disks);
        match self.protocol {
            OwnProtocol::Http2 => {
                let peer = lease.peer();
                let keepalive = self.keepalive();
                let head_size = self.head_max;
                let params = StreamParams { peer, to, options, keepalive, head_size, timeout };
                let stream = h2_pool::acquire_shared(&event_loop.upstreams, &key, params, pools).await?;
                Ok(Rc::new(UpstreamConnection::from_stream(stream)))
            }
            OwnProtocol::Http1 => {
                if let Some(connection) = event_loop.upstreams.idle.take(&key, lease.peer()) {
                    return Ok(connection);
                }
                let secured = key.secured.as_ref().map(|secured| (secured, pools()));
                UpstreamConnection::open(event_loop, to, &options, timeout, secured).await.map(Rc::new)
            }
        }
    }

    fn codec(&self) -> Box<dyn Codec> {
        match self.protocol {
            OwnProtocol::Http1 => Box::new(Http1Codec::new(Method::Post, self.head_max, false)),
            OwnProtocol::Http2 => Box::new(Http2Codec::new(Method::Post, self.head_max, Trailers::Forwarded)),
        }
    }

    /// One connection is enough: requests go one after another.
    fn keepalive(&self) -> KeepaliveSettings {
        KeepaliveSettings { connections: 1, ..self.group.keepalive }
    }

    fn pool_key(&self) -> PoolKey {
        PoolKey {
            group: self.group.peers.name().clone(),
            location: 0,
            secured: self.secured.clone(),
            local: None,
        }
    }
}

/// Sends a request on a connection, and reads the response; the body only if its status is one that `reads_body` names.
pub(super) async fn exchange(
    event_loop: &Rc<Loop>,
    connection: &UpstreamConnection,
    codec: &mut dyn Codec,
    request: OwnRequest,
    reads_body: fn(u16) -> bool,
) -> Result<OwnResponse, AttemptFailure> {
    let OwnRequest { head, body, timeout, size_max, .. } = request;
    let sent = match connection.stream() {
        Some(stream) => {
            codec.attach(stream);
            send_on_stream(stream, &head, body, timeout).await
        }
        None => send(connection, head, body, timeout).await,
    };
    sent.map_err(|failure| failure.at(AttemptStage::Sending))?;
    connection.begin_reading(timeout);
    let mut response = OwnResponse { head: UpstreamResponse::default(), body: Vec::new() };
    let mut stage = AttemptStage::ReadingHead;
    let failed = |stage| move |failure: UpstreamFailure| failure.at(stage);
    loop {
        let (read, mut input) =
            read_some(&event_loop.buffers, connection, READ_SIZE).map_err(failed(stage))?;
        match read {
            ReadOutcome::Some => {}
            ReadOutcome::Nothing => {
                poll_fn(|cx| connection.poll_readable(cx)).await.map_err(failed(stage))?;
                continue;
            }
            ReadOutcome::Closed => {
                codec.closed().map_err(failed(stage))?;
                return Ok(response);
            }
        }
        loop {
            match codec.read(&mut input, &mut response.head).map_err(failed(stage))? {
                Event::NeedMore => break,
                Event::Interim => {}
                Event::Head if !reads_body(response.head.status) => return Ok(response),
                Event::Head => stage = AttemptStage::ReadingBody,
                Event::Body(piece) if response.body.len() + piece.len() > size_max => {
                    let text = "responder sent too large an answer".into();
                    return Err(UpstreamFailure::Invalid(text).at(stage));
                }
                Event::Body(piece) => response.body.extend_from_slice(&piece),
                Event::End => return Ok(response),
            }
        }
    }
}

async fn send(
    connection: &UpstreamConnection,
    head: Bytes,
    body: Bytes,
    timeout: Duration,
) -> Result<(), UpstreamFailure> {
    for mut part in [head, body] {
        while !part.is_empty() {
            match connection.write_now(&part)? {
                0 => connection.writable(timeout).await?,
                written_len => part = part.slice(written_len..),
            }
        }
    }
    Ok(())
}

async fn send_on_stream(
    stream: &UpstreamStream,
    head: &[u8],
    mut body: Bytes,
    timeout: Duration,
) -> Result<(), UpstreamFailure> {
    if body.is_empty() {
        return stream.send_request(head, StreamEnd::WithThis);
    }
    stream.send_request(head, StreamEnd::NotYet)?;
    while !body.is_empty() {
        let room = stream.wait_for_capacity(body.len(), timeout).await?;
        let piece = body.split_to(room.min(body.len()));
        let end = if body.is_empty() { StreamEnd::WithThis } else { StreamEnd::NotYet };
        stream.send(piece, end)?;
    }
    Ok(())
}
