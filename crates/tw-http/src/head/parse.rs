//! Driver of the request line and field line parsers over the buffer: keeps the limits, and checks the results in
//! nginx's order.

use super::field_line::{FieldEvent, FieldParser, FieldRules};
use super::field_list::FieldSpan;
use super::line::LineParser;
use super::{ConnectionOption, Framing, HeadError, HeadLimits, HostAt, Progress, RequestHead, Span};
use crate::header_name::HeaderName;
use crate::host::Host;
use crate::method::{Method, Version};
use crate::{num, scan, target};

/// Bytes of a client's line that go into one log line (nginx: 2048 of a line less 300 for the rest of it).
const EXCERPT_MAX: usize = 1748;

#[derive(Debug)]
pub(super) struct Parser {
    pub(super) part: Part,
    line: LineParser,
    fields: FieldParser,
    room: NginxBuffers,
    /// Text that an error is about, for the log.
    pub(super) fault: Span,
    pub(super) fault_value: Span,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Start,
    RequestLine,
    Fields,
    Done,
}

/// Simulation of nginx's buffers: a line must fit into the rest of the current buffer or into a new large one. Our
/// own buffer is one piece, but requests are refused at the same byte.
#[derive(Debug)]
struct NginxBuffers {
    /// Start of the current line.
    line_start: usize,
    /// Bytes left in the current buffer at the start of the line.
    remaining: usize,
    large_used: usize,
    /// End of the longest line that is allowed here.
    line_limit: usize,
}

impl NginxBuffers {
    const fn new() -> Self {
        NginxBuffers { line_start: 0, remaining: 0, large_used: 0, line_limit: 0 }
    }

    fn first_line(&mut self, limits: &HeadLimits) {
        *self = NginxBuffers { remaining: limits.client_header_buffer_size, ..NginxBuffers::new() };
        self.set_limit(limits);
    }

    fn next_line(&mut self, at: usize, limits: &HeadLimits) {
        let len = at - self.line_start;
        if len <= self.remaining {
            self.remaining -= len;
        } else {
            self.large_used += 1;
            self.remaining = limits.large_buffer_size.saturating_sub(len);
        }
        self.line_start = at;
        self.set_limit(limits);
    }

    fn set_limit(&mut self, limits: &HeadLimits) {
        let large = if self.large_used < limits.large_buffers_count { limits.large_buffer_size } else { 0 };
        self.line_limit = self.line_start.saturating_add(self.remaining.max(large));
    }
}

impl Parser {
    pub(super) const fn new() -> Self {
        Parser {
            part: Part::Start,
            line: LineParser::new(),
            fields: FieldParser::at(0),
            room: NginxBuffers::new(),
            fault: Span::NOTHING,
            fault_value: Span::NOTHING,
        }
    }

    /// Forgets the head. Whoever begins the next one writes the rest of the state anew, which is no longer in the processor's
    /// cache at the end of a request.
    pub(super) fn forget(&mut self) {
        self.part = Part::Start;
        self.room.line_start = 0;
    }

    pub(super) fn is_at_start(&self) -> bool {
        self.part == Part::Start
    }

    /// All of a head of so many bytes is there.
    pub(super) fn end_at(&mut self, len: usize) {
        self.part = Part::Done;
        self.room.line_start = len;
    }

    /// Records that the head was received as a list of `bytes` bytes.
    pub(super) fn set_list_size(&mut self, bytes: usize) {
        self.room.line_start = bytes;
    }

    /// Bytes of the lines that were read to their end.
    pub(super) fn read_len(&self) -> usize {
        self.room.line_start
    }
}

/// See [`RequestHead::parse_to_host`].
pub(super) fn advance(head: &mut RequestHead, limits: &HeadLimits) -> Result<Option<Progress>, HeadError> {
    match head.parser.part {
        Part::Start => start(head, limits),
        Part::RequestLine => request_line(head, limits),
        Part::Fields => {
            // The limits may have changed when the host became known.
            head.parser.room.set_limit(limits);
            fields(head, limits)
        }
        Part::Done => Ok(Some(Progress::Complete)),
    }
}

/// Skips empty lines before the request line (RFC 9112 section 2.2); they take no room.
fn start(head: &mut RequestHead, limits: &HeadLimits) -> Result<Option<Progress>, HeadError> {
    let rest = head.buf.get(head.start..).unwrap_or(b"");
    let Some(empty) = rest.iter().position(|byte| !matches!(byte, b'\r' | b'\n')) else {
        head.buf.clear();
        head.start = 0;
        return Ok(Some(Progress::NeedMore));
    };
    head.start += empty;
    head.parser = Parser { part: Part::RequestLine, ..Parser::new() };
    head.parser.room.first_line(limits);
    request_line(head, limits)
}

fn request_line(head: &mut RequestHead, limits: &HeadLimits) -> Result<Option<Progress>, HeadError> {
    let parser = &mut head.parser;
    let bytes = head.buf.get(head.start..).unwrap_or(b"");
    let window = bytes.get(..parser.room.line_limit).unwrap_or(bytes);
    let advanced = parser.line.advance(window);
    if let Err(error) = advanced {
        // The answer to a HEAD has no body, and that to HTTP/0.9 no head, even if the line is wrong.
        match error {
            HeadError::InvalidMethodInHttp09 => head.line.version = Version::HTTP_09,
            _ => head.line.method = parser.line.method,
        }
    }
    let Some(len) = advanced? else {
        let too_long = window.len() >= parser.room.line_limit;
        return if too_long { Err(HeadError::UriTooLong) } else { Ok(Some(Progress::NeedMore)) };
    };

    parser.room.next_line(len, limits);
    accept_request_line(head, limits)?;

    if head.line.version < Version::HTTP_10 {
        return Ok(Some(complete(head, len)));
    }
    head.parser.part = Part::Fields;
    head.parser.fields = FieldParser::at(len);
    match head.line.host {
        HostAt::None => fields(head, limits),
        HostAt::Raw(_) | HostAt::Lowered => Ok(None),
    }
}

fn accept_request_line(head: &mut RequestHead, limits: &HeadLimits) -> Result<(), HeadError> {
    let RequestHead { parser, line, .. } = head;
    let line_parser = &parser.line;

    line.whole = Span::new(0, line_parser.end);
    line.method = line_parser.method;
    line.method_word = Span::new(0, line_parser.method_end);
    line.version = line_parser.version();
    line.protocol = line_parser.protocol;
    line.scheme = line_parser.scheme;
    line.empty_path = line_parser.empty_path;
    let authority = line_parser.authority;
    let target = Span::new(line_parser.target_start, line_parser.target_end);
    accept_target(head, target, limits.merge_slashes)?;

    if let Some(authority) = authority {
        let RequestHead { buf, start, line, host_lower, .. } = head;
        let bytes = buf.get(*start..).unwrap_or(b"");
        let host = Host::parse(authority.of(bytes)).map_err(|_| HeadError::InvalidHostInRequestLine)?;
        line.host = keep_host(bytes, authority, host, host_lower);
        line.host_port = host.port;
    }
    Ok(())
}

/// Takes a target apart, and normalises its path.
pub(super) fn accept_target(
    head: &mut RequestHead,
    target: Span,
    merge_slashes: bool,
) -> Result<(), HeadError> {
    let RequestHead { buf, start, line, path, .. } = head;
    let bytes = buf.get(*start..).unwrap_or(b"");
    line.target = target;
    let sent = target.of(bytes);
    let scanned = target::scan(sent);
    line.path_is_raw = scanned.is_normal;
    line.quoted = scanned.quoted;
    line.raw_path = Span::new(target.start(), target.start() + scanned.path_len);
    let parts = if scanned.is_normal {
        scanned.parts
    } else {
        target::normalize(sent, merge_slashes, path).map_err(|_| {
            path.clear();
            HeadError::InvalidRequest
        })?
    };
    line.exten = Span::new(parts.exten.start, parts.exten.end);
    line.args = Span::new(target.start() + parts.args.start, target.start() + parts.args.end);
    Ok(())
}

pub(super) fn keep_host(bytes: &[u8], at: Span, host: Host, lower: &mut Vec<u8>) -> HostAt {
    let at = Span::new(at.start as usize, at.start as usize + host.len);
    if !host.has_upper {
        return HostAt::Raw(at);
    }
    lower.clear();
    lower.extend(at.of(bytes).iter().map(u8::to_ascii_lowercase));
    HostAt::Lowered
}

fn fields(head: &mut RequestHead, limits: &HeadLimits) -> Result<Option<Progress>, HeadError> {
    loop {
        let RequestHead { buf, start, parser, fields, ignored, .. } = &mut *head;
        let bytes = buf.get(*start..).unwrap_or(b"");
        let window = bytes.get(..parser.room.line_limit).unwrap_or(bytes);

        match parser.fields.advance(window, FieldRules::Client { underscores: limits.underscores_in_headers })
        {
            FieldEvent::Field { name, value, known: known_name, odd_name } => {
                parser.room.next_line(parser.fields.pos, limits);
                if odd_name && limits.ignore_invalid_headers {
                    ignored.push(Span::new(name.start as usize, value.end as usize));
                    continue;
                }
                if fields.len() >= limits.max_headers {
                    return Err(HeadError::TooManyHeaders);
                }
                let field = FieldSpan { name, value, known: known_name };
                let is_host = known_name == Some(HeaderName::Host) && matches!(head.line.host, HostAt::None);
                let accepted = known_name.map_or(Ok(()), |known_name| accept_known(head, known_name, field));
                // An invalid host is kept, because the log shows what was sent; a second one is not.
                if !matches!(accepted, Err(HeadError::DuplicateHost | HeadError::DuplicateHeader(_))) {
                    head.fields.push(field);
                }
                accepted?;
                if is_host {
                    return Ok(None);
                }
            }

            FieldEvent::NeedMore => {
                if window.len() < parser.room.line_limit {
                    return Ok(Some(Progress::NeedMore));
                }
                let line_start = parser.fields.line_start.max(parser.room.line_start);
                parser.fault = Span::new(line_start, window.len().min(line_start + EXCERPT_MAX));
                let begun = !fields.is_empty() || !ignored.is_empty() || line_start < window.len();
                return Err(if begun { HeadError::HeaderLineTooLong } else { HeadError::TooLargeRequest });
            }

            FieldEvent::Invalid => {
                parser.fault = Span::new(parser.fields.line_start, parser.fields.value_end);
                return Err(HeadError::InvalidHeaderLine);
            }

            FieldEvent::End => {
                let len = parser.fields.pos;
                parser.room.line_start = len;
                check_fields(head, limits)?;
                return Ok(Some(complete(head, len)));
            }
        }
    }
}

fn complete(head: &mut RequestHead, len: usize) -> Progress {
    head.parser.part = Part::Done;
    head.head_len = len;
    Progress::Complete
}

/// Returns `true` for a field that may occur only once, apart from `Host`.
fn is_single(name: HeaderName) -> bool {
    matches!(
        name,
        HeaderName::IfModifiedSince
            | HeaderName::IfUnmodifiedSince
            | HeaderName::IfMatch
            | HeaderName::IfNoneMatch
            | HeaderName::IfRange
            | HeaderName::ContentLength
            | HeaderName::ContentRange
            | HeaderName::TransferEncoding
            | HeaderName::Expect
            | HeaderName::Authorization
            | HeaderName::ProxyAuthorization
    )
}

/// Handles a known field as soon as its line is complete.
pub(super) fn accept_known(
    head: &mut RequestHead,
    name: HeaderName,
    field: FieldSpan,
) -> Result<(), HeadError> {
    let again = head.has(name);
    if again && (name == HeaderName::Host || is_single(name)) {
        head.parser.fault = field.name;
        head.parser.fault_value = field.value;
        return Err(match name {
            HeaderName::Host => HeadError::DuplicateHost,
            _ => HeadError::DuplicateHeader(name),
        });
    }

    let RequestHead { buf, start, line, host_lower, .. } = head;
    let bytes = buf.get(*start..).unwrap_or(b"");
    match name {
        HeaderName::Host => {
            let host = Host::parse(field.value.of(bytes)).map_err(|_| HeadError::InvalidHost)?;
            // RFC 9112 section 3.2.2: the host of an absolute-form target goes before the field.
            if matches!(line.host, HostAt::None) {
                line.host = keep_host(bytes, field.value, host, host_lower);
                line.host_port = host.port;
            }
        }
        HeaderName::Connection => {
            // nginx looks for the words anywhere in the value, and lets the last line that has one decide.
            let value = field.value.of(bytes);
            if value == b"keep-alive" {
                line.connection = ConnectionOption::KeepAlive; // by far the most frequent one
            } else if scan::contains_word(value, b"close") {
                line.connection = ConnectionOption::Close;
            } else if scan::contains_word(value, b"keep-alive") {
                line.connection = ConnectionOption::KeepAlive;
            }
        }
        _ => {}
    }
    Ok(())
}

/// Checks that nginx makes once all fields are present.
fn check_fields(head: &mut RequestHead, limits: &HeadLimits) -> Result<(), HeadError> {
    let version = head.line.version;
    if version > Version::HTTP_10 && !head.has(HeaderName::Host) {
        return Err(HeadError::NoHost);
    }

    let mut framing = Framing::None;
    if let Some(value) = head.field_known(HeaderName::ContentLength) {
        let length = num::parse_length(value).ok_or(HeadError::InvalidContentLength)?;
        framing = Framing::Length(length);
    }
    if let Some(value) = head.field_known(HeaderName::TransferEncoding) {
        // RFC 9112 section 6.1: in a message of an older version the framing cannot be trusted.
        if version < Version::HTTP_11 {
            return Err(HeadError::TransferEncodingInHttp10);
        }
        if !value.eq_ignore_ascii_case(b"chunked") {
            return Err(HeadError::UnknownTransferEncoding);
        }
        // RFC 9112 section 6.3: such a message may be an attempt at request smuggling.
        if framing != Framing::None {
            return Err(HeadError::LengthAndTransferEncoding);
        }
        framing = Framing::Chunked;
    }
    head.line.framing = framing;

    match head.line.method {
        Method::Connect if version != Version::HTTP_11 || !limits.allow_connect => {
            Err(HeadError::ConnectNotAllowed)
        }
        Method::Connect if !matches!(framing, Framing::None | Framing::Length(0)) => {
            Err(HeadError::ConnectWithBody)
        }
        Method::Trace => Err(HeadError::Trace),
        _ => Ok(()),
    }
}
