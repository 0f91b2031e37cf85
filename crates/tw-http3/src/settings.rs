//! Settings (RFC 9114 section 7.2.4) of this end and of the peer.

use crate::config::{BLOCKED_STREAMS_MAX, Config, TABLE_CAPACITY};
use crate::frame::{Head, kind};
use crate::{ConnectionError, ErrorCode, varint};

const QPACK_MAX_TABLE_CAPACITY: u64 = 1;
const MAX_FIELD_SECTION_SIZE: u64 = 6;
const QPACK_BLOCKED_STREAMS: u64 = 7;
/// RFC 9220 section 3.
const ENABLE_CONNECT_PROTOCOL: u64 = 8;
/// RFC 9297 section 2.1.1.
const H3_DATAGRAM: u64 = 0x33;

/// The two ends of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Server,
    Client,
}

/// Returns the `SETTINGS` frame of this end.
pub(crate) fn ours(end: End, config: &Config) -> Vec<u8> {
    let mut payload = Vec::new();
    let mut put = |which, value| {
        varint::put(&mut payload, which);
        varint::put(&mut payload, value);
    };
    put(QPACK_MAX_TABLE_CAPACITY, TABLE_CAPACITY as u64);
    put(QPACK_BLOCKED_STREAMS, BLOCKED_STREAMS_MAX as u64);
    put(MAX_FIELD_SECTION_SIZE, config.list_max.into());
    if end == End::Server {
        put(ENABLE_CONNECT_PROTOCOL, 1);
    }
    let mut frame = Vec::new();
    Head { kind: kind::SETTINGS, len: payload.len() as u64 }.put(&mut frame);
    frame.extend_from_slice(&payload);
    frame
}

/// Settings of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Peer {
    /// Largest field section that the peer accepts, in bytes.
    pub(crate) list_max: u64,
    /// True if the peer accepts the extended CONNECT method (RFC 9220).
    pub(crate) has_connect_protocol: bool,
}

impl Default for Peer {
    fn default() -> Self {
        Self { list_max: u64::MAX, has_connect_protocol: false }
    }
}

impl Peer {
    /// Reads the payload of a `SETTINGS` frame.
    pub(crate) fn read(mut payload: &[u8]) -> Result<Self, ConnectionError> {
        let wrong = |words| ConnectionError::Local(ErrorCode::SETTINGS_ERROR, words);
        let mut peer = Self::default();
        let mut seen_count = 0_u64;
        while !payload.is_empty() {
            let cut = || {
                ConnectionError::Local(ErrorCode::FRAME_ERROR, "sent SETTINGS frame with incorrect length")
            };
            let which = varint::take(&mut payload).ok_or_else(cut)?;
            let value = varint::take(&mut payload).ok_or_else(cut)?;
            // Settings with small numbers, among them all that are known here, must not occur twice (RFC 9114 section
            // 7.2.4). Others are ignored.
            if let Some(bit) = 1_u64.checked_shl(u32::try_from(which).unwrap_or(u32::MAX)) {
                if seen_count & bit != 0 {
                    return Err(wrong("sent SETTINGS frame with a duplicate setting"));
                }
                seen_count |= bit;
            }
            match which {
                // Settings of HTTP/2 are reserved (RFC 9114 section 7.2.4.1).
                0 | 2..=5 => return Err(wrong("sent SETTINGS frame with a setting of HTTP/2")),
                MAX_FIELD_SECTION_SIZE => peer.list_max = value,
                ENABLE_CONNECT_PROTOCOL | H3_DATAGRAM if value > 1 => {
                    return Err(wrong("sent SETTINGS frame with a flag that is none"));
                }
                ENABLE_CONNECT_PROTOCOL => peer.has_connect_protocol = value == 1,
                // Table and blocked streams matter to an encoder that inserts.
                _ => {}
            }
        }
        Ok(peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(settings: &[(u64, u64)]) -> Result<Peer, ConnectionError> {
        let mut payload = Vec::new();
        for (which, value) in settings {
            varint::put(&mut payload, *which);
            varint::put(&mut payload, *value);
        }
        Peer::read(&payload)
    }

    #[test]
    fn settings_are_read() {
        let peer = |list_max, has_connect_protocol| Ok(Peer { list_max, has_connect_protocol });
        assert_eq!(read(&[]), peer(u64::MAX, false));
        assert_eq!(read(&[(1, 65_536), (7, 100), (6, 9000), (8, 1), (0x33, 1)]), peer(9000, true));
        // Reserved and unknown ones, even twice.
        assert_eq!(
            read(&[(0x21, 7), (0x1f * 99 + 0x21, varint::MAX), (0xbeef, 1), (0xbeef, 2)]),
            peer(u64::MAX, false)
        );
    }

    #[test]
    fn invalid_settings_are_refused() {
        for settings in [
            &[(0, 1)][..],
            &[(2, 0)],
            &[(3, 0)],
            &[(4, 0)],
            &[(5, 0)],
            &[(6, 1), (6, 1)],
            &[(8, 2)],
            &[(0x33, 2)],
        ] {
            assert!(
                matches!(read(settings), Err(ConnectionError::Local(ErrorCode::SETTINGS_ERROR, _))),
                "{settings:?}"
            );
        }
        for cut in [&[6][..], &[0x46], &[6, 0x80, 0]] {
            assert!(
                matches!(Peer::read(cut), Err(ConnectionError::Local(ErrorCode::FRAME_ERROR, _))),
                "{cut:?}"
            );
        }
    }

    #[test]
    fn own_settings_are_a_frame() {
        let frame = ours(End::Server, &Config { list_max: 9000 });
        assert_eq!(frame, [4, 10, 1, 0x50, 0, 7, 16, 6, 0x63, 0x28, 8, 1]);
    }
}
