//! Preparation of a response before it is sent: conditions of the request, filters, ranges, `Location` and trailers.

use std::collections::VecDeque;
use std::io::Write as _;
use std::net::IpAddr;

use bytes::Bytes;
use tw_http::condition::{self, ConditionOutcome, Conditions, Precedence, Validators, if_range_holds};
use tw_http::fields::{Name, Value};
use tw_http::range::{self, MaxRanges, Multipart, RangeOutcome};
use tw_http::{HeaderName, LocationBase};

use tw_request::body::Body;
use tw_request::config::location::IfModifiedSince;
use tw_request::request::{self, Ranges, Request};

/// Lets the first filters see the response, and answers the conditions of the request. The error is the status to answer with
/// instead.
pub(crate) fn check(r: &mut Request, mut body: Body) -> Result<Body, u16> {
    if let Some(status) = r.state.error_status {
        r.response.set_status(status);
    }
    if !r.plan().first_filters().is_empty() {
        let generation = r.generation().clone();
        for filter in generation.plan(r.route.plan).first_filters() {
            body = filter.filter(r, body);
        }
    }
    if r.response.status != 200
        || r.is_subrequest()
        || r.state.conditions == request::ConditionCheck::Answered
    {
        return Ok(body);
    }
    let conditional = r.head.has(HeaderName::IfModifiedSince)
        || r.head.has(HeaderName::IfNoneMatch)
        || r.head.has(HeaderName::IfMatch)
        || r.head.has(HeaderName::IfUnmodifiedSince);
    if conditional {
        match preconditions(r) {
            ConditionOutcome::Proceed => {}
            ConditionOutcome::NotModified => {
                r.response.set_status(304);
                r.response.content_type = Bytes::new();
                r.response.charset = Bytes::new();
                return Ok(Body::Empty);
            }
            ConditionOutcome::PreconditionFailed => {
                // A 412 response carries nothing of the selected response, whether that is a file or comes from a
                // cache.
                r.response.reset(412);
                return Err(412);
            }
        }
    }
    Ok(body)
}

fn preconditions(r: &Request) -> ConditionOutcome {
    let since = match r.plan().core.if_modified_since {
        IfModifiedSince::Off => condition::IfModifiedSince::Off,
        IfModifiedSince::Exact => condition::IfModifiedSince::Exact,
        IfModifiedSince::Before => condition::IfModifiedSince::Before,
    };
    let precedence = match r.state.conditions {
        request::ConditionCheck::OpenByRfc9110 => Precedence::Rfc9110,
        request::ConditionCheck::Open | request::ConditionCheck::Answered => Precedence::Nginx,
    };
    Conditions::of(&r.head).evaluate(&validators(r), since, precedence)
}

fn validators(r: &Request) -> Validators<'_> {
    Validators { etag: r.response.etag(), last_modified: r.response.last_modified }
}

/// None of the ranges asked for is in a body of this length.
pub(super) struct NotSatisfiable(pub(super) u64);

/// The part of the body that is wanted: all of it if it is made from its beginning only.
pub(super) fn part(r: &mut Request, body: Body) -> Result<Body, NotSatisfiable> {
    if r.response.status != 200 || r.state.ranges == Ranges::Refused || r.plan().core.max_ranges == 0 {
        return Ok(body);
    }
    let Some(length) = body.len() else { return Ok(body) };
    let range = r.head.field_known(HeaderName::Range);
    let if_range = r.head.field_known(HeaderName::IfRange);
    let is_valid = if_range.is_none_or(|validator| if_range_holds(validator, &validators(r)));
    let Some(value) = range.filter(|_| is_valid) else { return Ok(whole(r, body)) };
    let value = value.to_vec();
    // A `Content-Range` of the upstream server is about another range.
    r.response.fields.remove_known(HeaderName::ContentRange);
    let max = match r.plan().core.max_ranges {
        _ if r.state.ranges == Ranges::One => MaxRanges::At(1),
        u64::MAX => MaxRanges::Unlimited,
        n => MaxRanges::At(u32::try_from(n).unwrap_or(u32::MAX)),
    };
    let mut byte_ranges = Vec::new();
    match range::parse(&value, length, max, &mut byte_ranges) {
        RangeOutcome::Whole => Ok(whole(r, body)),
        RangeOutcome::NotSatisfiable => Err(NotSatisfiable(length)),
        RangeOutcome::Single(only) => {
            let Some(part) = body.part(only.start, only.len()) else { return Ok(body) };
            let mut field = Vec::new();
            range::push_content_range(only, length, &mut field);
            r.response.fields.append(HeaderName::ContentRange, Bytes::from(field));
            r.response.set_status(206);
            Ok(part)
        }
        RangeOutcome::Multiple => {
            let parts_of: Option<Vec<_>> =
                byte_ranges.iter().map(|byte_range| body.part(byte_range.start, byte_range.len())).collect();
            let Some(parts_of) = parts_of else { return Ok(body) };
            let mut content_type = r.response.content_type.to_vec();
            if !r.response.charset.is_empty() {
                content_type.extend_from_slice(b"; charset=");
                content_type.extend_from_slice(&r.response.charset);
            }
            let parts = Multipart::new(boundary(r), &content_type, length);
            let mut list = VecDeque::new();
            for (byte_range, part) in byte_ranges.iter().zip(parts_of) {
                let mut head = Vec::new();
                parts.push_part_head(*byte_range, &mut head);
                list.push_back(Body::Bytes(head.into()));
                list.push_back(part);
            }
            let mut end = Vec::new();
            parts.push_end(&mut end);
            list.push_back(Body::Bytes(end.into()));
            let mut media_type = Vec::new();
            parts.push_content_type(&mut media_type);
            r.response.content_type = media_type.into();
            r.response.charset = Bytes::new();
            r.response.set_status(206);
            Ok(Body::Parts(list))
        }
    }
}

/// Adds `Accept-Ranges: bytes` to a complete response.
fn whole(r: &mut Request, body: Body) -> Body {
    r.response.fields.append(HeaderName::AcceptRanges, "bytes");
    body
}

/// A number that no part of the body is likely to hold: the connection and the request make it unique here.
fn boundary(r: &Request) -> u64 {
    let mut random = [0; 8];
    // Without random bytes the boundary is still unique among our responses.
    let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::NONBLOCK);
    u64::from_ne_bytes(random) ^ r.client().id ^ r.client().requests.get() << 32
}

// DIFF(nginx): fields for caches and `Expires` go, too.
/// Removes the fields that describe the content from a response that refuses a range: a cache must not store one as the
/// other.
pub(super) fn remove_description(r: &mut Request) {
    r.response.fields.retain(|name, _| !is_of_stored_content(name));
    r.response.last_modified = None;
}

/// Returns `true` for a field that describes stored content: a validator, or its lifetime in caches.
pub fn is_of_stored_content(name: &[u8]) -> bool {
    matches!(HeaderName::find(name), Some(HeaderName::Expires | HeaderName::ETag | HeaderName::LastModified))
        || ends_with(name, b"Cache-Control")
        // Some fields are for certain caches only, as `CDN-Cache-Control` (RFC 9213).
        || ends_with(name, b"Surrogate-Control")
}

fn ends_with(name: &[u8], end: &[u8]) -> bool {
    name.len().checked_sub(end.len()).is_some_and(|at| name[at..].eq_ignore_ascii_case(end))
}

/// Lets the header filters see the response.
pub(crate) fn filter(r: &mut Request, mut body: Body) -> Body {
    if let Some(status) = r.state.error_status {
        r.response.set_status(status);
    }
    let generation = r.generation().clone();
    // The bytes of a tunnel are no response body, so header filters see only the head.
    let tunnel = match &mut body {
        Body::Upgraded(_) => Some(std::mem::take(&mut body)),
        _ => None,
    };
    for filter in generation.plan(r.route.plan).header_filters() {
        body = filter.filter(r, body);
    }
    add_retry_after(r);
    match tunnel {
        Some(tunnel) => {
            r.response.fields.remove_known(HeaderName::ContentEncoding);
            (r.response.content_length, r.response.trailers) = (None, None);
            tunnel
        }
        None => body,
    }
}

/// Adds `Retry-After` to the response to a request that a limit refused, unless the configuration has set it.
fn add_retry_after(r: &mut Request) {
    let Some(seconds) = r.state.retry_after else { return };
    // An error page may have made another response of it.
    if matches!(r.response.status, 429 | 503) && !r.response.fields.has(HeaderName::RetryAfter) {
        r.response.fields.set(HeaderName::RetryAfter, Bytes::from(seconds.to_string()));
    }
}

/// Prefix of a `Location` that is a path, if it is to be made absolute. `address` is memory for an address.
pub fn location_base<'a>(r: &'a Request, address: &'a mut Vec<u8>) -> Option<LocationBase<'a>> {
    let redirect = &r.plan().core.redirect;
    if !redirect.absolute || r.response.location.first() != Some(&b'/') {
        return None;
    }
    let local = r.local_addr().inet();
    let name = &*r.generation().server(r.route.server).settings.name;
    let known_name = if redirect.server_name { name } else { &*r.route.host };
    let host = match local {
        Some(local) if known_name.is_empty() => {
            let host = match local.ip() {
                IpAddr::V4(ip) => write!(address, "{ip}"),
                IpAddr::V6(ip) => write!(address, "[{ip}]"),
            };
            host.expect("writing to memory does not fail");
            &*address
        }
        None if known_name.is_empty() => name,
        _ => known_name,
    };
    let scheme = r.client().scheme();
    let port = local.map(|local| local.port());
    let port = port.filter(|port| redirect.port && *port != scheme.default_port());
    Some(LocationBase { https: scheme.is_secure(), host, port })
}

/// Lets the trailer filters see the end of a body whose response may have trailers.
pub fn fill_trailers(r: &mut Request) {
    if let Some(hidden) = r.upstream.trailers_hidden.clone()
        && let Some(trailers) = &mut r.response.trailers
    {
        for (name, known_name, value) in r.upstream.answer.trailers.iter_known() {
            if !hidden.has(name, known_name) {
                trailers.append(Name::CopyKnown(name, known_name), Value::Copy(value));
            }
        }
    }
    let generation = r.generation().clone();
    generation.plan(r.route.plan).trailer_filters().iter().for_each(|filter| filter.fill(r));
}
