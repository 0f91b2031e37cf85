//! From the head of an upstream server's response to the one that the client gets (nginx: ngx_http_upstream).

use bytes::Bytes;
use tw_http::fields::{Fields, Name, Value};
use tw_http::target::{self, LeadsUp};
use tw_http::{Known, Method, Version, date, hop};
use tw_log::{Level, Text};

use super::backlog::Room;
use super::body::{self, Announced, Coming};
use super::codec::Codec;
use super::exchange::{Exchange, Rewrite};
use super::fault::Stage;
use super::pace::Pace;
use super::settings::Gateway;
use super::store::Storing;
use super::tunnel;
use super::words::Ignored;
use crate::http::body::Body;
use crate::http::cache::{self, Keeping, Ready, Visit};
use crate::http::plan::Outcome;
use crate::http::request::{Conditions, Ranges, Request};

/// Answers the client with what an upstream server has said.
pub(super) fn respond<C: Codec>(
    r: &mut Request,
    gateway: &Gateway,
    rewrite: &dyn Rewrite,
    mut exchange: Exchange<C>,
    visit: Option<Box<Visit>>,
) -> Outcome {
    let status = r.facts.upstream.answer.status;
    if let Some(body) = exchange.sending.returned() {
        body.give_back(r);
    }
    if let Some(attempt) = r.facts.upstream.current() {
        attempt.status = status;
        (attempt.sent, attempt.received) = (exchange.link.sent.get(), exchange.link.received.get());
    }
    cache::invalidate(r, gateway, rewrite);
    let visit = match visit {
        None => None,
        Some(visit) => match visit.instead_of(r, gateway, status) {
            Err(visit) => Some(visit),
            Ok(stored) => {
                body::abandon(exchange, r);
                return ready(r, gateway, rewrite, stored);
            }
        },
    };
    if status >= 300 && is_intercepted(r, gateway, status) {
        if let Some(keeping) = visit.and_then(|visit| visit.keep(r, gateway)) {
            // The client does not get it; who asks next is not told anything else either.
            drop(kept(r, gateway, exchange, keeping));
        } else {
            body::abandon(exchange, r);
        }
        return intercepted(r, status);
    }
    if !gateway.ignored.has(Ignored::REDIRECT)
        && let Some(to) = r.facts.upstream.answer.fields.share(b"X-Accel-Redirect")
    {
        body::abandon(exchange, r);
        return redirect(r, gateway, &to);
    }
    if exchange.codec.is_tunnel()
        && !exchange.codec.opens_at_once()
        && let Err(why) = may_switch(r, exchange.sending.is_sent())
    {
        r.log(Level::Error, format_args!("upstream switched protocols {why}"));
        body::abandon(exchange, r);
        return Outcome::Status(502);
    }
    let keeping = visit.and_then(|visit| visit.keep(r, gateway));
    let buffering = head(r, gateway, rewrite);
    cache::tell(r, gateway);
    if exchange.codec.is_tunnel() {
        return tunnel::open(r, exchange, gateway);
    }
    if exchange.codec.passes_trailers() {
        expect_trailers(r, gateway);
    }
    if let Some(keeping) = keeping {
        return kept(r, gateway, exchange, keeping);
    }
    let announced = r.facts.upstream.answer.content_length;
    if r.method() == Method::Head || matches!(status, 204 | 304) {
        if !exchange.codec.ends(&mut exchange.input, &mut r.facts.upstream.answer) {
            // The body of a response to GET, which was asked for in the place of HEAD.
            body::abandon(exchange, r);
        } else {
            body::finish(exchange, r);
        }
        return Outcome::Respond(match announced {
            // These have no length to be told of.
            None if r.method() != Method::Head => Body::Empty,
            announced => Body::Pull(Box::new(Announced(announced))),
        });
    }
    match body::at_once(&mut exchange, r) {
        Ok(Some(bytes)) => {
            if let Some(attempt) = r.facts.upstream.current() {
                attempt.length = bytes.len() as u64;
            }
            body::finish(exchange, r);
            let body = if bytes.is_empty() { Body::Empty } else { Body::Bytes(bytes) };
            Outcome::Respond(stored(r, gateway, body))
        }
        Ok(None) => {
            let buffers = buffering.then(|| (gateway.memory(), room(r, gateway)));
            let home = r.client().home.clone();
            exchange.lease.status(status);
            let pace = limit_rate(r, gateway).map(|rate| Pace::new(rate, exchange.input.len()));
            let coming = Coming::new(home, exchange, gateway.read_timeout, pace, buffers);
            let coming = if gateway.ignore_client_abort { coming } else { coming.for_client() };
            Outcome::Respond(stored(r, gateway, Body::Pull(Box::new(coming))))
        }
        Err(fault) => {
            r.log(Level::Error, format_args!("{}", fault.line(Stage::ReadingBody)));
            r.facts.upstream.note(&fault);
            Outcome::Status(502)
        }
    }
}

/// The response, which goes into a cache while the client gets it.
fn kept<C: Codec>(
    r: &mut Request,
    gateway: &Gateway,
    mut exchange: Exchange<C>,
    keeping: Keeping,
) -> Outcome {
    cacheable(r, gateway, Ranges::One);
    if r.method() == Method::Head && exchange.codec.ends(&mut exchange.input, &mut r.facts.upstream.answer) {
        let body = announced(r);
        body::finish(exchange, r);
        keeping.whole(r, Bytes::new());
        return Outcome::Respond(body);
    }
    match body::at_once(&mut exchange, r) {
        Ok(Some(bytes)) => {
            if let Some(attempt) = r.facts.upstream.current() {
                attempt.length = bytes.len() as u64;
            }
            body::finish(exchange, r);
            keeping.whole(r, bytes.clone());
            Outcome::Respond(if bytes.is_empty() { Body::Empty } else { Body::Bytes(bytes) })
        }
        Ok(None) => {
            let home = r.client().home.clone();
            exchange.lease.status(r.facts.upstream.answer.status);
            let rate = limit_rate(r, gateway);
            let pace = rate.map(|rate| Pace::new(rate, exchange.input.len()));
            let coming = Coming::new(home, exchange, gateway.read_timeout, pace, None);
            Outcome::Respond(keeping.while_it_comes(r, Box::new(coming), rate))
        }
        Err(fault) => {
            r.log(Level::Error, format_args!("{}", fault.line(Stage::ReadingBody)));
            r.facts.upstream.note(&fault);
            Outcome::Status(502)
        }
    }
}

/// Answers the client with what a cache has.
pub(super) fn ready(r: &mut Request, gateway: &Gateway, rewrite: &dyn Rewrite, ready: Ready) -> Outcome {
    ready.head.tell(&mut r.facts.upstream.answer);
    if !gateway.ignored.has(Ignored::REDIRECT)
        && r.facts.upstream.answer.fields.has(Known::XAccelRedirect)
        && let Some(to) = r.facts.upstream.answer.fields.share(b"X-Accel-Redirect")
    {
        r.facts.upstream.cache.forget_hit();
        return redirect(r, gateway, &to);
    }
    let status = r.facts.upstream.answer.status;
    if status >= 300 && is_intercepted(r, gateway, status) {
        r.facts.upstream.cache.forget_hit();
        return intercepted(r, status);
    }
    head(r, gateway, rewrite);
    cache::tell(r, gateway);
    cacheable(r, gateway, Ranges::Allowed);
    Outcome::Respond(match ready.body {
        // Of a response to HEAD there is nothing but the head.
        Body::Empty if r.method() == Method::Head => announced(r),
        body => body,
    })
}

/// The body of a response to HEAD: nothing, of the length that the upstream server has told.
fn announced(r: &Request) -> Body {
    let told = r.facts.upstream.answer.fields.get_known(Known::ContentLength).and_then(tw_http::num::parse);
    Body::Pull(Box::new(Announced(r.facts.upstream.answer.content_length.max(told))))
}

/// What is kept is as good as a file: conditions and ranges are answered here.
fn cacheable(r: &mut Request, gateway: &Gateway, ranges: Ranges) {
    r.course.conditions =
        if gateway.cache.is_rfc9111() { Conditions::OpenByRfc9110 } else { Conditions::Open };
    r.course.ranges = ranges;
    r.out.fields.remove_known(Known::AcceptRanges);
}

/// `body`, of which a copy is made where the configuration wants that and the response is one to be kept.
fn stored(r: &Request, gateway: &Gateway, body: Body) -> Body {
    match (&gateway.store, r.disk(), &gateway.temp_path) {
        (Some(store), Some(disk), Some(temp)) if r.out.status == 200 => {
            Storing::of(body, store, disk.clone(), temp.clone())
        }
        _ => body,
    }
}

/// Bytes per second that are read of the response.
fn limit_rate(r: &Request, gateway: &Gateway) -> Option<u64> {
    let rate = gateway.limit_rate.as_ref()?.value(r);
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

/// `error_page` answers instead.
fn intercepted(r: &mut Request, status: u16) -> Outcome {
    if status == 401 {
        copy_all(r, Known::WwwAuthenticate);
    }
    Outcome::Status(status)
}

/// Whether `error_page` answers instead.
fn is_intercepted(r: &Request, gateway: &Gateway, status: u16) -> bool {
    if gateway.answers_404 && status == 404 {
        return true;
    }
    gateway.intercept_errors && r.plan().core.error_pages.iter().any(|page| page.codes.contains(&status))
}

/// Has the client get what fields follow the body.
fn expect_trailers(r: &mut Request, gateway: &Gateway) {
    if r.is_subrequest() {
        return;
    }
    r.facts.upstream.trailers_hidden = Some(gateway.hidden.clone());
    // As in nginx: a body whose length is told has none in HTTP/1.1, unless others are to follow it, too.
    if r.out.content_length.is_none() || r.head.version() == Version::HTTP_2 {
        r.out.trailers.get_or_insert_default();
    }
}

/// Where a body may go that does not fit into memory.
fn room(r: &Request, gateway: &Gateway) -> Option<Room> {
    let disk = r.disk()?.clone();
    let (dir, home) = (gateway.temp_path.clone()?, r.client().home.clone());
    Some(Room { disk, dir, size_max: gateway.max_temp_file_size, home })
}

/// `X-Accel-Redirect`: something here answers instead, with some of the fields.
fn redirect(r: &mut Request, gateway: &Gateway, to: &Bytes) -> Outcome {
    if let Some(rate) = r.facts.upstream.answer.fields.share(Known::XAccelLimitRate.as_str().as_bytes()) {
        limit_client(r, gateway, &rate);
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
        Err(LeadsUp(path)) => return unsafe_uri(r, &path),
    };
    if r.method() != Method::Head {
        r.course.method = Some(Method::Get);
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
fn head(r: &mut Request, gateway: &Gateway, rewrite: &dyn Rewrite) -> bool {
    let answer = std::mem::take(&mut r.facts.upstream.answer);
    let mut buffering = gateway.buffering;
    r.out.status = answer.status;
    r.out.status_line = answer.status_line.clone();
    r.out.content_length = answer.content_length;
    // What the upstream server has decided about conditions is not decided again.
    r.course.conditions = Conditions::Answered;
    if gateway.force_ranges {
        r.course.ranges = Ranges::One;
    }
    // DIFF(nginx): `Date` and `Server` are the server's own if the upstream has sent none, whatever may be passed on.
    let hop = HopFields::of(&answer.fields, answer.status);
    for (name, known, value) in answer.fields.iter_known() {
        match known {
            Some(Known::XAccelBuffering) if !gateway.ignored.has(Ignored::BUFFERING) => {
                if value.eq_ignore_ascii_case(b"no") {
                    buffering = false;
                } else if value.eq_ignore_ascii_case(b"yes") {
                    buffering = true;
                }
            }
            Some(Known::XAccelLimitRate) => limit_client(r, gateway, value),
            Some(Known::XAccelCharset) if !gateway.ignored.has(Ignored::CHARSET) => {
                r.facts.upstream.charset = Some(Bytes::copy_from_slice(value));
            }
            _ => {}
        }
        if hop.has(name, known) || gateway.hidden.has(name, known) {
            continue;
        }
        match known {
            // As it was written, with its parameters: who changes one of them finds it there.
            Some(Known::ContentType) => {
                (r.out.content_type, r.out.charset) = (Bytes::copy_from_slice(value), Bytes::new());
            }
            Some(Known::AcceptRanges) if gateway.force_ranges => {}
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

// DIFF(nginx): also those that `Connection` names, and `Upgrade` without a switch of protocols.
/// Fields of an upstream response that end here: they are about the connection to the upstream server (RFC 9110 section
/// 7.6.1), or about the framing of the body, which is decided anew.
struct HopFields<'a> {
    /// Lines of `Connection` that name other fields.
    connection: Vec<&'a [u8]>,
    /// Whether the protocol is switched, which `Upgrade` names to the client.
    switches: bool,
}

impl<'a> HopFields<'a> {
    /// Those of a head with this status. Allocates only if `Connection` names fields.
    fn of(fields: &'a Fields, status: u16) -> Self {
        let is_usual =
            |line: &[u8]| line.eq_ignore_ascii_case(b"close") || line.eq_ignore_ascii_case(b"keep-alive");
        let lines = fields.has(Known::Connection).then(|| fields.get_all(b"Connection"));
        let connection = lines.into_iter().flatten().filter(|line| !is_usual(line)).collect();
        Self { connection, switches: status == 101 }
    }

    fn has(&self, name: &[u8], known: Option<Known>) -> bool {
        match known {
            Some(Known::ContentLength | Known::Trailer) => true,
            Some(Known::Upgrade) => !self.switches,
            Some(known) => hop::is_hop_by_hop(known),
            None => !self.connection.is_empty() && hop::is_named(self.connection.iter().copied(), name),
        }
    }
}

/// `X-Accel-Limit-Rate`: how fast the client gets the response, whoever makes it in the end.
fn limit_client(r: &mut Request, gateway: &Gateway, value: &[u8]) {
    if !gateway.ignored.has(Ignored::LIMIT_RATE)
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

/// A head in front of the one that counts: early hints go on to the client where the configuration wants that. `hinted` is how
/// many bytes of them came with this response; those beyond the size of a head stay here (nginx: the same).
pub(super) fn interim(r: &mut Request, gateway: &Gateway, hinted: &mut usize) {
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
    if *hinted > gateway.buffer_size {
        return r.log(Level::Info, format_args!("upstream sent too big early hints"));
    }
    let hop = HopFields::of(&fields, 103);
    for (name, known, value) in fields.iter_known() {
        if !hop.has(name, known) && !gateway.hidden.has(name, known) {
            r.facts.upstream.answer.fields.append(Name::CopyKnown(name, known), Value::Copy(value));
        }
    }
    if !r.facts.upstream.answer.fields.is_empty() {
        r.wire().clone().inform(r);
    }
}
