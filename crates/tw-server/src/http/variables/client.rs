//! Variables of the request.

use super::fields::{put_fields, put_joined};
use tw_core::vars::write::{put, put_maybe, put_number, put_port, put_some};
use tw_http::base64::{self, Alphabet};
use tw_http::{Framing, HeaderName, Method, target};
use tw_log::{Level, Text};
use tw_request::request::Request;

use tw_request::vars::{self, Value, VarDef};

pub(super) static VARIABLES: &[VarDef] = &[
    VarDef::one("uri", uri, "Current path, decoded and normalised."),
    VarDef::one("document_uri", uri, "The same as $uri."),
    VarDef::one("args", args, "Arguments of the current URI.").assigned_by(|r, value| {
        r.uri.args = value;
        r.state.has_client_target = false;
    }),
    VarDef::one("query_string", args, "The same as $args."),
    VarDef::one("is_args", is_args, "`?` if there are arguments, else empty."),
    VarDef::family("arg_", arg, "Argument of that name, as sent."),
    VarDef::one("request_uri", request_uri, "URI with arguments as the client sent it."),
    VarDef::one("request", |r, out| put_some(out, r.head.request_line()), "The whole request line."),
    VarDef::one("request_method", method, "Method of the request."),
    VarDef::one(
        "server_protocol",
        |r, out| put_some(out, r.head.protocol()),
        "Protocol of the request, as `HTTP/1.1`.",
    ),
    VarDef::one("host", host, "Host of the request line, else of the `Host` field, else name of the server."),
    VarDef::one(
        "request_port",
        |r, out| put_port(out, r.head.host_port()),
        "Port that came with the host, if one did.",
    ),
    VarDef::one("is_request_port", is_request_port, "`:` if $request_port is not empty, else empty."),
    VarDef::one("http_host", |r, out| put_known(r, HeaderName::Host, out), "The `Host` field."),
    VarDef::one(
        "http_user_agent",
        |r, out| put_known(r, HeaderName::UserAgent, out),
        "The `User-Agent` field.",
    ),
    VarDef::one("http_referer", |r, out| put_known(r, HeaderName::Referer, out), "The `Referer` field."),
    VarDef::one("http_via", |r, out| put_known(r, HeaderName::Via, out), "The `Via` field."),
    VarDef::one(
        "http_x_forwarded_for",
        |r, out| put_known(r, HeaderName::XForwardedFor, out),
        "The `X-Forwarded-For` field.",
    ),
    VarDef::one("http_cookie", |r, out| put_known(r, HeaderName::Cookie, out), "The `Cookie` field."),
    VarDef::family(
        "http_",
        |r, name, out| put_fields(out, r.head.fields(), name),
        "Any field of the request; dashes as underscores.",
    ),
    VarDef::family("cookie_", cookie, "Cookie of that name."),
    VarDef::one(
        "content_type",
        |r, out| put_known(r, HeaderName::ContentType, out),
        "The `Content-Type` field of the request.",
    ),
    VarDef::one("content_length", content_length, "Length of the request's body in bytes."),
    VarDef::one(
        "request_body",
        |r, out| put_maybe(out, r.body.memory()),
        "Body of the request, once it was read into memory.",
    ),
    VarDef::one(
        "request_body_file",
        |r, out| put_maybe(out, r.body.file_name()),
        "Temporary file with the body of the request.",
    )
    .prepared(vars::NAMED_BODY_FILE),
    VarDef::one("request_length", request_length, "Bytes of the request: line, fields and body."),
    VarDef::one("remote_user", remote_user, "User of Basic authentication."),
];

fn uri(r: &Request, out: &mut Vec<u8>) -> Value {
    if r.head.target().is_empty() && r.uri.path.is_empty() {
        return Value::Missing;
    }
    put(out, current_path(r))
}

/// The current path. Of a request that was refused before it had a location, the path of the request line: empty if it
/// makes no sense.
pub(super) fn current_path(r: &Request) -> &[u8] {
    if r.uri.path.is_empty() { r.head.path() } else { &r.uri.path }
}

/// Missing if there is no sense in it.
fn request_uri(r: &Request, out: &mut Vec<u8>) -> Value {
    if current_path(r).is_empty() { Value::Missing } else { put_some(out, r.head.target()) }
}

fn args(r: &Request, out: &mut Vec<u8>) -> Value {
    put_some(out, current_args(r))
}

fn is_args(r: &Request, out: &mut Vec<u8>) -> Value {
    put(out, if current_args(r).is_empty() { b"" } else { b"?" })
}

fn current_args(r: &Request) -> &[u8] {
    if r.uri.path.is_empty() { r.head.args() } else { &r.uri.args }
}

fn arg(r: &Request, name: &[u8], out: &mut Vec<u8>) -> Value {
    put_maybe(out, target::arg(current_args(r), name))
}

fn method(r: &Request, out: &mut Vec<u8>) -> Value {
    put_some(out, r.client_method_name())
}

fn host(r: &Request, out: &mut Vec<u8>) -> Value {
    match r.route.host.as_slice() {
        b"" => {
            let name = || &*r.generation().server(r.route.server).settings.name;
            put(out, r.head.host().unwrap_or_else(name))
        }
        host => put(out, host),
    }
}

fn is_request_port(r: &Request, out: &mut Vec<u8>) -> Value {
    let port = r.head.host_port().unwrap_or(0);
    put(out, if port == 0 { b"" } else { b":" })
}

fn put_known(r: &Request, name: HeaderName, out: &mut Vec<u8>) -> Value {
    if !r.head.has(name) {
        return Value::Missing;
    }
    let separator: &[u8] = if name == HeaderName::Cookie { b"; " } else { b", " };
    put_joined(out, r.head.field_all(name.as_str().as_bytes()), separator)
}

fn cookie(r: &Request, name: &[u8], out: &mut Vec<u8>) -> Value {
    put_maybe(out, r.head.field_all(b"cookie").find_map(|line| tw_request::cookie::find_cookie(line, name)))
}

// DIFF(nginx): a chunked body that was discarded has its length, too.
fn content_length(r: &Request, out: &mut Vec<u8>) -> Value {
    match r.head.framing() {
        // The length of a chunked body is known once all of it was received.
        Framing::Chunked if !r.body.is_pending() => put_number(out, r.body.received()),
        _ => put_maybe(out, r.head.field_known(HeaderName::ContentLength)),
    }
}

// DIFF(nginx): a body that was discarded counts.
fn request_length(r: &Request, out: &mut Vec<u8>) -> Value {
    put_number(out, r.head.read_len() as u64 + r.body.wire())
}

fn remote_user(r: &Request, out: &mut Vec<u8>) -> Value {
    let start = out.len();
    match basic_user(r, out) {
        Some(len) => {
            out.truncate(start + len);
            Value::Found
        }
        None => Value::Missing,
    }
}

/// Appends `user:password` of Basic authentication (RFC 7617) to `out` and returns the length of the user name. `None`,
/// and nothing appended, if the client sent no credentials or malformed ones.
pub fn basic_user(r: &Request, out: &mut Vec<u8>) -> Option<usize> {
    let name = match r.method() {
        Method::Connect => HeaderName::ProxyAuthorization,
        _ => HeaderName::Authorization,
    };
    let (scheme, encoded) = r.head.field_known(name)?.split_at_checked(b"Basic ".len())?;
    if !scheme.eq_ignore_ascii_case(b"Basic ") {
        return None;
    }
    let start = out.len();
    let user = base64::decode(tw_request::cookie::trim(encoded), Alphabet::Standard, out)
        .ok()
        .and_then(|()| out[start..].iter().position(|byte| *byte == b':'))
        .filter(|len| *len > 0);
    if user.is_none() {
        out.truncate(start);
    }
    user
}

/// Takes `$limit_rate`: a size, 0 for no limit.
pub(super) fn set_limit_rate(r: &mut Request, value: Vec<u8>) {
    match tw_conf::units::size(&value) {
        Some(rate) => r.costs.limit_rate = Some(rate),
        None => r.log(Level::Error, format_args!("invalid $limit_rate \"{}\"", Text(&value))),
    }
}
