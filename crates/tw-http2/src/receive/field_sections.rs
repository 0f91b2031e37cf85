//! Field sections: `HEADERS` and the `CONTINUATION` frames behind it (RFC 9113 sections 6.2 and 6.10).

use tw_fields::{FieldSection, Message};

use super::{PRIORITY_SIZE, wrong, wrong_size};
use crate::ErrorCode;
use crate::config::INTERIM_MAX;
use crate::entry::{Entry, ReceiveState};
use crate::error::ConnectionError;
use crate::frame::{Head, WINDOW_USUAL, flag, kind};
use crate::settings::End;
use crate::state::{PendingEvent, Shutdown, State};

/// Field section in progress.
pub(super) struct Block {
    pub(super) stream: u32,
    ends: bool,
    bytes: Vec<u8>,
    /// Bytes of payloads so far, padding included.
    pub(super) came: usize,
    /// True if the stream is declared to depend on itself.
    is_circular: bool,
}

impl State {
    /// Processes the head of a `HEADERS` frame.
    pub(super) fn begin_headers(&mut self, head: Head) -> Result<(), ConnectionError> {
        let padding = usize::from(head.has(flag::PADDED));
        let priority = if head.has(flag::PRIORITY) { PRIORITY_SIZE } else { 0 };
        if head.len < padding + priority {
            return Err(wrong_size("sent HEADERS frame with incorrect length"));
        }
        let is_known = match self.end {
            End::Server => !head.stream.is_multiple_of(2),
            End::Client => self.is_ours(head.stream),
        };
        if !is_known {
            return Err(wrong("sent HEADERS frame with incorrect identifier"));
        }
        self.check_block_size(head.len)?;
        let ends = head.has(flag::END_STREAM);
        let stream = head.stream;
        self.frame.block = Some(Block { stream, ends, bytes: Vec::new(), came: 0, is_circular: false });
        Ok(())
    }

    /// Checks the number of bytes of a field section so far, padding included.
    pub(super) fn check_block_size(&self, len: usize) -> Result<(), ConnectionError> {
        if len > self.config.block_max() {
            return Err(ConnectionError::Local(ErrorCode::ENHANCE_YOUR_CALM, "sent too large header block"));
        }
        Ok(())
    }

    /// Processes a frame of a field section.
    pub(super) fn field_block(
        &mut self,
        head: Head,
        some: &[u8],
        is_last: bool,
    ) -> Result<(), ConnectionError> {
        let Some(mut block) = self.frame.block.take() else { return Ok(()) };
        // The bytes of this frame that arrived before are the last ones of the block.
        let frame_at = block.bytes.len() - self.frame.at;
        let is_whole = is_last && head.has(flag::END_HEADERS);
        block.came += some.len();
        if is_whole && block.bytes.is_empty() {
            // Most field sections come in one piece.
            let (fields, dependency) = without_padding(head, some)?;
            block.is_circular |= dependency == Some(block.stream);
            return self.field_section(&block, fields);
        }
        block.bytes.extend_from_slice(some);
        if is_last && head.kind == kind::HEADERS {
            let frame = block.bytes.get(frame_at..).unwrap_or_default();
            let (fields, dependency) = without_padding(head, frame)?;
            block.is_circular = dependency == Some(block.stream);
            let fields = fields.to_vec();
            block.bytes.truncate(frame_at);
            block.bytes.extend_from_slice(&fields);
        }
        if is_whole {
            let bytes = std::mem::take(&mut block.bytes);
            return self.field_section(&block, &bytes);
        }
        self.frame.block = Some(block);
        Ok(())
    }

    /// Processes a complete field section.
    fn field_section(&mut self, block: &Block, fields: &[u8]) -> Result<(), ConnectionError> {
        let id = block.stream;
        let known_entry = self.streams.get(&id).cloned();
        let message = match (self.end, known_entry.as_ref().map(|entry| entry.incoming.get())) {
            (End::Server, None) => Message::Request,
            (End::Client, Some(ReceiveState::Head)) => Message::Response,
            _ => Message::Trailers,
        };
        self.payload_bytes += fields.len() as u64;
        let is_new = self.end == End::Server && id > self.last_peer_stream;
        if is_new {
            self.last_peer_stream = id;
            if self.shutdown != Shutdown::Settled {
                self.last = id;
            }
        }
        let mut list = FieldSection::new(fields.len(), block.ends);
        let max = self.config.list_max as usize;
        let decoded = self.decoder.decode(fields, &mut |name, value| list.push(name, value, message, max));
        decoded.map_err(|error| ConnectionError::Local(ErrorCode::COMPRESSION_ERROR, error.words()))?;
        list.finish(message, self.decoder.longest());
        match (known_entry, self.end) {
            _ if block.is_circular && (is_new || self.streams.contains_key(&id)) => {
                let words = "sent HEADERS frame with incorrect dependency";
                self.stream_error(id, ErrorCode::PROTOCOL_ERROR, words)
            }
            (Some(entry), _) => self.message_fields(&entry, list),
            (None, _) if is_new => self.request(id, list),
            (None, _) if self.lost.contains(&id) => Ok(()),
            (None, _) => {
                // As in nginx, whether the stream has ended or was skipped.
                Err(wrong("sent HEADERS frame with incorrect identifier"))
            }
        }
    }

    fn request(&mut self, id: u32, list: FieldSection) -> Result<(), ConnectionError> {
        if self.shutdown == Shutdown::Settled {
            // GOAWAY has told the client that this request is not processed.
            self.lose(id);
            return Ok(());
        }
        if self.streams.len() >= self.config.streams_max as usize {
            return self.stream_error(id, ErrorCode::REFUSED_STREAM, "sent too many streams at once");
        }
        if self.config.window < WINDOW_USUAL && !self.is_acknowledged && !list.ends() {
            let words = "sent stream with data before settings were acknowledged";
            return self.stream_error(id, ErrorCode::REFUSED_STREAM, words);
        }
        let entry = self.begin(id);
        entry.incoming.set(if list.ends() { ReceiveState::Ended } else { ReceiveState::Body });
        entry.message.begin(&list);
        if !list.ends() && !list.is_truncated() {
            entry.message.set_length(list.content_length());
        }
        self.events.push_back(PendingEvent::Request(entry, list));
        Ok(())
    }

    /// Processes a field section of an open stream: the header section of a response, or trailers.
    fn message_fields(&mut self, entry: &Entry, list: FieldSection) -> Result<(), ConnectionError> {
        let ends = list.ends();
        match entry.incoming.get() {
            ReceiveState::Ended => {
                let words = "sent HEADERS frame for half-closed stream";
                return self.stream_error(entry.id, ErrorCode::STREAM_CLOSED, words);
            }
            ReceiveState::Head => {
                let is_interim = (100..200).contains(&list.status()) && !ends;
                let mut inbox = entry.inbox.borrow_mut();
                if inbox.heads.len() >= INTERIM_MAX {
                    drop(inbox);
                    return self.stream_error(
                        entry.id,
                        ErrorCode::ENHANCE_YOUR_CALM,
                        "sent too many interim responses",
                    );
                }
                inbox.heads.push_back(list);
                if !is_interim {
                    entry.incoming.set(ReceiveState::Body);
                }
            }
            // Fields in the middle of a body are not allowed.
            ReceiveState::Body if !ends => {
                let words = "sent trailer without end stream flag";
                return self.stream_error(entry.id, ErrorCode::PROTOCOL_ERROR, words);
            }
            ReceiveState::Body => {
                if list.malformed().is_some() {
                    entry.message.set_malformed();
                }
                entry.inbox.borrow_mut().trailers = Some(Box::new(list));
            }
        }
        if ends {
            self.ended(entry);
        }
        entry.came.wake();
        Ok(())
    }
}

/// Returns the field block of a `HEADERS` frame without padding and priority, and the stream that its own depends on.
fn without_padding(head: Head, payload: &[u8]) -> Result<(&[u8], Option<u32>), ConnectionError> {
    if head.kind != kind::HEADERS {
        return Ok((payload, None));
    }
    let incorrect = || wrong("sent padded HEADERS frame with incorrect length");
    let mut fields = payload;
    let mut padding = 0;
    if head.has(flag::PADDED) {
        let (first, rest) = fields.split_first().ok_or_else(incorrect)?;
        (fields, padding) = (rest, usize::from(*first));
    }
    let mut dependency = None;
    if head.has(flag::PRIORITY) {
        let id = fields.first_chunk().copied().map(u32::from_be_bytes);
        dependency = id.map(|id| id & (u32::MAX >> 1));
        fields = fields.get(PRIORITY_SIZE..).ok_or_else(incorrect)?;
    }
    let len = fields.len().checked_sub(padding).ok_or_else(incorrect)?;
    Ok((fields.get(..len).unwrap_or_default(), dependency))
}
