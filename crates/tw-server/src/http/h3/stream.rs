//! One stream: the way between a request and its client.

use std::cell::Cell;
use std::fmt;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use tw_core::event_loop::{BodySize, SCRATCH_SIZE};
use tw_fields::FieldWriter;
use tw_http::Priority;
use tw_http3::{ConnectionError, ErrorCode, Incoming, Stream, StreamError};
use tw_net::Addr;
use tw_quic::StreamId;

use super::conn::stream_id;
use super::{Http3Connection, Http3StreamTunnel};
use crate::http::body::{Body, Upgraded};
use crate::http::client::Client;
use crate::http::client_gone::ClientGone;
use crate::http::request::Request;
use crate::http::send_error::SendError;
use crate::http::streams::{BodyStream, Progress, RequestStream, StreamLoss, StreamProtocol, StreamState};
use crate::http::tunnel_end::TunnelEnd;
use crate::http::wire::Wire;

/// A request and the stream it came by.
pub struct Http3Stream {
    /// The connection it belongs to.
    pub(crate) conn: Rc<Http3Connection>,
    stream: Stream,
    id: StreamId,
    priority: Cell<Priority>,
    state: StreamState,
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
        Rc::new(Self {
            conn,
            id: stream_id(stream.id()),
            stream,
            priority: Cell::default(),
            state: StreamState::new(),
        })
    }

    fn set_priority(&self, priority: Priority) {
        self.priority.set(priority);
        self.conn.set_priority(self.id, priority);
    }

    /// Returns true if the client has ended its side and everything was taken. The end often arrives behind the last bytes.
    pub(crate) fn has_ended(&self) -> bool {
        if self.stream.wants_bytes() {
            // If there are bytes, they are parsed when they are wanted.
            let _ = self.conn.poll_read(self.id, &mut Context::from_waker(Waker::noop()));
        }
        self.stream.has_ended()
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

    /// Number of framed bytes that the transport has not taken.
    fn unsent(&self) -> usize {
        self.stream.out_len()
    }
}

impl RequestStream for Http3Stream {
    const PROTOCOL: StreamProtocol = StreamProtocol::H3;
    const FILE_PIECE_MAX: usize = SCRATCH_SIZE;
    /// The transport orders streams by their priorities.
    type Permit = ();
    type Error = StreamError;

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

    fn wire(self: &Rc<Self>) -> Wire {
        Wire::H3(self.clone())
    }

    fn body_stream(self: &Rc<Self>) -> BodyStream {
        BodyStream::H3(self.clone())
    }

    fn set_request_priority(&self, value: &[u8]) {
        self.set_priority(Priority::default().with(value));
    }

    fn set_response_priority(&self, value: &[u8]) {
        self.set_priority(self.priority.get().with(value));
    }

    // DIFF(nginx): a malformed request is answered, and the rest of it is refused with H3_MESSAGE_ERROR (RFC 9114 section 4.1.2).
    fn end(&self, is_complete: bool, status: u16) {
        let is_gone = self.poll_gone(&mut Context::from_waker(Waker::noop())).is_ready();
        self.conn.cost.count_end(!is_complete && is_gone);
        self.conn.forget(self.id.value());
        let was_over = self.state.set_progress(Progress::Over) == Progress::Over;
        if is_gone {
            return;
        }
        if self.state.is_malformed() {
            self.stream.set_malformed();
        }
        if !was_over && !is_complete {
            // As nginx: a client that was too slow has broken its word.
            let is_slow = status == 408;
            let code = if is_slow { ErrorCode::GENERAL_PROTOCOL_ERROR } else { ErrorCode::INTERNAL_ERROR };
            self.stream.reset(code);
        }
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
        self.conn.cost.count_response(size);
        Ok(size)
    }

    fn send_data(&self, bytes: Bytes, _: usize, ends: bool) -> Result<usize, SendError> {
        let (before, size) = (self.stream.out_len(), bytes.len());
        self.stream.send_data(bytes, ends).map_err(|error| self.lost(error))?;
        self.conn.cost.count_response(size);
        Ok(self.stream.out_len().saturating_sub(before + size))
    }

    fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        // The transport has room only for what the client and the network take.
        while let Some(bytes) = self.stream.output() {
            match ready!(self.conn.quic.poll_write(self.id, cx, &mut [bytes])) {
                Ok(count) => self.stream.consume(count),
                Err(error) => return Poll::Ready(Err(self.failed(&error).into())),
            }
        }
        if let Some(error) = self.stream.error().filter(|_| self.state.progress() != Progress::Over) {
            return Poll::Ready(Err(self.lost(error).into()));
        }
        if self.stream.is_finished() && self.state.set_progress(Progress::Over) != Progress::Over {
            self.conn.quic.finish(self.id).map_err(|error| self.failed(&error))?;
            self.conn.note_finished(self.id);
        }
        Poll::Ready(Ok(()))
    }

    async fn flush(&self, timeout: Duration) -> Result<(), SendError> {
        if let Poll::Ready(flushed) = self.poll_flush(&mut Context::from_waker(Waker::noop())) {
            return flushed;
        }
        let mut left = self.unsent();
        self.state.set_deadline(timeout);
        poll_fn(|cx| match self.poll_flush(cx) {
            Poll::Pending => {
                if left != self.unsent() {
                    left = self.unsent();
                    self.state.set_deadline(timeout);
                }
                self.state.poll_elapsed(cx).map(|()| Err(SendError::Timeout))
            }
            ready => ready,
        })
        .await
    }

    async fn wait_before_piece(
        &self,
        r: &Request,
        _: &mut Body,
        size: BodySize,
        _: Duration,
    ) -> Result<(), SendError> {
        r.client().home.budget.turn(size).await;
        Ok(())
    }

    async fn wait_for_turn(&self, _: BodySize) -> Result<(), SendError> {
        Ok(())
    }

    fn room_now(&self, want: usize) -> usize {
        want
    }

    async fn wait_for_room(
        &self,
        _: &mut Option<()>,
        want: usize,
        _: BodySize,
        _: Duration,
    ) -> Result<usize, SendError> {
        Ok(want)
    }

    async fn run_tunnel(
        self: &Rc<Self>,
        r: &mut Request,
        upgraded: Box<dyn Upgraded>,
        _: usize,
        timeout: Duration,
    ) -> Result<(), SendError> {
        self.flush(timeout).await?;
        let tunnel = Http3StreamTunnel::new(self);
        upgraded.run(r, TunnelEnd::Http3(&tunnel), Bytes::new()).await;
        // The last bytes, if the transport had no room for them.
        if self.unsent() > 0 {
            self.flush(timeout).await?;
        }
        Ok(())
    }
}
