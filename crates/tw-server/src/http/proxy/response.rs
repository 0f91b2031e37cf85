//! Response of an upstream server: from its head to the response that the client gets (nginx: ngx_http_upstream).

use bytes::Bytes;
use tw_connect::failure::{AttemptStage, UpstreamFailure};
use tw_connect::read_rate::ReadRate;
use tw_connect::reading::READ_SIZE;
use tw_http::{Method, Version, hop};
use tw_log::Level;

use super::codec::Codec;
use super::exchange::Exchange;
use super::response_body::{self, ResponseBody};
use super::response_buffer::SpillTarget;
use super::settings::ProxySettings;
use super::store::StoredBody;
use super::tunnel;
use crate::http::body::{AnnouncedLength, Body};
use crate::http::cache::{self, Lookup, StoreDecision};
use crate::http::forward_head::{self, RewriteFields};
use crate::http::plan::Outcome;
use crate::http::request::{Ranges, Request};

/// Answers the client with the response of an upstream server, or with what replaces it: an entry of the cache, an error page,
/// an internal redirect, a tunnel.
pub(super) fn respond<C: Codec>(
    r: &mut Request,
    settings: &ProxySettings,
    rewrite: &dyn RewriteFields,
    mut exchange: Exchange<C>,
    lookup: Option<Box<Lookup>>,
) -> Outcome {
    let status = r.upstream.answer.status;
    let rules = &settings.response.forward;
    if let Some(body) = exchange.sending.returned() {
        body.give_back(r);
    }
    if let Some(attempt) = r.upstream.current() {
        attempt.status = status;
        (attempt.sent, attempt.received) =
            (exchange.connection.sent.get(), exchange.connection.received.get());
    }
    cache::invalidate(r, &settings.cache, rewrite);
    let lookup = match lookup {
        None => None,
        Some(lookup) => match lookup.replace_response(r, &settings.cache, rules.ignored) {
            Err(lookup) => Some(lookup),
            Ok(stored) => {
                response_body::abandon(exchange, r);
                return cache::serve_hit(r, &settings.cache, rules, rewrite, stored);
            }
        },
    };
    if forward_head::is_intercepted(r, rules, status) {
        if let Some(decision) =
            lookup.and_then(|lookup| lookup.decide_store(r, &settings.cache, rules.ignored))
        {
            // This client does not get the response, but later requests find it in the cache.
            drop(respond_and_store(r, settings, exchange, decision));
        } else {
            response_body::abandon(exchange, r);
        }
        return forward_head::intercepted(r, status);
    }
    if let Some(outcome) = forward_head::accel_redirect(r, rules) {
        response_body::abandon(exchange, r);
        return outcome;
    }
    if exchange.codec.is_tunnel()
        && let Err(why) = may_switch(r, exchange.sending.is_sent())
    {
        r.log(Level::Error, format_args!("upstream switched protocols {why}"));
        response_body::abandon(exchange, r);
        return Outcome::Status(502);
    }
    let decision = lookup.and_then(|lookup| lookup.decide_store(r, &settings.cache, rules.ignored));
    let buffering = forward_head::forward_head(r, rules, rewrite).unwrap_or(settings.buffers.is_on);
    cache::set_cache_headers(r, &settings.cache, rules);
    if exchange.codec.is_tunnel() {
        return tunnel::open(r, exchange, &settings.upstream.timeouts, READ_SIZE);
    }
    if exchange.codec.passes_trailers() {
        expect_trailers(r, settings);
    }
    match decision {
        Some(decision) => respond_and_store(r, settings, exchange, decision),
        None if r.method() == Method::Head || matches!(status, 204 | 304) => {
            respond_without_body(r, exchange)
        }
        None => respond_with_body(r, settings, exchange, buffering),
    }
}

/// Responds to HEAD, or with a status that has no body.
fn respond_without_body<C: Codec>(r: &mut Request, mut exchange: Exchange<C>) -> Outcome {
    let announced = r.upstream.answer.content_length;
    if exchange.codec.ends(&mut exchange.input, &mut r.upstream.answer) {
        response_body::finish(exchange, r);
    } else {
        // Body of a response to GET, which was sent instead of HEAD.
        response_body::abandon(exchange, r);
    }
    Outcome::Respond(match announced {
        // A 204 or 304 response without a length has no body whose length could be announced.
        None if r.method() != Method::Head => Body::Empty,
        announced => Body::Pull(Box::new(AnnouncedLength(announced))),
    })
}

/// Responds with the body: all of it if it is at hand, else as it is received. With `buffering`, it is read ahead of the client.
fn respond_with_body<C: Codec>(
    r: &mut Request,
    settings: &ProxySettings,
    mut exchange: Exchange<C>,
    buffering: bool,
) -> Outcome {
    match response_body::take_whole(&mut exchange, r) {
        Ok(Some(bytes)) => {
            let body = finish_whole(r, exchange, bytes);
            Outcome::Respond(with_stored_copy(r, settings, body))
        }
        Ok(None) => {
            let buffers = buffering.then(|| (settings.buffers.memory_size(), spill_target(r, settings)));
            let event_loop = r.client().event_loop.clone();
            exchange.lease.status(r.upstream.answer.status);
            let limiter = limit_rate(r, settings).map(|rate| ReadRate::new(rate, exchange.input.len()));
            let timeout = settings.upstream.timeouts.read;
            let coming = ResponseBody::new(event_loop, exchange, timeout, limiter, buffers, r.memory_share());
            let coming = if settings.request.ignore_client_abort { coming } else { coming.for_client() };
            Outcome::Respond(with_stored_copy(r, settings, Body::Pull(Box::new(coming))))
        }
        Err(failure) => fail(r, &failure),
    }
}

/// Ends an exchange all of whose body is at hand, and returns the body.
fn finish_whole<C: Codec>(r: &mut Request, exchange: Exchange<C>, bytes: Bytes) -> Body {
    if let Some(attempt) = r.upstream.current() {
        attempt.length = bytes.len() as u64;
    }
    response_body::finish(exchange, r);
    if bytes.is_empty() { Body::Empty } else { Body::Bytes(bytes) }
}

/// Logs that the body cannot be read, and answers 502.
fn fail(r: &mut Request, failure: &UpstreamFailure) -> Outcome {
    r.log(Level::Error, format_args!("{}", failure.line(AttemptStage::ReadingBody)));
    r.upstream.record_failure(failure.cause());
    Outcome::Status(502)
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
        response_body::finish(exchange, r);
        decision.store_whole(r, Bytes::new());
        return Outcome::Respond(body);
    }
    match response_body::take_whole(&mut exchange, r) {
        Ok(Some(bytes)) => {
            let body = finish_whole(r, exchange, bytes.clone());
            decision.store_whole(r, bytes);
            Outcome::Respond(body)
        }
        Ok(None) => {
            let event_loop = r.client().event_loop.clone();
            exchange.lease.status(r.upstream.answer.status);
            let rate = limit_rate(r, settings);
            let limiter = rate.map(|rate| ReadRate::new(rate, exchange.input.len()));
            let timeout = settings.upstream.timeouts.read;
            let coming = ResponseBody::new(event_loop, exchange, timeout, limiter, None, None);
            Outcome::Respond(decision.store_stream(r, Box::new(coming), rate))
        }
        Err(failure) => fail(r, &failure),
    }
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

/// Checks that the protocol may be switched; the error says why not.
// DIFF(nginx): who has asked for no other protocol is answered in this one, and none is opened that carries requests.
fn may_switch(r: &Request, is_sent: bool) -> Result<(), &'static str> {
    let chosen = r.upstream.answer.fields.share(b"Upgrade").unwrap_or_default();
    if r.head.field("Upgrade").is_none() {
        Err("and was not asked to")
    } else if hop::carries_requests(&chosen) {
        Err("to one that carries requests")
    } else if !is_sent {
        // The other side could not tell the end of the body from the beginning of the other protocol.
        Err("before it had the request")
    } else {
        Ok(())
    }
}

/// Passes trailer fields on to the client.
fn expect_trailers(r: &mut Request, settings: &ProxySettings) {
    if r.is_subrequest() {
        return;
    }
    r.upstream.trailers_hidden = Some(settings.response.forward.hidden.clone());
    // As in nginx, a response with a length has no trailers in HTTP/1.1, unless other trailers follow anyway.
    if r.response.content_length.is_none() || r.head.version() == Version::HTTP_2 {
        r.response.trailers.get_or_insert_default();
    }
}

/// Place for the part of a body that does not fit into memory.
fn spill_target(r: &Request, settings: &ProxySettings) -> Option<SpillTarget> {
    let disk = r.disk()?.clone();
    let dir = settings.buffers.temp_path.clone()?;
    let event_loop = r.client().event_loop.clone();
    Some(SpillTarget { disk, dir, size_max: settings.buffers.max_temp_file_size, event_loop })
}
