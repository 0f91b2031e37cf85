//! State of a connection: its streams, its windows and its output.

use std::collections::VecDeque;
use std::rc::Rc;

use bytes::Bytes;
use foldhash::{HashMap, HashMapExt};
use tw_fields::FieldSection;

use crate::ErrorCode;
use crate::config::{Config, ERRORS_MAX, LOST_MAX};
use crate::entry::{Entry, ReceiveState};
use crate::error::{ConnectionError, StreamError};
use crate::frame::{self, Head, PAYLOAD_USUAL, PREFACE, WINDOW_MAX, WINDOW_USUAL, flag, kind};
use crate::hpack::{Decoder, encode};
use crate::out::Out;
use crate::reader::Reader;
use crate::receive::Frame;
use crate::settings::{self, End, Peer, TABLE_SIZE};

/// Payload of the `PING` whose acknowledgement shows that the client has seen the first `GOAWAY`.
pub(crate) const LEAVING: [u8; 8] = *b"leaving!";
/// The last stream of a `GOAWAY` that names none (RFC 9113 section 6.8).
const NO_LAST: u32 = (1 << 31) - 1;

/// Stages of a graceful shutdown by `GOAWAY`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shutdown {
    No,
    /// A first `GOAWAY` was sent; the peer may have begun streams before it arrived.
    Announced,
    /// The second `GOAWAY`, which names the last stream, was sent.
    Settled,
}

/// Events of the connection for its owner.
pub(crate) enum PendingEvent {
    Request(Rc<Entry>, FieldSection),
    Priority { stream: u32, value: Box<[u8]> },
}

/// A connection.
pub(crate) struct State {
    pub(crate) end: End,
    pub(crate) config: Config,
    pub(crate) reader: Reader,
    pub(crate) frame: Frame,
    pub(crate) decoder: Decoder,
    pub(crate) out: Out,
    pub(crate) peer: Peer,
    /// True once the peer's `SETTINGS` have arrived.
    pub(crate) has_settings: bool,
    /// True once the peer has acknowledged ours.
    pub(crate) is_acknowledged: bool,
    /// True if the next header block has to announce an empty dynamic table.
    pub(crate) table_changed: bool,
    pub(crate) streams: HashMap<u32, Rc<Entry>>,
    pub(crate) events: VecDeque<PendingEvent>,
    /// Streams with a complete response whose requests have not ended.
    pub(crate) unwanted: Vec<Rc<Entry>>,
    /// Latest stream of the peer that was processed.
    pub(crate) last: u32,
    /// Latest stream that the peer has opened.
    pub(crate) last_peer_stream: u32,
    /// Next stream that this end opens.
    next: u32,
    /// Streams that have ended at this end first.
    pub(crate) lost: VecDeque<u32>,
    /// Send window of the connection, in bytes.
    pub(crate) room: i64,
    /// True if a stream waits for capacity that other streams share.
    pub(crate) is_starved: bool,
    /// Receive window of the connection, in bytes.
    pub(crate) credit: i64,
    /// Consumed bytes that no `WINDOW_UPDATE` has announced yet.
    released: u32,
    pub(crate) shutdown: Shutdown,
    /// Error code of the peer's `GOAWAY`.
    pub(crate) goaway_code: Option<ErrorCode>,
    pub(crate) connection_error: Option<ConnectionError>,
    /// Number of streams that this end has reset for errors of the peer.
    errors: usize,
    /// Number of received bytes of field blocks and data.
    pub(crate) payload_bytes: u64,
    /// Number of requests that were reset before their owner got them.
    pub(crate) unseen: usize,
}

impl State {
    pub(crate) fn new(end: End, config: Config) -> Self {
        let mut out = Out::default();
        if end == End::Client {
            out.copy(PREFACE);
        }
        out.copy(&frame::settings(0, &settings::ours(end, &config)));
        let more = config.connection_window.saturating_sub(WINDOW_USUAL);
        if more > 0 {
            out.copy(&frame::window_update(0, more));
        }
        Self {
            end,
            config,
            reader: Reader::new(end),
            frame: Frame::default(),
            decoder: Decoder::new(TABLE_SIZE),
            out,
            peer: Peer::default(),
            has_settings: false,
            is_acknowledged: false,
            table_changed: false,
            streams: HashMap::new(),
            events: VecDeque::new(),
            unwanted: Vec::new(),
            last: 0,
            last_peer_stream: 0,
            next: 1,
            lost: VecDeque::new(),
            room: WINDOW_USUAL.into(),
            is_starved: false,
            credit: config.connection_window.max(WINDOW_USUAL).into(),
            released: 0,
            shutdown: Shutdown::No,
            goaway_code: None,
            connection_error: None,
            errors: 0,
            payload_bytes: 0,
            unseen: 0,
        }
    }

    /// Opens a stream.
    pub(crate) fn begin(&mut self, id: u32) -> Rc<Entry> {
        let window = self.config.window;
        // Before it has acknowledged our SETTINGS, the peer may assume the default window.
        let credit = if self.is_acknowledged { window } else { window.max(WINDOW_USUAL) };
        let entry = Rc::new(Entry::new(id, self.peer.window, credit, window));
        self.streams.insert(id, entry.clone());
        entry
    }

    /// Returns the identifier of the next stream of this end.
    pub(crate) fn next_id(&mut self) -> Result<u32, StreamError> {
        if let Some(connection_error) = self.connection_error {
            return Err(StreamError::Connection(connection_error));
        }
        let is_full = self.streams.len() >= self.peer.streams_max as usize || self.next >= NO_LAST;
        if !self.is_open() || is_full {
            return Err(StreamError::Refused(self.goaway_code.unwrap_or(ErrorCode::REFUSED_STREAM)));
        }
        let id = self.next;
        self.next += 2;
        Ok(id)
    }

    /// Returns true for a stream that this end has begun.
    pub(crate) fn is_ours(&self, id: u32) -> bool {
        id < self.next && id % 2 == 1 && self.end == End::Client
    }

    pub(crate) fn is_open(&self) -> bool {
        self.connection_error.is_none() && self.goaway_code.is_none() && self.shutdown == Shutdown::No
    }

    pub(crate) fn is_over(&self) -> bool {
        let is_settled = self.shutdown == Shutdown::Settled || self.goaway_code.is_some();
        self.connection_error.is_some() || is_settled && self.streams.is_empty()
    }

    /// Forgets a stream when both directions have ended.
    pub(crate) fn settle(&mut self, entry: &Entry) {
        if entry.is_over() {
            self.streams.remove(&entry.id);
        }
    }

    /// Fails a stream. Its owner gives back what it holds of the connection's window.
    pub(crate) fn fail_stream(&mut self, entry: &Entry, error: StreamError) {
        self.streams.remove(&entry.id);
        if entry.incoming.get() != ReceiveState::Ended && !matches!(error, StreamError::Reset(_)) {
            self.lose(entry.id);
        }
        entry.end(error);
    }

    /// Remembers a stream that has ended here and of which the peer may not know yet.
    pub(crate) fn lose(&mut self, id: u32) {
        if self.lost.len() >= LOST_MAX {
            self.lost.pop_front();
        }
        self.lost.push_back(id);
    }

    /// Returns true if frames for an ended stream may still be on their way. Only the latest ended streams are remembered.
    pub(crate) fn may_be_late(&self, id: u32) -> bool {
        self.lost.len() >= LOST_MAX || self.lost.contains(&id)
    }

    /// Resets a stream.
    pub(crate) fn reset(&mut self, entry: &Entry, reason: ErrorCode) {
        self.reset_for(entry, reason, "");
    }

    /// Discards the rest of a request whose response is complete, until [`reset_unwanted`](Self::reset_unwanted).
    pub(crate) fn discard_incoming(&mut self, entry: &Rc<Entry>) {
        if entry.error.get().is_none() && !entry.is_over() {
            entry.is_unwanted.set(true);
            self.unwanted.push(entry.clone());
        }
    }

    /// Resets streams with a complete response whose requests have not ended (RFC 9113 section 8.1), once everything before has been
    /// written.
    pub(crate) fn reset_unwanted(&mut self) {
        if self.out.len() == 0 {
            for entry in std::mem::take(&mut self.unwanted) {
                self.reset(&entry, ErrorCode::NO_ERROR);
            }
        }
    }

    fn reset_for(&mut self, entry: &Entry, reason: ErrorCode, words: &'static str) {
        if entry.error.get().is_none() && !entry.is_over() {
            self.out.copy(&frame::reset(entry.id, reason));
            self.fail_stream(entry, StreamError::Local(reason, words));
        }
    }

    /// Resets a stream because of a malformed message, even if it has ended both ways: the response is sent before
    /// (RFC 9113 section 8.1.1).
    pub(crate) fn reset_malformed(&mut self, entry: &Entry) {
        if entry.is_over() && entry.error.get().is_none() && self.connection_error.is_none() {
            self.out.copy(&frame::reset(entry.id, ErrorCode::PROTOCOL_ERROR));
            entry.end(StreamError::Local(ErrorCode::PROTOCOL_ERROR, ""));
        } else {
            self.reset(entry, ErrorCode::PROTOCOL_ERROR);
        }
    }

    /// Resets a stream for an error of the peer; there is a limit on them.
    pub(crate) fn stream_error(
        &mut self,
        id: u32,
        reason: ErrorCode,
        words: &'static str,
    ) -> Result<(), ConnectionError> {
        match self.streams.get(&id).cloned() {
            Some(entry) => self.reset_for(&entry, reason, words),
            None => {
                self.out.copy(&frame::reset(id, reason));
                self.lose(id);
            }
        }
        self.errors += 1;
        if self.errors > ERRORS_MAX {
            return Err(ConnectionError::Local(ErrorCode::ENHANCE_YOUR_CALM, "broke too many http2 streams"));
        }
        Ok(())
    }

    /// Closes the connection.
    pub(crate) fn break_off(&mut self, connection_error: ConnectionError) {
        if self.connection_error.is_some() {
            return;
        }
        if let ConnectionError::Local(reason, _) = connection_error {
            self.out.copy(&frame::go_away(self.last, reason));
        }
        self.connection_error = Some(connection_error);
        self.events.clear();
        for entry in std::mem::take(&mut self.streams).into_values() {
            entry.end(StreamError::Connection(connection_error));
        }
    }

    /// Sends `GOAWAY`.
    pub(crate) fn leave(&mut self) {
        if self.connection_error.is_some() || self.shutdown != Shutdown::No {
            return;
        }
        match self.end {
            End::Client => {
                self.out.copy(&frame::go_away(0, ErrorCode::NO_ERROR));
                self.shutdown = Shutdown::Settled;
            }
            End::Server => {
                self.out.copy(&frame::go_away(NO_LAST, ErrorCode::NO_ERROR));
                self.out.copy(&frame::ping(0, LEAVING));
                self.shutdown = Shutdown::Announced;
            }
        }
    }

    /// Releases bytes of the connection's receive window. They are announced once they are half of the window, or as many as the peer may
    /// still send: streams whose data nobody reads may hold any part of the window.
    pub(crate) fn release(&mut self, bytes: usize) {
        // The bytes are within a window, so the cast is exact.
        self.released = self.released.saturating_add(bytes as u32);
        let half = self.config.connection_window.max(WINDOW_USUAL) / 2;
        let is_due = self.released >= half || i64::from(self.released) >= self.credit;
        if is_due && self.released > 0 && self.connection_error.is_none() {
            self.credit += i64::from(self.released);
            self.out.copy(&frame::window_update(0, self.released));
            self.released = 0;
        }
    }

    /// Gives back bytes of the stream's window only.
    pub(crate) fn release_stream(&mut self, entry: &Entry, bytes: usize) {
        if entry.incoming.get() == ReceiveState::Ended || entry.error.get().is_some() {
            return;
        }
        entry.released.set(entry.released.get().saturating_add(bytes as u32));
        if entry.released.get() > 0 && entry.released.get() >= entry.window.get() / 2 {
            let by = entry.released.take();
            entry.credit.set(entry.credit.get() + i64::from(by));
            self.out.copy(&frame::window_update(entry.id, by));
        }
    }

    /// Raises the receive window of a stream.
    pub(crate) fn raise_window(&mut self, entry: &Entry, to: u32) {
        let to = i64::from(to).min(WINDOW_MAX) as u32;
        let by = to.saturating_sub(entry.window.get());
        if by == 0 || entry.incoming.get() == ReceiveState::Ended || entry.error.get().is_some() {
            return;
        }
        entry.window.set(to);
        entry.credit.set(entry.credit.get() + i64::from(by));
        self.out.copy(&frame::window_update(entry.id, by));
    }

    /// Number of bytes of data that a stream may send now.
    pub(crate) fn room(&self, entry: &Entry) -> usize {
        let windows = usize::try_from(entry.room.get().min(self.room)).unwrap_or(0);
        windows.min(self.config.out_max.saturating_sub(self.out.len()))
    }

    /// Wakes the tasks that wait for the connection's window or for another shared resource.
    pub(crate) fn feed(&mut self) {
        if std::mem::take(&mut self.is_starved) {
            self.streams.values().for_each(|entry| entry.has_room.wake());
        }
    }

    /// Sends a field section that is encoded in `block`.
    pub(crate) fn send_block(&mut self, entry: &Entry, block: &[u8], ends: bool) {
        let mut update = Vec::new();
        if std::mem::take(&mut self.table_changed) {
            encode::size_update(&mut update, 0);
        }
        let first_len = block.len().min(self.peer.payload_max - update.len());
        let (first, mut rest) = block.split_at(first_len);
        let ends_stream = if ends { flag::END_STREAM } else { 0 };
        let ends_block = |rest: &[u8]| if rest.is_empty() { flag::END_HEADERS } else { 0 };
        let flags = ends_stream | ends_block(rest);
        let len = update.len() + first.len();
        self.out.copy(&Head { len, kind: kind::HEADERS, flags, stream: entry.id }.bytes());
        self.out.copy(&update);
        self.out.copy(first);
        while !rest.is_empty() {
            let (next, behind) = rest.split_at(rest.len().min(self.peer.payload_max));
            rest = behind;
            let flags = ends_block(rest);
            let head = Head { len: next.len(), kind: kind::CONTINUATION, flags, stream: entry.id };
            self.out.copy(&head.bytes());
            self.out.copy(next);
        }
        self.has_sent(entry, ends);
    }

    /// Sends data within the capacity.
    pub(crate) fn send_data(&mut self, entry: &Entry, mut bytes: Bytes, ends: bool) {
        let len = bytes.len() as i64;
        debug_assert!(len <= entry.room.get().min(self.room).max(0), "more data than there is room for");
        entry.room.set(entry.room.get() - len);
        self.room -= len;
        loop {
            let piece = bytes.split_to(bytes.len().min(self.peer.payload_max));
            let is_last = bytes.is_empty();
            let flags = if ends && is_last { flag::END_STREAM } else { 0 };
            let head = Head { len: piece.len(), kind: kind::DATA, flags, stream: entry.id };
            self.out.copy(&head.bytes());
            self.out.share(piece);
            if is_last {
                break;
            }
        }
        self.has_sent(entry, ends);
    }

    fn has_sent(&mut self, entry: &Entry, ends: bool) {
        if ends {
            entry.outgoing.set(ReceiveState::Ended);
            self.settle(entry);
        }
    }

    /// Frees unused memory.
    pub(crate) fn shrink(&mut self) {
        self.out.shrink();
        self.streams.shrink_to_fit();
        self.events.shrink_to_fit();
        self.lost.shrink_to_fit();
        self.frame.shrink();
    }

    /// Acknowledges settings of the peer.
    pub(crate) fn acknowledge(&mut self) {
        self.out.copy(&frame::settings(flag::ACK, &[]));
    }
}

const _: () = assert!(PAYLOAD_USUAL > 8, "a frame has room for an update of the table");
