//! One stream, as its owner sends and receives on it.

use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tw_fields::{FieldWriter, Incoming, encode_section};

use crate::connection::Shared;
use crate::entry::{Entry, ReceiveState};
use crate::error::StreamError;
use crate::hpack::encode;
use crate::settings::End;
use crate::{ConnectionError, ErrorCode};

/// One stream. Dropping it before its end resets it.
pub struct Stream {
    shared: Rc<Shared>,
    entry: Rc<Entry>,
}

impl Stream {
    pub(crate) fn new(shared: &Rc<Shared>, entry: Rc<Entry>) -> Self {
        entry.is_seen.set(true);
        Self { shared: shared.clone(), entry }
    }

    /// Stream identifier.
    pub fn id(&self) -> u32 {
        self.entry.id
    }

    /// Sends a header section, an interim one (1xx) or trailers. `write` appends the fields; `ends` tells that the
    /// message ends.
    ///
    /// # Errors
    /// The stream has ended.
    pub fn send_head(&self, write: impl FnOnce(&mut FieldWriter<'_>), ends: bool) -> Result<(), StreamError> {
        self.can_send()?;
        packed(write, |block| self.shared.change(|state| state.send_block(&self.entry, block, ends)));
        Ok(())
    }

    /// Sends data within the [capacity](Self::send_capacity), in frames as large as the peer accepts.
    ///
    /// # Errors
    /// The stream has ended.
    pub fn send_data(&self, bytes: Bytes, ends: bool) -> Result<(), StreamError> {
        self.can_send()?;
        self.shared.change(|state| state.send_data(&self.entry, bytes, ends));
        Ok(())
    }

    fn can_send(&self) -> Result<(), StreamError> {
        match self.entry.error.get() {
            Some(error) => Err(error),
            None if self.entry.outgoing.get() == ReceiveState::Ended => {
                Err(StreamError::Local(ErrorCode::NO_ERROR, ""))
            }
            None => Ok(()),
        }
    }

    /// Number of bytes that may be sent now, at most `want`.
    pub fn send_capacity(&self, want: usize) -> usize {
        if self.can_send().is_err() {
            return 0;
        }
        self.shared.state.borrow().room(&self.entry).min(want)
    }

    /// Ready with the number of bytes that may be sent, once there is one.
    pub fn poll_send_capacity(&self, cx: &Context<'_>) -> Poll<Result<usize, StreamError>> {
        if let Err(error) = self.can_send() {
            return Poll::Ready(Err(error));
        }
        let mut state = self.shared.state.borrow_mut();
        match state.room(&self.entry) {
            0 => {
                state.is_starved |= self.entry.room.get() > 0;
                self.entry.has_room.register(cx);
                Poll::Pending
            }
            room => Poll::Ready(Ok(room)),
        }
    }

    /// Largest payload of one frame that the peer accepts.
    pub fn frame_max(&self) -> usize {
        self.shared.state.borrow().peer.payload_max
    }

    /// Resets the stream.
    pub fn reset(&self, reason: ErrorCode) {
        self.shared.change(|state| state.reset(&self.entry, reason));
    }

    /// Returns true if the part of the peer's message that has arrived, read or not, is malformed (RFC 9113 section 8.1.1).
    pub fn is_malformed(&self) -> bool {
        self.entry.message.is_malformed()
    }

    /// Resets the stream because the peer's message is malformed, even if both directions have ended: the response
    /// may be sent before.
    pub fn reset_malformed(&self) {
        self.shared.change(|state| state.reset_malformed(&self.entry));
    }

    /// Ready with the next received part; `None` at the end. Parts that arrived before an error are returned first,
    /// and a message that had ended by then is complete.
    pub fn poll_incoming(&self, cx: &Context<'_>) -> Poll<Result<Option<Incoming>, StreamError>> {
        let mut inbox = self.entry.inbox.borrow_mut();
        if let Some(head) = inbox.heads.pop_front() {
            return Poll::Ready(Ok(Some(Incoming::Head(head))));
        }
        if !inbox.data.is_empty() {
            return Poll::Ready(Ok(Some(Incoming::Data(inbox.data.split().freeze()))));
        }
        if let Some(trailers) = inbox.trailers.take() {
            return Poll::Ready(Ok(Some(Incoming::Trailers(trailers))));
        }
        if self.entry.incoming.get() == ReceiveState::Ended {
            return Poll::Ready(Ok(None));
        }
        match self.entry.error.get() {
            Some(error) => Poll::Ready(Err(error)),
            None => {
                self.entry.came.register(cx);
                Poll::Pending
            }
        }
    }

    /// Releases received data: the peer may send as many bytes more.
    pub fn release(&self, bytes: usize) {
        let bytes = bytes.min(self.entry.unreleased_len.get());
        self.entry.unreleased_len.set(self.entry.unreleased_len.get() - bytes);
        if bytes > 0 {
            self.shared.change(|state| {
                state.release(bytes);
                state.release_stream(&self.entry, bytes);
            });
        }
    }

    /// Raises the receive window to at least `to` bytes.
    pub fn raise_window(&self, to: u32) {
        if to > self.entry.window.get() {
            self.shared.change(|state| state.raise_window(&self.entry, to));
        }
    }

    /// Returns true if the peer has ended its message, even if parts of it are still unread.
    pub fn is_end_known(&self) -> bool {
        self.entry.incoming.get() == ReceiveState::Ended
    }

    /// Returns true if the peer has ended its message and all of it was read.
    pub fn has_ended(&self) -> bool {
        self.is_end_known() && self.entry.inbox.borrow().is_empty()
    }

    /// Ready when the stream has failed: the peer has reset it, or the connection has ended.
    pub fn poll_error(&self, cx: &Context<'_>) -> Poll<StreamError> {
        match self.entry.error.get() {
            Some(error) => Poll::Ready(error),
            None => {
                // A stream whose directions have both ended is not in the table of the connection any more, so the end
                // of the connection does not reach it.
                if let Some(connection_error) =
                    self.shared.connection_error().filter(|_| self.entry.is_over())
                {
                    return Poll::Ready(StreamError::Connection(connection_error));
                }
                self.entry.end_waker.register(cx);
                Poll::Pending
            }
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let held_len = self.entry.unreleased_len.take();
        let is_left = self.entry.error.get().is_none() && !self.entry.is_over();
        if held_len == 0 && !is_left {
            return;
        }
        self.shared.change(|state| {
            match self.entry.outgoing.get() {
                ReceiveState::Ended if state.end == End::Server => state.discard_incoming(&self.entry),
                _ => state.reset(&self.entry, ErrorCode::CANCEL),
            }
            state.release(held_len);
        });
    }
}

/// Encodes the fields that `write` appends, and calls `send` with the block.
pub(crate) fn packed<T>(write: impl FnOnce(&mut FieldWriter<'_>), send: impl FnOnce(&[u8]) -> T) -> T {
    encode_section(&encode::CODING, write, send)
}

impl Shared {
    fn connection_error(&self) -> Option<ConnectionError> {
        self.state.borrow().connection_error
    }
}
