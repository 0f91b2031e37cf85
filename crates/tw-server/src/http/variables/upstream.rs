//! `$upstream_*`: the servers behind this one that a request was sent to (nginx: ngx_http_upstream_module);
//! those that `stream` has, too, are in `tw-connect`.

use super::fields::put_fields;
use tw_connect::upstream_attempt::{put_each, put_span};
use tw_core::vars::write::{put_maybe, put_number};
use tw_request::cookie::find_cookie;

use tw_request::request::Request;
use tw_request::vars::{Value, VarDef};

pub(super) const VARIABLES: &[VarDef] = &[
    VarDef::one(
        "upstream_status",
        |r, out| {
            put_each(r, out, |attempt, out| match attempt.status {
                0 => Value::Missing,
                status => put_number(out, status.into()),
            })
        },
        "Statuses of their responses.",
    ),
    VarDef::one(
        "upstream_queue_time",
        |r, out| put_each(r, out, |attempt, out| put_span(out, attempt.queued)),
        "Seconds in which the request waited in the queue of the group.",
    ),
    VarDef::one(
        "upstream_header_time",
        |r, out| put_each(r, out, |attempt, out| put_span(out, attempt.header)),
        "Seconds until the heads of their responses were there.",
    ),
    VarDef::one(
        "upstream_response_time",
        |r, out| put_each(r, out, |attempt, out| put_span(out, attempt.ended)),
        "Seconds until their responses were there.",
    ),
    VarDef::one(
        "upstream_response_length",
        |r, out| put_each(r, out, |attempt, out| put_number(out, attempt.length)),
        "Bytes of the bodies of their responses.",
    ),
    VarDef::one(
        "upstream_faults",
        faults,
        "What was wrong with the upstream servers that were asked: `192.0.2.1:80: connection refused`, semicolons between.",
    ),
    VarDef::one(
        "upstream_cache_status",
        |r, out| put_maybe(out, r.upstream.cache.report.status.map(|status| status.word().as_bytes())),
        "What the cache had: MISS, BYPASS, EXPIRED, STALE, UPDATING, REVALIDATED or HIT.",
    ),
    VarDef::one(
        "upstream_cache_key",
        |r, out| put_some(out, &r.upstream.cache.key),
        "The text by which the cache knows the response.",
    ),
    VarDef::one(
        "upstream_cache_age",
        |r, out| match r.upstream.cache.report.age {
            Some(age) => put_number(out, age.into()),
            None => Value::Missing,
        },
        "How old the response from the cache is, in seconds.",
    ),
    VarDef::one(
        "upstream_cache_last_modified",
        |r, out| put_some(out, &r.upstream.cache.report.last_modified),
        "Last-Modified of a response in the cache that is no longer valid.",
    ),
    VarDef::one(
        "upstream_cache_etag",
        |r, out| put_some(out, &r.upstream.cache.report.etag),
        "ETag of a response in the cache that is no longer valid.",
    ),
    VarDef::one(
        "cache_why",
        |r, out| put_maybe(out, r.upstream.cache.report.why.map(|why| why.word().as_bytes())),
        "Why the response was not kept, or not taken from the cache, in a word.",
    ),
    VarDef::family(
        "upstream_http_",
        |r, name, out| put_fields(out, r.upstream.answer.fields.iter(), name),
        "A field of the last response of an upstream server.",
    ),
    VarDef::family(
        "upstream_trailer_",
        |r, name, out| put_fields(out, r.upstream.answer.trailers.iter(), name),
        "A field behind the body of the last response of an upstream server.",
    ),
    VarDef::family("upstream_cookie_", cookie, "A cookie that the last response of an upstream server sets."),
];

fn put_some(out: &mut Vec<u8>, text: &[u8]) -> Value {
    put_maybe(out, Some(text).filter(|text| !text.is_empty()))
}

fn faults(r: &Request, out: &mut Vec<u8>) -> Value {
    let mut value = Value::Missing;
    for attempt in &r.upstream.attempts {
        let Some(failure) = &attempt.failure else { continue };
        if value == Value::Found {
            out.extend_from_slice(b"; ");
        }
        for part in [attempt.to.text(), ": ", failure] {
            out.extend_from_slice(part.as_bytes());
        }
        value = Value::Found;
    }
    value
}

fn cookie(r: &Request, name: &[u8], out: &mut Vec<u8>) -> Value {
    let value = r.upstream.answer.fields.get_all(b"Set-Cookie").find_map(|set| {
        let pair = set.split(|byte| *byte == b';').next()?;
        find_cookie(pair, name)
    });
    put_maybe(out, value)
}
