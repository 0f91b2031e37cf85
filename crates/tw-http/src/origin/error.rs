//! Errors of a response head.

use crate::header_name::HeaderName;

/// Why the head of a response is refused. Each is the origin's fault, logged at `error`, and for
/// `proxy_next_upstream` an `invalid_header`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OriginError {
    /// The response does not begin with `HTTP/`, and has to. nginx takes all of it for a body (HTTP/0.9).
    NoStatusLine,
    /// The response begins with `HTTP/`, and the rest of the line is malformed.
    // DIFF(nginx): nginx takes that for a body, too.
    InvalidStatusLine,
    /// `Status` of a head without a status line is no number from 100 on, or one that another head would follow.
    InvalidStatus,
    /// A status of 1xx in HTTP/1.0.
    InterimInHttp10,
    /// More heads of 1xx than [`INTERIM_MAX`](super::INTERIM_MAX).
    TooManyInterim,
    /// A field line has a control character, a space in its name, no name, a folded line, or a bare CR.
    InvalidHeaderLine,
    /// The head is longer than its limit.
    TooBigHeader,
    /// More fields than the limit.
    TooManyFields,
    /// Repeated `Content-Length` or `Transfer-Encoding`.
    DuplicateHeader(HeaderName),
    /// `Content-Length` is not a number, or above 2^63 - 1.
    InvalidContentLength,
    /// `Transfer-Encoding` in HTTP/1.0.
    TransferEncodingInHttp10,
    /// `Transfer-Encoding` other than `chunked`.
    UnknownTransferEncoding,
    /// `Content-Length` and `Transfer-Encoding` together.
    LengthAndTransferEncoding,
}
