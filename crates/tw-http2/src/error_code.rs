//! Error codes of HTTP/2 (RFC 9113 section 7).

use std::fmt;

/// An error code. Any number is one; those without a name mean nothing in particular.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ErrorCode(u32);

/// The code and its name for each that has one.
const NAMES: [&str; 14] = [
    "NO_ERROR",
    "PROTOCOL_ERROR",
    "INTERNAL_ERROR",
    "FLOW_CONTROL_ERROR",
    "SETTINGS_TIMEOUT",
    "STREAM_CLOSED",
    "FRAME_SIZE_ERROR",
    "REFUSED_STREAM",
    "CANCEL",
    "COMPRESSION_ERROR",
    "CONNECT_ERROR",
    "ENHANCE_YOUR_CALM",
    "INADEQUATE_SECURITY",
    "HTTP_1_1_REQUIRED",
];

impl ErrorCode {
    /// Nothing is wrong.
    pub const NO_ERROR: Self = Self(0);
    /// The peer does not keep the rules of the protocol.
    pub const PROTOCOL_ERROR: Self = Self(1);
    /// Something failed here.
    pub const INTERNAL_ERROR: Self = Self(2);
    /// The peer has sent more than its windows had room for.
    pub const FLOW_CONTROL_ERROR: Self = Self(3);
    /// A frame came for a stream that had ended.
    pub const STREAM_CLOSED: Self = Self(5);
    /// A frame has a length that it cannot have.
    pub const FRAME_SIZE_ERROR: Self = Self(6);
    /// Nobody has looked at the request.
    pub const REFUSED_STREAM: Self = Self(7);
    /// The stream is not wanted any more.
    pub const CANCEL: Self = Self(8);
    /// Lists of fields cannot be understood any more.
    pub const COMPRESSION_ERROR: Self = Self(9);
    /// The connection behind a tunnel has failed.
    pub const CONNECT_ERROR: Self = Self(10);
    /// The peer makes more work than it is worth.
    pub const ENHANCE_YOUR_CALM: Self = Self(11);
}

impl From<u32> for ErrorCode {
    fn from(code: u32) -> Self {
        Self(code)
    }
}

impl From<ErrorCode> for u32 {
    fn from(reason: ErrorCode) -> Self {
        reason.0
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.get(self.0 as usize) {
            Some(name) => f.write_str(name),
            None => write!(f, "error {}", self.0),
        }
    }
}

impl fmt::Debug for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
