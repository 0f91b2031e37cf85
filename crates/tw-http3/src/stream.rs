//! One request stream, as its owner sends and receives on it.

use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tw_fields::{FieldWriter, Incoming, encode_section};

use crate::ErrorCode;
use crate::connection::Shared;
use crate::entry::{Entry, ReceiveState};
use crate::error::StreamError;
use crate::qpack::FIELD_CODING;
use crate::receive::Part;

/// One request stream. Dropping it before its end resets it.
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
    pub fn id(&self) -> u64 {
        self.entry.id
    }

    /// Sends a header section, an interim one (1xx) or trailers. `write` appends the fields; `ends` tells that the
    /// message ends.
    ///
    /// # Errors
    /// The stream has ended.
    pub fn send_head(&self, write: impl FnOnce(&mut FieldWriter<'_>), ends: bool) -> Result<(), StreamError> {
        self.can_send()?;
        encode_section(&FIELD_CODING, write, |block| {
            self.shared.change(|state| state.send_block(&self.entry, block, ends));
        });
        Ok(())
    }

    /// Sends data as one frame. The bytes are kept until they are [written](Self::output): the caller sends no more than
    /// the transport takes.
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
            None if self.entry.has_said_all.get() => Err(StreamError::Local(ErrorCode::NO_ERROR, "")),
            None => Ok(()),
        }
    }

    /// Next bytes for the transport; `None` if nothing is to be written now.
    pub fn output(&self) -> Option<Bytes> {
        match self.entry.error.get() {
            Some(_) => None,
            None => self.entry.out.borrow_mut().front(),
        }
    }

    /// Removes bytes that were written.
    pub fn consume(&self, count: usize) {
        self.entry.out.borrow_mut().consume(count);
        if self.entry.is_over() {
            self.shared.change(|state| state.settle(&self.entry));
        }
    }

    /// Number of bytes that are to be written.
    pub fn out_len(&self) -> usize {
        self.entry.out.borrow().len()
    }

    /// Returns true if the message was sent and all of it was written: the transport ends the stream here.
    pub fn is_finished(&self) -> bool {
        self.entry.error.get().is_none() && self.entry.is_finished()
    }

    /// Resets both directions of the stream.
    pub fn reset(&self, code: ErrorCode) {
        self.shared.change(|state| state.reset(&self.entry, code));
    }

    /// Returns true if the part of the peer's message that was read is malformed (RFC 9114 section 4.1.2).
    pub fn is_malformed(&self) -> bool {
        self.entry.message.is_malformed()
    }

    /// Marks the peer's message as malformed for reasons that frames do not show: the rest of it is refused.
    pub fn set_malformed(&self) {
        self.entry.message.set_malformed();
    }

    /// Ready with the next part of the peer's message; `None` at the end. After `Pending`, the transport may have more bytes
    /// ([`wants_bytes`](Self::wants_bytes)).
    pub fn poll_incoming(&self, cx: &Context<'_>) -> Poll<Result<Option<Incoming>, StreamError>> {
        if self.entry.error.get().is_none() {
            let read = self.shared.change(|state| {
                let part = state.next_part(&self.entry);
                part.inspect_err(|connection_error| state.break_off(*connection_error))
            });
            match read {
                Ok(Some(Part::Head(head))) => return Poll::Ready(Ok(Some(Incoming::Head(head)))),
                Ok(Some(Part::Data(bytes))) => return Poll::Ready(Ok(Some(Incoming::Data(bytes)))),
                Ok(Some(Part::Trailers(list))) => {
                    return Poll::Ready(Ok(Some(Incoming::Trailers(Box::new(list)))));
                }
                Ok(Some(Part::End)) => return Poll::Ready(Ok(None)),
                Ok(None) => {}
                Err(connection_error) => {
                    return Poll::Ready(Err(StreamError::Connection(connection_error)));
                }
            }
        }
        match self.entry.error.get() {
            // A message that had ended before the error is complete.
            Some(_) if self.entry.incoming.get() == ReceiveState::Ended => Poll::Ready(Ok(None)),
            Some(error) => Poll::Ready(Err(error)),
            None => {
                self.entry.came.register(cx);
                Poll::Pending
            }
        }
    }

    /// Returns true if bytes of the transport are needed: none are left to be parsed, and no field section waits for another
    /// stream.
    pub fn wants_bytes(&self) -> bool {
        !self.entry.has_fin.get()
            && self.entry.error.get().is_none()
            && self.entry.raw.borrow().is_empty()
            && !self.entry.is_blocked()
    }

    /// Returns true if the peer has ended its message and all of it was read.
    pub fn has_ended(&self) -> bool {
        self.entry.has_ended()
    }

    /// Error of the stream.
    pub fn error(&self) -> Option<StreamError> {
        self.entry.error.get().or_else(|| {
            // A stream whose directions have both ended is not in the table of the connection any more.
            self.shared.connection_error().map(StreamError::Connection)
        })
    }

    /// Ready when the stream has failed: the peer has reset it, or the connection has ended.
    pub fn poll_error(&self, cx: &Context<'_>) -> Poll<StreamError> {
        match self.error() {
            Some(error) => Poll::Ready(error),
            None => {
                self.entry.end_waker.register(cx);
                Poll::Pending
            }
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.shared.change(|state| state.release(&self.entry));
    }
}
