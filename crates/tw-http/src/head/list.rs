//! Request head received as a list of fields (RFC 9113 section 8.3, RFC 9114 section 4.3), stored as if it had been received in
//! lines, so that all accessors of a head work, `$request` and `Host` included.
//!
//! ```text
//! begin_list ─ (the host is known: its server's limits hold) ─ ListSize::check ─ push_listed … ─ end_list
//! ```

use super::field_list::FieldSpan;
use super::parse::{self, accept_known, keep_host};
use super::{Framing, HeadError, HeadLimits, HostAt, RequestHead, Span};
use crate::header_name::HeaderName;
use crate::host::Host;
use crate::method::{Method, Version};
use crate::{num, scan};

const SLASH_AT: usize = 4;
const LINE_END: &[u8] = b"\r\n";
/// Separator of cookie crumbs (RFC 9113 section 8.2.3).
const CRUMB_END: &[u8] = b"; ";

/// Pseudo-header fields, which replace a request line.
#[derive(Clone, Copy, Debug)]
pub struct PseudoFields<'a> {
    /// `:method`
    pub method: &'a [u8],
    /// `:path`; empty if there is none.
    pub target: &'a [u8],
    /// `:authority`
    pub authority: Option<&'a [u8]>,
    /// Version of the protocol: [`Version::HTTP_2`] or [`Version::HTTP_3`].
    pub version: Version,
}

/// Size of a list of fields, as nginx counts: each name and value as it was packed, and all of them as they are.
#[derive(Clone, Copy, Debug)]
pub struct ListSize {
    /// Bytes of the longest name or value, as it was packed.
    pub longest: usize,
    /// Bytes of names and values, pseudo-fields included.
    pub all: usize,
    /// Bytes of the path among them.
    pub target: usize,
}

impl ListSize {
    /// Checks that there is room for such a list.
    ///
    /// # Errors
    /// There is none.
    pub fn check(self, limits: &HeadLimits) -> Result<(), HeadError> {
        let HeadLimits { large_buffer_size: each, large_buffers_count: count, .. } = *limits;
        if self.longest <= each && self.all <= each.saturating_mul(count) {
            Ok(())
        } else if self.longest > each && self.target > each {
            Err(HeadError::UriTooLong)
        } else {
            Err(HeadError::TooLargeRequest)
        }
    }
}

/// Presence of content after a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// The head was all.
    None,
    /// Content that ends with the stream.
    Follows,
}

impl RequestHead {
    /// Begins a head, replacing any earlier one. The host is known afterwards, if there is an `:authority`.
    ///
    /// # Errors
    /// The method, path or authority is invalid.
    pub fn begin_list(&mut self, pseudo: &PseudoFields<'_>, limits: &HeadLimits) -> Result<(), HeadError> {
        self.clear();
        self.parser = parse::Parser::new();
        let PseudoFields { method, target, authority, version } = *pseudo;
        let method_end = self.write(method);
        let is_tunnel = Method::of(method) == Method::Connect;
        let target_at = self.write(b" ");
        let target_end = self.write(if is_tunnel { authority.unwrap_or(target) } else { target });
        let protocol_at = self.write(b" ");
        let end = self.write(if version == Version::HTTP_3 { b"HTTP/3.0" } else { b"HTTP/2.0" });
        self.write(LINE_END);
        self.line.whole = Span::new(0, end);
        self.line.version = version;
        self.line.method = Method::of(method);
        self.line.method_word = Span::new(0, method_end);
        self.line.protocol = Span::new(protocol_at, end);
        let is_word = |byte: &u8| byte.is_ascii_uppercase() || matches!(byte, b'_' | b'-');
        if method.is_empty() || !method.iter().all(is_word) {
            return Err(HeadError::InvalidMethod);
        }
        let target_span = match is_tunnel {
            // A tunnel has no path; the `/` of `HTTP/` stands in for it.
            true => Span::new(protocol_at + SLASH_AT, protocol_at + SLASH_AT + 1),
            false if target.first() != Some(&b'/') || scan::target_len(target) != target.len() => {
                return Err(HeadError::InvalidRequest);
            }
            false => Span::new(target_at, target_end),
        };
        parse::accept_target(self, target_span, limits.merge_slashes)?;
        if let Some(authority) = authority {
            self.accept_authority(authority)?;
        }
        match self.line.host_port {
            // RFC 9113 section 8.5.
            None if is_tunnel => Err(HeadError::InvalidAuthority),
            _ => Ok(()),
        }
    }

    /// The authority is the host, and the field `Host`.
    fn accept_authority(&mut self, authority: &[u8]) -> Result<(), HeadError> {
        let field = self.write_field(b"host", authority, Some(HeaderName::Host));
        let host = Host::parse(authority).map_err(|_| HeadError::InvalidAuthority)?;
        let RequestHead { buf, line, host_lower, fields, .. } = self;
        line.host = keep_host(buf, field.value, host, host_lower);
        line.host_port = host.port;
        fields.push(field);
        Ok(())
    }

    /// Adds a field; its name is in lower case. [`ListSize::check`] checks the total size.
    ///
    /// # Errors
    /// Fails if the field is malformed, or if there are too many.
    pub fn push_listed(&mut self, name: &[u8], value: &[u8], limits: &HeadLimits) -> Result<(), HeadError> {
        let value = value.trim_ascii();
        if !name.iter().all(|byte| is_usual(*byte, limits)) && limits.ignore_invalid_headers {
            let field = self.write_field(name, value, None);
            self.ignored.push(Span::new(field.name.start(), field.value.end()));
            return Ok(());
        }
        let known_name = HeaderName::find(name);
        match known_name {
            Some(HeaderName::Host) if self.fields.has(HeaderName::Host) => {
                let said = self.field_known(HeaderName::Host);
                return if said == Some(value) { Ok(()) } else { Err(HeadError::DifferentHosts) };
            }
            Some(HeaderName::Cookie) if self.join_cookie(value) => return Ok(()),
            _ => {}
        }
        // The host need not have come as a field.
        if self.fields.len() - usize::from(self.fields.has(HeaderName::Host)) >= limits.max_headers {
            return Err(HeadError::TooManyHeaders);
        }
        let field = self.write_field(name, value, known_name);
        let accepted = known_name.map_or(Ok(()), |known_name| accept_known(self, known_name, field));
        if !matches!(accepted, Err(HeadError::DuplicateHeader(_))) {
            self.fields.push(field);
        }
        accepted
    }

    /// Appends a crumb to the cookie, if that is the last field.
    fn join_cookie(&mut self, crumb: &[u8]) -> bool {
        let Some(last) = self.fields.last_mut().filter(|last| last.known == Some(HeaderName::Cookie)) else {
            return false;
        };
        let at = last.value;
        if at.end() + LINE_END.len() != self.buf.len() {
            return false;
        }
        last.value = Span::new(at.start(), at.end() + CRUMB_END.len() + crumb.len());
        self.buf.truncate(at.end());
        for piece in [CRUMB_END, crumb, LINE_END] {
            self.write(piece);
        }
        true
    }

    /// Ends the head, and judges it.
    ///
    /// # Errors
    /// As nginx: what contradicts itself, and methods that are not allowed.
    pub fn end_list(&mut self, content: Content, limits: &HeadLimits) -> Result<(), HeadError> {
        let len = self.write(LINE_END);
        self.head_len = len;
        self.parser.end_at(len);
        if matches!(self.line.host, HostAt::None) {
            return Err(HeadError::NoAuthority);
        }
        let length = self.field_known(HeaderName::ContentLength);
        let length = match length.map(num::parse_length) {
            Some(None) => return Err(HeadError::InvalidContentLength),
            Some(length) => length,
            None => None,
        };
        self.line.framing = match (length, content) {
            (Some(length), Content::Follows) => Framing::Length(length),
            (Some(0), Content::None) => Framing::Length(0),
            (Some(_), Content::None) if self.line.method == Method::Connect => {
                return Err(HeadError::ConnectWithBody);
            }
            (Some(_), Content::None) => return Err(HeadError::MissingContent),
            (None, Content::Follows) => Framing::Chunked,
            (None, Content::None) => Framing::None,
        };
        match self.line.method {
            Method::Connect if !limits.allow_connect => Err(HeadError::ConnectNotAllowed),
            Method::Trace => Err(HeadError::Trace),
            _ => Ok(()),
        }
    }

    /// Sets the number of received bytes of the list: [`read_len`](Self::read_len).
    pub fn set_list_size(&mut self, bytes: usize) {
        self.parser.set_list_size(bytes);
    }

    /// Appends bytes and returns their end.
    fn write(&mut self, bytes: &[u8]) -> usize {
        self.buf.extend_from_slice(bytes);
        self.buf.len()
    }

    fn write_field(&mut self, name: &[u8], value: &[u8], known_name: Option<HeaderName>) -> FieldSpan {
        let start = self.buf.len();
        let name_end = self.write(name);
        let value_start = self.write(b": ");
        let value_end = self.write(value);
        self.write(LINE_END);
        FieldSpan {
            name: Span::new(start, name_end),
            value: Span::new(value_start, value_end),
            known: known_name,
        }
    }
}

/// Returns `true` if nginx considers a name with this character valid.
fn is_usual(byte: u8, limits: &HeadLimits) -> bool {
    matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-') || byte == b'_' && limits.underscores_in_headers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(
        pseudo: PseudoFields<'_>,
        fields: &[(&str, &str)],
        content: Content,
    ) -> Result<RequestHead, HeadError> {
        let limits = HeadLimits { max_headers: 4, ..HeadLimits::default() };
        let mut head = RequestHead::new();
        head.begin_list(&pseudo, &limits)?;
        for (name, value) in fields {
            head.push_listed(name.as_bytes(), value.as_bytes(), &limits)?;
        }
        head.end_list(content, &limits)?;
        Ok(head)
    }

    const GET: PseudoFields<'_> = PseudoFields {
        method: b"GET",
        target: b"/a/../b.html?c",
        authority: Some(b"Example.com:81"),
        version: Version::HTTP_2,
    };

    #[test]
    fn listed_head_reads_like_one_in_lines() {
        let fields = [("accept", " x "), ("cookie", "a=1"), ("cookie", "b=2"), ("x_y", "odd"), ("last", "")];
        let mut head = head(GET, &fields, Content::None).unwrap();
        assert_eq!(head.request_line(), b"GET /a/../b.html?c HTTP/2.0");
        assert_eq!(
            (head.protocol(), head.version(), head.method()),
            (&b"HTTP/2.0"[..], Version::HTTP_2, Method::Get)
        );
        assert_eq!((head.path(), head.args(), head.exten()), (&b"/b.html"[..], &b"c"[..], &b"html"[..]));
        assert_eq!((head.host(), head.host_port()), (Some(&b"example.com"[..]), Some(81)));
        let listed: Vec<_> = head.fields().collect();
        let expected: [(&[u8], &[u8]); 4] =
            [(b"host", b"Example.com:81"), (b"accept", b"x"), (b"cookie", b"a=1; b=2"), (b"last", b"")];
        assert_eq!(listed, expected);
        assert_eq!(head.ignored_lines().collect::<Vec<_>>(), [b"x_y: odd"]);
        assert!(head.rest().is_empty() && head.keep_alive() && head.read_len() == head.head_len());
        head.set_list_size(20);
        assert_eq!(head.read_len(), 20);
        let third = self::head(PseudoFields { version: Version::HTTP_3, ..GET }, &[], Content::None).unwrap();
        assert_eq!((third.protocol(), third.version()), (&b"HTTP/3.0"[..], Version::HTTP_3));
        let mut copy = RequestHead::new();
        copy.copy_head(&head);
        assert!(copy.fields().eq(head.fields()) && copy.path() == head.path());
    }

    #[test]
    fn framing_follows_content_length_and_content() {
        let post = PseudoFields { method: b"POST", ..GET };
        for (length, content, expected) in [
            (None, Content::None, Ok(Framing::None)),
            (None, Content::Follows, Ok(Framing::Chunked)),
            (Some("7"), Content::Follows, Ok(Framing::Length(7))),
            (Some("0"), Content::None, Ok(Framing::Length(0))),
            (Some("7"), Content::None, Err(HeadError::MissingContent)),
            (Some("x"), Content::Follows, Err(HeadError::InvalidContentLength)),
        ] {
            let fields: Vec<_> = length.iter().map(|length| ("content-length", *length)).collect();
            assert_eq!(head(post, &fields, content).map(|head| head.framing()), expected, "{length:?}");
        }
    }

    #[test]
    fn connect_targets_are_authorities() {
        let limits = HeadLimits { allow_connect: true, ..HeadLimits::default() };
        let connect = |authority: &str, length: &str| {
            let pseudo = PseudoFields {
                method: b"CONNECT",
                target: b"",
                authority: Some(authority.as_bytes()),
                version: Version::HTTP_2,
            };
            let mut head = RequestHead::new();
            head.begin_list(&pseudo, &limits)?;
            head.push_listed(b"content-length", length.as_bytes(), &limits)?;
            head.end_list(Content::None, &limits)?;
            Ok(head)
        };
        let head = connect("a:443", "0").unwrap();
        assert_eq!(head.request_line(), b"CONNECT a:443 HTTP/2.0");
        assert_eq!((head.target(), head.path(), head.host()), (&b"/"[..], &b"/"[..], Some(&b"a"[..])));
        assert_eq!((head.host_port(), head.framing()), (Some(443), Framing::Length(0)));
        assert_eq!(connect("a", "0").err(), Some(HeadError::InvalidAuthority));
        assert_eq!(connect("a:443", "1").err(), Some(HeadError::ConnectWithBody));
    }

    #[test]
    fn field_and_head_sizes_are_limited() {
        let limits = HeadLimits { large_buffer_size: 100, large_buffers_count: 2, ..HeadLimits::default() };
        for (longest, all, target, expected) in [
            (100, 200, 200, Ok(())),
            (101, 150, 100, Err(HeadError::TooLargeRequest)),
            (101, 150, 101, Err(HeadError::UriTooLong)),
            (100, 201, 150, Err(HeadError::TooLargeRequest)),
        ] {
            let size = ListSize { longest, all, target };
            assert_eq!(size.check(&limits), expected, "{size:?}");
        }
    }

    #[test]
    fn invalid_lists_are_refused() {
        let no_host = PseudoFields { authority: None, ..GET };
        type Case<'a> = (PseudoFields<'a>, &'a [(&'a str, &'a str)], HeadError);
        let table: [Case<'_>; 11] = [
            (PseudoFields { method: b"get", ..GET }, &[], HeadError::InvalidMethod),
            (PseudoFields { target: b"*", ..GET }, &[], HeadError::InvalidRequest),
            (PseudoFields { target: b"/a b", ..GET }, &[], HeadError::InvalidRequest),
            (PseudoFields { target: b"/../a", ..GET }, &[], HeadError::InvalidRequest),
            (PseudoFields { authority: Some(b"a..b"), ..GET }, &[], HeadError::InvalidAuthority),
            (PseudoFields { method: b"TRACE", ..GET }, &[], HeadError::Trace),
            (PseudoFields { method: b"CONNECT", target: b"", ..GET }, &[], HeadError::ConnectNotAllowed),
            (no_host, &[], HeadError::NoAuthority),
            (GET, &[("host", "example.com")], HeadError::DifferentHosts),
            (GET, &[("a", ""), ("b", ""), ("c", ""), ("d", ""), ("e", "")], HeadError::TooManyHeaders),
            (
                GET,
                &[("range", "a"), ("if-range", "b"), ("if-range", "c")],
                HeadError::DuplicateHeader(HeaderName::IfRange),
            ),
        ];
        for (pseudo, fields, expected) in table {
            assert_eq!(head(pseudo, fields, Content::None).err(), Some(expected), "{pseudo:?}");
        }
        assert_eq!(head(no_host, &[("host", "a")], Content::None).unwrap().host(), Some(&b"a"[..]));
    }
}
