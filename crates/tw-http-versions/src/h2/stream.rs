//! One stream: the way between a request and its client.

use std::fmt;
use std::rc::Rc;
use std::task::{Context, Poll};

use tw_http2::{ConnectionError, ErrorCode, Stream, StreamError};

use super::Http2Connection;
use super::stream_scheduler::StreamPriority;
use crate::streams::{StreamLoss, StreamState};
use tw_request::send_error::SendError;

/// Bytes that a client may send ahead once its body is wanted, however few it may before: those of one piece that is written to a
/// file, while the next one comes.
pub(super) const WANTED_WINDOW: u32 = 128 << 10;

/// A request and the stream it came by.
pub(crate) struct Http2Stream {
    /// The connection it belongs to.
    pub(crate) conn: Rc<Http2Connection>,
    pub(super) stream: Stream,
    /// Priority and turns among the streams of the connection.
    pub(super) priority: Rc<StreamPriority>,
    pub(super) state: StreamState,
}

/// As nginx words it in the error log.
impl fmt::Display for StreamLoss<StreamError> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stream, error } = self;
        match error {
            StreamError::Reset(ErrorCode::CANCEL) => write!(f, "client canceled stream {stream}"),
            StreamError::Reset(reason) | StreamError::Refused(reason) => {
                write!(f, "client terminated stream {stream} with status {}", u32::from(*reason))
            }
            StreamError::Local(reason, "") => write!(f, "stream {stream} was reset ({reason})"),
            StreamError::Local(_, words) => write!(f, "client {words} {stream}"),
            StreamError::Connection(ConnectionError::Closed) => {
                f.write_str("client prematurely closed connection")
            }
            StreamError::Connection(broken) => write!(f, "client prematurely closed connection ({broken})"),
        }
    }
}

impl Http2Stream {
    /// The stream of a request that has arrived.
    pub(super) fn new(conn: Rc<Http2Connection>, stream: Stream) -> Rc<Self> {
        Rc::new(Self { conn, priority: StreamPriority::new(stream.id()), stream, state: StreamState::new() })
    }

    /// Loss of the stream by an error of its frames.
    pub(super) fn lost(&self, error: StreamError) -> StreamLoss<StreamError> {
        StreamLoss { stream: self.priority.id.into(), error }
    }

    /// Ready when the windows of the client have room.
    pub(super) fn poll_room(&self, cx: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        let polled = self.stream.poll_send_capacity(cx);
        polled.map(|room| room.map(drop).map_err(|error| self.lost(error).into()))
    }
}
