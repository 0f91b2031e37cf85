//! State of one request stream: received bytes that nobody has read yet, and bytes to be written.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};
use tw_fields::{MessageCheck, TaskWaker};

use crate::error::StreamError;
use crate::frame::Head;
use crate::reader::Reader;

/// Smallest size of data that is not copied behind the frame header.
const SHARED_MIN: usize = (4 << 10) + 1;

/// One request stream.
pub(crate) struct Entry {
    pub(crate) id: u64,
    /// Direction from the peer.
    pub(crate) incoming: Cell<ReceiveState>,
    /// Direction to the peer: true once its last byte is in `out`.
    pub(crate) has_said_all: Cell<bool>,
    /// Received bytes that were not parsed.
    pub(crate) raw: RefCell<Bytes>,
    /// True if the peer's end of the stream has arrived, behind `raw`.
    pub(crate) has_fin: Cell<bool>,
    pub(crate) reader: RefCell<Reader>,
    /// Frame whose payload is being read.
    pub(crate) frame: Cell<Option<Head>>,
    pub(crate) block: RefCell<Block>,
    /// Check of the peer's message.
    pub(crate) message: MessageCheck,
    /// True once the owner of the connection has got the stream.
    pub(crate) is_seen: Cell<bool>,
    pub(crate) out: RefCell<Out>,
    pub(crate) error: Cell<Option<StreamError>>,
    pub(crate) came: TaskWaker,
    pub(crate) end_waker: TaskWaker,
}

/// Direction from the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReceiveState {
    /// The final header section is still to come.
    Head,
    /// Data, and trailers perhaps.
    Body,
    /// Trailers have arrived; only frames of unknown types may follow.
    Trailers,
    Ended,
}

/// Encoded field section that is not complete, or waits for insertions into the dynamic table.
#[derive(Debug, Default)]
pub(crate) struct Block {
    pub(crate) bytes: Vec<u8>,
    /// Number of insertions that the complete section waits for.
    pub(crate) required: Option<u64>,
}

/// Bytes that are to be written, in their order.
#[derive(Debug, Default)]
pub(crate) struct Out {
    parts: VecDeque<Bytes>,
    /// Small parts behind the others.
    tail: BytesMut,
    len: usize,
}

impl Out {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Appends a copy.
    pub(crate) fn copy(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Appends bytes, shared if they are many.
    pub(crate) fn share(&mut self, bytes: Bytes) {
        if bytes.len() < SHARED_MIN {
            return self.copy(&bytes);
        }
        self.seal();
        self.len += bytes.len();
        self.parts.push_back(bytes);
    }

    fn seal(&mut self) {
        if !self.tail.is_empty() {
            self.parts.push_back(std::mem::take(&mut self.tail).freeze());
        }
    }

    /// Returns the next bytes.
    pub(crate) fn front(&mut self) -> Option<Bytes> {
        if self.parts.is_empty() {
            self.seal();
        }
        self.parts.front().cloned()
    }

    /// Removes written bytes.
    pub(crate) fn consume(&mut self, mut count: usize) {
        if self.parts.is_empty() {
            self.seal();
        }
        while count > 0
            && let Some(part) = self.parts.front_mut()
        {
            let taken = count.min(part.len());
            part.advance(taken);
            count -= taken;
            self.len -= taken;
            if part.is_empty() {
                self.parts.pop_front();
            }
        }
    }
}

impl Entry {
    pub(crate) fn new(id: u64) -> Self {
        Self {
            id,
            incoming: Cell::new(ReceiveState::Head),
            has_said_all: Cell::new(false),
            raw: RefCell::default(),
            has_fin: Cell::new(false),
            reader: RefCell::new(Reader::new()),
            frame: Cell::new(None),
            block: RefCell::default(),
            message: MessageCheck::default(),
            is_seen: Cell::new(false),
            out: RefCell::default(),
            error: Cell::new(None),
            came: TaskWaker::default(),
            end_waker: TaskWaker::default(),
        }
    }

    /// Appends received bytes to those that were not parsed yet.
    pub(crate) fn push(&self, bytes: Bytes) {
        let mut raw = self.raw.borrow_mut();
        *raw = if raw.is_empty() {
            bytes
        } else {
            let mut joined = BytesMut::with_capacity(raw.len() + bytes.len());
            joined.extend_from_slice(&raw);
            joined.extend_from_slice(&bytes);
            joined.freeze()
        };
    }

    /// Returns true if everything has left.
    pub(crate) fn is_finished(&self) -> bool {
        self.has_said_all.get() && self.out.borrow().len() == 0
    }

    /// Returns true if both directions have ended.
    pub(crate) fn is_over(&self) -> bool {
        self.incoming.get() == ReceiveState::Ended && self.is_finished()
    }

    /// Returns true if a complete section waits for insertions.
    pub(crate) fn is_blocked(&self) -> bool {
        self.block.borrow().required.is_some()
    }

    /// Returns true if the peer's message has ended and nothing of it is unread.
    pub(crate) fn has_ended(&self) -> bool {
        self.incoming.get() == ReceiveState::Ended
            || self.incoming.get() != ReceiveState::Head
                && self.has_fin.get()
                && self.raw.borrow().is_empty()
                && self.reader.borrow().is_between()
                && !self.is_blocked()
    }

    /// Ends the peer's message.
    pub(crate) fn close_incoming(&self) {
        self.incoming.set(ReceiveState::Ended);
        self.message.end();
    }

    /// Ends the stream and wakes every task that waits for it. The first reason is kept.
    pub(crate) fn end(&self, error: StreamError) {
        if self.error.get().is_none() {
            self.error.set(Some(error));
        }
        self.raw.take();
        self.block.take();
        for call in [&self.came, &self.end_waker] {
            call.wake();
        }
    }
}
