//! From the head of an upstream server's response to the one that the client gets (nginx: ngx_http_upstream).

use bytes::Bytes;
use tw_http::fields::{Name, Value};
use tw_http::{Method, Version, hop};
use tw_log::Level;

use super::codec::Codec;
use super::exchange::Exchange;
use super::failure::Stage;
use super::read_rate::ReadRate;
use super::response_body::{self, Coming};
use super::response_buffer::Room;
use super::settings::ProxySettings;
use super::store::Storing;
use super::tunnel;
use crate::http::body::{Body, HeadBody};
use crate::http::cache::{self, Lookup, StoreDecision};
use crate::http::forward_head::{self, HopFields, RewriteFields};
use crate::http::plan::Outcome;
use crate::http::request::{Ranges, Request};

/// Answers the client with what an upstream server has said.
pub(super) fn respond<C: Codec>(
    r: &mut Request,
    settings: &ProxySettings,
    rewrite: &dyn RewriteFields,
    mut exchange: Exchange<C>,
    lookup: Option<Box<Lookup>>,
) -> Outcome {
    let status = r.facts.upstream.answer.status;
    if let Some(body) = exchange.sending.returned() {
        body.give_back(r);
    }
    if let Some(attempt) = r.facts.upstream.current() {
        attempt.status = status;
        (attempt.sent, attempt.received) =
            (exchange.connection.sent.get(), exchange.connection.received.get());
    }
    cache::invalidate(r, &settings.cache, rewrite);
    let lookup = match lookup {
        None => None,
        Some(lookup) => match lookup.replace_response(r, &settings.cache, settings.forward.ignored) {
            Err(lookup) => Some(lookup),
            Ok(stored) => {
                response_body::abandon(exchange, r);
                return cache::serve_hit(r, &settings.cache, &settings.forward, rewrite, stored);
            }
        },
    };
    if forward_head::is_intercepted(r, &settings.forward, status) {
        if let Some(keeping) =
            lookup.and_then(|lookup| lookup.decide_store(r, &settings.cache, settings.forward.ignored))
        {
            // The client does not get it, but the next request finds it.
            drop(kept(r, settings, exchange, keeping));
        } else {
            response_body::abandon(exchange, r);
        }
        return forward_head::intercepted(r, status);
    }
    if let Some(outcome) = forward_head::accel_redirect(r, &settings.forward) {
        response_body::abandon(exchange, r);
        return outcome;
    }
    if exchange.codec.is_tunnel()
        && !exchange.codec.opens_at_once()
        && let Err(why) = may_switch(r, exchange.sending.is_sent())
    {
        r.log(Level::Error, format_args!("upstream switched protocols {why}"));
        response_body::abandon(exchange, r);
        return Outcome::Status(502);
    }
    let keeping = lookup.and_then(|lookup| lookup.decide_store(r, &settings.cache, settings.forward.ignored));
    let buffering = forward_head::forward_head(r, &settings.forward, rewrite).unwrap_or(settings.buffering);
    cache::set_cache_headers(r, &settings.cache, &settings.forward);
    if exchange.codec.is_tunnel() {
        return tunnel::open(r, exchange, settings);
    }
    if exchange.codec.passes_trailers() {
        expect_trailers(r, settings);
    }
    if let Some(keeping) = keeping {
        return kept(r, settings, exchange, keeping);
    }
    let announced = r.facts.upstream.answer.content_length;
    if r.method() == Method::Head || matches!(status, 204 | 304) {
        if !exchange.codec.ends(&mut exchange.input, &mut r.facts.upstream.answer) {
            // The body of a response to GET, which was asked for in the place of HEAD.
            response_body::abandon(exchange, r);
        } else {
            response_body::finish(exchange, r);
        }
        return Outcome::Respond(match announced {
            // These have no length to be told of.
            None if r.method() != Method::Head => Body::Empty,
            announced => Body::Pull(Box::new(HeadBody(announced))),
        });
    }
    match response_body::at_once(&mut exchange, r) {
        Ok(Some(bytes)) => {
            if let Some(attempt) = r.facts.upstream.current() {
                attempt.length = bytes.len() as u64;
            }
            response_body::finish(exchange, r);
            let body = if bytes.is_empty() { Body::Empty } else { Body::Bytes(bytes) };
            Outcome::Respond(stored(r, settings, body))
        }
        Ok(None) => {
            let buffers = buffering.then(|| (settings.memory(), room(r, settings)));
            let home = r.client().home.clone();
            exchange.lease.status(status);
            let pace = limit_rate(r, settings).map(|rate| ReadRate::new(rate, exchange.input.len()));
            let coming = Coming::new(home, exchange, settings.read_timeout, pace, buffers);
            let coming = if settings.ignore_client_abort { coming } else { coming.for_client() };
            Outcome::Respond(stored(r, settings, Body::Pull(Box::new(coming))))
        }
        Err(failure) => {
            r.log(Level::Error, format_args!("{}", failure.line(Stage::ReadingBody)));
            r.facts.upstream.note(&failure);
            Outcome::Status(502)
        }
    }
}

/// The response, which goes into a cache while the client gets it.
fn kept<C: Codec>(
    r: &mut Request,
    settings: &ProxySettings,
    mut exchange: Exchange<C>,
    keeping: StoreDecision,
) -> Outcome {
    cache::evaluate_conditions(r, &settings.cache, Ranges::One);
    if r.method() == Method::Head && exchange.codec.ends(&mut exchange.input, &mut r.facts.upstream.answer) {
        let body = cache::head_body(r);
        response_body::finish(exchange, r);
        keeping.store_whole(r, Bytes::new());
        return Outcome::Respond(body);
    }
    match response_body::at_once(&mut exchange, r) {
        Ok(Some(bytes)) => {
            if let Some(attempt) = r.facts.upstream.current() {
                attempt.length = bytes.len() as u64;
            }
            response_body::finish(exchange, r);
            keeping.store_whole(r, bytes.clone());
            Outcome::Respond(if bytes.is_empty() { Body::Empty } else { Body::Bytes(bytes) })
        }
        Ok(None) => {
            let home = r.client().home.clone();
            exchange.lease.status(r.facts.upstream.answer.status);
            let rate = limit_rate(r, settings);
            let pace = rate.map(|rate| ReadRate::new(rate, exchange.input.len()));
            let coming = Coming::new(home, exchange, settings.read_timeout, pace, None);
            Outcome::Respond(keeping.store_stream(r, Box::new(coming), rate))
        }
        Err(failure) => {
            r.log(Level::Error, format_args!("{}", failure.line(Stage::ReadingBody)));
            r.facts.upstream.note(&failure);
            Outcome::Status(502)
        }
    }
}

/// `response_body`, of which a copy is made where the configuration wants that and the response is one to be kept.
fn stored(r: &Request, settings: &ProxySettings, body: Body) -> Body {
    match (&settings.store, r.disk(), &settings.temp_path) {
        (Some(store), Some(disk), Some(temp)) if r.out.status == 200 => {
            Storing::of(body, store, disk.clone(), temp.clone())
        }
        _ => body,
    }
}

/// Bytes per second that are read of the response.
fn limit_rate(r: &Request, settings: &ProxySettings) -> Option<u64> {
    let rate = settings.limit_rate.as_ref()?.value(r);
    tw_conf::units::size(&rate).filter(|rate| *rate > 0)
}

/// Whether the connections may belong to another protocol now; the error says why not.
// DIFF(nginx): who has asked for no other protocol is answered in this one, and none is opened that carries requests.
fn may_switch(r: &Request, is_sent: bool) -> Result<(), &'static str> {
    let chosen = r.facts.upstream.answer.fields.share(b"Upgrade").unwrap_or_default();
    if r.head.field("Upgrade").is_none() {
        Err("and was not asked to")
    } else if hop::carries_requests(&chosen) {
        Err("to one that carries requests")
    } else if !is_sent {
        // Nobody could say where the rest of the body ends.
        Err("before it had the request")
    } else {
        Ok(())
    }
}

/// Has the client get what fields follow the body.
fn expect_trailers(r: &mut Request, settings: &ProxySettings) {
    if r.is_subrequest() {
        return;
    }
    r.facts.upstream.trailers_hidden = Some(settings.forward.hidden.clone());
    // As in nginx: a body whose length is told has none in HTTP/1.1, unless others are to follow it, too.
    if r.out.content_length.is_none() || r.head.version() == Version::HTTP_2 {
        r.out.trailers.get_or_insert_default();
    }
}

/// Where a body may go that does not fit into memory.
fn room(r: &Request, settings: &ProxySettings) -> Option<Room> {
    let disk = r.disk()?.clone();
    let (dir, home) = (settings.temp_path.clone()?, r.client().home.clone());
    Some(Room { disk, dir, size_max: settings.max_temp_file_size, home })
}

/// A head in front of the one that counts: early hints go on to the client where the configuration wants that. `hinted` is how
/// many bytes of them came with this response; those beyond the size of a head stay here (nginx: the same).
pub(super) fn interim(r: &mut Request, settings: &ProxySettings, hinted: &mut usize) {
    if r.facts.upstream.answer.status != 103 || r.is_subrequest() {
        return;
    }
    let wanted = {
        let hints = &r.plan().core.early_hints;
        !hints.is_empty() && hints.iter().all(|hint| !matches!(&*hint.value(r), b"" | b"0"))
    };
    if !wanted {
        return;
    }
    let fields = std::mem::take(&mut r.facts.upstream.answer.fields);
    *hinted += fields.iter().map(|(name, value)| name.len() + b": \r\n".len() + value.len()).sum::<usize>();
    if *hinted > settings.buffer_size {
        return r.log(Level::Info, format_args!("upstream sent too big early hints"));
    }
    let hop = HopFields::of(&fields, 103);
    for (name, known, value) in fields.iter_known() {
        if !hop.has(name, known) && !settings.forward.hidden.has(name, known) {
            r.facts.upstream.answer.fields.append(Name::CopyKnown(name, known), Value::Copy(value));
        }
    }
    if !r.facts.upstream.answer.fields.is_empty() {
        r.wire().clone().inform(r);
    }
}
