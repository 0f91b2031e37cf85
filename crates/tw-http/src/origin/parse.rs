//! Driver of the status line and field line parsers over the buffer: keeps the limits, and checks the results in
//! nginx's order.

use super::framing::{AnnouncedFraming, is_interim};
use super::status_line::StatusLine;
use super::{INTERIM_MAX, OriginError, OriginHead, OriginLimits};
use crate::head::field_line::{FieldEvent, FieldParser, FieldRules};
use crate::head::field_list::FieldSpan;
use crate::head::{Progress, Span};
use crate::header_name::HeaderName;
use crate::method::Version;
use crate::{num, scan};

/// Start of a response head: a status line, or fields only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadStart {
    /// A status line, as in HTTP.
    StatusLine,
    /// Fields: the status is the one of `Status`, else 302 with a `Location`, else 200 (RFC 3875 section 6.2).
    Fields,
    /// A status line, or fields if it does not begin with `HTTP/`.
    Either,
}

#[derive(Debug)]
pub(super) struct Parser {
    part: Part,
    /// True if the status is in a field (CGI).
    is_cgi: bool,
    pub(super) line: StatusLine,
    fields: FieldParser,
    /// Field that an error is about: name and value, or the bytes read of a malformed line.
    pub(super) fault: Span,
    pub(super) fault_value: Span,
}

#[derive(Clone, Copy, Debug)]
enum Part {
    StatusLine,
    Fields,
    Done,
}

impl Parser {
    pub(super) const fn new() -> Self {
        Parser {
            part: Part::StatusLine,
            is_cgi: false,
            line: StatusLine::new(),
            fields: FieldParser::at(0),
            fault: Span::NOTHING,
            fault_value: Span::NOTHING,
        }
    }
}

/// See [`OriginHead::parse`].
#[inline]
pub(super) fn advance(head: &mut OriginHead, limits: &OriginLimits) -> Result<Progress, OriginError> {
    match head.parser.part {
        Part::StatusLine if head.start == HeadStart::Fields => without_status_line(head, limits),
        Part::StatusLine => status_line(head, limits),
        Part::Fields => fields(head, limits),
        Part::Done => Ok(Progress::Complete),
    }
}

/// As much of the buffer as a head may have.
#[inline]
fn window<'a>(buf: &'a [u8], limits: &OriginLimits) -> &'a [u8] {
    buf.get(..limits.head_size).unwrap_or(buf)
}

fn need_more(window: &[u8], limits: &OriginLimits) -> Result<Progress, OriginError> {
    if window.len() < limits.head_size { Ok(Progress::NeedMore) } else { Err(OriginError::TooBigHeader) }
}

fn status_line(head: &mut OriginHead, limits: &OriginLimits) -> Result<Progress, OriginError> {
    let window = window(&head.buf, limits);
    let line = &mut head.parser.line;
    let len = match line.advance(window) {
        Ok(Some(len)) => len,
        Ok(None) => return need_more(window, limits),
        Err(OriginError::NoStatusLine) if head.start == HeadStart::Either => {
            return without_status_line(head, limits);
        }
        Err(error) => return Err(error),
    };

    if is_interim(line.status) {
        // RFC 9110 section 15.2: there are none in HTTP/1.0.
        if line.version < Version::HTTP_11 {
            return Err(OriginError::InterimInHttp10);
        }
        if head.interim_count >= INTERIM_MAX {
            return Err(OriginError::TooManyInterim);
        }
    }
    head.parser.part = Part::Fields;
    head.parser.fields = FieldParser::at(len);
    fields(head, limits)
}

fn without_status_line(head: &mut OriginHead, limits: &OriginLimits) -> Result<Progress, OriginError> {
    head.parser.part = Part::Fields;
    head.parser.is_cgi = true;
    fields(head, limits)
}

/// Finds the status of a head without a status line.
fn status_of_fields(head: &mut OriginHead) -> Result<(), OriginError> {
    const DIGITS: usize = 3;
    let line = &mut head.parser.line;
    let Some(field) = head.fields.first(HeaderName::Status) else {
        line.status = if head.fields.has(HeaderName::Location) { 302 } else { 200 };
        return Ok(());
    };
    let value = field.value.of(&head.buf);
    let digits = value.get(..DIGITS).filter(|digits| digits.iter().all(u8::is_ascii_digit));
    let status = digits.and_then(num::parse).and_then(|status| u16::try_from(status).ok());
    let has_end = value.get(DIGITS).is_none_or(|byte| *byte == b' ');
    // DIFF(nginx): nginx sends on whatever three digits there are, be it as the last word a status that another one follows.
    match status.filter(|status| has_end && *status >= 100 && !is_interim(*status)) {
        Some(status) => {
            line.status = status;
            if value.len() > DIGITS + 1 {
                line.text = field.value;
            }
            Ok(())
        }
        None => {
            (head.parser.fault, head.parser.fault_value) = (field.name, field.value);
            Err(OriginError::InvalidStatus)
        }
    }
}

fn fields(head: &mut OriginHead, limits: &OriginLimits) -> Result<Progress, OriginError> {
    loop {
        let OriginHead { buf, parser, .. } = &mut *head;
        let window = window(buf, limits);

        match parser.fields.advance(window, FieldRules::Origin) {
            FieldEvent::Field { name, value, known: known_name, .. } => {
                let field = FieldSpan { name, value, known: known_name };
                if head.fields.len() + head.duplicates.len() >= limits.fields_count {
                    return Err(OriginError::TooManyFields);
                }
                match known_name.map_or(Ok(Verdict::Keep), |known_name| check_field(head, known_name, field))
                {
                    Ok(Verdict::Keep) => head.fields.push(field),
                    Ok(Verdict::LeaveOut) => head.duplicates.push(field),
                    Err(error) => {
                        (head.parser.fault, head.parser.fault_value) = (name, value);
                        return Err(error);
                    }
                }
            }

            FieldEvent::NeedMore => return need_more(window, limits),

            FieldEvent::Invalid => {
                parser.fault = Span::new(parser.fields.line_start, parser.fields.value_end);
                return Err(OriginError::InvalidHeaderLine);
            }

            FieldEvent::End => {
                let is_cgi = parser.is_cgi;
                head.head_len = parser.fields.pos;
                if is_cgi {
                    status_of_fields(head)?;
                }
                head.parser.part = Part::Done;
                return Ok(Progress::Complete);
            }
        }
    }
}

/// Treatment of a field.
enum Verdict {
    Keep,
    LeaveOut,
}

/// Handles a known field as soon as its line is complete.
fn check_field(head: &mut OriginHead, name: HeaderName, field: FieldSpan) -> Result<Verdict, OriginError> {
    // RFC 9112 section 6.3: a 1xx response ends with its head, whatever its fields are.
    if is_interim(head.status()) {
        return Ok(Verdict::Keep);
    }
    let again = head.has(name);
    let value = field.value.of(&head.buf);
    match name {
        HeaderName::ContentLength | HeaderName::TransferEncoding if again => {
            Err(OriginError::DuplicateHeader(name))
        }

        // RFC 9112 section 6.3: such a message may be an attempt at response splitting.
        HeaderName::ContentLength if head.has(HeaderName::TransferEncoding) => {
            Err(OriginError::LengthAndTransferEncoding)
        }
        HeaderName::TransferEncoding if head.has(HeaderName::ContentLength) => {
            Err(OriginError::LengthAndTransferEncoding)
        }

        HeaderName::ContentLength => {
            let length = num::parse_length(value).ok_or(OriginError::InvalidContentLength)?;
            head.announced = AnnouncedFraming::Length(length);
            Ok(Verdict::Keep)
        }

        // An application sends bytes and no chunks (RFC 3875 section 6.3.4), so its `Transfer-Encoding` has no meaning.
        HeaderName::TransferEncoding if head.start != HeadStart::StatusLine => Ok(Verdict::Keep),

        // RFC 9112 section 6.1: the framing of a message of an older version cannot be trusted.
        // DIFF(nginx): nginx decodes it.
        HeaderName::TransferEncoding if head.version() < Version::HTTP_11 => {
            Err(OriginError::TransferEncodingInHttp10)
        }
        HeaderName::TransferEncoding if value.eq_ignore_ascii_case(b"chunked") => {
            head.announced = AnnouncedFraming::Chunked;
            Ok(Verdict::Keep)
        }
        HeaderName::TransferEncoding => Err(OriginError::UnknownTransferEncoding),

        HeaderName::Connection => {
            head.closes |= scan::contains_word(value, b"close");
            Ok(Verdict::Keep)
        }

        _ if again && is_single(name) => Ok(Verdict::LeaveOut),
        _ => Ok(Verdict::Keep),
    }
}

/// Fields of which nginx takes the first line and leaves out the others.
pub fn is_single(name: HeaderName) -> bool {
    matches!(
        name,
        HeaderName::Status
            | HeaderName::ContentType
            | HeaderName::Date
            | HeaderName::LastModified
            | HeaderName::ETag
            | HeaderName::Server
            | HeaderName::Location
            | HeaderName::Refresh
            | HeaderName::Expires
            | HeaderName::XAccelExpires
            | HeaderName::XAccelRedirect
            | HeaderName::XAccelLimitRate
    )
}
