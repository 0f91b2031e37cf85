//! A head that the crate `h2` has decoded becomes the head of a request, within the limits of its server.

use ::h2::ext::Protocol;
use http::request::Parts;
use tw_http::{Content, HeadError, HeadLimits, Pseudo, RequestHead, base64};
use tw_log::Level;

use crate::http::entry::choose_server;
use crate::http::generation::ListenGroup;
use crate::http::request::{After, Request};
use crate::http::variables::random_id;

/// The server of the host does not speak HTTP/2 (RFC 9110, section 15.5.20).
const MISDIRECTED_REQUEST: u16 = 421;
/// Nobody here speaks what the client has asked for (RFC 9220 section 3).
const NOT_IMPLEMENTED: u16 = 501;
/// What a stream can become (RFC 8441).
const WEBSOCKET: &str = "websocket";
/// The line that has always asked for it (RFC 6455 section 4.1).
const UPGRADE_METHOD: &[u8] = b"GET";

// DIFF(nginx): what breaks the rules of the protocol is a stream that is reset, not a request that is answered with 400.
/// Takes a head over. The error is the status of a request that goes no further, which has been logged.
pub(super) fn take(r: &mut Request, parts: &Parts, content: Content) -> Result<(), u16> {
    let generation = r.generation().clone();
    let Some(group) = r.client().group(&generation) else {
        // A reload took the address away.
        r.course.after = After::Abort;
        return Err(503);
    };
    r.route.server = group.default_server;
    r.route.plan = generation.server(r.route.server).plan;
    let other = parts.extensions.get::<Protocol>();
    // What follows is said in the other protocol.
    let content = if other.is_some() { Content::None } else { content };
    if let Err(error) = read(r, parts, content, group) {
        let reading = "while reading client request headers";
        r.log(Level::Info, format_args!("{} {reading}", r.head.error_text(error)));
        // As far as the path was good, an error page may use it.
        let Request { head, uri, .. } = &mut *r;
        uri.path.extend_from_slice(head.path());
        uri.args.extend_from_slice(head.args());
        return Err(error.status());
    }
    if !group.speaks_http2(generation.server(r.route.server)) {
        r.log(
            Level::Info,
            format_args!(
                "client attempted to request the server name for which the negotiated protocol is disabled"
            ),
        );
        return Err(MISDIRECTED_REQUEST);
    }
    match other {
        Some(other) if other.as_str() != WEBSOCKET => {
            r.log(Level::Info, format_args!("client asked for the protocol \"{}\"", other.as_str()));
            Err(NOT_IMPLEMENTED)
        }
        _ => Ok(()),
    }
}

fn read(r: &mut Request, parts: &Parts, content: Content, group: &ListenGroup) -> Result<(), HeadError> {
    let generation = r.generation().clone();
    let other = parts.extensions.get::<Protocol>();
    let pseudo = Pseudo {
        method: if other.is_some() { UPGRADE_METHOD } else { parts.method.as_str().as_bytes() },
        target: parts.uri.path_and_query().map_or(&b""[..], |target| target.as_str().as_bytes()),
        authority: parts.uri.authority().map(|authority| authority.as_str().as_bytes()),
    };
    r.head.begin_list(&pseudo, &generation.server(r.route.server).settings.head)?;
    if pseudo.authority.is_some() {
        choose_server(r, group);
    }
    let limits = &generation.server(r.route.server).settings.head;
    for (name, value) in &parts.headers {
        r.head.push_listed(name.as_str().as_bytes(), value.as_bytes(), limits)?;
    }
    if let Some(other) = other {
        ask_to_switch(&mut r.head, other.as_str(), limits)?;
    }
    let ended = r.head.end_list(content);
    if pseudo.authority.is_none() {
        choose_server(r, group);
    }
    ended
}

// DIFF(nginx): it knows no `CONNECT` with a `:protocol`.
/// Asks for another protocol in the words of HTTP/1.1, which configurations and the servers behind this one know: a stream of
/// this client cannot be told by its key, so that is made here (RFC 8441 section 5).
fn ask_to_switch(head: &mut RequestHead, other: &str, limits: &HeadLimits) -> Result<(), HeadError> {
    head.push_listed(b"upgrade", other.as_bytes(), limits)?;
    head.push_listed(b"connection", b"Upgrade", limits)?;
    head.push_listed(b"sec-websocket-key", &base64::encode(&random_id()), limits)
}
