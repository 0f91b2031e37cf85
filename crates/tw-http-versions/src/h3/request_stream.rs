//! A stream as one that serves a request: its frames leave by a stream of the transport, in the order of `write_order`.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use tw_core::event_loop::{BodySize, SCRATCH_SIZE};
use tw_fields::FieldWriter;
use tw_http::Priority;
use tw_http3::{ErrorCode, Incoming, StreamError};
use tw_net::Addr;
use tw_quic::StreamId;

use super::Http3Connection;
use super::protocol::PROTOCOL;
use super::stream::Http3Stream;
use super::stream_tunnel::Http3StreamTunnel;
use crate::streams::{ClientCost, Progress, RequestStream, ResetReason, StreamProtocol, StreamState};
use tw_request::client::Client;
use tw_request::send_error::SendError;

/// Permit to make and write a piece of a response, before less urgent streams write.
pub(crate) struct WritePermit(Rc<Http3Connection>, StreamId);

impl Drop for WritePermit {
    fn drop(&mut self) {
        self.0.write_order.end(self.1);
    }
}

impl RequestStream for Http3Stream {
    const PROTOCOL: &'static StreamProtocol = &PROTOCOL;
    const FILE_PIECE_MAX: usize = SCRATCH_SIZE;
    type Permit = WritePermit;
    type Error = StreamError;
    type Tunnel = Http3StreamTunnel;

    fn state(&self) -> &StreamState {
        &self.state
    }

    fn client(&self) -> &Rc<Client> {
        &self.conn.client
    }

    fn moved_peer(&self) -> Option<Addr> {
        let peer = Addr::Inet(self.conn.quic.peer());
        (peer != *self.conn.client.peer()).then_some(peer)
    }

    fn set_request_priority(&self, value: &[u8]) {
        self.set_priority(Priority::default().with(value));
    }

    fn set_response_priority(&self, value: &[u8]) {
        self.set_priority(self.priority.get().with(value));
    }

    fn cost(&self) -> &ClientCost {
        &self.conn.cost
    }

    fn forget(&self) {
        self.conn.forget(self.id.value());
    }

    fn reset(&self, reason: ResetReason) {
        self.stream.reset(match reason {
            ResetReason::Refused => ErrorCode::REQUEST_REJECTED,
            ResetReason::TooSlow => ErrorCode::GENERAL_PROTOCOL_ERROR,
            ResetReason::Incomplete => ErrorCode::INTERNAL_ERROR,
        });
    }

    fn is_malformed(&self) -> bool {
        self.state.is_malformed()
    }

    // DIFF(nginx): a malformed request is answered, and the rest of it is refused with H3_MESSAGE_ERROR (RFC 9114 section 4.1.2).
    /// The rest of the message is refused; a response that is complete stays.
    fn end_malformed(&self, cut: Option<ResetReason>) {
        self.stream.set_malformed();
        if let Some(reason) = cut {
            self.reset(reason);
        }
    }

    fn tunnel(self: &Rc<Self>, _: usize) -> Http3StreamTunnel {
        Http3StreamTunnel::new(self)
    }

    fn poll_incoming(&self, cx: &mut Context<'_>) -> Poll<Result<Option<Incoming>, StreamError>> {
        // Bytes are read from the transport as they are wanted.
        loop {
            if let Poll::Ready(incoming) = self.stream.poll_incoming(cx) {
                return Poll::Ready(incoming);
            }
            if !self.stream.wants_bytes() {
                return Poll::Pending;
            }
            ready!(self.conn.poll_read(self.id, cx));
        }
    }

    /// The end often arrives behind the last bytes.
    fn has_ended(&self) -> bool {
        if self.stream.wants_bytes() {
            // If there are bytes, they are parsed when they are wanted.
            let _ = self.conn.poll_read(self.id, &mut Context::from_waker(Waker::noop()));
        }
        self.stream.has_ended()
    }

    fn is_local(error: &StreamError) -> bool {
        matches!(error, StreamError::Local(..))
    }

    fn send_fields(&self, write: impl FnOnce(&mut FieldWriter<'_>), ends: bool) -> Result<usize, SendError> {
        let before = self.stream.out_len();
        self.stream.send_head(write, ends).map_err(|error| self.lost(error))?;
        let size = self.stream.out_len().saturating_sub(before);
        self.note_unsent();
        self.conn.cost.count_response(size);
        Ok(size)
    }

    fn send_data(&self, bytes: Bytes, _: usize, ends: bool) -> Result<usize, SendError> {
        let before = self.stream.out_len();
        let size = bytes.len();
        self.stream.send_data(bytes, ends).map_err(|error| self.lost(error))?;
        self.note_unsent();
        self.conn.cost.count_response(size);
        Ok(self.stream.out_len().saturating_sub(before + size))
    }

    fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        ready!(self.poll_write(cx))?;
        if let Some(error) = self.stream.error().filter(|_| self.state.progress() != Progress::Over) {
            return Poll::Ready(Err(self.lost(error).into()));
        }
        if self.stream.is_finished() && self.state.set_progress(Progress::Over) != Progress::Over {
            self.conn.quic.finish(self.id).map_err(|error| self.failed(&error))?;
            self.conn.note_finished(self.id);
        }
        Poll::Ready(Ok(()))
    }

    async fn flush_part(&self, timeout: Duration) -> Result<bool, SendError> {
        let remaining = self.unsent();
        self.state.set_deadline(timeout);
        poll_fn(|cx| match self.poll_flush(cx) {
            Poll::Pending if remaining != self.unsent() => Poll::Ready(Ok(false)),
            Poll::Pending => self.state.poll_elapsed(cx).map(|()| Err(SendError::Timeout)),
            Poll::Ready(flushed) => Poll::Ready(flushed.map(|()| true)),
        })
        .await
    }

    fn unsent(&self) -> usize {
        self.stream.out_len()
    }

    async fn wait_for_client(&self, timeout: Duration) -> Result<(), SendError> {
        // Framed bytes leave first: the head, or the end of the last piece.
        self.state.set_deadline(timeout);
        poll_fn(|cx| match self.poll_flush(cx) {
            Poll::Pending => self.state.poll_elapsed(cx).map(|()| Err(SendError::Timeout)),
            ready => ready,
        })
        .await
    }

    async fn wait_for_loop(&self, size: BodySize) {
        // Less urgent streams do not take the room while the loop has no time.
        self.conn.write_order.begin(self.id, self.transport_priority());
        self.conn.client.event_loop.budget.turn(size).await;
    }

    async fn wait_for_turn(&self, _: BodySize) -> Result<WritePermit, SendError> {
        self.conn.write_order.begin(self.id, self.transport_priority());
        Ok(WritePermit(self.conn.clone(), self.id))
    }

    fn room_now(&self, want: usize) -> usize {
        if self.unsent() == 0 { want.min(self.conn.piece_max()) } else { 0 }
    }

    async fn wait_for_room(
        &self,
        _: &mut Option<WritePermit>,
        want: usize,
        _: BodySize,
    ) -> Result<usize, SendError> {
        Ok(want)
    }
}
