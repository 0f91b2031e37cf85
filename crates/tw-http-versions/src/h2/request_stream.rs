//! A stream as one that serves a request: the order of pieces is that of the scheduler, and the connection writes the frames of all
//! streams.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tw_core::event_loop::BodySize;
use tw_http2::{ErrorCode, FieldWriter, Incoming, StreamError};
use tw_net::Addr;

use super::Http2Connection;
use super::protocol::PROTOCOL;
use super::stream::{Http2Stream, WANTED_WINDOW};
use super::stream_scheduler::{WAITING_MAX, waiting_max};
use super::stream_tunnel::Http2StreamTunnel;
use crate::streams::{ClientCost, RequestStream, ResetReason, StreamProtocol, StreamState};
use tw_request::client::Client;
use tw_request::send_error::SendError;
use tw_request::wire::Wire;

/// Permit to make the next piece of a response, as long as nothing has to be waited for.
pub(crate) struct SendPermit(Rc<Http2Connection>);

impl Drop for SendPermit {
    fn drop(&mut self) {
        self.0.end_turn();
    }
}

/// Wait of a stream for its turn, which ends with the drop.
struct Waiting<'a>(&'a Http2Stream);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.conn.stop_waiting(self.0.priority.id);
    }
}

impl RequestStream for Http2Stream {
    const PROTOCOL: &'static StreamProtocol = &PROTOCOL;
    const FILE_PIECE_MAX: usize = WAITING_MAX;
    type Permit = SendPermit;
    type Error = StreamError;
    type Tunnel = Http2StreamTunnel;

    fn state(&self) -> &StreamState {
        &self.state
    }

    fn client(&self) -> &Rc<Client> {
        &self.conn.client
    }

    fn moved_peer(&self) -> Option<Addr> {
        None
    }

    fn set_request_priority(&self, value: &[u8]) {
        self.priority.set_from_request(value);
    }

    fn set_response_priority(&self, value: &[u8]) {
        self.priority.set_from_response(value);
    }

    fn cost(&self) -> &ClientCost {
        &self.conn.cost
    }

    fn forget(&self) {
        self.conn.scheduler.forget(self.priority.id);
    }

    fn reset(&self, reason: ResetReason) {
        self.stream.reset(match reason {
            ResetReason::Refused => ErrorCode::REFUSED_STREAM,
            ResetReason::TooSlow => ErrorCode::PROTOCOL_ERROR,
            ResetReason::Incomplete => ErrorCode::INTERNAL_ERROR,
        });
    }

    // DIFF(nginx): also for content and trailers that were not read.
    fn is_malformed(&self) -> bool {
        self.state.is_malformed() || self.stream.is_malformed()
    }

    // DIFF(nginx): a malformed request is answered, and its stream is reset behind that (RFC 9113 section 8.1.1).
    /// The reset cuts the response, too.
    fn end_malformed(&self, _: Option<ResetReason>) {
        self.stream.reset_malformed();
    }

    fn tunnel(self: &Rc<Self>, frame_size: usize) -> Http2StreamTunnel {
        Http2StreamTunnel::new(self, frame_size)
    }

    fn poll_incoming(&self, cx: &mut Context<'_>) -> Poll<Result<Option<Incoming>, StreamError>> {
        self.stream.poll_incoming(cx)
    }

    fn has_ended(&self) -> bool {
        self.stream.has_ended()
    }

    fn release(&self, bytes: usize) {
        self.stream.release(bytes);
    }

    fn widen(&self) {
        self.stream.raise_window(WANTED_WINDOW);
    }

    fn is_local(error: &StreamError) -> bool {
        matches!(error, StreamError::Local(..))
    }

    fn send_fields(&self, write: impl FnOnce(&mut FieldWriter<'_>), ends: bool) -> Result<usize, SendError> {
        let before = self.conn.frames.out_len();
        self.stream.send_head(write, ends).map_err(|error| self.lost(error))?;
        let size = self.conn.frames.out_len().saturating_sub(before);
        self.conn.count_made(size);
        Ok(size)
    }

    fn send_data(&self, mut bytes: Bytes, frame_size: usize, ends: bool) -> Result<usize, SendError> {
        let before = self.conn.frames.out_len();
        let size = bytes.len();
        // Larger ones than the client takes are cut anyway.
        let frame_size = if frame_size >= self.stream.frame_max() { bytes.len() } else { frame_size };
        loop {
            let frame = bytes.split_to(frame_size.min(bytes.len()));
            let is_last = bytes.is_empty();
            self.stream.send_data(frame, ends && is_last).map_err(|error| self.lost(error))?;
            if is_last {
                break;
            }
        }
        self.conn.count_made(size);
        Ok(self.conn.frames.out_len().saturating_sub(before + size))
    }

    fn poll_flush(&self, _: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        // The connection writes the frames of all streams.
        Poll::Ready(Ok(()))
    }

    async fn flush_part(&self, _: Duration) -> Result<bool, SendError> {
        Ok(true)
    }

    fn unsent(&self) -> usize {
        0
    }

    async fn wait_for_client(&self, timeout: Duration) -> Result<(), SendError> {
        if self.room_now(1) > 0 {
            return Ok(());
        }
        self.state.set_deadline(timeout);
        poll_fn(|cx| match self.poll_room(cx) {
            Poll::Pending => self.state.poll_elapsed(cx).map(|()| Err(SendError::Timeout)),
            ready => ready,
        })
        .await
    }

    async fn wait_for_loop(&self, size: BodySize) {
        if size == BodySize::Small {
            self.conn.client.event_loop.budget.spend(0).await;
        }
    }

    async fn wait_for_turn(&self, size: BodySize) -> Result<SendPermit, SendError> {
        let _waiting = Waiting(self);
        poll_fn(|cx| match self.conn.poll_turn(&self.priority, size, cx) {
            Poll::Ready(()) => Poll::Ready(Ok(SendPermit(self.conn.clone()))),
            Poll::Pending => self.poll_gone(cx).map(|client_gone| Err(client_gone.into())),
        })
        .await
    }

    fn room_now(&self, want: usize) -> usize {
        self.stream.send_capacity(want.min(waiting_max()))
    }

    async fn wait_for_room(
        &self,
        permit: &mut Option<SendPermit>,
        want: usize,
        size: BodySize,
    ) -> Result<usize, SendError> {
        if permit.is_none() {
            *permit = Some(self.wait_for_turn(size).await?);
        }
        let room = self.room_now(want);
        if room == 0 {
            *permit = None;
        }
        Ok(room)
    }
}
