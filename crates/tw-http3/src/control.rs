//! The peer's control stream (RFC 9114 section 7.2, RFC 9218 section 7.2).

use bytes::Bytes;

use crate::ErrorCode;
use crate::config::{CONTROL_FRAME_MAX, PRIORITY_MAX};
use crate::error::{ConnectionError, StreamError, unexpected};
use crate::frame::{Head, kind};
use crate::reader::{Piece, Reader};
use crate::settings::{End, Peer};
use crate::state::{PendingEvent, State};
use crate::varint;

/// Position in the control stream.
#[derive(Debug)]
pub(crate) struct ControlStream {
    reader: Reader,
    frame: Option<Head>,
    /// Beginning of the payload of a known frame.
    payload: Vec<u8>,
}

impl Default for ControlStream {
    fn default() -> Self {
        Self { reader: Reader::new(), frame: None, payload: Vec::new() }
    }
}

fn wrong_id(words: &'static str) -> ConnectionError {
    ConnectionError::Local(ErrorCode::ID_ERROR, words)
}

/// Returns true for frames of the control stream whose payloads are read.
fn is_known(kind: u64) -> bool {
    matches!(
        kind,
        kind::CANCEL_PUSH
            | kind::SETTINGS
            | kind::GOAWAY
            | kind::MAX_PUSH_ID
            | kind::PRIORITY_UPDATE
            | kind::PRIORITY_UPDATE_PUSH
    )
}

impl State {
    pub(crate) fn receive_control(
        &mut self,
        stream: &mut ControlStream,
        bytes: &[u8],
    ) -> Result<(), ConnectionError> {
        let mut bytes = Bytes::copy_from_slice(bytes);
        while let Some(piece) = stream.reader.next(&mut bytes) {
            match (piece, stream.frame) {
                (Piece::Head(head), _) => {
                    self.check_control_frame(head)?;
                    stream.frame = Some(head);
                }
                (Piece::Payload(bytes, is_last), Some(head)) if is_known(head.kind) => {
                    // The length of the frame was checked before.
                    stream.payload.extend_from_slice(&bytes);
                    if is_last {
                        let payload = std::mem::take(&mut stream.payload);
                        self.control_frame(head.kind, &payload)?;
                    }
                }
                (Piece::Payload(..), _) => {}
            }
        }
        Ok(())
    }

    /// Checks a frame by its header.
    fn check_control_frame(&self, head: Head) -> Result<(), ConnectionError> {
        let is_for_server =
            matches!(head.kind, kind::MAX_PUSH_ID | kind::PRIORITY_UPDATE | kind::PRIORITY_UPDATE_PUSH);
        match head.kind {
            kind::SETTINGS if self.peer.is_some() => Err(unexpected("sent second SETTINGS frame")),
            other if other != kind::SETTINGS && self.peer.is_none() => {
                Err(ConnectionError::Local(ErrorCode::MISSING_SETTINGS, "sent no SETTINGS frame first"))
            }
            kind::DATA | kind::HEADERS | kind::PUSH_PROMISE => {
                Err(unexpected("sent unexpected http3 frame on control stream"))
            }
            _ if is_for_server && self.end == End::Client => {
                Err(unexpected("sent frame that only a client may send"))
            }
            other if kind::is_of_http2(other) => Err(unexpected("sent frame of http2")),
            other if is_known(other) && head.len > CONTROL_FRAME_MAX => Err(ConnectionError::Local(
                ErrorCode::EXCESSIVE_LOAD,
                "sent too large frame on control stream",
            )),
            _ => Ok(()),
        }
    }

    /// Processes a complete frame of the control stream.
    fn control_frame(&mut self, which: u64, payload: &[u8]) -> Result<(), ConnectionError> {
        if which == kind::SETTINGS {
            self.peer = Some(Peer::read(payload)?);
            return Ok(());
        }
        let incorrect = || {
            ConnectionError::Local(
                ErrorCode::FRAME_ERROR,
                "sent frame with incorrect length on control stream",
            )
        };
        let mut value = payload;
        let id = varint::take(&mut value).ok_or_else(incorrect)?;
        let is_priority = matches!(which, kind::PRIORITY_UPDATE | kind::PRIORITY_UPDATE_PUSH);
        if !is_priority && !value.is_empty() {
            return Err(incorrect());
        }
        match which {
            kind::GOAWAY => self.on_goaway(id),
            kind::MAX_PUSH_ID if self.push_max.is_some_and(|max| id < max) => {
                Err(wrong_id("sent MAX_PUSH_ID frame with a smaller identifier"))
            }
            kind::MAX_PUSH_ID => {
                self.push_max = Some(id);
                Ok(())
            }
            // The server has promised no push.
            kind::CANCEL_PUSH => Err(wrong_id("sent CANCEL_PUSH frame for no push")),
            kind::PRIORITY_UPDATE_PUSH => Err(wrong_id("sent PRIORITY_UPDATE frame for no push")),
            kind::PRIORITY_UPDATE if id & 3 != 0 => {
                Err(wrong_id("sent PRIORITY_UPDATE frame for no request stream"))
            }
            kind::PRIORITY_UPDATE if value.len() <= PRIORITY_MAX => {
                self.events.push_back(PendingEvent::Priority { stream: id, value: value.into() });
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Processes `GOAWAY`: a server has not processed requests from `id` on; a client accepts no push from `id` on.
    fn on_goaway(&mut self, id: u64) -> Result<(), ConnectionError> {
        if self.end == End::Client && id & 3 != 0 {
            return Err(wrong_id("sent GOAWAY frame with incorrect identifier"));
        }
        if self.goaway_id.is_some_and(|remaining| id > remaining) {
            return Err(wrong_id("sent GOAWAY frame with a larger identifier"));
        }
        self.goaway_id = Some(id);
        if self.end == End::Client {
            let mut refused: Vec<_> = self.streams.values().filter(|entry| entry.id >= id).cloned().collect();
            refused.sort_unstable_by_key(|entry| entry.id);
            for entry in refused {
                self.reset(&entry, ErrorCode::REQUEST_CANCELLED);
                entry.error.set(Some(StreamError::Refused));
            }
        }
        Ok(())
    }
}
