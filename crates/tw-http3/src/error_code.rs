//! Error codes of HTTP/3 (RFC 9114 section 8.1) and QPACK (RFC 9204 section 6).

use std::fmt;

/// An error code. Any number is one; those without a name mean nothing in particular.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ErrorCode(u64);

/// Names of the codes from [`FIRST`] on.
const NAMES: [&str; 17] = [
    "H3_NO_ERROR",
    "H3_GENERAL_PROTOCOL_ERROR",
    "H3_INTERNAL_ERROR",
    "H3_STREAM_CREATION_ERROR",
    "H3_CLOSED_CRITICAL_STREAM",
    "H3_FRAME_UNEXPECTED",
    "H3_FRAME_ERROR",
    "H3_EXCESSIVE_LOAD",
    "H3_ID_ERROR",
    "H3_SETTINGS_ERROR",
    "H3_MISSING_SETTINGS",
    "H3_REQUEST_REJECTED",
    "H3_REQUEST_CANCELLED",
    "H3_REQUEST_INCOMPLETE",
    "H3_MESSAGE_ERROR",
    "H3_CONNECT_ERROR",
    "H3_VERSION_FALLBACK",
];
const FIRST: u64 = 0x100;

/// Names of the codes of QPACK from [`QPACK_FIRST`] on.
const QPACK_NAMES: [&str; 3] =
    ["QPACK_DECOMPRESSION_FAILED", "QPACK_ENCODER_STREAM_ERROR", "QPACK_DECODER_STREAM_ERROR"];
const QPACK_FIRST: u64 = 0x200;

impl ErrorCode {
    /// No error.
    pub const NO_ERROR: Self = Self(FIRST);
    /// A violation of the protocol for which there is no other code.
    pub const GENERAL_PROTOCOL_ERROR: Self = Self(FIRST + 1);
    /// Failure of this end.
    pub const INTERNAL_ERROR: Self = Self(FIRST + 2);
    /// A stream that the peer must not open.
    pub const STREAM_CREATION_ERROR: Self = Self(FIRST + 3);
    /// A stream that the connection needs was closed.
    pub const CLOSED_CRITICAL_STREAM: Self = Self(FIRST + 4);
    /// A frame that is not allowed in this state or on this stream.
    pub const FRAME_UNEXPECTED: Self = Self(FIRST + 5);
    /// A frame with an invalid layout or size.
    pub const FRAME_ERROR: Self = Self(FIRST + 6);
    /// Load that the peer must not cause.
    pub const EXCESSIVE_LOAD: Self = Self(FIRST + 7);
    /// A stream or push identifier that is used incorrectly.
    pub const ID_ERROR: Self = Self(FIRST + 8);
    /// An error in the payload of `SETTINGS`.
    pub const SETTINGS_ERROR: Self = Self(FIRST + 9);
    /// The control stream begins with another frame than `SETTINGS`.
    pub const MISSING_SETTINGS: Self = Self(FIRST + 10);
    /// The request was not processed.
    pub const REQUEST_REJECTED: Self = Self(FIRST + 11);
    /// The request or its response is not wanted any more.
    pub const REQUEST_CANCELLED: Self = Self(FIRST + 12);
    /// The stream ended without a complete request.
    pub const REQUEST_INCOMPLETE: Self = Self(FIRST + 13);
    /// Malformed message.
    pub const MESSAGE_ERROR: Self = Self(FIRST + 14);
    /// The connection behind a tunnel has failed.
    pub const CONNECT_ERROR: Self = Self(FIRST + 15);
    /// The request has to be sent over HTTP/1.1.
    pub const VERSION_FALLBACK: Self = Self(FIRST + 16);
    /// A field section that cannot be decoded.
    pub const QPACK_DECOMPRESSION_FAILED: Self = Self(QPACK_FIRST);
    /// An invalid instruction on the encoder stream.
    pub const QPACK_ENCODER_STREAM_ERROR: Self = Self(QPACK_FIRST + 1);
    /// An invalid instruction on the decoder stream.
    pub const QPACK_DECODER_STREAM_ERROR: Self = Self(QPACK_FIRST + 2);
}

impl From<u64> for ErrorCode {
    fn from(code: u64) -> Self {
        Self(code)
    }
}

impl From<ErrorCode> for u64 {
    fn from(reason: ErrorCode) -> Self {
        reason.0
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |names: &[&'static str], first: u64| {
            names.get(usize::try_from(self.0.checked_sub(first)?).ok()?).copied()
        };
        match name(&NAMES, FIRST).or_else(|| name(&QPACK_NAMES, QPACK_FIRST)) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_the_names_of_the_rfcs() {
        for (code, number, name) in [
            (ErrorCode::NO_ERROR, 0x100, "H3_NO_ERROR"),
            (ErrorCode::FRAME_UNEXPECTED, 0x105, "H3_FRAME_UNEXPECTED"),
            (ErrorCode::MESSAGE_ERROR, 0x10e, "H3_MESSAGE_ERROR"),
            (ErrorCode::VERSION_FALLBACK, 0x110, "H3_VERSION_FALLBACK"),
            (ErrorCode::QPACK_DECODER_STREAM_ERROR, 0x202, "QPACK_DECODER_STREAM_ERROR"),
            (ErrorCode::from(77), 77, "error 77"),
            (ErrorCode::from(0x111), 0x111, "error 273"),
        ] {
            assert_eq!((u64::from(code), code.to_string().as_str()), (number, name));
        }
    }
}
