//! One stream: the way between a request and its client.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tw_base::memory::MemoryHolder;
use tw_http::Priority;
use tw_http3::{ConnectionError, ErrorCode, Stream, StreamError};
use tw_quic::StreamId;

use super::Http3Connection;
use super::conn::stream_id;
use crate::streams::{StreamLoss, StreamState, UNSET_PRIORITY};
use tw_request::memory_share::Hold;
use tw_request::send_error::SendError;

/// A request and the stream it came by.
pub(crate) struct Http3Stream {
    /// The connection it belongs to.
    pub(crate) conn: Rc<Http3Connection>,
    pub(super) stream: Stream,
    pub(super) id: StreamId,
    pub(super) priority: Cell<Priority>,
    pub(super) state: StreamState,
    /// Size of what is framed and not all taken by the transport, as the connection and the account of memory know it: until its last byte
    /// is taken, a piece has its memory.
    unsent: Cell<usize>,
    memory: RefCell<Hold>,
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
    /// The stream of a request that has arrived.
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

    /// Sets the priority that the request or the response asks for.
    pub(super) fn set_priority(&self, priority: Priority) {
        self.priority.set(priority);
        self.conn.quic.set_priority(self.id, self.transport_priority());
    }

    /// Priority in the transport.
    pub(super) fn transport_priority(&self) -> i32 {
        self.conn.transport_priority(self.id, self.priority.get())
    }

    /// Notes what is framed, or that the transport has taken all of it.
    pub(super) fn note_unsent(&self) {
        let remaining = self.stream.out_len();
        let unsent = if remaining == 0 { 0 } else { remaining.max(self.unsent.get()) };
        self.conn.count_unsent(self.unsent.replace(unsent), unsent);
        self.memory.borrow_mut().set(unsent);
    }

    /// Gives everything framed to the transport, which has room only for what the client and the network take.
    pub(super) fn poll_write(&self, cx: &mut Context<'_>) -> Poll<Result<(), SendError>> {
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

    /// Loss of the stream by an error of its frames.
    pub(super) fn lost(&self, error: StreamError) -> StreamLoss<StreamError> {
        StreamLoss { stream: self.id.value(), error }
    }

    /// Loss of the transport's stream, which its client has stopped, or which is gone with the connection.
    pub(super) fn failed(&self, error: &tw_quic::StreamError) -> StreamLoss<StreamError> {
        if let tw_quic::StreamError::Stopped(code) | tw_quic::StreamError::Reset(code) = error {
            // Errors of the frames end the connection, which finds them itself.
            let _ = self.conn.frames.receive_stop_sending(self.id.value(), ErrorCode::from(*code));
            return self.lost(StreamError::Reset(ErrorCode::from(*code)));
        }
        self.lost(self.stream.error().unwrap_or(StreamError::Connection(ConnectionError::Closed)))
    }
}
