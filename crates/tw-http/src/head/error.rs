//! Errors of a request head, with the status of the response and the line that nginx logs.

use std::fmt::{self, Write};

use super::RequestHead;
use crate::header_name::HeaderName;

/// Why a request head is refused. Each is the client's fault and logged at `info`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HeadError {
    /// The method has a character other than `A`–`Z`, `_`, `-`.
    InvalidMethod,
    /// The rest of the request line is malformed, or its path cannot be normalised.
    InvalidRequest,
    /// The major version is above 1.
    InvalidVersion,
    /// A request line without a version and a method other than `GET`.
    InvalidMethodInHttp09,
    /// The request line is longer than a large buffer.
    UriTooLong,
    /// The host in the request line is not one.
    InvalidHostInRequestLine,
    /// A field line has a control character, a space in its name, no name, a folded line, or a bare CR.
    InvalidHeaderLine,
    /// A field line is longer than a large buffer, or the large buffers are used up.
    HeaderLineTooLong,
    /// The large buffers are used up before the first field line began.
    TooLargeRequest,
    /// More fields than `max_headers`.
    TooManyHeaders,
    /// Repetition of a field that may occur once.
    DuplicateHeader(HeaderName),
    /// Repeated `Host`.
    DuplicateHost,
    /// `Host` is not a host.
    InvalidHost,
    /// `:authority` is not a host.
    InvalidAuthority,
    /// `:authority` and `Host` name different hosts.
    DifferentHosts,
    /// Neither `:authority` nor `Host`.
    NoAuthority,
    /// HTTP/1.1 without `Host`.
    NoHost,
    /// `Content-Length` is not a number, or above 2^63 - 1.
    InvalidContentLength,
    /// `Content-Length` of a list with which the message ends.
    MissingContent,
    /// `Transfer-Encoding` in HTTP/1.0.
    TransferEncodingInHttp10,
    /// `Transfer-Encoding` other than `chunked`.
    UnknownTransferEncoding,
    /// `Content-Length` and `Transfer-Encoding` together.
    LengthAndTransferEncoding,
    /// `CONNECT` where it is not allowed.
    ConnectNotAllowed,
    /// `CONNECT` with a body.
    ConnectWithBody,
    /// `TRACE`.
    Trace,
}

/// nginx's own status for "Request Header Or Cookie Too Large"; the client sees 400.
pub const REQUEST_HEADER_TOO_LARGE: u16 = 494;

impl HeadError {
    /// The status of the answer, nginx's internal 494 included.
    pub fn status(self) -> u16 {
        match self {
            HeadError::UriTooLong => 414,
            HeadError::InvalidVersion => 505,
            HeadError::HeaderLineTooLong | HeadError::TooLargeRequest | HeadError::TooManyHeaders => {
                REQUEST_HEADER_TOO_LARGE
            }
            HeadError::UnknownTransferEncoding => 501,
            HeadError::ConnectNotAllowed | HeadError::Trace => 405,
            _ => 400,
        }
    }

    /// Word for metrics.
    pub fn word(self) -> &'static str {
        match self {
            HeadError::InvalidMethod => "invalid_method",
            HeadError::InvalidRequest => "invalid_request",
            HeadError::InvalidVersion => "invalid_version",
            HeadError::InvalidMethodInHttp09 => "invalid_method_http09",
            HeadError::UriTooLong => "uri_too_long",
            HeadError::InvalidHostInRequestLine => "invalid_host_in_request_line",
            HeadError::InvalidHeaderLine => "invalid_header_line",
            HeadError::HeaderLineTooLong => "header_line_too_long",
            HeadError::TooLargeRequest => "too_large_request",
            HeadError::TooManyHeaders => "too_many_headers",
            HeadError::DuplicateHeader(_) => "duplicate_header",
            HeadError::DuplicateHost => "duplicate_host",
            HeadError::InvalidHost => "invalid_host",
            HeadError::InvalidAuthority => "invalid_authority",
            HeadError::DifferentHosts => "different_hosts",
            HeadError::NoAuthority => "no_authority",
            HeadError::NoHost => "no_host",
            HeadError::InvalidContentLength => "invalid_content_length",
            HeadError::MissingContent => "missing_content",
            HeadError::TransferEncodingInHttp10 => "transfer_encoding_http10",
            HeadError::UnknownTransferEncoding => "unknown_transfer_encoding",
            HeadError::LengthAndTransferEncoding => "length_and_transfer_encoding",
            HeadError::ConnectNotAllowed => "connect_not_allowed",
            HeadError::ConnectWithBody => "connect_with_body",
            HeadError::Trace => "trace",
        }
    }
}

/// Log line in nginx's words. It contains the client's bytes, control characters included (the log escapes them);
/// bytes that are not UTF-8 are replaced.
#[derive(Debug)]
pub struct ErrorText<'a> {
    head: &'a RequestHead,
    error: HeadError,
}

impl<'a> ErrorText<'a> {
    pub(super) fn new(head: &'a RequestHead, error: HeadError) -> Self {
        ErrorText { head, error }
    }
}

impl fmt::Display for ErrorText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = self.head;
        let fault = PeerBytes(head.bytes(head.parser.fault));
        let fault_value = PeerBytes(head.bytes(head.parser.fault_value));
        let previous = |known_name: HeaderName| {
            let field = head.fields.first(known_name);
            let (name, value) =
                field.map_or((&b""[..], &b""[..]), |field| (head.bytes(field.name), head.bytes(field.value)));
            (PeerBytes(name), PeerBytes(value))
        };
        match self.error {
            HeadError::InvalidMethod => f.write_str("client sent invalid method"),
            HeadError::InvalidRequest => f.write_str("client sent invalid request"),
            HeadError::InvalidVersion => f.write_str("client sent invalid version"),
            HeadError::InvalidMethodInHttp09 => f.write_str("client sent invalid method in HTTP/0.9 request"),
            HeadError::UriTooLong => f.write_str("client sent too long URI"),
            HeadError::InvalidHostInRequestLine => f.write_str("client sent invalid host in request line"),
            HeadError::InvalidHeaderLine => {
                let at = head.start + head.parser.fault.end as usize;
                let byte = head.buf.get(at).copied().unwrap_or(0);
                write!(f, "client sent invalid header line: \"{fault}\\x{byte:02x}...\"")
            }
            HeadError::HeaderLineTooLong => write!(f, "client sent too long header line: \"{fault}...\""),
            HeadError::TooLargeRequest => f.write_str("client sent too large request"),
            HeadError::TooManyHeaders => f.write_str("client sent too many header lines"),
            HeadError::DuplicateHeader(known_name) => {
                let (name, value) = previous(known_name);
                write!(f, "client sent duplicate header line: \"{fault}: {fault_value}\", ")?;
                write!(f, "previous value: \"{name}: {value}\"")
            }
            HeadError::DuplicateHost => {
                let (name, value) = previous(HeaderName::Host);
                write!(f, "client sent duplicate host header: \"{fault}: {fault_value}\", ")?;
                write!(f, "previous value: \"{name}: {value}\"")
            }
            HeadError::InvalidHost => f.write_str("client sent invalid host header"),
            HeadError::InvalidAuthority => f.write_str("client sent invalid \":authority\" header"),
            HeadError::DifferentHosts => {
                f.write_str("client sent \":authority\" and \"Host\" headers with different values")
            }
            HeadError::NoAuthority => f.write_str("client sent neither \":authority\" nor \"Host\" header"),
            HeadError::NoHost => f.write_str("client sent HTTP/1.1 request without \"Host\" header"),
            HeadError::InvalidContentLength => f.write_str("client sent invalid \"Content-Length\" header"),
            HeadError::MissingContent => f.write_str("client prematurely closed stream"),
            HeadError::TransferEncodingInHttp10 => {
                f.write_str("client sent HTTP/1.0 request with \"Transfer-Encoding\" header")
            }
            HeadError::UnknownTransferEncoding => write!(
                f,
                "client sent unknown \"Transfer-Encoding\": \"{}\"",
                previous(HeaderName::TransferEncoding).1
            ),
            HeadError::LengthAndTransferEncoding => f.write_str(
                "client sent \"Content-Length\" and \"Transfer-Encoding\" headers at the same time",
            ),
            HeadError::ConnectNotAllowed => f.write_str("client sent CONNECT method"),
            HeadError::ConnectWithBody => f.write_str("client sent CONNECT request with body"),
            HeadError::Trace => f.write_str("client sent TRACE method"),
        }
    }
}

/// Bytes of a peer in a log line.
pub(crate) struct PeerBytes<'a>(pub(crate) &'a [u8]);

impl fmt::Display for PeerBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            f.write_str(chunk.valid())?;
            if !chunk.invalid().is_empty() {
                f.write_char(char::REPLACEMENT_CHARACTER)?;
            }
        }
        Ok(())
    }
}
