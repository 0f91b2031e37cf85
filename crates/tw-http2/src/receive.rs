//! Effects of received frames, in the order of RFC 9113 section 6.

mod field_sections;

use std::rc::Rc;

use self::field_sections::Block;
use crate::ErrorCode;
use crate::config::{PRIORITY_MAX, RESETS_UNSEEN_MAX};
use crate::entry::{Entry, ReceiveState};
use crate::error::{ConnectionError, StreamError};
use crate::frame::{self, Head, PAYLOAD_USUAL, WINDOW_MAX, WINDOW_USUAL, flag, kind};
use crate::reader::Piece;
use crate::settings::{Change, End, payload_max};
use crate::state::{LEAVING, PendingEvent, Shutdown, State};

/// The stream stands before the value of a `PRIORITY_UPDATE`.
const ID_SIZE: usize = 4;
const SETTING_SIZE: usize = 6;
/// Bytes of a short piece of data behind a long one.
const SHORT: usize = 64;
/// Bytes of the deprecated priority in `HEADERS`, which is ignored.
const PRIORITY_SIZE: usize = 5;

/// The frame that is being read.
#[derive(Default)]
pub(crate) struct Frame {
    head: Option<Head>,
    /// Bytes of its payload that came.
    at: usize,
    /// Number of padding bytes at its end.
    padding: usize,
    /// Beginning of a short payload.
    short: Vec<u8>,
    /// Stream that gets its data, if it still wants any.
    target: Option<Rc<Entry>>,
    /// Field section of which not all frames have arrived.
    block: Option<Block>,
}

fn wrong(words: &'static str) -> ConnectionError {
    ConnectionError::Local(ErrorCode::PROTOCOL_ERROR, words)
}

fn wrong_size(words: &'static str) -> ConnectionError {
    ConnectionError::Local(ErrorCode::FRAME_SIZE_ERROR, words)
}

/// Error of a server that speaks another protocol, by its first bytes, with a question to the operator.
fn other_protocol(first: &[u8]) -> Option<&'static str> {
    match first {
        [b'H', b'T', b'T', ..] => {
            Some("sent HTTP/1 instead of frames; does the server speak HTTP/2 on this port?")
        }
        // Alert or handshake, and the major version (RFC 8446 section 5.1).
        [21 | 22, 3, ..] => Some("sent TLS instead of frames; does this port need TLS?"),
        _ => None,
    }
}

impl Frame {
    pub(crate) fn shrink(&mut self) {
        self.short.shrink_to_fit();
    }
}

impl State {
    /// Processes received bytes.
    pub(crate) fn receive(&mut self, mut bytes: &[u8]) -> Result<(), ConnectionError> {
        self.unseen = 0;
        while let Some(piece) = self.reader.next(&mut bytes)? {
            match piece {
                Piece::Head(head) => {
                    self.begin_frame(head)?;
                    self.frame.head = Some(head);
                    self.frame.at = 0;
                    self.frame.padding = 0;
                    self.frame.short.clear();
                }
                Piece::Payload(some, is_last) => {
                    let Some(head) = self.frame.head else { continue };
                    self.payload(head, some, is_last)?;
                    self.frame.at += some.len();
                }
            }
        }
        // An alert of TLS is shorter than the header of a frame, and its server closes behind it.
        if !self.has_settings
            && self.end == End::Client
            && let Some(words) = other_protocol(self.reader.partial_head())
        {
            return Err(wrong(words));
        }
        Ok(())
    }

    /// Checks a frame by its header.
    fn begin_frame(&mut self, head: Head) -> Result<(), ConnectionError> {
        // As in nginx: only a client has to begin with SETTINGS.
        if !self.has_settings && self.end == End::Client && head.kind != kind::SETTINGS {
            return Err(wrong(other_protocol(&head.bytes()).unwrap_or("sent no SETTINGS frame first")));
        }
        if let Some(block) = &self.frame.block
            && (head.kind != kind::CONTINUATION || head.stream != block.stream)
        {
            return Err(wrong("sent inappropriate frame while CONTINUATION was expected"));
        }
        // RFC 9113 section 4.2 allows a stream error for a frame of one stream, but then its payload would have to be
        // read to the end first.
        if head.len > payload_max(self.end) {
            return Err(wrong_size("sent too large frame"));
        }
        let of_connection = head.stream == 0;
        match head.kind {
            kind::DATA => self.begin_data(head),
            kind::HEADERS => self.begin_headers(head),
            kind::CONTINUATION => match &self.frame.block {
                None => Err(wrong("sent unexpected CONTINUATION frame")),
                Some(block) => self.check_block_size(block.came + head.len),
            },
            kind::PRIORITY if of_connection => Err(wrong("sent PRIORITY frame with incorrect identifier")),
            kind::PRIORITY if head.len != PRIORITY_SIZE => {
                Err(wrong_size("sent PRIORITY frame with incorrect length"))
            }
            kind::RST_STREAM if head.len != 4 => {
                Err(wrong_size("sent RST_STREAM frame with incorrect length"))
            }
            kind::RST_STREAM if self.is_idle(head.stream) => {
                Err(wrong("sent RST_STREAM frame with incorrect identifier"))
            }
            kind::SETTINGS if !of_connection => Err(wrong("sent SETTINGS frame with incorrect identifier")),
            kind::SETTINGS if head.has(flag::ACK) && head.len > 0 => {
                Err(wrong_size("sent SETTINGS frame with the ACK flag and nonzero length"))
            }
            kind::SETTINGS if !head.len.is_multiple_of(SETTING_SIZE) => {
                Err(wrong_size("sent SETTINGS frame with incorrect length"))
            }
            kind::SETTINGS => {
                self.has_settings = true;
                Ok(())
            }
            kind::PUSH_PROMISE => Err(wrong("sent PUSH_PROMISE frame")),
            kind::PING if head.len != 8 => Err(wrong_size("sent PING frame with incorrect length")),
            kind::PING if !of_connection => Err(wrong("sent PING frame with incorrect identifier")),
            kind::GOAWAY if head.len < 8 => Err(wrong_size("sent GOAWAY frame with incorrect length")),
            kind::GOAWAY if !of_connection => Err(wrong("sent GOAWAY frame with incorrect identifier")),
            kind::WINDOW_UPDATE if head.len != 4 => {
                Err(wrong_size("sent WINDOW_UPDATE frame with incorrect length"))
            }
            kind::WINDOW_UPDATE if !of_connection && self.is_idle(head.stream) => {
                Err(wrong("sent WINDOW_UPDATE frame with incorrect identifier"))
            }
            kind::PRIORITY_UPDATE if self.end == End::Client => Err(wrong("sent PRIORITY_UPDATE frame")),
            kind::PRIORITY_UPDATE if !of_connection => {
                Err(wrong("sent PRIORITY_UPDATE frame with incorrect identifier"))
            }
            kind::PRIORITY_UPDATE if head.len < ID_SIZE => {
                Err(wrong_size("sent PRIORITY_UPDATE frame with incorrect length"))
            }
            _ => Ok(()),
        }
    }

    fn payload(&mut self, head: Head, some: &[u8], is_last: bool) -> Result<(), ConnectionError> {
        match head.kind {
            kind::DATA => return self.data(head, some, is_last),
            kind::HEADERS | kind::CONTINUATION => return self.field_block(head, some, is_last),
            kind::SETTINGS => return self.settings(head, some, is_last),
            _ => {}
        }
        let needed_len = match head.kind {
            kind::RST_STREAM | kind::WINDOW_UPDATE => 4,
            kind::PING | kind::GOAWAY => 8,
            kind::PRIORITY => PRIORITY_SIZE,
            kind::PRIORITY_UPDATE => ID_SIZE + PRIORITY_MAX + 1,
            _ => 0,
        };
        let short = &mut self.frame.short;
        let room = needed_len - short.len().min(needed_len);
        short.extend_from_slice(some.get(..room).unwrap_or(some));
        if !is_last {
            return Ok(());
        }
        let short = std::mem::take(&mut self.frame.short);
        let done = self.short(head, &short);
        // The buffer is kept for the next frame.
        self.frame.short = short;
        done
    }

    /// Processes a frame with a short payload, which is complete.
    fn short(&mut self, head: Head, payload: &[u8]) -> Result<(), ConnectionError> {
        let number = |at: usize| {
            let bytes = payload.get(at..).and_then(<[u8]>::first_chunk).copied().unwrap_or_default();
            u32::from_be_bytes(bytes)
        };
        let id = number(0) & (u32::MAX >> 1);
        match head.kind {
            kind::RST_STREAM => self.on_rst_stream(head.stream, number(0).into()),
            kind::PING => {
                let said = payload.first_chunk().copied().unwrap_or_default();
                if !head.has(flag::ACK) {
                    self.out.copy(&frame::ping(flag::ACK, said));
                } else if said == LEAVING && self.shutdown == Shutdown::Announced {
                    self.out.copy(&frame::go_away(self.last, ErrorCode::NO_ERROR));
                    self.shutdown = Shutdown::Settled;
                }
                Ok(())
            }
            kind::GOAWAY => {
                self.leaves(id, number(4).into());
                Ok(())
            }
            kind::WINDOW_UPDATE => self.window_update(head.stream, id),
            // The priorities of RFC 7540 are ignored, but a stream must not depend on itself (section 5.3.1).
            kind::PRIORITY if id == head.stream => {
                let words = "sent PRIORITY frame with incorrect dependency";
                match self.is_idle(id) {
                    true => Err(wrong(words)),
                    false if self.streams.contains_key(&id) => {
                        self.stream_error(id, ErrorCode::PROTOCOL_ERROR, words)
                    }
                    false => Ok(()),
                }
            }
            kind::PRIORITY_UPDATE => {
                let value = payload.get(ID_SIZE..).unwrap_or_default();
                match id {
                    0 => Err(wrong("sent PRIORITY_UPDATE frame for no stream")),
                    stream if value.len() <= PRIORITY_MAX => {
                        self.events.push_back(PendingEvent::Priority { stream, value: value.into() });
                        Ok(())
                    }
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// Returns true if no stream of this number was begun.
    fn is_idle(&self, id: u32) -> bool {
        match self.end {
            End::Server => id.is_multiple_of(2) || id > self.last_peer_stream,
            End::Client => !self.is_ours(id),
        }
    }

    fn begin_data(&mut self, head: Head) -> Result<(), ConnectionError> {
        if self.is_idle(head.stream) {
            return Err(wrong("sent DATA frame with incorrect identifier"));
        }
        if head.has(flag::PADDED) && head.len == 0 {
            return Err(wrong_size("sent padded DATA frame with incorrect length"));
        }
        let len = head.len as i64;
        if len > self.credit {
            return Err(ConnectionError::Local(
                ErrorCode::FLOW_CONTROL_ERROR,
                "violated connection flow control with DATA frame",
            ));
        }
        self.credit -= len;
        self.frame.target = None;
        let Some(entry) = self.streams.get(&head.stream).cloned() else {
            // DIFF(nginx): whoever has ended a stream says nothing more on it.
            return if self.may_be_late(head.stream) {
                Ok(())
            } else {
                let words = "sent DATA frame for closed stream";
                self.stream_error(head.stream, ErrorCode::STREAM_CLOSED, words)
            };
        };
        match entry.incoming.get() {
            ReceiveState::Ended => self.stream_error(
                head.stream,
                ErrorCode::STREAM_CLOSED,
                "sent DATA frame for half-closed stream",
            ),
            ReceiveState::Head => {
                self.stream_error(head.stream, ErrorCode::PROTOCOL_ERROR, "sent unexpected http2 frame")
            }
            ReceiveState::Body if len > entry.credit.get() => {
                self.stream_error(head.stream, ErrorCode::FLOW_CONTROL_ERROR, "violated flow control")
            }
            ReceiveState::Body => {
                entry.credit.set(entry.credit.get() - len);
                self.frame.target = Some(entry);
                Ok(())
            }
        }
    }

    fn data(&mut self, head: Head, mut some: &[u8], is_last: bool) -> Result<(), ConnectionError> {
        let mut at = self.frame.at;
        let is_padded = head.has(flag::PADDED);
        if is_padded && at == 0 {
            let Some((padding, rest)) = some.split_first() else { return Ok(()) };
            self.frame.padding = usize::from(*padding);
            if self.frame.padding >= head.len {
                return Err(wrong("sent padded DATA frame with incorrect length"));
            }
            (some, at) = (rest, 1);
        }
        let content_end = head.len - self.frame.padding;
        let content = some.get(..content_end.saturating_sub(at)).unwrap_or(some);
        let target = self.frame.target.take();
        match target.filter(|entry| entry.error.get().is_none()) {
            None => self.release(content.len()),
            Some(entry) => {
                if !content.is_empty() {
                    self.payload_bytes += content.len() as u64;
                    entry.message.count(content.len());
                    if entry.is_unwanted.get() {
                        self.release(content.len());
                    } else {
                        let data = &mut entry.inbox.borrow_mut().data;
                        if data.is_empty() {
                            // A message often consists of one large frame and a few more bytes, so the buffer has room
                            // for both.
                            data.reserve((content_end - at).min(PAYLOAD_USUAL) + SHORT);
                        }
                        data.extend_from_slice(content);
                        entry.unreleased_len.set(entry.unreleased_len.get() + content.len());
                        entry.came.wake();
                    }
                }
                if is_last {
                    if is_padded {
                        self.release_stream(&entry, self.frame.padding + 1);
                    }
                    if head.has(flag::END_STREAM) {
                        self.ended(&entry);
                    }
                } else {
                    self.frame.target = Some(entry);
                }
            }
        }
        if is_last && is_padded {
            self.release(self.frame.padding + 1);
        }
        Ok(())
    }

    /// Ends the peer's direction of a stream.
    fn ended(&mut self, entry: &Entry) {
        entry.close_incoming();
        entry.came.wake();
        self.settle(entry);
    }

    /// Processes `RST_STREAM`.
    fn on_rst_stream(&mut self, id: u32, reason: ErrorCode) -> Result<(), ConnectionError> {
        let Some(entry) = self.streams.get(&id).cloned() else { return Ok(()) };
        self.fail_stream(&entry, StreamError::Reset(reason));
        if !entry.is_seen.get() && self.end == End::Server {
            self.unseen += 1;
            if self.unseen > RESETS_UNSEEN_MAX {
                return Err(ConnectionError::Local(
                    ErrorCode::ENHANCE_YOUR_CALM,
                    "took back requests as fast as it made them",
                ));
            }
        }
        Ok(())
    }

    fn settings(&mut self, head: Head, mut some: &[u8], is_last: bool) -> Result<(), ConnectionError> {
        if head.has(flag::ACK) {
            return self.acknowledged();
        }
        while !some.is_empty() {
            let room = SETTING_SIZE - self.frame.short.len();
            let (part, rest) = some.split_at(some.len().min(room));
            self.frame.short.extend_from_slice(part);
            some = rest;
            if let Some(setting) = self.frame.short.first_chunk().copied() {
                self.frame.short.clear();
                self.setting(setting)?;
            }
        }
        if is_last {
            self.acknowledge();
        }
        Ok(())
    }

    fn setting(&mut self, setting: [u8; SETTING_SIZE]) -> Result<(), ConnectionError> {
        match self.peer.take(self.end, setting)? {
            Change::Nothing | Change::Streams => {}
            Change::SmallTable => self.table_changed = true,
            Change::Windows(by) => {
                for entry in self.streams.values() {
                    let room = entry.room.get() + by;
                    if room > WINDOW_MAX {
                        return Err(ConnectionError::Local(
                            ErrorCode::FLOW_CONTROL_ERROR,
                            "sent SETTINGS frame that makes a window too large",
                        ));
                    }
                    entry.room.set(room);
                    if room > 0 {
                        entry.has_room.wake();
                    }
                }
            }
        }
        Ok(())
    }

    /// Processes the acknowledgement of this end's settings: its windows are in force.
    fn acknowledged(&mut self) -> Result<(), ConnectionError> {
        if !std::mem::replace(&mut self.is_acknowledged, true) {
            let too_much = i64::from(WINDOW_USUAL.saturating_sub(self.config.window));
            for entry in self.streams.values() {
                entry.credit.set(entry.credit.get() - too_much);
            }
        }
        Ok(())
    }

    /// Processes `GOAWAY`: the peer has processed streams of this end up to `last`.
    fn leaves(&mut self, last: u32, reason: ErrorCode) {
        self.goaway_code = Some(reason);
        if self.end == End::Client {
            let refused: Vec<_> = self.streams.values().filter(|entry| entry.id > last).cloned().collect();
            for entry in refused {
                self.fail_stream(&entry, StreamError::Refused(reason));
            }
        }
    }

    fn window_update(&mut self, id: u32, by: u32) -> Result<(), ConnectionError> {
        let by = i64::from(by);
        if id == 0 {
            let room = self.room + by;
            if by == 0 {
                return Err(wrong("sent WINDOW_UPDATE frame with incorrect window increment 0"));
            }
            if room > WINDOW_MAX {
                return Err(ConnectionError::Local(
                    ErrorCode::FLOW_CONTROL_ERROR,
                    "violated flow control: connection window is too large",
                ));
            }
            self.room = room;
            self.feed();
            return Ok(());
        }
        let Some(entry) = self.streams.get(&id).cloned() else { return Ok(()) };
        if by == 0 {
            let words = "sent WINDOW_UPDATE frame with incorrect window increment 0";
            return self.stream_error(id, ErrorCode::PROTOCOL_ERROR, words);
        }
        let room = entry.room.get() + by;
        if room > WINDOW_MAX {
            return self.stream_error(
                id,
                ErrorCode::FLOW_CONTROL_ERROR,
                "violated flow control: window is too large",
            );
        }
        entry.room.set(room);
        entry.has_room.wake();
        Ok(())
    }
}
