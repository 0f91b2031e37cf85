//! State of a connection: its streams, its table, and the bytes of its own unidirectional streams.

use std::collections::VecDeque;
use std::rc::Rc;

use bytes::Bytes;
use foldhash::{HashMap, HashMapExt};
use tw_fields::FieldSection;

use crate::ErrorCode;
use crate::config::{Config, ERRORS_MAX, RESETS_UNSEEN_MAX, TABLE_CAPACITY};
use crate::entry::{Entry, ReceiveState};
use crate::error::{ConnectionError, StreamError, qpack_error};
use crate::frame::{self, Head, kind, stream_type};
use crate::qpack::Decoder;
use crate::settings::{self, End, Peer};
use crate::transport::{LocalStream, Signal};
use crate::unidirectional::{Critical, Unidirectional};

/// The request stream of a `GOAWAY` that names none: the last one that a client can open.
const NO_LAST: u64 = (1 << 62) - 4;
/// Distance of the numbers of two streams of one kind.
const STREAM_STEP: u64 = 4;

/// Protocol of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// Frames and QPACK.
    Http3,
    /// HTTP/0.9: request lines and bodies, see `hq`.
    Hq,
}

/// Stages of a graceful shutdown by `GOAWAY`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shutdown {
    No,
    /// A first `GOAWAY` was sent; the peer may have begun streams before it arrived.
    Announced,
    /// The second `GOAWAY` was sent: streams from this one on are not processed.
    Settled(u64),
}

/// Events of the connection for its owner.
pub(crate) enum PendingEvent {
    Request(Rc<Entry>, FieldSection),
    RequestLine(Rc<Entry>, Bytes),
    /// A stream that was reset before its request had arrived.
    Canceled,
    Priority {
        stream: u64,
        value: Box<[u8]>,
    },
}

/// A connection.
pub(crate) struct State {
    pub(crate) end: End,
    pub(crate) protocol: Protocol,
    pub(crate) config: Config,
    pub(crate) decoder: Decoder,
    /// Settings of the peer, once they have arrived.
    pub(crate) peer: Option<Peer>,
    pub(crate) streams: HashMap<u64, Rc<Entry>>,
    /// Streams whose field sections wait for insertions, and the bytes of these.
    pub(crate) blocked: Vec<Rc<Entry>>,
    pub(crate) blocked_bytes: usize,
    /// Unidirectional streams of the peer.
    pub(crate) unidirectional: HashMap<u64, Unidirectional>,
    /// Critical streams that the peer has opened.
    pub(crate) critical: [bool; Critical::COUNT],
    /// Number of unidirectional streams of unknown types, in all.
    pub(crate) unknown_streams: usize,
    pub(crate) events: VecDeque<PendingEvent>,
    pub(crate) signals: VecDeque<Signal>,
    /// Bytes of the control stream.
    control_out: Vec<u8>,
    /// True once the decoder stream has begun with its type.
    has_decoder_stream: bool,
    /// The request stream behind the latest that the peer has opened.
    pub(crate) next_request: u64,
    pub(crate) shutdown: Shutdown,
    /// Identifier in the peer's latest `GOAWAY`.
    pub(crate) goaway_id: Option<u64>,
    /// The peer's `MAX_PUSH_ID`.
    pub(crate) push_max: Option<u64>,
    pub(crate) connection_error: Option<ConnectionError>,
    /// Number of streams that this end has reset for errors of the peer.
    errors: usize,
    /// Number of received bytes of field sections and content.
    pub(crate) payload_bytes: u64,
    /// Number of requests that were reset before their owner got them, since the last one that was not.
    pub(crate) unseen: usize,
}

impl State {
    pub(crate) fn new(end: End, protocol: Protocol, config: Config) -> Self {
        let mut control_out = Vec::new();
        let mut table_capacity = 0;
        if protocol == Protocol::Http3 {
            control_out.push(stream_type::CONTROL as u8);
            control_out.extend_from_slice(&settings::ours(end, &config));
            table_capacity = TABLE_CAPACITY;
        }
        Self {
            end,
            protocol,
            config,
            decoder: Decoder::new(table_capacity),
            peer: None,
            streams: HashMap::new(),
            blocked: Vec::new(),
            blocked_bytes: 0,
            unidirectional: HashMap::new(),
            critical: [false; Critical::COUNT],
            unknown_streams: 0,
            events: VecDeque::new(),
            signals: VecDeque::new(),
            control_out,
            has_decoder_stream: false,
            next_request: 0,
            shutdown: Shutdown::No,
            goaway_id: None,
            push_max: None,
            connection_error: None,
            errors: 0,
            payload_bytes: 0,
            unseen: 0,
        }
    }

    /// Opens a request stream.
    pub(crate) fn begin(&mut self, id: u64) -> Rc<Entry> {
        let entry = Rc::new(Entry::new(id));
        self.streams.insert(id, entry.clone());
        self.next_request = self.next_request.max(id.saturating_add(STREAM_STEP));
        entry
    }

    /// Returns an error if no request can be sent.
    pub(crate) fn check_open(&self) -> Result<(), StreamError> {
        match self.connection_error {
            Some(connection_error) => Err(StreamError::Connection(connection_error)),
            None if !self.is_open() => Err(StreamError::Refused),
            None => Ok(()),
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        let has_left = self.goaway_id.is_some() && self.end == End::Client;
        self.connection_error.is_none() && !has_left && self.shutdown == Shutdown::No
    }

    pub(crate) fn is_over(&self) -> bool {
        let is_settled =
            matches!(self.shutdown, Shutdown::Settled(_)) || !self.is_open() && self.end == End::Client;
        self.connection_error.is_some() || is_settled && self.streams.is_empty()
    }

    /// Forgets a stream when both directions have ended.
    pub(crate) fn settle(&mut self, entry: &Entry) {
        if entry.is_over() {
            self.streams.remove(&entry.id);
        }
    }

    /// Forgets a stream, its blocked section included.
    fn remove(&mut self, entry: &Entry) {
        self.streams.remove(&entry.id);
        self.unblock(entry);
        if entry.incoming.get() != ReceiveState::Ended {
            self.decoder.cancel(entry.id);
        }
    }

    /// Forgets that a stream is blocked.
    pub(crate) fn unblock(&mut self, entry: &Entry) {
        let mut block = entry.block.borrow_mut();
        if block.required.take().is_some() {
            self.blocked_bytes -= block.bytes.len().min(self.blocked_bytes);
            self.blocked.retain(|blocked| blocked.id != entry.id);
        }
    }

    /// Fails a stream that the peer has given up.
    pub(crate) fn on_reset(
        &mut self,
        id: u64,
        code: ErrorCode,
        has_stopped: bool,
    ) -> Result<(), ConnectionError> {
        let Some(entry) = self.streams.get(&id).cloned() else {
            if self.end == End::Client || has_stopped {
                return Ok(());
            }
            // No bytes of the request have arrived.
            self.signals.push_back(Signal::Reset { stream: id, code });
            self.events.push_back(PendingEvent::Canceled);
            self.decoder.cancel(id);
            self.count_unseen()?;
            return self.check_decoder();
        };
        if has_stopped && entry.is_finished() {
            return Ok(());
        }
        if !entry.is_finished() {
            self.signals.push_back(Signal::Reset { stream: id, code });
        }
        if has_stopped && !entry.has_fin.get() {
            self.signals.push_back(Signal::StopSending { stream: id, code });
        }
        self.remove(&entry);
        entry.end(StreamError::Reset(code));
        if !entry.is_seen.get() && self.end == End::Server {
            if entry.incoming.get() == ReceiveState::Head {
                self.events.push_back(PendingEvent::Canceled);
            }
            self.count_unseen()?;
        }
        self.check_decoder()
    }

    /// Counts a request that was reset before its owner has got it.
    fn count_unseen(&mut self) -> Result<(), ConnectionError> {
        self.unseen += 1;
        if self.unseen > RESETS_UNSEEN_MAX {
            return Err(ConnectionError::Local(
                ErrorCode::EXCESSIVE_LOAD,
                "took back requests as fast as it made them",
            ));
        }
        Ok(())
    }

    /// Resets a stream in both directions.
    pub(crate) fn reset(&mut self, entry: &Entry, code: ErrorCode) {
        self.reset_for(entry, code, "");
    }

    fn reset_for(&mut self, entry: &Entry, code: ErrorCode, words: &'static str) {
        if entry.error.get().is_some() || entry.is_over() {
            return;
        }
        if !entry.is_finished() {
            self.signals.push_back(Signal::Reset { stream: entry.id, code });
        }
        self.stop(entry, code);
        self.remove(entry);
        entry.end(StreamError::Local(code, words));
    }

    /// Tells the peer that nothing more of its message is wanted.
    fn stop(&mut self, entry: &Entry, code: ErrorCode) {
        if entry.incoming.get() != ReceiveState::Ended && !entry.has_fin.get() {
            self.signals.push_back(Signal::StopSending { stream: entry.id, code });
        }
    }

    /// Ends a stream whose owner has dropped it.
    pub(crate) fn release(&mut self, entry: &Entry) {
        if entry.error.get().is_some() || entry.is_over() || self.connection_error.is_some() {
            return;
        }
        let is_answered = entry.is_finished() && self.end == End::Server;
        let code = match () {
            () if is_answered && entry.message.is_malformed() => ErrorCode::MESSAGE_ERROR,
            () if is_answered => ErrorCode::NO_ERROR,
            () => ErrorCode::REQUEST_CANCELLED,
        };
        self.reset(entry, code);
    }

    /// Resets a stream for an error of the peer; there is a limit on them.
    pub(crate) fn stream_error(
        &mut self,
        entry: &Entry,
        code: ErrorCode,
        words: &'static str,
    ) -> Result<(), ConnectionError> {
        self.reset_for(entry, code, words);
        self.errors += 1;
        if self.errors > ERRORS_MAX {
            return Err(ConnectionError::Local(ErrorCode::EXCESSIVE_LOAD, "broke too many http3 streams"));
        }
        Ok(())
    }

    /// Rejects a request that begins after the last one that is processed.
    pub(crate) fn reject(&mut self, id: u64) {
        let code = ErrorCode::REQUEST_REJECTED;
        self.signals.push_back(Signal::StopSending { stream: id, code });
        self.signals.push_back(Signal::Reset { stream: id, code });
        self.decoder.cancel(id);
    }

    /// Checks that the peer takes acknowledgements.
    pub(crate) fn check_decoder(&self) -> Result<(), ConnectionError> {
        self.decoder.check_out().map_err(qpack_error)
    }

    /// Fails the connection.
    pub(crate) fn break_off(&mut self, connection_error: ConnectionError) {
        if self.connection_error.is_some() {
            return;
        }
        self.connection_error = Some(connection_error);
        self.events.clear();
        self.signals.clear();
        self.blocked.clear();
        for entry in std::mem::take(&mut self.streams).into_values() {
            entry.end(StreamError::Connection(connection_error));
        }
    }

    /// Sends `GOAWAY`: the first one of a server lets requests in transit arrive, the second one names the last request.
    pub(crate) fn send_goaway(&mut self, is_last: bool) {
        let (id, shutdown) = match (self.end, self.shutdown) {
            (_, Shutdown::Settled(_)) => return,
            // A push identifier: none is processed.
            (End::Client, _) => (0, Shutdown::Settled(0)),
            (End::Server, _) if is_last => (self.next_request, Shutdown::Settled(self.next_request)),
            (End::Server, Shutdown::Announced) => return,
            (End::Server, Shutdown::No) => (NO_LAST, Shutdown::Announced),
        };
        if self.connection_error.is_none() {
            self.shutdown = shutdown;
            if self.protocol == Protocol::Http3 {
                self.control_out.extend_from_slice(&frame::number(kind::GOAWAY, id));
            }
        }
    }

    /// Calls `write` with bytes of a stream of this end, and removes the number of bytes that it returns.
    pub(crate) fn write(&mut self, stream: LocalStream, write: impl FnOnce(&[u8]) -> usize) {
        match stream {
            LocalStream::Control if !self.control_out.is_empty() => {
                let taken = write(&self.control_out).min(self.control_out.len());
                self.control_out.drain(..taken);
                self.control_out.shrink_to_fit();
            }
            LocalStream::QpackDecoder if !self.decoder.out().is_empty() => {
                if self.has_decoder_stream {
                    let taken = write(self.decoder.out());
                    self.decoder.consume(taken);
                } else {
                    self.has_decoder_stream = write(&[stream_type::QPACK_DECODER as u8]) > 0;
                }
            }
            LocalStream::Control | LocalStream::QpackDecoder => {}
        }
    }

    /// Number of bytes of a stream of this end that are to be written.
    pub(crate) fn out_len(&self, stream: LocalStream) -> usize {
        match stream {
            LocalStream::Control => self.control_out.len(),
            LocalStream::QpackDecoder => self.decoder.out().len(),
        }
    }

    /// Sends a field section that is encoded in `block`. HTTP/0.9 has none.
    pub(crate) fn send_block(&mut self, entry: &Entry, block: &[u8], ends: bool) {
        if self.protocol == Protocol::Http3 {
            put_head(entry, kind::HEADERS, block.len());
            entry.out.borrow_mut().copy(block);
        }
        self.sent(entry, ends);
    }

    /// Sends data.
    pub(crate) fn send_data(&mut self, entry: &Entry, bytes: Bytes, ends: bool) {
        if !bytes.is_empty() {
            if self.protocol == Protocol::Http3 {
                put_head(entry, kind::DATA, bytes.len());
            }
            entry.out.borrow_mut().share(bytes);
        }
        self.sent(entry, ends);
    }

    fn sent(&mut self, entry: &Entry, ends: bool) {
        if ends {
            entry.has_said_all.set(true);
            self.settle(entry);
        }
    }

    /// Frees unused memory.
    pub(crate) fn shrink(&mut self) {
        self.streams.shrink_to_fit();
        self.unidirectional.shrink_to_fit();
        self.events.shrink_to_fit();
        self.signals.shrink_to_fit();
        self.blocked.shrink_to_fit();
    }
}

/// Sends a frame header.
fn put_head(entry: &Entry, kind: u64, len: usize) {
    let mut head = Vec::new();
    Head { kind, len: len as u64 }.put(&mut head);
    entry.out.borrow_mut().copy(&head);
}
