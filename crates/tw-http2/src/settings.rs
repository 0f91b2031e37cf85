//! Settings (RFC 9113 section 6.5) of this end and of the peer.

use crate::config::Config;
use crate::frame::{PAYLOAD_MAX, PAYLOAD_USUAL, WINDOW_MAX, WINDOW_USUAL};
use crate::{ConnectionError, ErrorCode};

const HEADER_TABLE_SIZE: u16 = 1;
const ENABLE_PUSH: u16 = 2;
const MAX_CONCURRENT_STREAMS: u16 = 3;
const INITIAL_WINDOW_SIZE: u16 = 4;
const MAX_FRAME_SIZE: u16 = 5;
const MAX_HEADER_LIST_SIZE: u16 = 6;
/// RFC 8441 section 3.
const ENABLE_CONNECT_PROTOCOL: u16 = 8;
/// RFC 9218 section 2.1.
const NO_RFC7540_PRIORITIES: u16 = 9;

/// Default size of the dynamic table (RFC 7541), which this end announces.
pub(crate) const TABLE_SIZE: usize = 4096;

/// The two ends of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Server,
    Client,
}

// DIFF(nginx): frames of clients are not larger than 16 KiB.
/// Largest payload that this end accepts, in bytes. Data is passed on as it arrives, so large frames of a configured
/// server take no memory; a client is held to the default size, because it may be any client.
pub(crate) fn payload_max(end: End) -> usize {
    match end {
        End::Server => PAYLOAD_USUAL,
        End::Client => PAYLOAD_MAX,
    }
}

/// Returns the settings that this end announces.
pub(crate) fn ours(end: End, config: &Config) -> Vec<(u16, u32)> {
    let mut ours = match end {
        End::Server => vec![
            (MAX_CONCURRENT_STREAMS, config.streams_max),
            (ENABLE_CONNECT_PROTOCOL, 1),
            (NO_RFC7540_PRIORITIES, 1),
        ],
        End::Client => vec![(ENABLE_PUSH, 0)],
    };
    ours.extend([
        (INITIAL_WINDOW_SIZE, config.window),
        (MAX_FRAME_SIZE, payload_max(end) as u32),
        (MAX_HEADER_LIST_SIZE, config.list_max),
    ]);
    ours
}

/// Settings of the peer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer {
    /// Largest payload of a frame, in bytes.
    pub(crate) payload_max: usize,
    /// Initial window for the bodies of streams, in bytes.
    pub(crate) window: u32,
    /// Largest number of streams that this end may have open.
    pub(crate) streams_max: u32,
}

impl Default for Peer {
    fn default() -> Self {
        Self { payload_max: PAYLOAD_USUAL, window: WINDOW_USUAL, streams_max: u32::MAX }
    }
}

/// Changes by a setting that [`Peer`] does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Nothing,
    /// Difference to the windows of all streams.
    Windows(i64),
    /// Table of fields smaller than the default size.
    SmallTable,
    /// The number of streams that the peer allows has changed.
    Streams,
}

impl Peer {
    /// Applies one setting.
    pub(crate) fn take(&mut self, end: End, setting: [u8; 6]) -> Result<Change, ConnectionError> {
        let [a, b, value @ ..] = setting;
        let value = u32::from_be_bytes(value);
        let wrong = |reason, words| Err(ConnectionError::Local(reason, words));
        match u16::from_be_bytes([a, b]) {
            HEADER_TABLE_SIZE if (value as usize) < TABLE_SIZE => return Ok(Change::SmallTable),
            ENABLE_PUSH if value > u32::from(end == End::Server) => {
                return wrong(
                    ErrorCode::PROTOCOL_ERROR,
                    "sent SETTINGS frame with incorrect ENABLE_PUSH value",
                );
            }
            MAX_CONCURRENT_STREAMS => {
                self.streams_max = value;
                return Ok(Change::Streams);
            }
            INITIAL_WINDOW_SIZE if i64::from(value) > WINDOW_MAX => {
                return wrong(
                    ErrorCode::FLOW_CONTROL_ERROR,
                    "sent SETTINGS frame with incorrect INITIAL_WINDOW_SIZE value",
                );
            }
            INITIAL_WINDOW_SIZE => {
                let by = i64::from(value) - i64::from(self.window);
                self.window = value;
                return Ok(Change::Windows(by));
            }
            MAX_FRAME_SIZE if !(PAYLOAD_USUAL..=PAYLOAD_MAX).contains(&(value as usize)) => {
                return wrong(
                    ErrorCode::PROTOCOL_ERROR,
                    "sent SETTINGS frame with incorrect MAX_FRAME_SIZE value",
                );
            }
            MAX_FRAME_SIZE => self.payload_max = value as usize,
            ENABLE_CONNECT_PROTOCOL | NO_RFC7540_PRIORITIES if value > 1 => {
                return wrong(ErrorCode::PROTOCOL_ERROR, "sent SETTINGS frame with a flag that is none");
            }
            _ => {}
        }
        Ok(Change::Nothing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(which: u16, value: u32) -> [u8; 6] {
        let mut setting = [0; 6];
        setting[..2].copy_from_slice(&which.to_be_bytes());
        setting[2..].copy_from_slice(&value.to_be_bytes());
        setting
    }

    #[test]
    fn settings_are_applied() {
        let mut peer = Peer::default();
        let mut take = |which, value| peer.take(End::Server, setting(which, value));
        assert_eq!(take(HEADER_TABLE_SIZE, 65_536), Ok(Change::Nothing));
        assert_eq!(take(HEADER_TABLE_SIZE, 100), Ok(Change::SmallTable));
        assert_eq!(take(INITIAL_WINDOW_SIZE, 100), Ok(Change::Windows(100 - 65_535)));
        assert_eq!(take(INITIAL_WINDOW_SIZE, 300), Ok(Change::Windows(200)));
        assert_eq!(take(MAX_FRAME_SIZE, 1 << 20), Ok(Change::Nothing));
        assert_eq!(take(MAX_CONCURRENT_STREAMS, 7), Ok(Change::Streams));
        assert_eq!(take(77, 7), Ok(Change::Nothing));
        assert_eq!((peer.payload_max, peer.window, peer.streams_max), (1 << 20, 300, 7));
    }

    #[test]
    fn invalid_settings_are_refused() {
        for (end, which, value, reason) in [
            (End::Server, ENABLE_PUSH, 2, ErrorCode::PROTOCOL_ERROR),
            (End::Client, ENABLE_PUSH, 1, ErrorCode::PROTOCOL_ERROR),
            (End::Server, INITIAL_WINDOW_SIZE, 1 << 31, ErrorCode::FLOW_CONTROL_ERROR),
            (End::Server, MAX_FRAME_SIZE, 16_383, ErrorCode::PROTOCOL_ERROR),
            (End::Server, MAX_FRAME_SIZE, 1 << 24, ErrorCode::PROTOCOL_ERROR),
            (End::Client, ENABLE_CONNECT_PROTOCOL, 2, ErrorCode::PROTOCOL_ERROR),
            (End::Client, NO_RFC7540_PRIORITIES, 2, ErrorCode::PROTOCOL_ERROR),
        ] {
            let taken = Peer::default().take(end, setting(which, value));
            assert!(
                matches!(taken, Err(ConnectionError::Local(code, _)) if code == reason),
                "{end:?} {which} {value}"
            );
        }
        assert_eq!(Peer::default().take(End::Server, setting(ENABLE_PUSH, 1)), Ok(Change::Nothing));
    }
}
