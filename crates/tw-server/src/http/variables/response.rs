//! Variables of the response.

use super::fields::put_fields;
use tw_core::vars::write::{put, put_number};
use tw_http::{Fields, HeaderName, Version, date};
use tw_request::request::Request;

use super::client::set_limit_rate;
use tw_phases::prepare_response;
use tw_request::request::After;
use tw_request::vars::{Value, VarDef};

pub(super) static VARIABLES: &[VarDef] = &[
    VarDef::one("status", status, "Status of the response, three digits."),
    VarDef::one("bytes_sent", |r, out| put_number(out, r.costs.sent.bytes), "Bytes sent to the client."),
    // DIFF(nginx): interim responses are no body.
    VarDef::one(
        "body_bytes_sent",
        |r, out| put_number(out, r.costs.sent.body()),
        "Bytes of the body sent to the client.",
    ),
    VarDef::one("request_completion", completion, "`OK` when the response was sent to its end, else empty."),
    VarDef::one("limit_rate", limit_rate, "Bytes per second the client gets; 0 is no limit.")
        .assigned_by(set_limit_rate),
    VarDef::one("sent_http_content_type", content_type, "The `Content-Type` field of the response."),
    VarDef::one("sent_http_content_length", content_length, "The `Content-Length` field of the response."),
    VarDef::one("sent_http_location", location, "The `Location` field of the response."),
    VarDef::one("sent_http_last_modified", last_modified, "The `Last-Modified` field of the response."),
    VarDef::one("sent_http_connection", connection, "The `Connection` field of the response."),
    VarDef::one("sent_http_keep_alive", keep_alive, "The `Keep-Alive` field of the response."),
    VarDef::one(
        "sent_http_transfer_encoding",
        transfer_encoding,
        "The `Transfer-Encoding` field of the response.",
    ),
    VarDef::family(
        "sent_http_",
        |r, name, out| put_fields(out, r.response.fields.iter(), name),
        "Any field of the response; dashes as underscores.",
    ),
    VarDef::family(
        "sent_trailer_",
        |r, name, out| put_fields(out, r.response.trailers.iter().flat_map(Fields::iter), name),
        "Any field after the body of the response; dashes as underscores.",
    ),
];

// DIFF(nginx): 200 before there is a response.
fn status(r: &Request, out: &mut Vec<u8>) -> Value {
    let status = r.state.error_status.unwrap_or(r.response.status);
    out.extend_from_slice(&[status / 100, status / 10, status].map(|digits| b'0' + (digits % 10) as u8));
    Value::Found
}

// DIFF(nginx): responses with 412 are complete, and those that an upstream server breaks off are not.
fn completion(r: &Request, out: &mut Vec<u8>) -> Value {
    put(out, if r.costs.sent.complete { b"OK" } else { b"" })
}

/// The configured rate counts from when the response begins, as in nginx.
fn limit_rate(r: &Request, out: &mut Vec<u8>) -> Value {
    let configured = r.plan().core.send.limit_rate.as_ref().filter(|_| r.costs.sent.head > 0);
    let rate = match (r.costs.limit_rate, configured) {
        (Some(rate), _) => rate,
        (None, Some(template)) => {
            let start = out.len();
            template.eval(r, out);
            let rate = tw_conf::units::size(&out[start..]).unwrap_or(0);
            out.truncate(start);
            rate
        }
        (None, None) => 0,
    };
    put_number(out, rate)
}

fn has_content(r: &Request) -> bool {
    r.response.status != 204
}

fn content_type(r: &Request, out: &mut Vec<u8>) -> Value {
    let keeps_type = r.head.version() < Version::HTTP_2 && !r.response.status_line.is_empty();
    if !has_content(r) && !keeps_type || r.response.content_type.is_empty() {
        return Value::Missing;
    }
    out.extend_from_slice(&r.response.content_type);
    if !r.response.charset.is_empty() {
        out.extend_from_slice(b"; charset=");
        out.extend_from_slice(&r.response.charset);
    }
    Value::Found
}

fn content_length(r: &Request, out: &mut Vec<u8>) -> Value {
    match (r.response.fields.get_known(HeaderName::ContentLength), r.response.content_length) {
        _ if !has_content(r) => Value::Missing,
        (Some(field), _) => put(out, field),
        (None, Some(length)) => put_number(out, length),
        (None, None) => Value::Missing,
    }
}

/// Absolute once it was sent so, as in nginx.
fn location(r: &Request, out: &mut Vec<u8>) -> Value {
    if r.response.location.is_empty() {
        return put_fields(out, r.response.fields.iter(), b"location");
    }
    let mut address = Vec::new();
    if r.costs.sent.head > 0
        && let Some(base) = prepare_response::location_base(r, &mut address)
    {
        out.extend_from_slice(if base.https { b"https://" } else { b"http://" });
        out.extend_from_slice(base.host);
        if let Some(port) = base.port {
            out.push(b':');
            put_number(out, port.into());
        }
    }
    put(out, &r.response.location)
}

// DIFF(nginx): a field that was sent has its value whatever the status.
fn last_modified(r: &Request, out: &mut Vec<u8>) -> Value {
    match (r.response.fields.get_known(HeaderName::LastModified), r.response.last_modified) {
        (Some(field), _) => put(out, field),
        (None, Some(seconds)) if matches!(r.response.status, 200 | 206 | 304) => {
            put(out, &date::format(seconds))
        }
        (None, _) => Value::Missing,
    }
}

// DIFF(nginx): what was sent. In nginx the connection is no longer a kept one by the time of the access log.
fn connection(r: &Request, out: &mut Vec<u8>) -> Value {
    put(
        out,
        match r.state.after {
            _ if r.response.status == 101 => b"upgrade",
            After::KeepAlive => b"keep-alive",
            After::Close | After::Abort => b"close",
        },
    )
}

fn keep_alive(r: &Request, out: &mut Vec<u8>) -> Value {
    match (r.state.after, &r.plan().core.keepalive.header) {
        (After::KeepAlive, Some(timeout)) => {
            out.extend_from_slice(b"timeout=");
            put_number(out, timeout.as_secs())
        }
        _ => Value::Missing,
    }
}

fn transfer_encoding(r: &Request, out: &mut Vec<u8>) -> Value {
    match r.wire().get().and_then(|wire| wire.transfer_coding(r)) {
        Some(coding) if r.costs.sent.head > 0 => put(out, coding.as_bytes()),
        _ => Value::Missing,
    }
}
