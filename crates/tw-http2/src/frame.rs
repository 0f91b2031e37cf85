//! Frames (RFC 9113 section 4.1): their headers, and frames with short payloads.

use crate::ErrorCode;

/// Connection preface of every client (RFC 9113 section 3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Size of a frame header, in bytes.
pub(crate) const HEAD_SIZE: usize = 9;
/// Default largest payload (RFC 9113 section 6.5.2), in bytes.
pub(crate) const PAYLOAD_USUAL: usize = 16 << 10;
/// Upper limit of the largest payload, in bytes.
pub(crate) const PAYLOAD_MAX: usize = (1 << 24) - 1;
/// Default window (RFC 9113 section 6.9.2), in bytes.
pub(crate) const WINDOW_USUAL: u32 = 65_535;
/// Largest window, in bytes.
pub(crate) const WINDOW_MAX: i64 = (1 << 31) - 1;

/// Types of frames.
pub(crate) mod kind {
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const PRIORITY: u8 = 2;
    pub(crate) const RST_STREAM: u8 = 3;
    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const PUSH_PROMISE: u8 = 5;
    pub(crate) const PING: u8 = 6;
    pub(crate) const GOAWAY: u8 = 7;
    pub(crate) const WINDOW_UPDATE: u8 = 8;
    pub(crate) const CONTINUATION: u8 = 9;
    /// RFC 9218 section 7.1.
    pub(crate) const PRIORITY_UPDATE: u8 = 16;
}

/// Flags of frames.
pub(crate) mod flag {
    /// Of `DATA` and `HEADERS`.
    pub(crate) const END_STREAM: u8 = 1;
    /// Of `SETTINGS` and `PING`.
    pub(crate) const ACK: u8 = 1;
    /// Of `HEADERS` and `CONTINUATION`.
    pub(crate) const END_HEADERS: u8 = 4;
    /// Of `DATA` and `HEADERS`.
    pub(crate) const PADDED: u8 = 8;
    /// Of `HEADERS`.
    pub(crate) const PRIORITY: u8 = 32;
}

/// Frame header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    /// Length of the payload.
    pub(crate) len: usize,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    /// 0: the connection.
    pub(crate) stream: u32,
}

impl Head {
    pub(crate) fn parse(bytes: [u8; HEAD_SIZE]) -> Self {
        let [a, b, c, kind, flags, id @ ..] = bytes;
        let len = u32::from_be_bytes([0, a, b, c]) as usize;
        Self { len, kind, flags, stream: u32::from_be_bytes(id) & (u32::MAX >> 1) }
    }

    pub(crate) fn bytes(self) -> [u8; HEAD_SIZE] {
        let [_, a, b, c] = (self.len as u32).to_be_bytes();
        let [d, e, f, g] = self.stream.to_be_bytes();
        [a, b, c, self.kind, self.flags, d, e, f, g]
    }

    pub(crate) fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// A whole frame with a short payload.
fn short(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let head = Head { len: payload.len(), kind, flags, stream };
    [&head.bytes()[..], payload].concat()
}

pub(crate) fn reset(stream: u32, reason: ErrorCode) -> Vec<u8> {
    short(kind::RST_STREAM, 0, stream, &u32::from(reason).to_be_bytes())
}

pub(crate) fn window_update(stream: u32, by: u32) -> Vec<u8> {
    short(kind::WINDOW_UPDATE, 0, stream, &by.to_be_bytes())
}

pub(crate) fn go_away(last: u32, reason: ErrorCode) -> Vec<u8> {
    let payload = [last.to_be_bytes(), u32::from(reason).to_be_bytes()].concat();
    short(kind::GOAWAY, 0, 0, &payload)
}

pub(crate) fn ping(flags: u8, payload: [u8; 8]) -> Vec<u8> {
    short(kind::PING, flags, 0, &payload)
}

/// Settings, or that those of the peer were taken over.
pub(crate) fn settings(flags: u8, settings: &[(u16, u32)]) -> Vec<u8> {
    let mut payload = Vec::with_capacity(settings.len() * 6);
    for (which, value) in settings {
        payload.extend_from_slice(&which.to_be_bytes());
        payload.extend_from_slice(&value.to_be_bytes());
    }
    short(kind::SETTINGS, flags, 0, &payload)
}
