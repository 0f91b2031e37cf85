//! Head of a request: the connection reads into it, the parser marks its parts. A head of HTTP/2 is stored as if it
//! had been received in lines (`list`).
//!
//! One buffer per connection holds the head and what follows it (body or the next pipelined request), and is reused
//! for the next request. Nothing is copied except a path that needs normalising and a host with capital letters.
//! Parsing stops and resumes at any byte, and an error is reported at the byte that makes it certain, as nginx does,
//! so a client that never ends its line still gets its response.
//!
//! ```text
//! spare → read → parse ─ NeedMore ─┐        Complete → fields, path, host … → rest, consume (body)
//!            ↑─────────────────────┘                        → next_request (pipelining, keep-alive) → parse
//! ```

mod change;
mod error;
pub(crate) mod field_line;
pub(crate) mod field_list;
mod line;
mod list;
mod parse;
mod span;

pub(crate) use error::PeerBytes;
pub use error::{ErrorText, HeadError, REQUEST_HEADER_TOO_LARGE};
pub use list::{Content, ListSize, PseudoFields};
pub(crate) use span::Span;

use crate::header_name::HeaderName;
use crate::method::{Method, Version};
use field_list::FieldList;

/// Limits and switches of a head: nginx's directives, first of the default server of the listening address, then of
/// the server selected by the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLimits {
    /// `client_header_buffer_size`: bytes that are read before a large buffer is needed.
    pub client_header_buffer_size: usize,
    /// First half of `large_client_header_buffers`: how many large buffers.
    pub large_buffers_count: usize,
    /// Second half of `large_client_header_buffers`: bytes of each, and so of the longest line.
    pub large_buffer_size: usize,
    /// `max_headers`: fields of one request.
    pub max_headers: usize,
    /// `ignore_invalid_headers`: leave out fields whose name has odd characters, instead of keeping them.
    pub ignore_invalid_headers: bool,
    /// `underscores_in_headers`: whether `_` is a normal character of a name.
    pub underscores_in_headers: bool,
    /// `merge_slashes`: whether `//` in a path becomes `/`.
    pub merge_slashes: bool,
    /// `allow_connect`: whether `CONNECT host:port HTTP/1.1` is a request and not an error.
    pub allow_connect: bool,
}

impl Default for HeadLimits {
    /// nginx's defaults.
    fn default() -> Self {
        HeadLimits {
            client_header_buffer_size: 1024,
            large_buffers_count: 4,
            large_buffer_size: 8192,
            max_headers: 1000,
            ignore_invalid_headers: true,
            underscores_in_headers: false,
            merge_slashes: true,
            allow_connect: false,
        }
    }
}

/// Progress of [`RequestHead::parse`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Progress {
    /// The head is not complete; read more into [`RequestHead::spare`].
    NeedMore,
    /// The head is complete and every accessor is valid.
    Complete,
}

/// Framing of the request body (RFC 9112 section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// No body.
    None,
    /// `Content-Length`, in bytes; may be 0.
    Length(u64),
    /// `Transfer-Encoding: chunked`.
    Chunked,
}

/// Parts of the request line, and of the fields that are about the connection and the body.
#[derive(Clone, Debug)]
struct RequestLine {
    whole: Span,
    method: Method,
    method_word: Span,
    target: Span,
    /// The path as sent; it is the path if `path_is_raw`.
    raw_path: Span,
    path_is_raw: bool,
    quoted: bool,
    empty_path: bool,
    args: Span,
    /// In the normalised path.
    exten: Span,
    scheme: Option<Span>,
    protocol: Span,
    version: Version,
    host: HostAt,
    host_port: Option<u16>,
    framing: Framing,
    connection: ConnectionOption,
}

#[derive(Clone, Copy, Debug)]
enum HostAt {
    None,
    Raw(Span),
    Lowered,
}

#[derive(Clone, Copy, Debug)]
enum ConnectionOption {
    Default,
    Close,
    KeepAlive,
}

impl RequestLine {
    const fn new() -> Self {
        RequestLine {
            whole: Span::NOTHING,
            method: Method::Other,
            method_word: Span::NOTHING,
            target: Span::NOTHING,
            raw_path: Span::NOTHING,
            path_is_raw: true,
            quoted: false,
            empty_path: false,
            args: Span::NOTHING,
            exten: Span::NOTHING,
            scheme: None,
            protocol: Span::NOTHING,
            // An answer to a line that cannot be read has a head.
            version: Version::HTTP_10,
            host: HostAt::None,
            host_port: None,
            framing: Framing::None,
            connection: ConnectionOption::Default,
        }
    }
}

/// The head of one request after another of one connection.
#[derive(Debug)]
pub struct RequestHead {
    /// Bytes read and not yet released. `start..` belongs to the current request.
    buf: Vec<u8>,
    start: usize,
    /// Bytes of the head once it is complete.
    head_len: usize,
    /// Bytes of [`Self::rest`] that were used up as body.
    taken: usize,
    parser: parse::Parser,
    line: RequestLine,
    fields: FieldList,
    /// Lines that were left out because of `ignore_invalid_headers`.
    ignored: Vec<Span>,
    /// The normalised path, when the path as sent could not be used.
    path: Vec<u8>,
    /// The host in lower case, when it was sent with capital letters.
    host_lower: Vec<u8>,
}

impl Default for RequestHead {
    fn default() -> Self {
        RequestHead::new()
    }
}

impl RequestHead {
    /// Makes an empty head; allocates nothing.
    pub const fn new() -> Self {
        RequestHead {
            buf: Vec::new(),
            start: 0,
            head_len: 0,
            taken: 0,
            parser: parse::Parser::new(),
            line: RequestLine::new(),
            fields: FieldList::new(),
            ignored: Vec::new(),
            path: Vec::new(),
            host_lower: Vec::new(),
        }
    }

    /// Forgets everything, bytes already read included; keeps the memory.
    pub fn clear(&mut self) {
        self.buf.clear();
        self.start = 0;
        self.forget_head();
    }

    /// Copies a complete head, without the body and any bytes after it.
    pub fn copy_head(&mut self, of: &Self) {
        self.clear();
        let end = of.start + of.head_len;
        self.buf.extend_from_slice(of.buf.get(..end).unwrap_or_default());
        self.start = of.start;
        self.head_len = of.head_len;
        self.parser.part = of.parser.part;
        self.line = of.line.clone();
        self.fields.copy(&of.fields);
        self.path.extend_from_slice(&of.path);
        self.host_lower.extend_from_slice(&of.host_lower);
    }

    /// Forgets everything and gives the memory back: for a keep-alive connection that waits.
    pub fn release(&mut self) {
        *self = RequestHead::new();
    }

    /// Releases unused memory, for a request that takes long.
    pub fn shrink(&mut self) {
        self.buf.shrink_to_fit();
        self.fields.shrink();
    }

    /// Buffer with room for at least `n` more bytes at its end, to which the caller appends bytes of the peer. A body
    /// may be read this way: consumed bytes release their memory. Cost: moves the bytes in use to the front when the
    /// room at the end is used up.
    pub fn spare(&mut self, n: usize) -> &mut Vec<u8> {
        if self.buf.capacity() - self.buf.len() < n {
            let body = self.start + self.head_len;
            self.buf.drain(body..body + self.taken);
            self.buf.drain(..self.start);
            (self.start, self.taken) = (0, 0);
        }
        self.buf.reserve(n);
        &mut self.buf
    }

    /// Appends bytes the peer sent. A convenience for callers that hold them elsewhere.
    pub fn push(&mut self, bytes: &[u8]) {
        self.spare(bytes.len()).extend_from_slice(bytes);
    }

    /// Returns `true` if no byte of a request has arrived: an idle connection, on which a close is no error.
    pub fn is_idle(&self) -> bool {
        self.parser.is_at_start() && self.buf.len() == self.start
    }

    /// Parses the bytes that arrived since the last call. Returns [`Progress::Complete`] again once the head is
    /// complete; after an error the connection has to be answered and closed.
    ///
    /// # Errors
    /// The first error in the order of the bytes, as nginx finds it.
    pub fn parse(&mut self, limits: &HeadLimits) -> Result<Progress, HeadError> {
        loop {
            if let Some(progress) = self.parse_to_host(limits)? {
                return Ok(progress);
            }
        }
    }

    /// Like [`RequestHead::parse`], but returns `None` once, when the host is known: the rest may be parsed with
    /// other limits.
    ///
    /// # Errors
    /// As [`RequestHead::parse`].
    pub fn parse_to_host(&mut self, limits: &HeadLimits) -> Result<Option<Progress>, HeadError> {
        parse::advance(self, limits)
    }

    /// The request method.
    #[inline]
    pub fn method(&self) -> Method {
        self.line.method
    }

    /// Method as sent.
    pub fn method_bytes(&self) -> &[u8] {
        self.bytes(self.line.method_word)
    }

    /// The request target as sent, without scheme and authority: nginx's `$request_uri`.
    pub fn target(&self) -> &[u8] {
        self.bytes(self.line.target)
    }

    /// Returns `true` if [`Self::target`] can be sent to another server as it is: false for `http://host?args`, which
    /// has no path of its own.
    pub fn target_has_path(&self) -> bool {
        !self.line.empty_path
    }

    /// The normalised path: percent-decoded, without `.` and `..`, slashes merged if so configured. Starts with `/`.
    #[inline]
    pub fn path(&self) -> &[u8] {
        if self.line.path_is_raw { self.bytes(self.line.raw_path) } else { &self.path }
    }

    /// Returns `true` if [`Self::path`] is, byte for byte, the path the client sent.
    pub fn path_is_raw(&self) -> bool {
        self.line.path_is_raw
    }

    /// Returns `true` if the path as sent has percent-encoded characters: they have to be escaped again when
    /// forwarded.
    pub fn path_is_quoted(&self) -> bool {
        self.line.quoted
    }

    /// The bytes after `?`, without a fragment; empty if there are none.
    #[inline]
    pub fn args(&self) -> &[u8] {
        self.bytes(self.line.args)
    }

    /// The extension of the last path segment without its dot, from which the media type follows; empty if none.
    #[inline]
    pub fn exten(&self) -> &[u8] {
        let Span { start, end } = self.line.exten;
        self.path().get(start as usize..end as usize).unwrap_or(b"")
    }

    /// The scheme of an absolute-form target as sent.
    pub fn scheme(&self) -> Option<&[u8]> {
        self.line.scheme.map(|span| self.bytes(span))
    }

    /// The validated host without port, in lower case, without a trailing dot: from an absolute-form target, else from
    /// `Host`. None if the request named no host (HTTP/1.0 and older).
    #[inline]
    pub fn host(&self) -> Option<&[u8]> {
        match self.line.host {
            HostAt::None => None,
            HostAt::Raw(span) => Some(self.bytes(span)),
            HostAt::Lowered => Some(&self.host_lower),
        }
    }

    /// Port given with the host, if any.
    pub fn host_port(&self) -> Option<u16> {
        self.line.host_port
    }

    /// The protocol version; HTTP/1.0 if the request line could not be read.
    #[inline]
    pub fn version(&self) -> Version {
        self.line.version
    }

    /// The protocol as sent, e.g. `HTTP/1.1`: nginx's `$server_protocol`. Empty for HTTP/0.9.
    pub fn protocol(&self) -> &[u8] {
        self.bytes(self.line.protocol)
    }

    /// The whole request line without its line end: nginx's `$request`. Before it was read, and after an error in it,
    /// what there is of it.
    pub fn request_line(&self) -> &[u8] {
        if self.line.whole != Span::NOTHING {
            return self.bytes(self.line.whole);
        }
        let rest = self.buf.get(self.start..).unwrap_or(b"");
        let len = memchr::memchr2(b'\r', b'\n', rest).unwrap_or(rest.len());
        rest.get(..len).unwrap_or(b"")
    }

    /// Every field in order: name as written, value without surrounding spaces.
    pub fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.fields.iter().map(|field| (self.bytes(field.name), self.bytes(field.value)))
    }

    /// Fields with the result of [`HeaderName::find`] for each name.
    pub fn fields_known(&self) -> impl Iterator<Item = (&[u8], Option<HeaderName>, &[u8])> {
        self.fields.iter().map(|field| (self.bytes(field.name), field.known, self.bytes(field.value)))
    }

    /// Number of fields.
    pub fn field_count(&self) -> usize {
        self.fields.len()
    }

    /// The first value of a name, in any case. Cost: a slot for known names, else a look at every field.
    pub fn field(&self, name: &str) -> Option<&[u8]> {
        match HeaderName::find(name.as_bytes()) {
            Some(known_name) => self.field_known(known_name),
            None => self.field_all(name.as_bytes()).next(),
        }
    }

    /// The first value of a known name. Cost: one slot.
    #[inline]
    pub fn field_known(&self, name: HeaderName) -> Option<&[u8]> {
        self.fields.first(name).map(|field| self.bytes(field.value))
    }

    /// Returns `true` if a known name is present. Cost: one bit test.
    #[inline]
    pub fn has(&self, name: HeaderName) -> bool {
        self.fields.has(name)
    }

    /// The values of every field of that name, in any case, in order.
    pub fn field_all<'s, 'n>(
        &'s self,
        name: &'n [u8],
    ) -> impl DoubleEndedIterator<Item = &'s [u8]> + use<'s, 'n> {
        let head = self.buf.get(self.start..).unwrap_or(b"");
        self.fields.all(head, name).map(move |field| field.value.of(head))
    }

    /// The lines left out because of `ignore_invalid_headers`, for the log: `client sent invalid header line: "…"`.
    pub fn ignored_lines(&self) -> impl Iterator<Item = &[u8]> {
        self.ignored.iter().map(|&span| self.bytes(span))
    }

    /// Framing of the body.
    #[inline]
    pub fn framing(&self) -> Framing {
        self.line.framing
    }

    /// Returns `true` if the client wants the connection kept: `Connection`, else the version's default. Never after
    /// CONNECT: bytes that follow it are for the tunnel, and no request.
    #[inline]
    pub fn keep_alive(&self) -> bool {
        match self.line.connection {
            _ if self.line.method == Method::Connect => false,
            ConnectionOption::Default => self.line.version > Version::HTTP_10,
            ConnectionOption::Close => false,
            ConnectionOption::KeepAlive => true,
        }
    }

    /// Returns `true` if the client waits for `100 Continue` before it sends the body (RFC 9110 section 10.1.1).
    pub fn expect_continue(&self) -> bool {
        self.line.version >= Version::HTTP_11
            && self
                .field_known(HeaderName::Expect)
                .is_some_and(|value| value.eq_ignore_ascii_case(b"100-continue"))
    }

    /// Bytes of the head, its last line end included; empty lines before the request line do not count.
    pub fn head_len(&self) -> usize {
        self.head_len
    }

    /// Bytes of the lines of the head that were read to their end, good or not; of a complete head all of it.
    pub fn read_len(&self) -> usize {
        self.parser.read_len()
    }

    /// Bytes after the head that were not consumed: body or the next request.
    #[inline]
    pub fn rest(&self) -> &[u8] {
        self.buf.get(self.start + self.head_len + self.taken..).unwrap_or(b"")
    }

    /// Marks `n` bytes of [`Self::rest`] as used up; the head stays readable. More than there are means all.
    pub fn consume(&mut self, n: usize) {
        let rest = self.rest().len();
        if n < rest {
            self.taken += n;
        } else {
            self.buf.truncate(self.start + self.head_len);
            self.taken = 0;
        }
    }

    /// Forgets the head; the bytes left in [`Self::rest`] are the start of the next request.
    pub fn next_request(&mut self) {
        self.start += self.head_len + self.taken;
        if self.start >= self.buf.len() {
            self.buf.clear();
            self.start = 0;
        }
        self.forget_head();
    }

    /// Part of the head that is being read, or in which an error was found, in nginx's words for the log.
    pub fn reading(&self) -> &'static str {
        match self.parser.part {
            parse::Part::Start | parse::Part::RequestLine => "client request line",
            parse::Part::Fields | parse::Part::Done => "client request headers",
        }
    }

    /// Log line of an error that [`Self::parse`] just returned, in nginx's words.
    pub fn error_text(&self, error: HeadError) -> ErrorText<'_> {
        ErrorText::new(self, error)
    }

    fn forget_head(&mut self) {
        self.head_len = 0;
        self.taken = 0;
        self.parser.forget();
        self.line = RequestLine::new();
        self.fields.clear();
        self.ignored.clear();
        self.path.clear();
        self.host_lower.clear();
    }

    #[inline]
    fn bytes(&self, span: Span) -> &[u8] {
        span.of(self.buf.get(self.start..).unwrap_or(b""))
    }
}

#[cfg(test)]
mod tests;
