//! Response of an upstream server: from its head to the response that the client gets (nginx: ngx_http_upstream).

use bytes::Bytes;
use tw_http::fields::{Name, Value};
use tw_http::target::{self, AboveRoot};
use tw_http::{Known, Method, Version, date, hop};
use tw_log::{Level, Text};

use super::codec::Codec;
use super::exchange::Exchange;
use super::failure::{AttemptStage, UpstreamFailure};
use super::hop_fields::HopFields;
use super::read_rate::ReadRate;
use super::reading::READ_SIZE;
use super::response_body::{self, AnnouncedLength, ResponseBody};
use super::response_buffer::SpillTarget;
use super::retry_conditions::IgnoredHeaders;
use super::settings::ProxySettings;
use super::store::StoredBody;
use super::tunnel;
use super::upstream_request::RewriteFields;
use crate::http::body::Body;
use crate::http::cache::{self, Lookup, Ready, StoreDecision};
use crate::http::plan::Outcome;
use crate::http::request::{ConditionCheck, Ranges, Request};

/// Answers the client with the response of an upstream server, or with what replaces it: an entry of the cache, an error page,
/// an internal redirect, a tunnel.
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
    cache::invalidate(r, settings, rewrite);
    let lookup = match lookup {
        None => None,
        Some(lookup) => match lookup.instead_of(r, settings, status) {
            Err(lookup) => Some(lookup),
            Ok(stored) => {
                response_body::abandon(exchange, r);
                return ready(r, settings, rewrite, stored);
            }
        },
    };
    if status >= 300 && is_intercepted(r, settings, status) {
        if let Some(keeping) = lookup.and_then(|lookup| lookup.keep(r, settings)) {
            // This client does not get the response, but later requests find it in the cache.
            drop(respond_and_store(r, settings, exchange, keeping));
        } else {
            response_body::abandon(exchange, r);
        }
        return intercepted(r, status);
    }
    if !settings.response.ignored.has(IgnoredHeaders::REDIRECT)
        && let Some(to) = r.facts.upstream.answer.fields.share(b"X-Accel-Redirect")
    {
        response_body::abandon(exchange, r);
        return redirect(r, settings, &to);
    }
    if exchange.codec.is_tunnel()
        && let Err(why) = may_switch(r, exchange.sending.is_sent())
    {
        r.log(Level::Error, format_args!("upstream switched protocols {why}"));
        response_body::abandon(exchange, r);
        return Outcome::Status(502);
    }
    let keeping = lookup.and_then(|lookup| lookup.keep(r, settings));
    let buffering = head(r, settings, rewrite);
    cache::set_cache_headers(r, settings);
    if exchange.codec.is_tunnel() {
        return tunnel::open(r, exchange, &settings.upstream.timeouts, READ_SIZE);
    }
    if exchange.codec.passes_trailers() {
        expect_trailers(r, settings);
    }
    match keeping {
        Some(keeping) => respond_and_store(r, settings, exchange, keeping),
        None if r.method() == Method::Head || matches!(status, 204 | 304) => {
            respond_without_body(r, exchange)
        }
        None => respond_with_body(r, settings, exchange, buffering),
    }
}

/// Responds to HEAD, or with a status that has no body.
fn respond_without_body<C: Codec>(r: &mut Request, mut exchange: Exchange<C>) -> Outcome {
    let announced = r.facts.upstream.answer.content_length;
    if exchange.codec.ends(&mut exchange.input, &mut r.facts.upstream.answer) {
        response_body::finish(exchange, r);
    } else {
        // Body of a response to GET, which was sent instead of HEAD.
        response_body::abandon(exchange, r);
    }
    Outcome::Respond(match announced {
        // A 204 or 304 without a length has no body whose length could be told.
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
            let home = r.client().home.clone();
            exchange.lease.status(r.facts.upstream.answer.status);
            let limiter = limit_rate(r, settings).map(|rate| ReadRate::new(rate, exchange.input.len()));
            let coming = ResponseBody::new(home, exchange, settings.upstream.timeouts.read, limiter, buffers);
            let coming = if settings.request.ignore_client_abort { coming } else { coming.for_client() };
            Outcome::Respond(with_stored_copy(r, settings, Body::Pull(Box::new(coming))))
        }
        Err(failure) => fail(r, &failure),
    }
}

/// Ends an exchange all of whose body is at hand, and returns the body.
fn finish_whole<C: Codec>(r: &mut Request, exchange: Exchange<C>, bytes: Bytes) -> Body {
    if let Some(attempt) = r.facts.upstream.current() {
        attempt.length = bytes.len() as u64;
    }
    response_body::finish(exchange, r);
    if bytes.is_empty() { Body::Empty } else { Body::Bytes(bytes) }
}

/// Logs that the body cannot be read, and answers 502.
fn fail(r: &mut Request, failure: &UpstreamFailure) -> Outcome {
    r.log(Level::Error, format_args!("{}", failure.line(AttemptStage::ReadingBody)));
    r.facts.upstream.record_failure(failure.cause());
    Outcome::Status(502)
}

/// Stores the response in the cache while the client gets it.
fn respond_and_store<C: Codec>(
    r: &mut Request,
    settings: &ProxySettings,
    mut exchange: Exchange<C>,
    keeping: StoreDecision,
) -> Outcome {
    cacheable(r, settings, Ranges::One);
    if r.method() == Method::Head && exchange.codec.ends(&mut exchange.input, &mut r.facts.upstream.answer) {
        let body = announced(r);
        response_body::finish(exchange, r);
        keeping.whole(r, Bytes::new());
        return Outcome::Respond(body);
    }
    match response_body::take_whole(&mut exchange, r) {
        Ok(Some(bytes)) => {
            let body = finish_whole(r, exchange, bytes.clone());
            keeping.whole(r, bytes);
            Outcome::Respond(body)
        }
        Ok(None) => {
            let home = r.client().home.clone();
            exchange.lease.status(r.facts.upstream.answer.status);
            let rate = limit_rate(r, settings);
            let limiter = rate.map(|rate| ReadRate::new(rate, exchange.input.len()));
            let coming = ResponseBody::new(home, exchange, settings.upstream.timeouts.read, limiter, None);
            Outcome::Respond(keeping.while_it_comes(r, Box::new(coming), rate))
        }
        Err(failure) => fail(r, &failure),
    }
}

/// Answers the client with what a cache has.
pub(super) fn ready(
    r: &mut Request,
    settings: &ProxySettings,
    rewrite: &dyn RewriteFields,
    ready: Ready,
) -> Outcome {
    ready.head.tell(&mut r.facts.upstream.answer);
    if !settings.response.ignored.has(IgnoredHeaders::REDIRECT)
        && r.facts.upstream.answer.fields.has(Known::XAccelRedirect)
        && let Some(to) = r.facts.upstream.answer.fields.share(b"X-Accel-Redirect")
    {
        r.facts.upstream.cache.forget_hit();
        return redirect(r, settings, &to);
    }
    let status = r.facts.upstream.answer.status;
    if status >= 300 && is_intercepted(r, settings, status) {
        r.facts.upstream.cache.forget_hit();
        return intercepted(r, status);
    }
    head(r, settings, rewrite);
    cache::set_cache_headers(r, settings);
    cacheable(r, settings, Ranges::Allowed);
    Outcome::Respond(match ready.body {
        // Of a response to HEAD there is nothing but the head.
        Body::Empty if r.method() == Method::Head => announced(r),
        body => body,
    })
}

/// The body of a response to HEAD: nothing, of the length that the upstream server has told.
fn announced(r: &Request) -> Body {
    let told = r.facts.upstream.answer.fields.get_known(Known::ContentLength).and_then(tw_http::num::parse);
    Body::Pull(Box::new(AnnouncedLength(r.facts.upstream.answer.content_length.max(told))))
}

/// A stored response is handled like a file: conditions and ranges are answered here.
fn cacheable(r: &mut Request, settings: &ProxySettings, ranges: Ranges) {
    r.state.conditions =
        if settings.cache.is_rfc9111() { ConditionCheck::OpenByRfc9110 } else { ConditionCheck::Open };
    r.state.ranges = ranges;
    r.out.fields.remove_known(Known::AcceptRanges);
}

/// Adds the copy that `store` makes of a successful response.
fn with_stored_copy(r: &Request, settings: &ProxySettings, body: Body) -> Body {
    match (&settings.store.store, r.disk(), &settings.buffers.temp_path) {
        (Some(store), Some(disk), Some(temp)) if r.out.status == 200 => {
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
    let chosen = r.facts.upstream.answer.fields.share(b"Upgrade").unwrap_or_default();
    if r.head.field("Upgrade").is_none() {
        Err("and was not asked to")
    } else if hop::carries_requests(&chosen) {
        Err("to one that carries requests")
    } else if !is_sent {
        // The end of the body could not be told from the other protocol.
        Err("before it had the request")
    } else {
        Ok(())
    }
}

/// `error_page` answers instead.
fn intercepted(r: &mut Request, status: u16) -> Outcome {
    if status == 401 {
        copy_all(r, Known::WwwAuthenticate);
    }
    Outcome::Status(status)
}

/// Returns true if `error_page` replaces the response.
fn is_intercepted(r: &Request, settings: &ProxySettings, status: u16) -> bool {
    if settings.response.answers_404 && status == 404 {
        return true;
    }
    settings.response.intercept_errors
        && r.plan().core.error_pages.iter().any(|page| page.codes.contains(&status))
}

/// Passes trailer fields on to the client.
fn expect_trailers(r: &mut Request, settings: &ProxySettings) {
    if r.is_subrequest() {
        return;
    }
    r.facts.upstream.trailers_hidden = Some(settings.response.hidden.clone());
    // As in nginx: a body whose length is told has none in HTTP/1.1, unless others are to follow it, too.
    if r.out.content_length.is_none() || r.head.version() == Version::HTTP_2 {
        r.out.trailers.get_or_insert_default();
    }
}

/// Place for the part of a body that does not fit into memory.
fn spill_target(r: &Request, settings: &ProxySettings) -> Option<SpillTarget> {
    let disk = r.disk()?.clone();
    let (dir, home) = (settings.buffers.temp_path.clone()?, r.client().home.clone());
    Some(SpillTarget { disk, dir, size_max: settings.buffers.max_temp_file_size, home })
}

/// `X-Accel-Redirect`: something here answers instead, with some of the fields.
fn redirect(r: &mut Request, settings: &ProxySettings, to: &Bytes) -> Outcome {
    if let Some(rate) = r.facts.upstream.answer.fields.share(Known::XAccelLimitRate.as_str().as_bytes()) {
        limit_client(r, settings, &rate);
    }
    for known in [Known::SetCookie, Known::CacheControl, Known::Expires, Known::AcceptRanges] {
        copy_all(r, known);
    }
    copy_named(r, b"Content-Disposition");
    if let Some(kind) = r.facts.upstream.answer.fields.share(Known::ContentType.as_str().as_bytes()) {
        (r.out.content_type, r.out.charset) = (kind, Bytes::new());
    }
    if to.first() == Some(&b'@') {
        return Outcome::Named(to.to_vec().into());
    }
    let (path, args) = match target::local(to) {
        Ok(found) if found.0.first() == Some(&b'/') => found,
        Ok((path, _)) => return unsafe_uri(r, &path),
        Err(AboveRoot(path)) => return unsafe_uri(r, &path),
    };
    if r.method() != Method::Head {
        r.state.method = Some(Method::Get);
    }
    Outcome::Redirect { path, args }
}

fn unsafe_uri(r: &Request, uri: &[u8]) -> Outcome {
    r.log(Level::Error, format_args!("unsafe URI \"{}\" was detected", Text(uri)));
    Outcome::Status(404)
}

fn copy_all(r: &mut Request, known: Known) {
    copy_named(r, known.as_str().as_bytes());
}

fn copy_named(r: &mut Request, name: &[u8]) {
    let Request { facts, out, .. } = r;
    for (known, value) in facts.upstream.answer.fields.iter() {
        if known.eq_ignore_ascii_case(name) {
            out.fields.append(Name::Copy(known), Value::Copy(value));
        }
    }
}

/// Makes the head. Whether the body is to be read ahead of the client.
fn head(r: &mut Request, settings: &ProxySettings, rewrite: &dyn RewriteFields) -> bool {
    let answer = std::mem::take(&mut r.facts.upstream.answer);
    let mut buffering = settings.buffers.is_on;
    r.out.status = answer.status;
    r.out.status_line = answer.status_line.clone();
    r.out.content_length = answer.content_length;
    // What the upstream server has decided about conditions is not decided again.
    r.state.conditions = ConditionCheck::Answered;
    if settings.response.force_ranges {
        r.state.ranges = Ranges::One;
    }
    // DIFF(nginx): `Date` and `Server` are the server's own if the upstream has sent none, whatever may be passed on.
    let hop = HopFields::of(&answer.fields, answer.status);
    for (name, known, value) in answer.fields.iter_known() {
        match known {
            Some(Known::XAccelBuffering) if !settings.response.ignored.has(IgnoredHeaders::BUFFERING) => {
                if value.eq_ignore_ascii_case(b"no") {
                    buffering = false;
                } else if value.eq_ignore_ascii_case(b"yes") {
                    buffering = true;
                }
            }
            Some(Known::XAccelLimitRate) => limit_client(r, settings, value),
            Some(Known::XAccelCharset) if !settings.response.ignored.has(IgnoredHeaders::CHARSET) => {
                r.facts.upstream.charset = Some(Bytes::copy_from_slice(value));
            }
            _ => {}
        }
        if hop.has(name, known) || settings.response.hidden.has(name, known) {
            continue;
        }
        match known {
            // As it was written, with its parameters: who changes one of them finds it there.
            Some(Known::ContentType) => {
                (r.out.content_type, r.out.charset) = (Bytes::copy_from_slice(value), Bytes::new());
            }
            Some(Known::AcceptRanges) if settings.response.force_ranges => {}
            // One that was changed leads here, and is said as the server's own are.
            Some(Known::Location) => match rewrite.location(r, value, false) {
                Some(location) => r.out.location = location.into(),
                None => append(r, (name, known), value, None),
            },
            Some(Known::Refresh) => append(r, (name, known), value, rewrite.location(r, value, true)),
            Some(Known::SetCookie) => append(r, (name, known), value, rewrite.cookie(r, value)),
            Some(Known::LastModified) => {
                r.out.last_modified = date::parse(value);
                append(r, (name, known), value, None);
            }
            _ => append(r, (name, known), value, None),
        }
    }
    if let Some(charset) = &r.facts.upstream.charset
        && !r.out.content_type.is_empty()
        && r.out.own_charset().is_none()
    {
        // One that is there may be changed to it by the module for that.
        r.out.charset = charset.clone();
    }
    r.facts.upstream.answer = answer;
    buffering
}

/// `X-Accel-Limit-Rate`: how fast the client gets the response, whoever makes it in the end.
fn limit_client(r: &mut Request, settings: &ProxySettings, value: &[u8]) {
    if !settings.response.ignored.has(IgnoredHeaders::LIMIT_RATE)
        && let Some(rate) = tw_conf::units::number(value)
    {
        r.costs.limit_rate = Some(rate);
    }
}

fn append(r: &mut Request, (name, known): (&[u8], Option<Known>), value: &[u8], instead: Option<Vec<u8>>) {
    let name = Name::CopyKnown(name, known);
    match instead {
        Some(value) => r.out.fields.append(name, Value::Shared(value.into())),
        None => r.out.fields.append(name, Value::Copy(value)),
    }
}
