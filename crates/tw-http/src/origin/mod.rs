//! HTTP/1 client side, towards an origin: the head of a response as it arrives.
//!
//! Made like [`RequestHead`](crate::RequestHead): one buffer, slices of it, and a parser that stops and resumes at
//! any byte. Anything ambiguous is an error, because the response is forwarded to a recipient that may read it
//! differently.
//!
//! ```text
//! push → parse ─ NeedMore ─┐        Complete ─┬─ is_interim → next_response → parse
//!   ↑──────────────────────┘                  └─ fields, framing → BodyDecoder: rest, then what is read
//! ```
//!
//! A caller with a read buffer of its own passes it to `feed`, which takes the head out of it:
//!
//! ```text
//! read → feed ─ NeedMore → read …        Complete → fields, framing → BodyDecoder: what is left, then what is read
//! ```
//!
//! FastCGI, SCGI and uwsgi applications respond with fields only, and give the status in one of them ([`HeadStart`],
//! RFC 3875 section 6).

mod body;
mod error;
mod error_text;
mod framing;
mod parse;
mod request;
mod status_line;
mod trailer;

pub use body::{BodyDecoder, BodyError, BodyErrorText, Piece};
pub use error::OriginError;
pub use error_text::{DuplicateText, OriginErrorText, other_protocol};
pub use framing::ResponseFraming;
pub use parse::{HeadStart, is_single};
pub use request::{RequestWriter, WriteError, push_chunk, push_last_chunk};

use bytes::{Buf, Bytes};

use crate::fields::Fields;
use crate::head::Progress;
use crate::head::field_list::{FieldList, FieldSpan};
use crate::header_name::HeaderName;
use crate::method::Version;
use framing::AnnouncedFraming;

/// Bytes of input that are copied and parsed at a time: most heads are shorter, and what follows them is not copied in vain.
const FEED_STEP_SIZE: usize = 1024;

tw_base::limits! {
    /// The limits kept here.
    pub(crate) const LIMITS;

    /// Fields in the head of an upstream response.
    ///
    /// As many as a request may have by default (`max_headers`).
    // DIFF(nginx): nginx has no such limit for responses.
    pub const FIELDS_MAX: usize = 1000, count, "the response is invalid";
    /// Heads with a status of 1xx in front of an upstream response.
    ///
    /// If one is sent every 20 seconds during processing (102), this is half an hour.
    // DIFF(nginx): nginx takes any number of them.
    pub const INTERIM_MAX: u32 = 100, count, "the response is invalid";
}

/// Limits of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OriginLimits {
    /// Bytes of the head, its last line end included: `proxy_buffer_size` and its kin.
    pub head_size: usize,
    /// Number of fields.
    pub fields_count: usize,
}

impl OriginLimits {
    /// Heads of at most so many bytes.
    pub const fn of_size(head_size: usize) -> Self {
        OriginLimits { head_size, fields_count: FIELDS_MAX }
    }
}

/// A field as it arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    /// The name in its own case.
    pub name: &'a [u8],
    /// The value without spaces around it.
    pub value: &'a [u8],
    /// Known name, if it is one, so that a list need not search for it again.
    pub known: Option<HeaderName>,
}

/// The head of one response after another.
#[derive(Debug)]
pub struct OriginHead {
    /// Everything read; it starts with the head.
    buf: Vec<u8>,
    start: HeadStart,
    parser: parse::Parser,
    /// Bytes of the head once it is complete.
    head_len: usize,
    fields: FieldList,
    /// Repeated lines of fields that may occur once; they are left out.
    duplicates: Vec<FieldSpan>,
    announced: AnnouncedFraming,
    /// `Connection: close`
    closes: bool,
    interim_count: u32,
}

impl Default for OriginHead {
    fn default() -> Self {
        OriginHead::new()
    }
}

impl OriginHead {
    /// Makes an empty head; allocates nothing.
    pub const fn new() -> Self {
        OriginHead {
            buf: Vec::new(),
            start: HeadStart::StatusLine,
            parser: parse::Parser::new(),
            head_len: 0,
            fields: FieldList::new(),
            duplicates: Vec::new(),
            announced: AnnouncedFraming::Nothing,
            closes: false,
            interim_count: 0,
        }
    }

    /// Sets the expected start of the head, before any bytes arrive. Holds until [`clear`](Self::clear).
    pub fn begin_with(&mut self, start: HeadStart) {
        self.start = start;
    }

    /// Forgets everything, for the response to another request; keeps the memory.
    pub fn clear(&mut self) {
        self.buf.clear();
        self.start = HeadStart::StatusLine;
        self.forget_head();
        self.interim_count = 0;
    }

    /// Bytes of memory kept for further heads, without the table of fields.
    pub fn capacity(&self) -> usize {
        self.buf.capacity()
    }

    /// Appends bytes the origin sent.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buf.extend_from_slice(bytes);
    }

    /// Takes the bytes of the head out of the origin's input, and parses them as [`parse`](Self::parse) does. The
    /// rest of `input` at a complete head is what follows it: body, or the next head. [`Progress::NeedMore`] may leave some
    /// of `input`: call it again. Cost: copies the head, and at most 1 KiB of the rest.
    ///
    /// # Errors
    /// As [`parse`](Self::parse). The bytes of a response without a head are then [`rest`](Self::rest) and the rest
    /// of `input`.
    pub fn feed(&mut self, input: &mut Bytes, limits: &OriginLimits) -> Result<Progress, OriginError> {
        let before = self.buf.len();
        let room = limits.head_size.saturating_sub(before);
        let copied = input.len().min(room).min(FEED_STEP_SIZE);
        let mut used = copied;
        self.buf.extend_from_slice(input.get(..copied).unwrap_or(b""));
        let progress = parse::advance(self, limits);
        if progress == Ok(Progress::Complete) {
            used = self.head_len.saturating_sub(before);
            self.buf.truncate(self.head_len);
        }
        input.advance(used);
        progress
    }

    /// Parses the bytes that arrived since the last call. Returns [`Progress::Complete`] again once the head is
    /// complete, until [`next_response`](Self::next_response) or [`clear`](Self::clear); after an error the head is
    /// unusable.
    ///
    /// # Errors
    /// The first error in the order of the bytes.
    #[inline]
    pub fn parse(&mut self, limits: &OriginLimits) -> Result<Progress, OriginError> {
        parse::advance(self, limits)
    }

    /// Drops an interim head ([`is_interim`](Self::is_interim)); the bytes after it are the start of the next one.
    pub fn next_response(&mut self) {
        self.interim_count += u32::from(self.is_interim());
        self.buf.drain(..self.head_len.min(self.buf.len()));
        self.forget_head();
    }

    /// Returns `true` if nothing has arrived. If a reused connection closes now, the origin may have closed it before
    /// the request arrived.
    pub fn is_empty(&self) -> bool {
        self.buf.is_empty() && self.interim_count == 0
    }

    /// Status, 100 to 999 (RFC 9110 section 15: a status above 599 is treated as 5xx, and is forwarded unchanged).
    #[inline]
    pub fn status(&self) -> u16 {
        self.parser.line.status
    }

    /// The status with what follows it on its line, e.g. `200 OK`.
    pub fn status_line(&self) -> &[u8] {
        self.parser.line.text.of(&self.buf)
    }

    /// The version; a minor one above 1 means HTTP/1.1 with something more.
    pub fn version(&self) -> Version {
        self.parser.line.version
    }

    /// Returns `true` if another head follows: a status of 1xx, except 101, after which the connection leaves HTTP
    /// (RFC 9110 section 15.2).
    #[inline]
    pub fn is_interim(&self) -> bool {
        framing::is_interim(self.status())
    }

    /// Fields in order. Repeated lines of a field that may occur once are left out, see
    /// [`duplicates`](Self::duplicates).
    pub fn fields(&self) -> impl Iterator<Item = Field<'_>> {
        self.fields.iter().map(|field| Field {
            name: field.name.of(&self.buf),
            value: field.value.of(&self.buf),
            known: field.known,
        })
    }

    /// Replaces the fields of `out` by those of [`fields`](Self::fields), with one copy of the head.
    pub fn copy_fields(&self, out: &mut Fields) {
        out.set_head(self.buf.get(..self.head_len).unwrap_or(&self.buf), self.fields.iter());
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
        self.fields.first(name).map(|field| field.value.of(&self.buf))
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
        self.fields.all(&self.buf, name).map(|field| field.value.of(&self.buf))
    }

    /// Texts of the `warn` log lines about dropped duplicate fields.
    pub fn duplicates(&self) -> impl Iterator<Item = DuplicateText<'_>> {
        self.duplicates.iter().map(|&field| DuplicateText::new(self, field))
    }

    /// Bytes of the head, its last line end included.
    pub fn head_len(&self) -> usize {
        self.head_len
    }

    /// Bytes after a complete head: body, or the next head. Before that, and after an error, all bytes received,
    /// which are the body of a response without a head ([`OriginError::NoStatusLine`]).
    #[inline]
    pub fn rest(&self) -> &[u8] {
        self.buf.get(self.head_len..).unwrap_or(b"")
    }

    /// Log line of an error that [`parse`](Self::parse) just returned, in nginx's words.
    pub fn error_text(&self, error: OriginError) -> OriginErrorText<'_> {
        OriginErrorText::new(self, error)
    }

    fn forget_head(&mut self) {
        self.parser = parse::Parser::new();
        self.head_len = 0;
        self.fields.clear();
        self.duplicates.clear();
        self.announced = AnnouncedFraming::Nothing;
        self.closes = false;
    }
}

#[cfg(test)]
mod tests;
