//! What can be wrong with a request head, the status that answers it and the line nginx logs for it.

use std::fmt;

use super::{RequestHead, Span};
use crate::known::Known;

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
    /// A field that may come once came twice.
    DuplicateHeader(Known),
    /// `Host` came twice.
    DuplicateHost,
    /// `Host` is not a host.
    InvalidHost,
    /// HTTP/1.1 without `Host`.
    NoHost,
    /// `Content-Length` is not a number, or above 2^63 - 1.
    InvalidContentLength,
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
}

/// A log line in nginx's words; bytes of the client that are not UTF-8 are replaced.
#[derive(Debug)]
pub struct ErrorText<'a> {
    head: &'a RequestHead,
    error: HeadError,
}

impl<'a> ErrorText<'a> {
    pub(super) fn new(head: &'a RequestHead, error: HeadError) -> Self {
        ErrorText { head, error }
    }

    fn text(&self, span: Span) -> std::borrow::Cow<'a, str> {
        String::from_utf8_lossy(self.head.bytes(span))
    }
}

impl fmt::Display for ErrorText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = match self.error {
            HeadError::InvalidMethod => "client sent invalid method",
            HeadError::InvalidRequest => "client sent invalid request",
            HeadError::InvalidVersion => "client sent invalid version",
            HeadError::InvalidMethodInHttp09 => "client sent invalid method in HTTP/0.9 request",
            _ => "",
        };
        f.write_str(plain)?;
        f.write_str(&self.text(Span::default()))
    }
}
