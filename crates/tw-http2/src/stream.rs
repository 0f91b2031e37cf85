//! One stream: what its owner says and hears.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;

use crate::connection::Shared;
use crate::entry::{Entry, Half};
use crate::error::StreamError;
use crate::field_section::{FieldSection, FieldWriter};
use crate::settings::End;
use crate::{ConnectionError, ErrorCode};

/// A packed list of fields that became longer is not kept for the next one.
const BLOCK_KEPT_MAX: usize = 16 << 10;

thread_local! {
    static BLOCK: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// One stream. Dropped before its end it is reset.
pub struct Stream {
    shared: Rc<Shared>,
    entry: Rc<Entry>,
}

/// Something that came on a stream.
#[derive(Debug)]
pub enum Incoming {
    /// A head of a response: those in front of it (1xx), too.
    Head(FieldSection),
    /// Some of the content.
    Data(Bytes),
    /// Fields at the end.
    Trailers(Box<FieldSection>),
}

impl Stream {
    pub(crate) fn new(shared: &Rc<Shared>, entry: Rc<Entry>) -> Self {
        entry.is_seen.set(true);
        Self { shared: shared.clone(), entry }
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.entry.id
    }

    /// Sends a head, a head in front of it (1xx) or trailers: `write` says the fields. Its message ends with it or does not.
    ///
    /// # Errors
    /// The stream has ended.
    pub fn send_head(&self, write: impl FnOnce(&mut FieldWriter<'_>), ends: bool) -> Result<(), StreamError> {
        self.can_send()?;
        packed(write, |block| self.shared.change(|state| state.send_block(&self.entry, block, ends)));
        Ok(())
    }

    /// Sends data for which there is [room](Self::room), in frames as large as the peer takes them.
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
            None if self.entry.outgoing.get() == Half::Ended => {
                Err(StreamError::Local(ErrorCode::NO_ERROR, ""))
            }
            None => Ok(()),
        }
    }

    /// Bytes of data that it may send now, at most `want`.
    pub fn send_capacity(&self, want: usize) -> usize {
        if self.can_send().is_err() {
            return 0;
        }
        self.shared.state.borrow().room(&self.entry).min(want)
    }

    /// Ready when it may send data, with how much.
    pub fn poll_send_capacity(&self, cx: &Context<'_>) -> Poll<Result<usize, StreamError>> {
        if let Err(error) = self.can_send() {
            return Poll::Ready(Err(error));
        }
        let mut state = self.shared.state.borrow_mut();
        match state.room(&self.entry) {
            0 => {
                state.is_starved |= self.entry.room.get() > 0;
                self.entry.has_room.wait(cx);
                Poll::Pending
            }
            room => Poll::Ready(Ok(room)),
        }
    }

    /// Bytes that one frame to the peer has room for.
    pub fn frame_max(&self) -> usize {
        self.shared.state.borrow().peer.payload_max
    }

    /// Ends it at once.
    pub fn reset(&self, reason: ErrorCode) {
        self.shared.change(|state| state.reset(&self.entry, reason));
    }

    /// Returns true if the part of the peer's message that has arrived, read or not, is malformed (RFC 9113 section 8.1.1).
    pub fn is_malformed(&self) -> bool {
        self.entry.is_malformed.get()
    }

    /// Says that the peer's message was malformed, be it that both directions have ended since: an answer may come before.
    pub fn reset_malformed(&self) {
        self.shared.change(|state| state.reset_malformed(&self.entry));
    }

    /// Ready with the next that came; `None` at the end. What came before the stream was cut is given first; a message that had
    /// ended by then is complete.
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
        if self.entry.incoming.get() == Half::Ended {
            return Poll::Ready(Ok(None));
        }
        match self.entry.error.get() {
            Some(error) => Poll::Ready(Err(error)),
            None => {
                self.entry.came.wait(cx);
                Poll::Pending
            }
        }
    }

    /// So many bytes of data were used up: the peer may send as many more.
    pub fn release(&self, bytes: usize) {
        let bytes = bytes.min(self.entry.held.get());
        self.entry.held.set(self.entry.held.get() - bytes);
        if bytes > 0 {
            self.shared.change(|state| {
                state.release(bytes);
                state.release_stream(&self.entry, bytes);
            });
        }
    }

    /// The peer may send so many bytes at least before some are used up.
    pub fn raise_window(&self, to: u32) {
        if to > self.entry.window.get() {
            self.shared.change(|state| state.raise_window(&self.entry, to));
        }
    }

    /// Returns true if the peer has ended its message, even if parts of it are still unread.
    pub fn is_end_known(&self) -> bool {
        self.entry.incoming.get() == Half::Ended
    }

    /// Returns true if the peer has ended its message and all of it was read.
    pub fn has_ended(&self) -> bool {
        self.is_end_known() && self.entry.inbox.borrow().is_empty()
    }

    /// Ready when the stream was cut: its peer has reset it, or its connection has ended.
    pub fn poll_error(&self, cx: &Context<'_>) -> Poll<StreamError> {
        match self.entry.error.get() {
            Some(error) => Poll::Ready(error),
            None => {
                // One whose directions have both ended is known to nobody but its owner.
                if let Some(connection_error) =
                    self.shared.connection_error().filter(|_| self.entry.is_over())
                {
                    return Poll::Ready(StreamError::Connection(connection_error));
                }
                self.entry.gone.wait(cx);
                Poll::Pending
            }
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let held = self.entry.held.take();
        let is_left = self.entry.error.get().is_none() && !self.entry.is_over();
        if held == 0 && !is_left {
            return;
        }
        self.shared.change(|state| {
            let has_said_all = self.entry.outgoing.get() == Half::Ended && state.end == End::Server;
            let reason = if has_said_all { ErrorCode::NO_ERROR } else { ErrorCode::CANCEL };
            state.reset(&self.entry, reason);
            state.release(held);
        });
    }
}

/// Has `write` say a list of fields, and `send` take it packed.
pub(crate) fn packed<T>(write: impl FnOnce(&mut FieldWriter<'_>), send: impl FnOnce(&[u8]) -> T) -> T {
    let mut block = BLOCK.take();
    write(&mut FieldWriter::new(&mut block));
    let sent = send(&block);
    if block.capacity() <= BLOCK_KEPT_MAX {
        block.clear();
        BLOCK.set(block);
    }
    sent
}

impl Shared {
    fn connection_error(&self) -> Option<ConnectionError> {
        self.state.borrow().connection_error
    }
}
