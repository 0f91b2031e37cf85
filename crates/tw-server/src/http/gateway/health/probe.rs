//! One health check: a connection of its own, one request, and a look at the answer. Every wait has an end.

use std::fmt;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use tw_net::Addr;
use tw_upstream::Peer;

use super::{ANSWER_MAX, BODY_EXAMINED_MAX, HealthCheck, How, Located};
use crate::event_loop::Loop;
use crate::http::client::Client;
use crate::http::gateway::attempts::To;
use crate::http::gateway::codec::{Codec, Event};
use crate::http::gateway::exchange::{READ_SIZE, connect_options, read_some};
use crate::http::gateway::fault::{Fault, Stage};
use crate::http::gateway::link::{Link, Read};
use crate::http::gateway::secure::Doers;
use crate::http::gateway::trunk::{self, End, Wanted};
use crate::http::nobody;
use crate::http::request::Request;

/// Why a check has failed.
#[derive(Debug)]
pub(super) enum Why {
    /// There is no answer.
    Fault(Fault, Stage),
    /// The request cannot be written; the text says why.
    Request(String),
    /// The answer is not what it must be.
    Answer(String),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fault(fault, stage) => write!(f, "{}", fault.line(*stage)),
            Self::Request(what) | Self::Answer(what) => f.write_str(what),
        }
    }
}

/// Checks a peer.
pub(super) async fn probe(home: &Rc<Loop>, at: &Located, peer: &Arc<Peer>) -> Result<(), Why> {
    let mut r = request(home, at);
    r.facts.upstream.begin(To::Peer(peer.clone()), None);
    let outcome = ask(home, &mut r, &at.check, peer).await;
    home.app.give_back(r);
    outcome
}

/// What is evaluated for a check is evaluated for it.
fn request(home: &Rc<Loop>, at: &Located) -> Box<Request> {
    let uri: &[u8] = match &at.check.how {
        How::Ask { uri, .. } => uri,
        How::Connect => b"/",
    };
    // It was looked at when the configuration was loaded.
    nobody::request(&Client::nobody(home.clone()), (at.server, at.plan), uri)
}

async fn ask(home: &Rc<Loop>, r: &mut Request, check: &HealthCheck, peer: &Arc<Peer>) -> Result<(), Why> {
    let gateway = check.of.gateway();
    let to = address(peer.addr(), check.port);
    let options = connect_options(r, gateway);
    let secured = check.of.secured(r);
    let secured = secured.as_ref().map(|secured| (secured, Doers::of(r.generation())));
    let mut codec = check.of.codec(r);
    let is_asked = matches!(check.how, How::Ask { .. });
    let link = if codec.is_carried() && is_asked {
        let wanted = Wanted {
            peer,
            to: &to,
            options,
            keepalive: check.of.group().keepalive,
            head_size: gateway.buffer_size,
            timeout: gateway.connect_timeout,
        };
        let secured = secured.map(|(secured, by)| (secured.clone(), by));
        trunk::dedicated(home, wanted, secured).await.map(Link::of_stream)
    } else {
        Link::open(home, &to, &options, gateway.connect_timeout, secured).await
    };
    let link = link.map_err(|(fault, stage)| Why::Fault(fault, stage))?;
    let How::Ask { criteria, .. } = &check.how else { return Ok(()) };
    let sent = check.of.request(r).map_err(Why::Request)?;
    match link.stream() {
        Some(stream) => {
            codec.follow(stream);
            stream.ask(&sent, End::Here)
        }
        None => send(&link, sent, check).await,
    }
    .map_err(|fault| Why::Fault(fault, Stage::Sending))?;
    // DIFF(nginx): all that is read has this time together, so that nobody can make a check last.
    link.begin_reading(gateway.read_timeout);
    let wants_body = criteria.as_ref().is_some_and(|criteria| criteria.wants_body());
    let mut stage = Stage::ReadingHead;
    let body = read(home, r, &link, &mut *codec, wants_body, &mut stage).await;
    let body = body.map_err(|fault| Why::Fault(fault, stage))?;
    let status = r.facts.upstream.answer.status;
    if let Some(attempt) = r.facts.upstream.current() {
        attempt.status = status;
        (attempt.sent, attempt.received) = (link.sent.get(), link.received.get());
        attempt.end();
    }
    let fault = match criteria {
        Some(criteria) => criteria.fault(r, &body),
        None => (!check.of.is_well(status)).then(|| format!("status {status}")),
    };
    fault.map_or(Ok(()), |fault| Err(Why::Answer(fault)))
}

/// Where a check of the peer at `addr` goes. A path has no port.
fn address(addr: &Addr, port: Option<u16>) -> Addr {
    match (addr, port) {
        (Addr::Inet(addr), Some(port)) => Addr::Inet((addr.ip(), port).into()),
        _ => addr.clone(),
    }
}

async fn send(link: &Link, mut bytes: Bytes, check: &HealthCheck) -> Result<(), Fault> {
    loop {
        let written = link.write_now(&bytes)?;
        if written == bytes.len() {
            return Ok(());
        }
        bytes = bytes.slice(written..);
        link.writable(check.of.gateway().send_timeout).await?;
    }
}

/// Reads the head into the answer of `r`, and of the body what is looked at; `stage` says what is being read.
async fn read(
    home: &Rc<Loop>,
    r: &mut Request,
    link: &Link,
    codec: &mut dyn Codec,
    wants_body: bool,
    stage: &mut Stage,
) -> Result<Vec<u8>, Fault> {
    let mut body = Vec::new();
    loop {
        let (read, mut input) = read_some(home, link, READ_SIZE)?;
        match read {
            Read::Some => {}
            Read::Nothing => {
                poll_fn(|cx| link.poll_readable(cx)).await?;
                continue;
            }
            Read::Closed => {
                codec.closed()?;
                return Ok(body);
            }
        }
        loop {
            match codec.read(&mut input, &mut r.facts.upstream.answer)? {
                Event::NeedMore => break,
                Event::Interim => {}
                Event::Head if !wants_body => return Ok(body),
                Event::Head => *stage = Stage::ReadingBody,
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
        if link.received.get() > ANSWER_MAX {
            return Err(Fault::Invalid("upstream sent too large an answer".into()));
        }
    }
}
