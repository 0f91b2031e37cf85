//! One stream: the way between a request and its client.

use std::cell::{Cell, RefCell};
use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use tw_fields::FieldWriter;
use tw_http::Priority;
use tw_http3::{ConnectionError, ErrorCode, Incoming, Stream, StreamError};
use tw_quic::StreamId;
use tw_rt::Deadline;

use super::Http3Connection;
use super::conn::stream_id;
use crate::http::client_gone::ClientGone;
use crate::http::request_body::InputError;
use crate::http::send_error::SendError;
use crate::http::streams::{BodyPart, Intent};

/// A request and the stream it came by.
pub struct Http3StreamHandle {
    /// The connection it belongs to.
    pub(crate) conn: Rc<Http3Connection>,
    stream: Stream,
    id: StreamId,
    stage: Cell<Stage>,
    priority: Cell<Priority>,
    /// True if the client's message is no request.
    is_malformed: Cell<bool>,
    /// Intent of the client.
    intent: Cell<Intent>,
    /// Until when the client may keep us waiting before it takes bytes.
    deadline: RefCell<Deadline>,
}

/// Progress of the response.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nothing of it was sent.
    Head,
    /// The body is being sent.
    Body,
    /// All of it was written to the transport, or will never be.
    Over,
}

/// Reset of a stream, or loss of its connection.
#[derive(Debug)]
struct Lost {
    stream: StreamId,
    cut: StreamError,
}

/// As nginx words it in the error log.
impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stream, cut } = self;
        match cut {
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

impl Error for Lost {}

impl From<Lost> for ClientGone {
    fn from(lost: Lost) -> Self {
        Self::new(io::Error::other(lost))
    }
}

impl From<Lost> for SendError {
    fn from(lost: Lost) -> Self {
        Self::Gone(io::Error::other(lost))
    }
}

impl Http3StreamHandle {
    pub(super) fn new(conn: Rc<Http3Connection>, stream: Stream) -> Rc<Self> {
        Rc::new(Self {
            conn,
            id: stream_id(stream.id()),
            stream,
            stage: Cell::new(Stage::Head),
            priority: Cell::default(),
            is_malformed: Cell::new(false),
            intent: Cell::new(Intent::Answer),
            deadline: RefCell::new(Deadline::new()),
        })
    }

    /// Takes over the priority of a request.
    pub(super) fn set_priority(&self, priority: Priority) {
        self.priority.set(priority);
        self.conn.set_priority(self.id, priority);
    }

    /// Takes over the priority of a response, which overrides that of the request (RFC 9218 section 8).
    pub(super) fn update_priority(&self, value: &[u8]) {
        self.set_priority(self.priority.get().with(value));
    }

    /// Marks the request as malformed for reasons that frames do not show.
    pub(super) fn set_malformed(&self) {
        self.is_malformed.set(true);
    }

    /// Notes the kind of request: ordinary, or an upgrade.
    pub(super) fn set_intent(&self, intent: Intent) {
        self.intent.set(intent);
    }

    /// Takes the intent of the client, which is then fulfilled.
    pub(super) fn take_intent(&self) -> Intent {
        self.intent.replace(Intent::Answer)
    }

    // Received parts.

    /// Returns the next part of the request; `None` at the end. Bytes are read of the transport as they are wanted.
    pub(super) fn poll_came(&self, cx: &mut Context<'_>) -> Poll<Result<Option<Incoming>, StreamError>> {
        loop {
            if let Poll::Ready(came) = self.stream.poll_incoming(cx) {
                return Poll::Ready(came);
            }
            if !self.stream.wants_bytes() {
                return Poll::Pending;
            }
            ready!(self.conn.poll_read(self.id, cx));
        }
    }

    /// Returns the next part of the body; `None` at the end.
    pub(crate) fn poll_part(&self, cx: &mut Context<'_>) -> Poll<Result<Option<BodyPart>, InputError>> {
        self.poll_came(cx).map(|came| match came {
            Ok(came) => Ok(came.map(|came| match came {
                Incoming::Data(bytes) => BodyPart::Data(bytes),
                Incoming::Trailers(list) => BodyPart::Trailers(list.malformed()),
                // A client sends no heads of responses.
                Incoming::Head(_) => BodyPart::Other,
            })),
            Err(StreamError::Local(..)) => Err(InputError::Failed),
            Err(_) => Err(InputError::Closed),
        })
    }

    /// Returns true if the client has ended its side and everything was taken. The end often arrives behind the last bytes.
    pub(crate) fn has_ended(&self) -> bool {
        if self.stream.wants_bytes() {
            // If there are bytes, they are parsed when they are wanted.
            let _ = self.conn.poll_read(self.id, &mut Context::from_waker(Waker::noop()));
        }
        self.stream.has_ended()
    }

    // Loss of the client.

    fn lost(&self, cut: StreamError) -> Lost {
        Lost { stream: self.id, cut }
    }

    /// Error of the transport's stream, which its client has stopped, or which is gone with the connection.
    fn failed(&self, error: &tw_quic::StreamError) -> Lost {
        if let tw_quic::StreamError::Stopped(code) | tw_quic::StreamError::Reset(code) = error {
            // Errors of the frames end the connection, which learns of them there.
            let _ = self.conn.frames.receive_stop_sending(self.id.value(), ErrorCode::from(*code));
            return self.lost(StreamError::Reset(ErrorCode::from(*code)));
        }
        self.lost(self.stream.error().unwrap_or(StreamError::Connection(ConnectionError::Closed)))
    }

    fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<ClientGone> {
        if self.stage.get() == Stage::Over {
            return Poll::Pending;
        }
        if let Poll::Ready(cut) = self.stream.poll_error(cx) {
            return Poll::Ready(self.lost(cut).into());
        }
        // Nobody may be reading the body.
        if let Poll::Ready(code) = self.conn.quic.poll_reset(self.id, cx) {
            let code = ErrorCode::from(code);
            // Errors of the frames end the connection, which learns of them there.
            let _ = self.conn.frames.receive_reset(self.id.value(), code);
            return Poll::Ready(self.lost(StreamError::Reset(code)).into());
        }
        self.conn.quic.poll_stopped(self.id, cx).map(|error| self.failed(&error).into())
    }

    /// Waits until the client is gone: it has reset the stream, or the connection failed.
    pub(crate) async fn gone(&self) -> ClientGone {
        poll_fn(|cx| self.poll_gone(cx)).await
    }

    /// Waits for `future`, unless the client goes away first.
    pub(crate) async fn unless_gone<F: Future>(&self, future: F) -> Result<F::Output, ClientGone> {
        let mut future = pin!(future);
        poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Ok(output)),
            Poll::Pending => self.poll_gone(cx).map(Err),
        })
        .await
    }

    /// Sleeps, unless the client goes away meanwhile.
    pub(crate) async fn sleep(&self, span: Duration) -> Result<(), ClientGone> {
        self.deadline.borrow_mut().set(span);
        self.unless_gone(poll_fn(|cx| self.deadline.borrow_mut().poll_elapsed(cx))).await
    }

    // Sending.

    /// Frames fields, and returns the number of bytes that are to be sent.
    fn list(&self, write: impl FnOnce(&mut FieldWriter<'_>), ends: bool) -> Result<usize, SendError> {
        let before = self.stream.out_len();
        self.stream.send_head(write, ends).map_err(|cut| self.lost(cut))?;
        let size = self.stream.out_len().saturating_sub(before);
        self.conn.count_made(size);
        Ok(size)
    }

    /// Sends a head before the response (1xx), if the transport has room for it.
    pub(crate) fn inform(&self, write: impl FnOnce(&mut FieldWriter<'_>)) {
        if self.stage.get() == Stage::Head && self.list(write, false).is_ok() {
            // What does not leave now leaves before the response.
            let _ = self.poll_flush(&mut Context::from_waker(Waker::noop()));
        }
    }

    /// Frames the head, with which the response ends or does not, and returns the number of bytes.
    pub(super) fn begin(
        &self,
        write: impl FnOnce(&mut FieldWriter<'_>),
        ends: bool,
    ) -> Result<usize, SendError> {
        self.stage.set(Stage::Body);
        self.list(write, ends)
    }

    /// Ends the response with trailers, and returns the number of bytes.
    pub(super) fn trailers(&self, write: impl FnOnce(&mut FieldWriter<'_>)) -> Result<usize, SendError> {
        self.list(write, true)
    }

    /// Frames a piece of the body, and returns the number of bytes of the frame's header.
    pub(super) fn data(&self, bytes: Bytes, ends: bool) -> Result<usize, SendError> {
        let (before, size) = (self.stream.out_len(), bytes.len());
        self.stream.send_data(bytes, ends).map_err(|cut| self.lost(cut))?;
        self.conn.count_made(size);
        Ok(self.stream.out_len().saturating_sub(before + size))
    }

    /// Ready when everything framed was given to the transport, which has room only for what the client and the network take.
    pub(super) fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        while let Some(bytes) = self.stream.output() {
            match ready!(self.conn.quic.poll_write(self.id, cx, &mut [bytes])) {
                Ok(count) => self.stream.consume(count),
                Err(error) => return Poll::Ready(Err(self.failed(&error).into())),
            }
        }
        if let Some(cut) = self.stream.error().filter(|_| self.stage.get() != Stage::Over) {
            return Poll::Ready(Err(self.lost(cut).into()));
        }
        if self.stream.is_finished() && self.stage.replace(Stage::Over) != Stage::Over {
            self.conn.quic.finish(self.id).map_err(|error| self.failed(&error))?;
            self.conn.note_finished(self.id);
        }
        Poll::Ready(Ok(()))
    }

    /// Gives everything framed to the transport; the client may take nothing for `timeout`.
    pub(super) async fn flush(&self, timeout: Duration) -> Result<(), SendError> {
        if let Poll::Ready(flushed) = self.poll_flush(&mut Context::from_waker(Waker::noop())) {
            return flushed;
        }
        let mut left = self.stream.out_len();
        self.deadline.borrow_mut().set(timeout);
        poll_fn(|cx| match self.poll_flush(cx) {
            Poll::Pending => {
                if left != self.stream.out_len() {
                    left = self.stream.out_len();
                    self.deadline.borrow_mut().set(timeout);
                }
                self.deadline.borrow_mut().poll_elapsed(cx).map(|()| Err(SendError::Timeout))
            }
            ready => ready,
        })
        .await
    }

    /// Number of framed bytes that the transport has not taken.
    pub(super) fn out_len(&self) -> usize {
        self.stream.out_len()
    }

    // DIFF(nginx): a malformed request is answered, and the rest of it is refused with H3_MESSAGE_ERROR (RFC 9114 section 4.1.2).
    /// Ends the stream: a response that is not complete is cut.
    pub(super) fn end(&self, is_complete: bool, status: u16) {
        let is_gone = self.poll_gone(&mut Context::from_waker(Waker::noop())).is_ready();
        self.conn.count_end(!is_complete && is_gone);
        self.conn.forget(self.id.value());
        let was_over = self.stage.replace(Stage::Over) == Stage::Over;
        if is_gone {
            return;
        }
        if self.is_malformed.get() {
            self.stream.set_malformed();
        }
        if !was_over && !is_complete {
            // As nginx: a client that was too slow has broken its word.
            let is_slow = status == 408;
            let code = if is_slow { ErrorCode::GENERAL_PROTOCOL_ERROR } else { ErrorCode::INTERNAL_ERROR };
            self.stream.reset(code);
        }
    }
}
