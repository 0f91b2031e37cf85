//! One stream: the way between a request and its client.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use tw_base::memory::MemoryHolder;
use tw_core::event_loop::{BodySize, SCRATCH_SIZE};
use tw_fields::FieldWriter;
use tw_http::Priority;
use tw_http3::{ConnectionError, ErrorCode, Incoming, Stream, StreamError};
use tw_net::{Addr, TcpInfo};
use tw_quic::StreamId;

use super::Http3Connection;
use super::conn::stream_id;
use super::protocol::PROTOCOL;
use super::stream_tunnel::Http3StreamTunnel;
use crate::http::client::Client;
use crate::http::client_gone::ClientGone;
use crate::http::memory_share::Hold;
use crate::http::send_error::SendError;
use crate::http::streams::{
    ClientCost, Progress, RequestStream, ResetReason, StreamLoss, StreamProtocol, StreamState, UNSET_PRIORITY,
};

/// A request and the stream it came by.
pub(crate) struct Http3Stream {
    /// The connection it belongs to.
    pub(crate) conn: Rc<Http3Connection>,
    stream: Stream,
    id: StreamId,
    priority: Cell<Priority>,
    state: StreamState,
    /// Size of what is framed and not all taken by the transport, as the connection and the account of memory know it: until its last byte
    /// is taken, a piece has its memory.
    unsent: Cell<usize>,
    memory: RefCell<Hold>,
}

/// Permit to make and write a piece of a response, before less urgent streams write.
pub(crate) struct WritePermit(Rc<Http3Connection>, StreamId);

impl Drop for WritePermit {
    fn drop(&mut self) {
        self.0.write_order.end(self.1);
    }
}

impl Drop for Http3Stream {
    fn drop(&mut self) {
        self.conn.write_order.forget(self.id);
        self.conn.count_unsent(self.unsent.get(), 0);
    }
}

/// As nginx words it in the error log.
impl fmt::Display for StreamLoss<StreamError> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stream, error } = self;
        match error {
            StreamError::Reset(ErrorCode::REQUEST_CANCELLED) => write!(f, "client canceled stream {stream}"),
            StreamError::Reset(reason) => {
                write!(f, "client terminated stream {stream} with status {}", u64::from(*reason))
            }
            StreamError::Refused => write!(f, "stream {stream} was refused"),
            StreamError::Local(reason, "") => write!(f, "stream {stream} was reset ({reason})"),
            StreamError::Local(_, words) => write!(f, "client {words} {stream}"),
            StreamError::Connection(ConnectionError::Closed | ConnectionError::Peer(ErrorCode::NO_ERROR)) => {
                f.write_str("client prematurely closed connection")
            }
            StreamError::Connection(broken) => write!(f, "client prematurely closed connection ({broken})"),
        }
    }
}

impl Http3Stream {
    pub(super) fn new(conn: Rc<Http3Connection>, stream: Stream) -> Rc<Self> {
        let memory = Hold::new(conn.client.memory_share(MemoryHolder::Http3), 0);
        Rc::new(Self {
            conn,
            id: stream_id(stream.id()),
            stream,
            priority: Cell::new(UNSET_PRIORITY),
            state: StreamState::new(),
            unsent: Cell::new(0),
            memory: RefCell::new(memory),
        })
    }

    fn set_priority(&self, priority: Priority) {
        self.priority.set(priority);
        self.conn.quic.set_priority(self.id, self.transport_priority());
    }

    fn transport_priority(&self) -> i32 {
        self.conn.transport_priority(self.id, self.priority.get())
    }

    /// Notes what is framed, or that the transport has taken all of it.
    fn note_unsent(&self) {
        let left = self.stream.out_len();
        let unsent = if left == 0 { 0 } else { left.max(self.unsent.get()) };
        self.conn.count_unsent(self.unsent.replace(unsent), unsent);
        self.memory.borrow_mut().set(unsent);
    }

    /// Gives everything framed to the transport, which has room only for what the client and the network take.
    fn poll_write(&self, cx: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        while let Some(bytes) = self.stream.output() {
            ready!(self.conn.write_order.poll_write(self.id, self.transport_priority(), cx));
            match self.conn.quic.poll_write(self.id, cx, &mut [bytes]) {
                Poll::Ready(Ok(count)) => {
                    self.stream.consume(count);
                    self.note_unsent();
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(self.failed(&error).into())),
                Poll::Pending => {
                    self.conn.write_order.end(self.id);
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    fn lost(&self, error: StreamError) -> StreamLoss<StreamError> {
        StreamLoss { stream: self.id.value(), error }
    }

    /// Loss of the transport's stream, which its client has stopped, or which is gone with the connection.
    fn failed(&self, error: &tw_quic::StreamError) -> StreamLoss<StreamError> {
        if let tw_quic::StreamError::Stopped(code) | tw_quic::StreamError::Reset(code) = error {
            // Errors of the frames end the connection, which finds them itself.
            let _ = self.conn.frames.receive_stop_sending(self.id.value(), ErrorCode::from(*code));
            return self.lost(StreamError::Reset(ErrorCode::from(*code)));
        }
        self.lost(self.stream.error().unwrap_or(StreamError::Connection(ConnectionError::Closed)))
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

    fn local_addr(&self) -> Option<Addr> {
        None
    }

    fn tcp_info(&self) -> Option<TcpInfo> {
        None
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

    fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<ClientGone> {
        if self.state.progress() == Progress::Over {
            return Poll::Pending;
        }
        if let Poll::Ready(error) = self.stream.poll_error(cx) {
            return Poll::Ready(self.lost(error).into());
        }
        // Perhaps no task reads the body.
        if let Poll::Ready(code) = self.conn.quic.poll_reset(self.id, cx) {
            let code = ErrorCode::from(code);
            // Errors of the frames end the connection, which finds them itself.
            let _ = self.conn.frames.receive_reset(self.id.value(), code);
            return Poll::Ready(self.lost(StreamError::Reset(code)).into());
        }
        self.conn.quic.poll_stopped(self.id, cx).map(|error| self.failed(&error).into())
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
        let left = self.unsent();
        self.state.set_deadline(timeout);
        poll_fn(|cx| match self.poll_flush(cx) {
            Poll::Pending if left != self.unsent() => Poll::Ready(Ok(false)),
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
