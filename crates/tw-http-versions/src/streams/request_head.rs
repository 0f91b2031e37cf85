//! A list of fields, or a request line, becomes the head of a request, within the limits of its server.

use std::fmt;
use std::rc::Rc;

use tw_fields::{FieldSection, MalformedReason, Pseudo as Which};
use tw_http::{
    Content, Framing, HeadError, HeadLimits, ListSize, Method, Progress, PseudoFields, RequestHead, base64,
};
use tw_log::{Level, Text};

use super::stream_body::{Expects, StreamBody};
use super::{Intent, ReceivedHead, RequestStream, StreamProtocol};
use tw_phases::start::choose_server;
use tw_request::generation::ListenGroup;
use tw_request::random_id::random_id;
use tw_request::request::{After, Request};
use tw_request::request_body::{IncomingBody, Source};

/// The server of the host does not speak the protocol of the connection (RFC 9110, section 15.5.20).
const MISDIRECTED_REQUEST: u16 = 421;
/// Status for an unknown protocol (RFC 9220 section 3).
const NOT_IMPLEMENTED: u16 = 501;
/// Status of a malformed request (RFC 9113 section 8.1.1, RFC 9114 section 4.1.2).
pub(crate) const BAD_REQUEST: u16 = 400;
/// Protocol that a stream can switch to (RFC 8441, RFC 9220).
const WEBSOCKET: &[u8] = b"websocket";
/// The line that has always asked for it (RFC 6455 section 4.1).
const UPGRADE_METHOD: &[u8] = b"GET";

// DIFF(nginx): a stream can become a tunnel (RFC 9113 section 8.5).
/// Intent of a request head.
pub(crate) fn intent(received: &ReceivedHead) -> Intent {
    match received {
        ReceivedHead::Fields(list) if is_connect(list) => Intent::Tunnel,
        ReceivedHead::Fields(_) | ReceivedHead::Line(_) => Intent::Answer,
    }
}

fn is_connect(list: &FieldSection) -> bool {
    list.pseudo(Which::Method).map(Method::of) == Some(Method::Connect)
}

/// Takes a head over. The error is the status of a request that goes no further, which has been logged.
pub(crate) fn take(r: &mut Request, received: &ReceivedHead, protocol: &StreamProtocol) -> Result<(), u16> {
    let generation = r.generation().clone();
    let Some(group) = r.client().group(&generation) else {
        // A reload took the address away.
        r.state.after = After::Abort;
        return Err(503);
    };
    r.route.server = match received {
        ReceivedHead::Fields(_) => group.default_server,
        // Most lines name no host.
        ReceivedHead::Line(_) => r.client().named_server(group),
    };
    r.route.plan = generation.server(r.route.server).plan;
    let (read, part) = match received {
        ReceivedHead::Fields(list) => {
            let read = read(r, list, group, protocol);
            r.head.set_list_size(list.block_len());
            (read, "headers")
        }
        ReceivedHead::Line(line) => (read_line(r, line, group).map_err(Wrong::Head), "line"),
    };
    if let Err(wrong) = read {
        let said = RejectionText { head: &r.head, wrong };
        r.log(Level::Info, format_args!("{said} while reading client request {part}"));
        // An error page may use the part of the URI that was valid.
        let Request { head, uri, .. } = &mut *r;
        uri.path.extend_from_slice(head.path());
        uri.args.extend_from_slice(head.args());
        return Err(wrong.status());
    }
    if !(protocol.is_spoken)(received, group, generation.server(r.route.server)) {
        r.log(
            Level::Info,
            format_args!(
                "client attempted to request the server name for which the negotiated protocol is disabled"
            ),
        );
        return Err(MISDIRECTED_REQUEST);
    }
    let other = match received {
        ReceivedHead::Fields(list) => list.pseudo(Which::Protocol),
        ReceivedHead::Line(_) => None,
    };
    match other {
        Some(other) if other != WEBSOCKET => {
            r.log(Level::Info, format_args!("client asked for the protocol \"{}\"", Text(other)));
            Err(NOT_IMPLEMENTED)
        }
        _ => Ok(()),
    }
}

/// Begins the body that follows the head of `r`.
pub(crate) fn begin_body<S: RequestStream + 'static>(stream: Rc<S>, r: &mut Request) {
    let length = match r.head.framing() {
        Framing::None => return,
        Framing::Length(length) => Some(length),
        Framing::Chunked => None,
    };
    let expects = if r.head.expect_continue() { Expects::Continue } else { Expects::Nothing };
    r.body.begin(Source::Client(IncomingBody::new(StreamBody::new(stream, length, expects))));
}

fn read(
    r: &mut Request,
    list: &FieldSection,
    group: &ListenGroup,
    protocol: &StreamProtocol,
) -> Result<(), Wrong> {
    let generation = r.generation().clone();
    let authority = list.pseudo(Which::Authority);
    let other = list.pseudo(Which::Protocol);
    let pseudo = PseudoFields {
        method: if other.is_some() { UPGRADE_METHOD } else { list.pseudo(Which::Method).unwrap_or_default() },
        target: list.pseudo(Which::Path).unwrap_or_default(),
        authority,
        version: protocol.version,
    };
    // DIFF(nginx): the line of the log names a request that is refused, too.
    let begun = r.head.begin_list(&pseudo, &generation.server(r.route.server).head);
    if authority.is_some() && r.head.host().is_some() {
        choose_server(r, group);
    }
    let limits = &generation.server(r.route.server).head;
    if pseudo.method == b"CONNECT" && !limits.allow_connect {
        return Err(HeadError::ConnectNotAllowed.into());
    }
    if let Some(failure) = list.malformed() {
        return Err(failure.into());
    }
    if list.is_truncated() {
        return Err(HeadError::TooLargeRequest.into());
    }
    let size = ListSize {
        longest: list.longest(),
        all: list.text_len(),
        target: list.pseudo(Which::Path).map_or(0, <[u8]>::len),
    };
    size.check(limits)?;
    begun?;
    for (name, value) in list.iter() {
        r.head.push_listed(name, value, limits)?;
    }
    if let Some(other) = other {
        push_upgrade_fields(&mut r.head, other, limits)?;
    }
    // Data that follows a CONNECT request belongs to the tunnel and is not the content of the request (RFC 9113 section
    // 8.5).
    let content = if list.ends() || is_connect(list) { Content::None } else { Content::Follows };
    let ended = r.head.end_list(content, limits);
    if authority.is_none() {
        choose_server(r, group);
    }
    Ok(ended?)
}

// DIFF(nginx): a line of HTTP/1 is refused, and a request without a host is for the server of the handshake.
/// Reads a request line of HTTP/0.9.
fn read_line(r: &mut Request, line: &[u8], group: &ListenGroup) -> Result<(), HeadError> {
    let generation = r.generation().clone();
    let limits = &generation.server(r.route.server).head;
    r.head.push(line);
    match r.head.parse(limits)? {
        Progress::Complete => {
            choose_server(r, group);
            Ok(())
        }
        // The line is empty, or announces that fields follow.
        Progress::NeedMore => Err(HeadError::InvalidRequest),
    }
}

// DIFF(nginx): it knows no `CONNECT` with a `:protocol`.
/// Asks for another protocol in the words of HTTP/1.1, which configurations and the servers behind this one know: a stream of
/// this client cannot be told by its key, so that is made here (RFC 8441 section 5).
fn push_upgrade_fields(head: &mut RequestHead, other: &[u8], limits: &HeadLimits) -> Result<(), HeadError> {
    head.push_listed(b"upgrade", other, limits)?;
    head.push_listed(b"connection", b"Upgrade", limits)?;
    head.push_listed(b"sec-websocket-key", &base64::encode(&random_id()), limits)
}

/// Reason why a head cannot be served.
#[derive(Clone, Copy)]
enum Wrong {
    /// Violation of the protocol.
    Malformed(MalformedReason),
    /// Or those of every head.
    Head(HeadError),
}

impl From<MalformedReason> for Wrong {
    fn from(failure: MalformedReason) -> Self {
        Self::Malformed(failure)
    }
}

impl From<HeadError> for Wrong {
    fn from(error: HeadError) -> Self {
        Self::Head(error)
    }
}

impl Wrong {
    fn status(self) -> u16 {
        match self {
            Self::Malformed(_) => BAD_REQUEST,
            Self::Head(error) => error.status(),
        }
    }
}

/// Text for the error log.
struct RejectionText<'a> {
    head: &'a RequestHead,
    wrong: Wrong,
}

impl fmt::Display for RejectionText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.wrong {
            Wrong::Malformed(failure) => write!(f, "client {failure}"),
            Wrong::Head(error) => self.head.error_text(error).fmt(f),
        }
    }
}
