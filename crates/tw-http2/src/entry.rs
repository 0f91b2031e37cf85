//! State of one stream, and its received frames that nobody has read yet.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use bytes::BytesMut;
use tw_fields::{FieldSection, MessageCheck, TaskWaker};

use crate::error::StreamError;

/// One stream.
pub(crate) struct Entry {
    pub(crate) id: u32,
    /// Direction from the peer.
    pub(crate) incoming: Cell<ReceiveState>,
    /// Direction to the peer.
    pub(crate) outgoing: Cell<ReceiveState>,
    /// Send window, in bytes.
    pub(crate) room: Cell<i64>,
    /// Receive window, in bytes.
    pub(crate) credit: Cell<i64>,
    /// Size of the receive window when no byte is unread.
    pub(crate) window: Cell<u32>,
    /// Consumed bytes that no `WINDOW_UPDATE` has announced yet.
    pub(crate) released: Cell<u32>,
    /// Received bytes that were not released.
    pub(crate) unreleased_len: Cell<usize>,
    /// True once nobody wants the rest of the peer's message; it is discarded until the stream is reset.
    pub(crate) is_unwanted: Cell<bool>,
    /// Check of the peer's message.
    pub(crate) message: MessageCheck,
    /// True once the owner of the connection has got the stream.
    pub(crate) is_seen: Cell<bool>,
    pub(crate) inbox: RefCell<Inbox>,
    pub(crate) error: Cell<Option<StreamError>>,
    pub(crate) came: TaskWaker,
    pub(crate) has_room: TaskWaker,
    pub(crate) end_waker: TaskWaker,
}

/// One direction of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReceiveState {
    /// The final header section is still to come.
    Head,
    /// Data, and trailers perhaps.
    Body,
    Ended,
}

/// Received parts of the message that were not read yet, in the order of their arrival.
#[derive(Default)]
pub(crate) struct Inbox {
    pub(crate) heads: VecDeque<FieldSection>,
    /// Data of any number of frames: what a frame takes here is its content and no more.
    pub(crate) data: BytesMut,
    pub(crate) trailers: Option<Box<FieldSection>>,
}

impl Inbox {
    pub(crate) fn is_empty(&self) -> bool {
        self.heads.is_empty() && self.data.is_empty() && self.trailers.is_none()
    }
}

impl Entry {
    pub(crate) fn new(id: u32, room: u32, credit: u32, window: u32) -> Self {
        Self {
            id,
            incoming: Cell::new(ReceiveState::Head),
            outgoing: Cell::new(ReceiveState::Head),
            room: Cell::new(room.into()),
            credit: Cell::new(credit.into()),
            window: Cell::new(window),
            released: Cell::new(0),
            unreleased_len: Cell::new(0),
            is_unwanted: Cell::new(false),
            message: MessageCheck::default(),
            is_seen: Cell::new(false),
            inbox: RefCell::default(),
            error: Cell::new(None),
            came: TaskWaker::default(),
            has_room: TaskWaker::default(),
            end_waker: TaskWaker::default(),
        }
    }

    /// Returns true if both directions have ended.
    pub(crate) fn is_over(&self) -> bool {
        self.incoming.get() == ReceiveState::Ended && self.outgoing.get() == ReceiveState::Ended
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
        for call in [&self.came, &self.has_room, &self.end_waker] {
            call.wake();
        }
    }
}
