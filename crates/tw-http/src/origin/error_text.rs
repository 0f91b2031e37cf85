//! Lines of the error log about the head of a response, as nginx writes them.

use std::fmt;

use super::OriginHead;
use super::error::OriginError;
use crate::head::PeerBytes;
use crate::head::field_list::FieldSpan;
use crate::header_name::HeaderName;

/// Log line in nginx's words. It contains the origin's bytes, control characters included (the log escapes them);
/// bytes that are not UTF-8 are replaced.
#[derive(Debug)]
pub struct OriginErrorText<'a> {
    head: &'a OriginHead,
    error: OriginError,
}

impl<'a> OriginErrorText<'a> {
    pub(super) fn new(head: &'a OriginHead, error: OriginError) -> Self {
        OriginErrorText { head, error }
    }
}

impl fmt::Display for OriginErrorText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parser = &self.head.parser;
        let fault = PeerBytes(parser.fault.of(&self.head.buf));
        let fault_value = PeerBytes(parser.fault_value.of(&self.head.buf));
        match self.error {
            OriginError::NoStatusLine if let Some(words) = other_protocol(&self.head.buf) => {
                write!(f, "upstream sent no valid HTTP/1.0 header: {words}")
            }
            OriginError::NoStatusLine | OriginError::InvalidStatusLine => {
                f.write_str("upstream sent no valid HTTP/1.0 header")
            }
            OriginError::InvalidStatus => write!(f, "upstream sent invalid status \"{fault_value}\""),
            OriginError::InterimInHttp10 if parser.line.status == 103 => {
                f.write_str("upstream sent HTTP/1.0 response with early hints")
            }
            OriginError::InterimInHttp10 => {
                write!(f, "upstream sent HTTP/1.0 response with status {}", parser.line.status)
            }
            OriginError::TooManyInterim => f.write_str("upstream sent too many interim responses"),
            OriginError::InvalidHeaderLine => {
                let byte = self.head.buf.get(parser.fault.end()).copied().unwrap_or(0);
                write!(f, "upstream sent invalid header: \"{fault}\\x{byte:02x}...\"")
            }
            OriginError::TooBigHeader => f.write_str("upstream sent too big header"),
            OriginError::TooManyFields => f.write_str("upstream sent too many header lines"),
            OriginError::DuplicateHeader(name) => duplicate(f, self.head, name, &fault, &fault_value),
            OriginError::InvalidContentLength => {
                write!(f, "upstream sent invalid \"Content-Length\" header: \"{fault}: {fault_value}\"")
            }
            OriginError::TransferEncodingInHttp10 => {
                f.write_str("upstream sent HTTP/1.0 response with \"Transfer-Encoding\" header")
            }
            OriginError::UnknownTransferEncoding => {
                write!(f, "upstream sent unknown \"Transfer-Encoding\": \"{fault_value}\"")
            }
            OriginError::LengthAndTransferEncoding => f.write_str(
                "upstream sent \"Content-Length\" and \"Transfer-Encoding\" headers at the same time",
            ),
        }
    }
}

/// Protocol of a server that does not speak HTTP/1, by its first bytes, with a question to the operator.
pub fn other_protocol(bytes: &[u8]) -> Option<&'static str> {
    /// Content types of TLS records that a server sends first: alert and handshake (RFC 8446 section 5.1).
    const TLS_RECORDS: [u8; 2] = [21, 22];
    /// Type of SETTINGS, the first frame of a server of HTTP/2 (RFC 9113 section 3.4).
    const SETTINGS: u8 = 4;
    match bytes {
        [kind, 3, 0..=4, ..] if TLS_RECORDS.contains(kind) => {
            Some("the answer is TLS; does this port need https://?")
        }
        [0, _, _, SETTINGS, 0 | 1, 0, 0, 0, 0, ..] => {
            Some("the answer is a frame of HTTP/2; does the server speak only HTTP/2?")
        }
        [b'H', b'T', b'T', b'P', b'/', ..] => Some("the answer is HTTP/1; does the server speak only HTTP?"),
        _ => None,
    }
}

/// Log text about a repeated line of a field that may occur once; the repetition is dropped.
#[derive(Debug)]
pub struct DuplicateText<'a> {
    head: &'a OriginHead,
    field: FieldSpan,
}

impl<'a> DuplicateText<'a> {
    pub(super) fn new(head: &'a OriginHead, field: FieldSpan) -> Self {
        DuplicateText { head, field }
    }
}

impl fmt::Display for DuplicateText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(known_name) = self.field.known else { return Ok(()) };
        let name = PeerBytes(self.field.name.of(&self.head.buf));
        let value = PeerBytes(self.field.value.of(&self.head.buf));
        duplicate(f, self.head, known_name, &name, &value)?;
        f.write_str(", ignored")
    }
}

fn duplicate(
    f: &mut fmt::Formatter<'_>,
    head: &OriginHead,
    known_name: HeaderName,
    name: &PeerBytes<'_>,
    value: &PeerBytes<'_>,
) -> fmt::Result {
    write!(f, "upstream sent duplicate header line: \"{name}: {value}\", ")?;
    let Some(first) = head.fields.first(known_name) else { return Ok(()) };
    let name = PeerBytes(first.name.of(&head.buf));
    let value = PeerBytes(first.value.of(&head.buf));
    write!(f, "previous value: \"{name}: {value}\"")
}
