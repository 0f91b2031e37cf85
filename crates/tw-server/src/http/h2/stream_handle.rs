//! One stream: the way between a request and its client.

use std::cell::{Cell, RefCell};
use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use tw_core::event_loop::BodySize;
use tw_http2::{ConnectionError, ErrorCode, FieldWriter, Incoming, Stream, StreamError};
use tw_rt::Deadline;

use super::Http2Connection;
use super::stream_scheduler::StreamPriority;
use crate::http::client_gone::ClientGone;
use crate::http::request_body::InputError;
use crate::http::send_error::SendError;
use crate::http::streams::{BodyPart, Intent};

/// Bytes that a client may send ahead once its body is wanted, however few it may before: those of one piece that is written to a
/// file, while the next one comes.
pub(super) const WANTED_WINDOW: u32 = 128 << 10;

/// A request and the stream it came by.
pub struct StreamHandle {
    /// The connection it belongs to.
    pub(crate) conn: Rc<Http2Connection>,
    stream: Stream,
    /// Priority and turns among the streams of the connection.
    share: Rc<StreamPriority>,
    stage: Cell<Stage>,
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
    /// All of it was, or will never be.
    Over,
}

/// The permit to make the next piece of a response, as long as nothing has to be waited for.
pub(super) struct SendPermit(Rc<Http2Connection>);

impl Drop for SendPermit {
    fn drop(&mut self) {
        self.0.end_turn();
    }
}

/// Wait of a stream for its turn, which ends with the drop.
struct Waiting<'a>(&'a StreamHandle);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.conn.leave(self.0.share.id);
    }
}

/// Reset of a stream, or loss of its connection.
#[derive(Debug)]
struct Lost {
    stream: u32,
    cut: StreamError,
}

/// As nginx words it in the error log.
impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stream, cut } = self;
        match cut {
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

impl StreamHandle {
    pub(super) fn new(conn: Rc<Http2Connection>, stream: Stream) -> Rc<Self> {
        Rc::new(Self {
            conn,
            share: StreamPriority::new(stream.id()),
            stream,
            stage: Cell::new(Stage::Head),
            is_malformed: Cell::new(false),
            intent: Cell::new(Intent::Answer),
            deadline: RefCell::new(Deadline::new()),
        })
    }

    /// Priority and turns of the stream.
    pub(super) fn priority(&self) -> &Rc<StreamPriority> {
        &self.share
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

    // What the client says.

    /// Returns the next part of the body; `None` at the end.
    pub(crate) fn poll_part(&self, cx: &mut Context<'_>) -> Poll<Result<Option<BodyPart>, InputError>> {
        self.stream.poll_incoming(cx).map(|came| match came {
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

    /// Returns the next event after the head of the request; `None` at the end.
    pub(super) fn poll_came(&self, cx: &mut Context<'_>) -> Poll<Result<Option<Incoming>, StreamError>> {
        self.stream.poll_incoming(cx)
    }

    /// Says that bytes were taken: the client may send as many anew.
    pub(crate) fn taken(&self, bytes: usize) {
        self.stream.release(bytes);
    }

    /// Lets the client send more ahead from now on.
    pub(crate) fn widen(&self) {
        self.stream.raise_window(WANTED_WINDOW);
    }

    /// Returns true if the client has ended its side and everything was taken.
    pub(crate) fn has_ended(&self) -> bool {
        self.stream.has_ended()
    }

    // Whether it is still there.

    fn lost(&self, cut: StreamError) -> Lost {
        Lost { stream: self.share.id, cut }
    }

    fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<ClientGone> {
        match self.stage.get() {
            Stage::Head | Stage::Body => self.stream.poll_error(cx).map(|cut| self.lost(cut).into()),
            Stage::Over => Poll::Pending,
        }
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

    // What it is told.

    /// Waits until it is the turn of this stream to make something.
    pub(super) async fn turn(&self, size: BodySize) -> Result<SendPermit, SendError> {
        let _waiting = Waiting(self);
        poll_fn(|cx| match self.conn.poll_turn(&self.share, size, cx) {
            Poll::Ready(()) => Poll::Ready(Ok(SendPermit(self.conn.clone()))),
            Poll::Pending => self.poll_gone(cx).map(|gone| Err(gone.into())),
        })
        .await
    }

    /// Sends fields, and says how many bytes that are on the wire.
    fn list(&self, write: impl FnOnce(&mut FieldWriter<'_>), ends: bool) -> Result<usize, SendError> {
        let before = self.conn.frames.out_len();
        self.stream.send_head(write, ends).map_err(|cut| self.lost(cut))?;
        let size = self.conn.frames.out_len().saturating_sub(before);
        self.conn.count_made(size);
        Ok(size)
    }

    /// Says something before the response (1xx). A client that does not hear it can do without.
    pub(crate) fn inform(&self, write: impl FnOnce(&mut FieldWriter<'_>)) {
        if self.stage.get() == Stage::Head {
            let _ = self.list(write, false);
        }
    }

    /// Sends the head, with which the response ends or does not, and says how many bytes that are on the wire.
    pub(super) fn begin(
        &self,
        write: impl FnOnce(&mut FieldWriter<'_>),
        ends: bool,
    ) -> Result<usize, SendError> {
        self.stage.set(Stage::Body);
        self.list(write, ends)
    }

    /// Ends the response with trailers, and says how many bytes these are on the wire.
    pub(super) fn trailers(&self, write: impl FnOnce(&mut FieldWriter<'_>)) -> Result<usize, SendError> {
        self.list(write, true)
    }

    /// Waits until the client may take at least one byte, and says how many, at most about `want`.
    pub(super) async fn room(&self, want: usize, timeout: Duration) -> Result<usize, SendError> {
        match self.room_now(want) {
            0 => {}
            room => return Ok(room),
        }
        self.deadline.borrow_mut().set(timeout);
        poll_fn(|cx| match self.poll_room(cx) {
            Poll::Pending => self.deadline.borrow_mut().poll_elapsed(cx).map(|()| Err(SendError::Timeout)),
            ready => ready,
        })
        .await
    }

    /// Ready when the client may take something, and with how much.
    pub(super) fn poll_room(&self, cx: &mut Context<'_>) -> Poll<Result<usize, SendError>> {
        self.stream.poll_send_capacity(cx).map_err(|cut| self.lost(cut).into())
    }

    /// Bytes that the windows have room for now, at most `want`.
    pub(super) fn room_now(&self, want: usize) -> usize {
        self.stream.send_capacity(want)
    }

    /// Sends bytes for which there is room, in frames of at most `frame_size`, and says how many bytes the heads of these are.
    pub(super) fn data(&self, mut bytes: Bytes, frame_size: usize, ends: bool) -> Result<usize, SendError> {
        let (before, size) = (self.conn.frames.out_len(), bytes.len());
        // Larger ones than the client takes are cut anyway.
        let frame_size = if frame_size >= self.stream.frame_max() { bytes.len() } else { frame_size };
        loop {
            let frame = bytes.split_to(frame_size.min(bytes.len()));
            let is_last = bytes.is_empty();
            self.stream.send_data(frame, ends && is_last).map_err(|cut| self.lost(cut))?;
            if is_last {
                break;
            }
        }
        self.conn.count_made(size);
        Ok(self.conn.frames.out_len().saturating_sub(before + size))
    }

    // DIFF(nginx): a malformed request is answered, and its stream is reset behind that (RFC 9113 section 8.1.1).
    /// Ends the stream: a response that is not complete is cut, and a request that was malformed is told to be.
    pub(super) fn end(&self, is_complete: bool, status: u16) {
        let is_gone = self.poll_gone(&mut Context::from_waker(Waker::noop())).is_ready();
        self.conn.count_end(!is_complete && is_gone);
        self.conn.turns.forget(self.share.id);
        if self.stage.replace(Stage::Over) == Stage::Over || is_gone {
            return;
        }
        // DIFF(nginx): also for content and trailers that nobody has read.
        if self.is_malformed.get() || self.stream.is_malformed() {
            self.stream.reset_malformed();
        } else if !is_complete {
            // As nginx: a client that was too slow has broken its word.
            let reason = if status == 408 { ErrorCode::PROTOCOL_ERROR } else { ErrorCode::INTERNAL_ERROR };
            self.stream.reset(reason);
        }
    }
}
