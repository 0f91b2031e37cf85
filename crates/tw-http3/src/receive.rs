//! Effects of received bytes: the request streams of clients, and the responses on them (RFC 9114 sections 4 and 7).

use std::rc::Rc;

use bytes::Bytes;
use tw_fields::{FieldSection, Message};

use crate::ErrorCode;
use crate::config::{BLOCKED_BYTES_MAX, BLOCKED_STREAMS_MAX};
use crate::entry::{Block, Entry, ReceiveState};
use crate::error::{ConnectionError, qpack_error, unexpected};
use crate::frame::{Head, kind};
use crate::qpack::DecodedSection;
use crate::reader::Piece;
use crate::settings::End;
use crate::state::{PendingEvent, Protocol, Shutdown, State};

/// Next part of a message.
pub(crate) enum Part {
    Head(FieldSection),
    Data(Bytes),
    Trailers(FieldSection),
    End,
}

/// Kinds of streams, in the low bits of their numbers (RFC 9000 section 2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamKind {
    Request,
    ServerBidirectional,
    Unidirectional(End),
}

impl StreamKind {
    fn of(id: u64) -> Self {
        match id & 3 {
            0 => Self::Request,
            1 => Self::ServerBidirectional,
            2 => Self::Unidirectional(End::Client),
            _ => Self::Unidirectional(End::Server),
        }
    }
}

impl State {
    /// Processes received bytes of a stream, and its end.
    pub(crate) fn receive(&mut self, id: u64, bytes: Bytes, fin: bool) -> Result<(), ConnectionError> {
        match StreamKind::of(id) {
            StreamKind::Request => self.receive_message(id, bytes, fin),
            StreamKind::ServerBidirectional if self.end == End::Client => {
                let words = "opened a bidirectional stream";
                Err(ConnectionError::Local(ErrorCode::STREAM_CREATION_ERROR, words))
            }
            StreamKind::Unidirectional(of) if of != self.end => match self.protocol {
                Protocol::Http3 => self.receive_unidirectional(id, &bytes, fin),
                Protocol::Hq => {
                    let words = "opened a unidirectional stream in hq";
                    Err(ConnectionError::Local(ErrorCode::STREAM_CREATION_ERROR, words))
                }
            },
            // Streams that this end has opened carry no data of the peer.
            StreamKind::ServerBidirectional | StreamKind::Unidirectional(_) => Ok(()),
        }
    }

    /// Processes the reset of a stream.
    pub(crate) fn receive_reset(&mut self, id: u64, code: ErrorCode) -> Result<(), ConnectionError> {
        match StreamKind::of(id) {
            StreamKind::Unidirectional(of) if of != self.end => self.close_unidirectional(id),
            _ => self.on_reset(id, code, false),
        }
    }

    fn receive_message(&mut self, id: u64, bytes: Bytes, fin: bool) -> Result<(), ConnectionError> {
        let entry = match self.streams.get(&id) {
            Some(entry) => entry.clone(),
            // The response belongs to a request that was given up.
            None if self.end == End::Client => return Ok(()),
            None => match self.shutdown {
                Shutdown::Settled(last) if id >= last => {
                    self.reject(id);
                    return Ok(());
                }
                _ => self.begin(id),
            },
        };
        if entry.has_fin.get() {
            return Ok(());
        }
        entry.push(bytes);
        entry.has_fin.set(fin);
        entry.came.wake();
        match self.protocol {
            Protocol::Http3 => self.begin_request(&entry),
            Protocol::Hq => self.receive_line(&entry),
        }
    }

    /// Reads the header section of a request, from which on its owner reads.
    fn begin_request(&mut self, entry: &Rc<Entry>) -> Result<(), ConnectionError> {
        if self.end == End::Server
            && entry.incoming.get() == ReceiveState::Head
            && let Some(Part::Head(list)) = self.next_part(entry)?
        {
            self.events.push_back(PendingEvent::Request(entry.clone(), list));
        }
        Ok(())
    }

    /// Returns the next part of the peer's message; `None` if it did not arrive yet, or if the stream has failed.
    pub(crate) fn next_part(&mut self, entry: &Rc<Entry>) -> Result<Option<Part>, ConnectionError> {
        if self.protocol == Protocol::Hq {
            return Ok(entry.has_ended().then_some(Part::End));
        }
        if let Some(required) = entry.block.borrow().required
            && required > self.decoder.inserted()
        {
            return Ok(None);
        }
        if entry.is_blocked() {
            let required = entry.block.borrow().required;
            self.unblock(entry);
            let bytes = std::mem::take(&mut entry.block.borrow_mut().bytes);
            return self.section(entry, &bytes, required);
        }
        while entry.error.get().is_none() && entry.incoming.get() != ReceiveState::Ended {
            let piece = entry.reader.borrow_mut().next(&mut entry.raw.borrow_mut());
            match (piece, entry.frame.get()) {
                (Some(Piece::Head(head)), _) => {
                    self.check_frame(entry, head)?;
                    entry.frame.set(Some(head));
                }
                (Some(Piece::Payload(bytes, _)), Some(Head { kind: kind::DATA, .. })) => {
                    self.payload_bytes += bytes.len() as u64;
                    entry.message.count(bytes.len());
                    if !bytes.is_empty() {
                        return Ok(Some(Part::Data(bytes)));
                    }
                }
                (Some(Piece::Payload(bytes, is_last)), Some(Head { kind: kind::HEADERS, len })) => {
                    if let Some(part) = self.block(entry, &bytes, is_last, len)? {
                        return Ok(Some(part));
                    }
                    if is_last {
                        return Ok(None);
                    }
                }
                // Frames of unknown types have no meaning (RFC 9114 section 9).
                (Some(Piece::Payload(..)), _) => {}
                (None, _) if !entry.has_fin.get() => return Ok(None),
                (None, _) if !entry.reader.borrow().is_between() => {
                    let words = "ended http3 stream within a frame";
                    return Err(ConnectionError::Local(ErrorCode::FRAME_ERROR, words));
                }
                (None, _) if entry.incoming.get() == ReceiveState::Head => {
                    let code = match self.end {
                        End::Server => ErrorCode::REQUEST_INCOMPLETE,
                        End::Client => ErrorCode::MESSAGE_ERROR,
                    };
                    self.stream_error(entry, code, "ended http3 stream without a header section")?;
                    return Ok(None);
                }
                (None, _) => {
                    entry.close_incoming();
                    self.settle(entry);
                }
            }
        }
        Ok((entry.error.get().is_none()).then_some(Part::End))
    }

    /// Checks a frame of a request stream by its header.
    fn check_frame(&self, entry: &Entry, head: Head) -> Result<(), ConnectionError> {
        let is_before = entry.incoming.get() == ReceiveState::Head;
        let is_behind = entry.incoming.get() == ReceiveState::Trailers;
        match head.kind {
            kind::DATA if is_before => Err(unexpected("sent DATA frame before HEADERS frame")),
            kind::DATA if is_behind => Err(unexpected("sent DATA frame after trailer")),
            kind::HEADERS if is_behind => Err(unexpected("sent HEADERS frame after trailer")),
            // This end has allowed no push at all.
            kind::PUSH_PROMISE if self.end == End::Client => {
                Err(ConnectionError::Local(ErrorCode::ID_ERROR, "sent PUSH_PROMISE frame"))
            }
            kind::CANCEL_PUSH
            | kind::SETTINGS
            | kind::PUSH_PROMISE
            | kind::GOAWAY
            | kind::MAX_PUSH_ID
            | kind::PRIORITY_UPDATE
            | kind::PRIORITY_UPDATE_PUSH => Err(unexpected("sent unexpected http3 frame on request stream")),
            other if kind::is_of_http2(other) => Err(unexpected("sent frame of http2")),
            _ => Ok(()),
        }
    }

    /// Processes a piece of an encoded field section, of which the whole has `len` bytes.
    fn block(
        &mut self,
        entry: &Rc<Entry>,
        bytes: &[u8],
        is_last: bool,
        len: u64,
    ) -> Result<Option<Part>, ConnectionError> {
        self.payload_bytes += bytes.len() as u64;
        if len > self.config.block_max() as u64 {
            // The section is too large and is skipped. The next sections can be decoded without it.
            if !is_last {
                return Ok(None);
            }
            self.decoder.cancel(entry.id);
            let mut list = self.new_section(entry, usize::try_from(len).unwrap_or(usize::MAX));
            list.set_truncated();
            return self.list(entry, list).map(Some);
        }
        let mut block = entry.block.borrow_mut();
        if !is_last {
            block.bytes.extend_from_slice(bytes);
            return Ok(None);
        }
        if block.bytes.is_empty() {
            // Most field sections come in one piece.
            drop(block);
            return self.section(entry, bytes, None);
        }
        block.bytes.extend_from_slice(bytes);
        let bytes = std::mem::take(&mut block.bytes);
        drop(block);
        self.section(entry, &bytes, None)
    }

    fn message(&self, entry: &Entry) -> Message {
        match (self.end, entry.incoming.get()) {
            (End::Server, ReceiveState::Head) => Message::Request,
            (End::Client, ReceiveState::Head) => Message::Response,
            _ => Message::Trailers,
        }
    }

    /// Creates an empty section. Trailers are always the end of a message.
    fn new_section(&self, entry: &Entry, len: usize) -> FieldSection {
        let is_end = entry.has_fin.get() && entry.raw.borrow().is_empty();
        FieldSection::new(len, is_end || self.message(entry) == Message::Trailers)
    }

    /// Decodes a complete section, which may have been blocked until now.
    fn section(
        &mut self,
        entry: &Rc<Entry>,
        bytes: &[u8],
        required: Option<u64>,
    ) -> Result<Option<Part>, ConnectionError> {
        let mut list = self.new_section(entry, bytes.len());
        let message = self.message(entry);
        let max = self.config.list_max as usize;
        let mut push = |name: &[u8], value: &[u8]| list.push(name, value, message, max);
        let decoded = match required {
            None => self.decoder.decode(entry.id, bytes, &mut push),
            Some(required) => self
                .decoder
                .decode_required(entry.id, bytes, required, &mut push)
                .map(|()| DecodedSection::Complete),
        };
        match decoded.map_err(qpack_error)? {
            DecodedSection::Complete => {
                list.finish(message, self.decoder.longest());
                self.list(entry, list).map(Some)
            }
            DecodedSection::Blocked(required) => {
                self.blocked_bytes += bytes.len();
                if self.blocked.len() >= BLOCKED_STREAMS_MAX {
                    let words = "sent too many blocked header blocks";
                    return Err(ConnectionError::Local(ErrorCode::QPACK_DECOMPRESSION_FAILED, words));
                }
                if self.blocked_bytes > BLOCKED_BYTES_MAX {
                    let words = "sent too large blocked header blocks";
                    return Err(ConnectionError::Local(ErrorCode::EXCESSIVE_LOAD, words));
                }
                *entry.block.borrow_mut() = Block { bytes: bytes.to_vec(), required: Some(required) };
                self.blocked.push(entry.clone());
                Ok(None)
            }
        }
    }

    /// Processes a decoded section.
    fn list(&mut self, entry: &Entry, list: FieldSection) -> Result<Part, ConnectionError> {
        if entry.incoming.get() != ReceiveState::Head {
            if list.malformed().is_some() {
                entry.message.set_malformed();
            }
            entry.incoming.set(ReceiveState::Trailers);
            return Ok(Part::Trailers(list));
        }
        let is_interim = self.end == End::Client && (100..200).contains(&list.status()) && !list.ends();
        if is_interim {
            return Ok(Part::Head(list));
        }
        entry.incoming.set(ReceiveState::Body);
        entry.message.begin(&list);
        if list.ends() {
            entry.close_incoming();
            self.settle(entry);
        } else if !list.is_truncated() && self.end == End::Server {
            entry.message.set_length(list.content_length());
        }
        Ok(Part::Head(list))
    }

    /// Goes on with sections that wait for insertions, some of which have arrived.
    pub(crate) fn resume_blocked(&mut self) -> Result<(), ConnectionError> {
        let inserted = self.decoder.inserted();
        let is_ready =
            |entry: &&Rc<Entry>| entry.block.borrow().required.is_some_and(|count| count <= inserted);
        let ready: Vec<_> = self.blocked.iter().filter(is_ready).cloned().collect();
        for entry in ready {
            match self.end {
                End::Server if entry.incoming.get() == ReceiveState::Head => self.begin_request(&entry)?,
                _ => entry.came.wake(),
            }
        }
        Ok(())
    }
}
