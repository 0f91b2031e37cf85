//! Frames (RFC 9114 section 7): types and headers.

use crate::varint;

/// Types of frames.
pub(crate) mod kind {
    pub(crate) const DATA: u64 = 0;
    pub(crate) const HEADERS: u64 = 1;
    pub(crate) const CANCEL_PUSH: u64 = 3;
    pub(crate) const SETTINGS: u64 = 4;
    pub(crate) const PUSH_PROMISE: u64 = 5;
    pub(crate) const GOAWAY: u64 = 7;
    pub(crate) const MAX_PUSH_ID: u64 = 13;
    /// RFC 9218 section 7.2, of a request.
    pub(crate) const PRIORITY_UPDATE: u64 = 0xf_0700;
    /// Of a push.
    pub(crate) const PRIORITY_UPDATE_PUSH: u64 = 0xf_0701;

    /// Returns true for types of HTTP/2 that must not be sent (RFC 9114 section 7.2.8).
    pub(crate) fn is_of_http2(kind: u64) -> bool {
        matches!(kind, 2 | 6 | 8 | 9)
    }
}

/// Types of unidirectional streams (RFC 9114 section 6.2, RFC 9204 section 4.2).
pub(crate) mod stream_type {
    pub(crate) const CONTROL: u64 = 0;
    pub(crate) const PUSH: u64 = 1;
    pub(crate) const QPACK_ENCODER: u64 = 2;
    pub(crate) const QPACK_DECODER: u64 = 3;
}

/// Frame header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) kind: u64,
    /// Length of the payload.
    pub(crate) len: u64,
}

impl Head {
    /// Appends the header.
    pub(crate) fn put(self, out: &mut Vec<u8>) {
        varint::put(out, self.kind);
        varint::put(out, self.len);
    }
}

/// Returns a whole frame whose payload is one integer.
pub(crate) fn number(kind: u64, value: u64) -> Vec<u8> {
    let mut frame = Vec::new();
    let mut payload = Vec::new();
    varint::put(&mut payload, value);
    Head { kind, len: payload.len() as u64 }.put(&mut frame);
    frame.extend_from_slice(&payload);
    frame
}
