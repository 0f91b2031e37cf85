//! First stage of a response: its head is there, and decides on what the client gets (nginx: ngx_http_upstream).

use tw_connect::reading::READ_SIZE;
use tw_http::fields::{Name, Value};
use tw_http::{HeaderName, Method, Version, hop};
use tw_log::Level;

use super::codec::Codec;
use super::exchange::{Exchange, record_traffic};
use super::response_body::{BodyUse, Buffering, ResponseBody};
use super::settings::ProxySettings;
use super::tunnel;
use tw_http_cache::{self as cache, Lookup};
use tw_phases::forward_head::{self, RewriteFields};
use tw_request::header_names::HeaderNames;
use tw_request::plan::Outcome;
use tw_request::request::Request;

/// A response whose head was read.
pub(super) struct ResponseHead<'a, C> {
    exchange: Exchange<C>,
    settings: &'a ProxySettings,
    rewrite: &'a dyn RewriteFields,
}

/// Continuation behind the head of a response.
pub(super) enum AfterHead<'a, C> {
    /// Nothing of the response: the client gets an entry of the cache, an error page, or what an internal redirect leads to.
    Replaced(Outcome),
    /// A tunnel, because the server has switched the protocol.
    Tunnel(Exchange<C>),
    /// The body.
    Body(ResponseBody<'a, C>),
}

impl<'a, C: Codec> ResponseHead<'a, C> {
    /// Begins the response of `exchange`.
    pub(super) fn begin(
        r: &mut Request,
        settings: &'a ProxySettings,
        rewrite: &'a dyn RewriteFields,
        mut exchange: Exchange<C>,
    ) -> Self {
        if let Some(body) = exchange.sending.returned() {
            body.give_back(r);
        }
        let status = r.upstream.answer.status;
        if let Some(attempt) = r.upstream.current() {
            attempt.status = status;
        }
        record_traffic(r, &exchange.connection);
        Self { exchange, settings, rewrite }
    }

    /// Decides on what follows, and makes the head of the client's response.
    pub(super) fn decide(self, r: &mut Request, lookup: Option<Box<Lookup>>) -> AfterHead<'a, C> {
        let Self { exchange, settings, rewrite } = self;
        let status = r.upstream.answer.status;
        let rules = &settings.response.forward;
        cache::invalidate(r, &settings.cache, rewrite);
        let lookup = match lookup.map(|lookup| lookup.replace_response(r, &settings.cache, rules.ignored)) {
            None => None,
            Some(Err(lookup)) => Some(lookup),
            Some(Ok(stored)) => {
                exchange.abandon(r);
                let outcome = cache::serve_hit(r, &settings.cache, rules, rewrite, stored);
                return AfterHead::Replaced(outcome);
            }
        };
        if forward_head::is_intercepted(r, rules, status) {
            match lookup.and_then(|lookup| lookup.decide_store(r, &settings.cache, rules.ignored)) {
                // This client does not get the response, but later requests find it in the cache.
                Some(decision) => {
                    drop(ResponseBody::new(exchange, settings, BodyUse::Store(decision)).respond(r));
                }
                None => exchange.abandon(r),
            }
            return AfterHead::Replaced(forward_head::intercepted(r, status));
        }
        if let Some(outcome) = forward_head::accel_redirect(r, rules) {
            exchange.abandon(r);
            return AfterHead::Replaced(outcome);
        }
        if exchange.codec.is_tunnel()
            && let Err(why) = may_switch(r, exchange.sending.is_sent())
        {
            r.log(Level::Error, format_args!("upstream switched protocols {why}"));
            exchange.abandon(r);
            return AfterHead::Replaced(Outcome::Status(502));
        }
        let decision = lookup.and_then(|lookup| lookup.decide_store(r, &settings.cache, rules.ignored));
        let is_buffered = forward_head::forward_head(r, rules, rewrite).unwrap_or(settings.buffers.is_on);
        cache::set_cache_headers(r, &settings.cache, rules);
        if exchange.codec.is_tunnel() {
            return AfterHead::Tunnel(exchange);
        }
        if exchange.codec.passes_trailers() {
            expect_trailers(r, settings);
        }
        let body_use = match decision {
            Some(decision) => BodyUse::Store(decision),
            None if r.method() == Method::Head || matches!(status, 204 | 304) => BodyUse::None,
            None => BodyUse::Client(if is_buffered { Buffering::On } else { Buffering::Off }),
        };
        AfterHead::Body(ResponseBody::new(exchange, settings, body_use))
    }
}

impl<C: Codec> AfterHead<'_, C> {
    /// Answers the client.
    pub(super) fn respond(self, r: &mut Request, settings: &ProxySettings) -> Outcome {
        match self {
            Self::Replaced(outcome) => outcome,
            Self::Tunnel(exchange) => tunnel::open(r, exchange, &settings.upstream.timeouts, READ_SIZE),
            Self::Body(body) => body.respond(r),
        }
    }
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
    if r.response.content_length.is_none() || matches!(r.head.version(), Version::HTTP_2 | Version::HTTP_3) {
        r.response.trailers.get_or_insert_default();
        announce_trailers(r, &settings.response.forward.hidden);
    }
}

/// Passes on the names of the trailers that the upstream server announces, unless the field is hidden.
fn announce_trailers(r: &mut Request, hidden: &HeaderNames) {
    let has_no_chunks = r.head.version() < Version::HTTP_11 || !r.plan().core.chunked_transfer_encoding;
    if has_no_chunks && r.head.version() < Version::HTTP_2 {
        return;
    }
    for (name, known_name, value) in r.upstream.answer.fields.iter_known() {
        if known_name == Some(HeaderName::Trailer) && !hidden.has(name, known_name) {
            r.response.fields.append(Name::CopyKnown(name, known_name), Value::Copy(value));
        }
    }
}
