//! Second stage of a response: the client's head is made, and the body goes to the client, into a cache, or nowhere.

use bytes::Bytes;
use tw_connect::failure::{AttemptStage, UpstreamFailure};
use tw_http::Method;
use tw_log::Level;

use super::codec::Codec;
use super::exchange::Exchange;
use super::flowing_body::{FlowTerms, FlowingBody};
use super::read_ahead::ReadAheadTerms;
use super::response_buffer::SpillTarget;
use super::settings::ProxySettings;
use super::store::StoredBody;
use tw_http_cache::{self as cache, StoreDecision};
use tw_request::body::{AnnouncedLength, Body};
use tw_request::plan::Outcome;
use tw_request::request::{Ranges, Request};

/// Use of the body of a response.
pub(super) enum BodyUse {
    /// None: the response is one to HEAD, or its status has no body.
    None,
    /// The client gets it.
    Client(Buffering),
    /// A cache stores it while the client gets it.
    Store(StoreDecision),
}

/// Reading of a body for a client.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Buffering {
    /// As fast as the client takes it.
    Off,
    /// Ahead of the client.
    On,
}

/// A response whose body follows.
pub(super) struct ResponseBody<'a, C> {
    exchange: Exchange<C>,
    settings: &'a ProxySettings,
    body_use: BodyUse,
}

impl<'a, C: Codec> ResponseBody<'a, C> {
    /// The body of `exchange`.
    pub(super) fn new(exchange: Exchange<C>, settings: &'a ProxySettings, body_use: BodyUse) -> Self {
        Self { exchange, settings, body_use }
    }

    /// Answers the client with the body: all of it if it is at hand, else as it is received.
    pub(super) fn respond(self, r: &mut Request) -> Outcome {
        let Self { exchange, settings, body_use } = self;
        match body_use {
            BodyUse::None => respond_without_body(r, exchange),
            BodyUse::Client(buffering) => respond_with_body(r, settings, exchange, buffering),
            BodyUse::Store(decision) => respond_and_store(r, settings, exchange, decision),
        }
    }
}

/// Responds to HEAD, or with a status that has no body.
fn respond_without_body<C: Codec>(r: &mut Request, mut exchange: Exchange<C>) -> Outcome {
    let announced = r.upstream.answer.content_length;
    if exchange.codec.ends(&mut exchange.input, &mut r.upstream.answer) {
        exchange.finish(r);
    } else {
        // Body of a response to GET, which was sent instead of HEAD.
        exchange.abandon(r);
    }
    Outcome::Respond(match announced {
        // A 204 or 304 response without a length has no body whose length could be announced.
        None if r.method() != Method::Head => Body::Empty,
        announced => Body::Pull(Box::new(AnnouncedLength(announced))),
    })
}

/// Responds with the body: all of it if it is at hand, else as it is received.
fn respond_with_body<C: Codec>(
    r: &mut Request,
    settings: &ProxySettings,
    mut exchange: Exchange<C>,
    buffering: Buffering,
) -> Outcome {
    let body = match exchange.take_whole(r) {
        Ok(Some(bytes)) => finish_whole(r, exchange, bytes),
        Ok(None) => {
            exchange.lease.status(r.upstream.answer.status);
            let terms = FlowTerms {
                read_timeout: settings.upstream.timeouts.read,
                rate: limit_rate(r, settings),
                ahead: (buffering == Buffering::On).then(|| ReadAheadTerms {
                    memory_max: settings.buffers.memory_size(),
                    spill: spill_target(r, settings),
                }),
                is_for_client: !settings.request.ignore_client_abort,
            };
            let event_loop = r.client().event_loop.clone();
            Body::Pull(Box::new(FlowingBody::new(event_loop, exchange, terms, r.memory_share())))
        }
        Err(failure) => return fail(r, &failure),
    };
    Outcome::Respond(with_stored_copy(r, settings, body))
}

/// Stores the response in the cache while the client gets it.
fn respond_and_store<C: Codec>(
    r: &mut Request,
    settings: &ProxySettings,
    mut exchange: Exchange<C>,
    decision: StoreDecision,
) -> Outcome {
    cache::evaluate_conditions(r, &settings.cache, Ranges::One);
    if r.method() == Method::Head && exchange.codec.ends(&mut exchange.input, &mut r.upstream.answer) {
        let body = cache::head_body(r);
        exchange.finish(r);
        decision.store_whole(r, Bytes::new());
        return Outcome::Respond(body);
    }
    match exchange.take_whole(r) {
        Ok(Some(bytes)) => {
            let body = finish_whole(r, exchange, bytes.clone());
            decision.store_whole(r, bytes);
            Outcome::Respond(body)
        }
        Ok(None) => {
            exchange.lease.status(r.upstream.answer.status);
            let rate = limit_rate(r, settings);
            let read_timeout = settings.upstream.timeouts.read;
            let terms = FlowTerms { read_timeout, rate, ahead: None, is_for_client: false };
            let event_loop = r.client().event_loop.clone();
            let flowing = FlowingBody::new(event_loop, exchange, terms, None);
            Outcome::Respond(decision.store_stream(r, Box::new(flowing), rate))
        }
        Err(failure) => fail(r, &failure),
    }
}

/// Ends an exchange all of whose body is at hand, and returns the body.
// DIFF(nginx): the length of a response that is complete is known.
fn finish_whole<C: Codec>(r: &mut Request, exchange: Exchange<C>, bytes: Bytes) -> Body {
    if let Some(attempt) = r.upstream.current() {
        attempt.length = bytes.len() as u64;
    }
    exchange.finish(r);
    if bytes.is_empty() { Body::Empty } else { Body::Bytes(bytes) }
}

/// Logs that the body cannot be read, and answers 502.
fn fail(r: &mut Request, failure: &UpstreamFailure) -> Outcome {
    r.log(Level::Error, format_args!("{}", failure.line(AttemptStage::ReadingBody)));
    r.upstream.record_failure(failure.cause());
    Outcome::Status(502)
}

/// Adds the copy that `store` makes of a successful response.
fn with_stored_copy(r: &Request, settings: &ProxySettings, body: Body) -> Body {
    match (&settings.store.store, r.disk(), &settings.buffers.temp_path) {
        (Some(store), Some(disk), Some(temp)) if r.response.status == 200 => {
            StoredBody::of(body, store, disk.clone(), temp.clone())
        }
        _ => body,
    }
}

/// Bytes per second that are read of the response.
fn limit_rate(r: &Request, settings: &ProxySettings) -> Option<u64> {
    let rate = settings.response.limit_rate.as_ref()?.value(r);
    tw_conf::units::size(&rate).filter(|rate| *rate > 0)
}

/// Place for the part of a body that does not fit into memory.
fn spill_target(r: &Request, settings: &ProxySettings) -> Option<SpillTarget> {
    let disk = r.disk()?.clone();
    let dir = settings.buffers.temp_path.clone()?;
    let event_loop = r.client().event_loop.clone();
    Some(SpillTarget { disk, dir, size_max: settings.buffers.max_temp_file_size, event_loop })
}
