//! One health check: a connection of its own, one request, and a look at the answer. Every wait has an end.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tw_connect::AttemptPeer;
use tw_connect::failure::{AttemptStage, UpstreamFailure};
use tw_connect::h2_pool::{self, StreamEnd, StreamParams, UpstreamStream};
use tw_connect::health::CheckFailure;
use tw_connect::reading::{READ_SIZE, read_some};
use tw_connect::upstream_connection::{ReadOutcome, UpstreamConnection};
use tw_connect::upstream_tls::TlsPools;
use tw_net::Addr;
use tw_upstream::Peer;

use super::{ANSWER_MAX, BODY_EXAMINED_MAX, CheckProtocol, HealthCheck, PlacedCheck, grpc};
use crate::codec::{Codec, Event};
use tw_phases::synthetic_request;
use tw_request::client::Client;
use tw_request::event_loop::Loop;
use tw_request::request::Request;

/// Checks a peer.
pub(super) async fn probe(
    event_loop: &Rc<Loop>,
    at: &PlacedCheck,
    peer: &Arc<Peer>,
) -> Result<(), CheckFailure> {
    let mut r = request(event_loop, at);
    r.upstream.begin(AttemptPeer::Peer(peer.clone()), None);
    let outcome = run_check(event_loop, &mut r, &at.check, peer).await;
    event_loop.give_back(r);
    outcome
}

/// Creates the request in whose context variables are evaluated.
fn request(event_loop: &Rc<Loop>, at: &PlacedCheck) -> Box<Request> {
    let uri: &[u8] = match &at.check.protocol {
        CheckProtocol::Request { uri, .. } => uri,
        CheckProtocol::Grpc(_) => grpc::PATH,
        CheckProtocol::Connect => b"/",
    };
    // The URI was checked when the configuration was loaded.
    synthetic_request::request(&Client::internal(event_loop.clone()), (at.server, at.plan), uri)
}

async fn run_check(
    event_loop: &Rc<Loop>,
    r: &mut Request,
    check: &HealthCheck,
    peer: &Arc<Peer>,
) -> Result<(), CheckFailure> {
    let settings = check.of.settings();
    let to = address(peer.addr(), check.port);
    let options = settings.connection.options(r);
    let secured = check.of.secured(r);
    let secured = secured.as_ref().map(|secured| (secured, TlsPools::of(&r.generation().disks)));
    let mut codec = check.of.codec(r);
    let sends_request = !matches!(check.protocol, CheckProtocol::Connect);
    let connection = if codec.is_multiplexed() && sends_request {
        let params = StreamParams {
            peer,
            to: &to,
            options,
            keepalive: check.of.group().keepalive,
            head_size: settings.buffer_size,
            timeout: settings.timeouts.connect,
        };
        let secured = secured.map(|(secured, by)| (secured.clone(), by));
        h2_pool::open_dedicated(&event_loop.upstreams, params, secured)
            .await
            .map(UpstreamConnection::from_stream)
    } else {
        UpstreamConnection::open(event_loop, &to, &options, settings.timeouts.connect, secured).await
    };
    let connection = connection.map_err(CheckFailure::Upstream)?;
    let (sent, content) = match &check.protocol {
        CheckProtocol::Connect => return Ok(()),
        CheckProtocol::Request { .. } => (Some(check.of.request(r)), None),
        CheckProtocol::Grpc(grpc) => {
            let content = grpc.message();
            (check.of.grpc_request(r, content.len() as u64), Some(content))
        }
    };
    let sent = sent.unwrap_or_else(|| Err("the location does not speak gRPC".to_owned()));
    let sent = sent.map_err(CheckFailure::Request)?;
    match (connection.stream(), content) {
        (Some(stream), None) => {
            codec.attach(stream);
            stream.send_request(&sent, StreamEnd::WithThis)
        }
        (Some(stream), Some(content)) => {
            codec.attach(stream);
            send_with_content(stream, &sent, content, settings.timeouts.send).await
        }
        (None, _) => send(&connection, sent, check).await,
    }
    .map_err(|failure| CheckFailure::Upstream(failure.at(AttemptStage::Sending)))?;
    // DIFF(nginx): all that is read has this time together, so that nobody can make a check last.
    connection.begin_reading(settings.timeouts.read);
    let wants_body = match &check.protocol {
        CheckProtocol::Request { criteria, .. } => {
            criteria.as_ref().is_some_and(|criteria| criteria.wants_body())
        }
        CheckProtocol::Grpc(_) => true,
        CheckProtocol::Connect => false,
    };
    let mut stage = AttemptStage::ReadingHead;
    let body = read(event_loop, r, &connection, &mut *codec, wants_body, &mut stage).await;
    let body = body.map_err(|failure| CheckFailure::Upstream(failure.at(stage)))?;
    let status = r.upstream.answer.status;
    if let Some(attempt) = r.upstream.current() {
        attempt.status = status;
        (attempt.sent, attempt.received) = (connection.sent.get(), connection.received.get());
        attempt.end();
    }
    let failure = match &check.protocol {
        CheckProtocol::Request { criteria: Some(criteria), .. } => criteria.failure(r, &body),
        CheckProtocol::Grpc(grpc) => grpc.failure(&r.upstream.answer, &body),
        _ => (!check.of.is_well(status)).then(|| format!("status {status}")),
    };
    failure.map_or(Ok(()), |failure| Err(CheckFailure::Answer(failure)))
}

/// Address to be checked for the peer at `addr`. A Unix socket has no port.
fn address(addr: &Addr, port: Option<u16>) -> Addr {
    match (addr, port) {
        (Addr::Inet(addr), Some(port)) => Addr::Inet((addr.ip(), port).into()),
        _ => addr.clone(),
    }
}

/// Sends a head, and its content as the server takes it.
async fn send_with_content(
    stream: &UpstreamStream,
    head: &[u8],
    mut content: Bytes,
    timeout: Duration,
) -> Result<(), UpstreamFailure> {
    stream.send_request(head, StreamEnd::NotYet)?;
    while !content.is_empty() {
        let room = stream.wait_for_capacity(content.len(), timeout).await?;
        let piece = content.split_to(room);
        let end = if content.is_empty() { StreamEnd::WithThis } else { StreamEnd::NotYet };
        stream.send(piece, end)?;
    }
    Ok(())
}

async fn send(
    connection: &UpstreamConnection,
    mut bytes: Bytes,
    check: &HealthCheck,
) -> Result<(), UpstreamFailure> {
    loop {
        let written_len = connection.write_now(&bytes)?;
        if written_len == bytes.len() {
            return Ok(());
        }
        bytes = bytes.slice(written_len..);
        connection.writable(check.of.settings().timeouts.send).await?;
    }
}

/// Reads the head into the response state of `r`, and as much of the body as the check needs; `stage` names the
/// current step for messages.
async fn read(
    event_loop: &Rc<Loop>,
    r: &mut Request,
    connection: &UpstreamConnection,
    codec: &mut dyn Codec,
    wants_body: bool,
    stage: &mut AttemptStage,
) -> Result<Vec<u8>, UpstreamFailure> {
    let mut body = Vec::new();
    loop {
        let (read, mut input) = read_some(&event_loop.buffers, connection, READ_SIZE)?;
        match read {
            ReadOutcome::Some => {}
            ReadOutcome::Nothing => {
                poll_fn(|cx| connection.poll_readable(cx)).await?;
                continue;
            }
            ReadOutcome::Closed => {
                codec.closed()?;
                return Ok(body);
            }
        }
        loop {
            match codec.read(&mut input, &mut r.upstream.answer)? {
                Event::NeedMore => break,
                Event::Interim => {}
                Event::Head if !wants_body => return Ok(body),
                Event::Head => *stage = AttemptStage::ReadingBody,
                Event::Body(piece) => {
                    let room = BODY_EXAMINED_MAX - body.len();
                    body.extend_from_slice(&piece[..piece.len().min(room)]);
                    if body.len() == BODY_EXAMINED_MAX {
                        return Ok(body);
                    }
                }
                Event::End => return Ok(body),
            }
        }
        if connection.received.get() > ANSWER_MAX {
            return Err(UpstreamFailure::Invalid("upstream sent too large an answer".into()));
        }
    }
}
