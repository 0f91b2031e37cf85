//! The head of a response and its HTTP/1 form, in the order nginx writes it.

mod charset;
mod list;
mod memo;

use std::rc::Rc;

use bytes::Bytes;

use crate::fields::{Fields, Value};
use crate::header_name::HeaderName;
use crate::method::Method;
use crate::{date, hop, num, scan, status};
use memo::MemoGaps;

pub use list::{FieldVisitor, list_fields};
pub use memo::HeadMemo;

/// Room that a typical head takes, so that `out` grows once.
const RESERVE: usize = 512;

/// The head of a response. Lines that the server writes itself have their own place; everything else is a field.
#[derive(Clone, Debug, Default)]
pub struct ResponseHead {
    /// The status code.
    pub status: u16,
    /// Replaces code and reason of the status line when not empty, e.g. `404 Nothing Here` from an upstream.
    pub status_line: Bytes,
    /// The media type; empty means no `Content-Type`.
    pub content_type: Bytes,
    /// Appended to the media type as `; charset=…` when not empty.
    pub charset: Bytes,
    /// Bytes of the body; None means unknown or none.
    pub content_length: Option<u64>,
    /// Seconds since 1970; written only with 200, 206 and 304, as nginx does.
    pub last_modified: Option<i64>,
    /// The target of a redirect; empty means no `Location`.
    pub location: Bytes,
    /// True if other requests may get another content coding, so that `gzip_vary` adds `Vary: Accept-Encoding`.
    pub varies_by_coding: bool,
    /// Lines that the server does not write although no field replaces them.
    pub omitted: OmittedLines,
    /// All other fields, in the order they were added; `ETag` is one of them.
    pub fields: Fields,
    /// Trailers of a chunked body. `Some` announces trailers, which makes the body chunked if the client and the
    /// configuration allow it; they may be filled in until the body has ended.
    pub trailers: Option<Fields>,
    /// Memo of the encoded text, if the head is likely to be sent again.
    pub memo: Option<Rc<HeadMemo>>,
}

/// Set of the lines that the server writes of itself and a configuration can omit: `Server` and `Date`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OmittedLines(u64);

impl OmittedLines {
    /// Adds a line.
    pub fn add(&mut self, line: HeaderName) {
        self.0 |= line.bit();
    }

    /// Returns `true` if the line is omitted.
    pub fn has(self, line: HeaderName) -> bool {
        self.0 & line.bit() != 0
    }
}

/// Value of `Connection`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionField {
    /// `keep-alive`, and `Keep-Alive: timeout=N` if seconds are given (`keepalive_timeout`'s second value).
    KeepAlive(Option<u64>),
    /// `close`
    Close,
    /// `upgrade`, with 101.
    Upgrade,
}

/// Scheme, host and port in front of a `Location` that is a path (`absolute_redirect on`).
#[derive(Clone, Copy, Debug)]
pub struct LocationBase<'a> {
    /// True if the client uses TLS.
    pub https: bool,
    /// Host of the request, or the server's name.
    pub host: &'a [u8],
    /// The port, unless it is the scheme's own or `port_in_redirect` is off.
    pub port: Option<u16>,
}

/// Context of the encoder besides the head.
#[derive(Clone, Copy, Debug)]
pub struct EncodeContext<'a> {
    /// The current time, seconds since 1970.
    pub now: i64,
    /// Cache of formatted dates.
    pub dates: &'a date::DateCache,
    /// The value of `Server`; empty means no such line.
    pub server: &'a [u8],
    /// `Connection` and `Keep-Alive`.
    pub connection: ConnectionField,
    /// True if the body is sent chunked.
    pub chunked: bool,
    /// Makes a `Location` that starts with `/` absolute.
    pub location_base: Option<LocationBase<'a>>,
    /// True to write `Vary: Accept-Encoding` (`gzip_vary`).
    pub vary_accept_encoding: bool,
}

/// Fields that [`ResponseHead::remove_framing_fields`] looks at.
const FRAMING: [HeaderName; 6] = [
    HeaderName::ContentLength,
    HeaderName::TransferEncoding,
    HeaderName::Connection,
    HeaderName::KeepAlive,
    HeaderName::ProxyConnection,
    HeaderName::Trailer,
];

impl ResponseHead {
    /// Makes a head with this status only.
    pub fn new(status: u16) -> Self {
        ResponseHead { status, ..ResponseHead::default() }
    }

    /// Sets the status. The status line of another response goes.
    pub fn set_status(&mut self, status: u16) {
        self.status = status;
        self.status_line = Bytes::new();
    }

    /// Back to an empty head with this status; keeps the memory of the fields.
    pub fn reset(&mut self, status: u16) {
        self.status = status;
        // Most heads have few of these, and dropping an empty value is a call as well.
        for text in [&mut self.status_line, &mut self.content_type, &mut self.charset, &mut self.location] {
            if !text.is_empty() {
                *text = Bytes::new();
            }
        }
        (self.content_length, self.last_modified) = (None, None);
        (self.varies_by_coding, self.omitted) = (false, OmittedLines::default());
        self.fields.clear();
        (self.trailers, self.memo) = (None, None);
    }

    /// The entity tag.
    pub fn etag(&self) -> Option<&[u8]> {
        self.fields.get_known(HeaderName::ETag)
    }

    /// Sets the entity tag, quotes included.
    pub fn set_etag<'a>(&mut self, etag: impl Into<Value<'a>>) {
        self.fields.set(HeaderName::ETag, etag);
    }

    /// Makes the entity tag a weak one, as a filter must that changes the bytes of the body.
    pub fn weaken_etag(&mut self) {
        match self.etag() {
            Some(etag) if etag.starts_with(b"\"") => {
                let weak = [b"W/", etag].concat();
                self.set_etag(Bytes::from(weak));
            }
            Some(etag) if !etag.starts_with(b"W/") => {
                // The value is no entity tag.
                self.fields.remove_known(HeaderName::ETag);
            }
            _ => {}
        }
    }

    /// Removes added fields that only the server may set: framing, connection management, and a `Trailer` without
    /// trailers. Cost: a bit test per name if there are none.
    pub fn remove_framing_fields(&mut self) {
        let keeps_trailer = self.trailers.is_some();
        let may_go =
            |known_name| hop::is_framing(known_name) || known_name == HeaderName::Trailer && !keeps_trailer;
        if FRAMING.into_iter().any(|known_name| self.fields.has(known_name) && may_go(known_name)) {
            self.fields.retain(|_, known_name| !known_name.is_some_and(may_go));
        }
    }

    /// Returns `true` if the response has no body, whatever its fields announce (RFC 9112 section 6.3).
    pub fn has_no_body(&self, method: Method) -> bool {
        method.is_head() || status::has_no_body(self.status)
    }

    /// Returns `true` if the server writes this line of its own.
    fn writes(&self, line: HeaderName) -> bool {
        !self.fields.has(line) && !self.omitted.has(line)
    }

    /// Appends the HTTP/1 form to `out`, the empty line included.
    ///
    /// `Server`, `Date`, `Content-Length` and `Last-Modified` among the fields (a proxied response may have them)
    /// stay where they are and replace the server's own line. A 204 has no length, and a type only if an upstream server sent it.
    ///
    /// Cost: no allocation besides `out`, unless the text is to be kept.
    pub fn encode_h1(&self, context: &EncodeContext<'_>, out: &mut Vec<u8>) {
        match &self.memo {
            Some(memo) if memo::may_be_kept(self, context) => memo.encode(self, context, out),
            _ => _ = self.write(context, out),
        }
    }

    fn write(&self, context: &EncodeContext<'_>, out: &mut Vec<u8>) -> MemoGaps {
        let has_content = self.status != 204;
        out.reserve(RESERVE);
        out.extend_from_slice(b"HTTP/1.1 ");
        match status::line(self.status) {
            _ if !self.status_line.is_empty() => push_value(out, &self.status_line),
            Some(line) => out.extend_from_slice(line.as_bytes()),
            None => {
                out.extend_from_slice(match self.status {
                    0..10 => b"00",
                    10..100 => b"0",
                    _ => b"",
                });
                num::push_decimal(out, u64::from(self.status));
                out.push(b' ');
            }
        }
        out.extend_from_slice(b"\r\n");

        if !context.server.is_empty() && self.writes(HeaderName::Server) {
            push_line(out, b"Server: ", context.server);
        }
        let mut date = 0..0;
        if self.writes(HeaderName::Date) {
            out.extend_from_slice(b"Date: ");
            let start = out.len();
            out.extend_from_slice(&context.dates.text(context.now));
            date = start..out.len();
            out.extend_from_slice(b"\r\n");
        }
        // As in nginx, a 204 of an upstream server keeps its type in HTTP/1.
        let has_type = has_content || !self.status_line.is_empty();
        if has_type && !self.content_type.is_empty() {
            out.extend_from_slice(b"Content-Type: ");
            push_value(out, &self.content_type);
            if !self.charset.is_empty() {
                out.extend_from_slice(b"; charset=");
                push_value(out, &self.charset);
            }
            out.extend_from_slice(b"\r\n");
        }
        if let Some(length) = self.content_length
            && has_content
            && !self.fields.has(HeaderName::ContentLength)
        {
            out.extend_from_slice(b"Content-Length: ");
            num::push_decimal(out, length);
            out.extend_from_slice(b"\r\n");
        }
        if let Some(seconds) = self.last_modified
            && matches!(self.status, 200 | 206 | 304)
            && !self.fields.has(HeaderName::LastModified)
        {
            push_own(out, b"Last-Modified: ", &context.dates.text(seconds));
        }
        let base = context.location_base.filter(|_| self.location.starts_with(b"/"));
        if let Some(base) = base {
            base.push(&self.location, out);
        }
        if context.chunked {
            out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
        }
        let start = out.len();
        context.connection.push(out);
        let connection = start..out.len();
        if context.vary_accept_encoding {
            out.extend_from_slice(b"Vary: Accept-Encoding\r\n");
        }
        if base.is_none() && !self.location.is_empty() {
            push_line(out, b"Location: ", &self.location);
        }
        push_fields(&self.fields, out);
        MemoGaps { date, connection }
    }
}

impl ConnectionField {
    #[inline]
    fn push(self, out: &mut Vec<u8>) {
        match self {
            Self::Upgrade => out.extend_from_slice(b"Connection: upgrade\r\n"),
            Self::Close => out.extend_from_slice(b"Connection: close\r\n"),
            Self::KeepAlive(timeout) => {
                out.extend_from_slice(b"Connection: keep-alive\r\n");
                if let Some(seconds) = timeout {
                    out.extend_from_slice(b"Keep-Alive: timeout=");
                    num::push_decimal(out, seconds);
                    out.extend_from_slice(b"\r\n");
                }
            }
        }
    }
}

impl LocationBase<'_> {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(if self.https { b"https://" } else { b"http://" });
        out.extend_from_slice(self.host);
        if let Some(port) = self.port {
            out.push(b':');
            num::push_decimal(out, u64::from(port));
        }
    }

    /// A `Location` that is a path is made absolute in its own place; any other one is the first of the fields.
    fn push(&self, location: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(b"Location: ");
        self.write(out);
        push_line(out, b"", location);
    }
}

/// The answer to `Expect: 100-continue`.
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Appends a `103 Early Hints` with these fields; nothing if there are none.
pub fn encode_early_hints(fields: &Fields, out: &mut Vec<u8>) {
    if !fields.is_empty() {
        out.extend_from_slice(b"HTTP/1.1 103 Early Hints\r\n");
        push_fields(fields, out);
    }
}

/// Appends fields and the empty line: the end of a head, or the trailer section of a chunked body.
pub fn push_fields(fields: &Fields, out: &mut Vec<u8>) {
    for (name, value) in fields.iter() {
        out.extend_from_slice(name);
        push_line(out, b": ", value);
    }
    out.extend_from_slice(b"\r\n");
}

/// A line whose value cannot be dangerous.
#[inline]
fn push_own(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

#[inline]
fn push_line(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    push_value(out, value);
    out.extend_from_slice(b"\r\n");
}

/// RFC 9110 section 5.5: CR, LF and NUL in a value are dangerous and become a space. A decoded path in a `return` or
/// `add_header` must not be able to end the line.
// DIFF(nginx): nginx writes them as they are.
#[inline]
fn push_value(out: &mut Vec<u8>, value: &[u8]) {
    if scan::value_len(value) == value.len() {
        return out.extend_from_slice(value);
    }
    out.extend(value.iter().map(|&byte| if matches!(byte, b'\r' | b'\n' | 0) { b' ' } else { byte }));
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn context() -> EncodeContext<'static> {
        EncodeContext {
            now: 784_111_777,
            dates: Box::leak(Box::default()),
            server: b"tailwater",
            connection: ConnectionField::KeepAlive(None),
            chunked: false,
            location_base: None,
            vary_accept_encoding: false,
        }
    }

    fn encoded(head: &ResponseHead, context: &EncodeContext<'_>) -> String {
        let mut out = Vec::new();
        head.encode_h1(context, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn lines_come_in_nginx_order() {
        let mut head = ResponseHead::new(200);
        head.content_type = Bytes::from_static(b"text/html");
        head.charset = Bytes::from_static(b"utf-8");
        head.content_length = Some(1234);
        head.last_modified = Some(784_111_777);
        head.set_etag("\"5f-4d2\"");
        head.fields.append(HeaderName::AcceptRanges, "bytes");
        let context = EncodeContext {
            connection: ConnectionField::KeepAlive(Some(20)),
            vary_accept_encoding: true,
            ..context()
        };
        let expected = "HTTP/1.1 200 OK\r\nServer: tailwater\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
            Content-Type: text/html; charset=utf-8\r\nContent-Length: 1234\r\n\
            Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\nConnection: keep-alive\r\n\
            Keep-Alive: timeout=20\r\nVary: Accept-Encoding\r\nETag: \"5f-4d2\"\r\n\
            Accept-Ranges: bytes\r\n\r\n";
        assert_eq!(encoded(&head, &context), expected);
    }

    #[test]
    fn status_lines() {
        let table = [
            (302, "", "302 Moved Temporarily"),
            (404, "404 Nothing Here", "404 Nothing Here"),
            (418, "", "418 "),
            (99, "", "099 "),
            (7, "", "007 "),
            (0, "", "000 "),
            (1000, "", "1000 "),
        ];
        for (status, line, expected) in table {
            let mut head = ResponseHead::new(status);
            head.status_line = Bytes::from_static(line.as_bytes());
            let text = encoded(&head, &context());
            assert_eq!(text.split("\r\n").next(), Some(format!("HTTP/1.1 {expected}").as_str()));
        }
    }

    #[test]
    fn a_path_as_location_becomes_absolute() {
        let base = |https, port| Some(LocationBase { https, host: b"a", port });
        let table = [
            (base(false, None), "/x", "http://a/x"),
            (base(true, Some(8443)), "/x", "https://a:8443/x"),
            (base(true, None), "http://b/x", "http://b/x"),
            (None, "/x", "/x"),
        ];
        for (location_base, location, expected) in table {
            let mut head = ResponseHead::new(301);
            head.location = Bytes::from_static(location.as_bytes());
            head.last_modified = Some(0);
            let context = EncodeContext { location_base, chunked: true, ..context() };
            let text = encoded(&head, &context);
            let line = format!("Location: {expected}\r\n");
            let chunked = "Transfer-Encoding: chunked\r\n";
            let connection = "Connection: keep-alive\r\n";
            let tail = if location == expected {
                format!("GMT\r\n{chunked}{connection}{line}\r\n")
            } else {
                format!("GMT\r\n{line}{chunked}{connection}\r\n")
            };
            assert!(text.ends_with(&tail), "{text}");
        }
    }

    #[test]
    fn fields_of_an_origin_replace_our_own_lines() {
        let mut head = ResponseHead::new(200);
        head.content_length = Some(5);
        head.last_modified = Some(0);
        for (name, value) in [("server", "o"), ("Date", "d"), ("content-LENGTH", "7"), ("Last-Modified", "l")]
        {
            head.fields.append(name, value);
        }
        let expected = "HTTP/1.1 200 OK\r\nConnection: close\r\nserver: o\r\nDate: d\r\n\
            content-LENGTH: 7\r\nLast-Modified: l\r\n\r\n";
        let context = EncodeContext { connection: ConnectionField::Close, ..context() };
        assert_eq!(encoded(&head, &context), expected);
    }

    #[test]
    fn omitted_lines_are_not_written() {
        let mut head = ResponseHead::new(200);
        head.content_length = Some(0);
        head.omitted.add(HeaderName::Server);
        let text = encoded(&head, &context());
        assert!(!text.contains("Server: ") && text.contains("Date: "), "{text}");
        head.omitted.add(HeaderName::Date);
        head.memo = Some(Rc::default());
        for _ in 0..3 {
            let expected = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n";
            assert_eq!(encoded(&head, &context()), expected);
        }
        head.fields.append(HeaderName::Server, "mine");
        assert!(encoded(&head, &context()).contains("\r\nServer: mine\r\n"));
        head.reset(200);
        assert!(encoded(&head, &context()).contains("\r\nServer: tailwater\r\n"));
    }

    #[test]
    fn no_content_has_neither_type_nor_length() {
        let mut head = ResponseHead::new(204);
        head.content_type = Bytes::from_static(b"text/plain");
        head.content_length = Some(0);
        let context = EncodeContext { server: b"", connection: ConnectionField::Upgrade, ..context() };
        let expected = "HTTP/1.1 204 No Content\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
            Connection: upgrade\r\n\r\n";
        assert_eq!(encoded(&head, &context), expected);
        assert!(head.has_no_body(Method::Get));
        assert!(ResponseHead::new(200).has_no_body(Method::Head));
    }

    #[test]
    fn no_content_of_an_upstream_server_keeps_its_type() {
        let mut head = ResponseHead::new(204);
        head.status_line = Bytes::from_static(b"204 No Content");
        head.content_type = Bytes::from_static(b"text/plain");
        head.content_length = Some(0);
        let text = encoded(&head, &context());
        assert!(
            text.contains("\r\nContent-Type: text/plain\r\n") && !text.contains("Content-Length"),
            "{text}"
        );
    }

    #[test]
    fn tags_are_weakened_once() {
        for (tag, expected) in [("\"a\"", Some("W/\"a\"")), ("W/\"a\"", Some("W/\"a\"")), ("a", None)] {
            let mut head = ResponseHead::new(200);
            head.set_etag(tag);
            head.weaken_etag();
            assert_eq!(head.etag(), expected.map(str::as_bytes), "{tag}");
        }
    }

    #[test]
    fn reset_keeps_nothing_but_memory() {
        let mut head = ResponseHead::new(200);
        head.content_length = Some(1);
        head.fields.append("X", "y");
        head.reset(404);
        assert_eq!((head.status, head.content_length, head.fields.len()), (404, None, 0));
    }

    #[test]
    fn values_cannot_contain_line_ends() {
        let mut head = ResponseHead::new(302);
        head.location = Bytes::from_static(b"/a\r\nSet-Cookie: x");
        head.content_type = Bytes::from_static(b"a\nb");
        head.fields.append("X-Uri", "a\0b\rc");
        let text = encoded(&head, &context());
        assert!(text.contains("Location: /a  Set-Cookie: x\r\n"), "{text}");
        assert!(text.contains("Content-Type: a b\r\n"), "{text}");
        assert!(text.contains("X-Uri: a b c\r\n"), "{text}");
    }

    #[test]
    fn early_hints() {
        let mut fields = Fields::new();
        let mut out = Vec::new();
        encode_early_hints(&fields, &mut out);
        assert!(out.is_empty());
        fields.append(HeaderName::Link, "</a>; rel=preload");
        encode_early_hints(&fields, &mut out);
        assert_eq!(out, b"HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n");
    }
}
