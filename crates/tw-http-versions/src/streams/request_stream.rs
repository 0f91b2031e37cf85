//! Stream of a request: the functions that differ between HTTP/2 and HTTP/3, and those that follow from them.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use tw_connect::relay::RelayEnd;
use tw_core::event_loop::BodySize;
use tw_fields::{FieldWriter, Incoming};
use tw_net::Addr;
use tw_rt::Deadline;

use super::{BodyPart, ClientCost, Intent, ResetReason, StreamProtocol};
use tw_request::body::Body;
use tw_request::client::Client;
use tw_request::request::Request;
use tw_request::request_body::InputError;
use tw_request::send_error::SendError;
use tw_request::wire::Wire;

/// Stream of a request. As its wire, it is gone when the client has reset it or the connection has failed, and never once the response is
/// over.
pub(crate) trait RequestStream: Wire<Request, Body> + Sized {
    /// Protocol of the connection.
    const PROTOCOL: &'static StreamProtocol;
    /// Bytes of a file that are read for one piece at most.
    const FILE_PIECE_MAX: usize;
    /// Permit to make and send a piece of the response. Other streams wait until it is dropped.
    type Permit;
    /// Error of the stream.
    type Error: std::error::Error + Send + Sync + 'static;
    /// The stream as a connection of another protocol.
    type Tunnel: RelayEnd;

    /// State that does not depend on the protocol.
    fn state(&self) -> &StreamState;

    /// Client of the connection.
    fn client(&self) -> &Rc<Client>;

    /// Address of the client, if it has changed since the connection was accepted.
    fn moved_peer(&self) -> Option<Addr>;

    /// Takes over the priority of a request.
    fn set_request_priority(&self, value: &[u8]);

    /// Takes over the priority of a response, which overrides that of the request (RFC 9218 section 8).
    fn set_response_priority(&self, value: &[u8]);

    /// Cost that the client has caused on its connection.
    fn cost(&self) -> &ClientCost;

    /// Forgets the priority of the stream, which has ended.
    fn forget(&self);

    /// Resets the stream.
    fn reset(&self, reason: ResetReason);

    /// Returns true if the message of the client is malformed, read or not.
    fn is_malformed(&self) -> bool;

    /// Ends the stream of a malformed message, whose response is complete unless it is `cut`.
    fn end_malformed(&self, cut: Option<ResetReason>);

    /// Returns the next part of the request after its head; `None` at the end.
    fn poll_incoming(&self, cx: &mut Context<'_>) -> Poll<Result<Option<Incoming>, Self::Error>>;

    /// Returns true if the client has ended its side and everything was taken.
    fn has_ended(&self) -> bool;

    /// Notes that received bytes were taken, if the transport does not count them itself: the client may send as many again.
    fn release(&self, _bytes: usize) {}

    /// Lets the client send more ahead from now on, if the window is not always of its full size.
    fn widen(&self) {}

    /// Returns true if this end has reset the stream because of this error.
    fn is_local(error: &Self::Error) -> bool;

    /// Frames fields, and returns their size on the wire.
    fn send_fields(&self, write: impl FnOnce(&mut FieldWriter<'_>), ends: bool) -> Result<usize, SendError>;

    /// Frames bytes for which there is [room](Self::wait_for_room), and returns the size of the frame headers. The content of one frame is
    /// at most `frame_size`, if the protocol gains by that.
    fn send_data(&self, bytes: Bytes, frame_size: usize, ends: bool) -> Result<usize, SendError>;

    /// Ready when the transport has taken everything framed, as far as the stream has to wait for that.
    fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<Result<(), SendError>>;

    /// Waits as [`poll_flush`](Self::poll_flush) does, or until the transport has taken a part; the client may take nothing for
    /// `timeout`. Returns true if it has taken everything.
    async fn flush_part(&self, timeout: Duration) -> Result<bool, SendError>;

    /// Number of framed bytes that wait for the transport, as far as the stream has to wait for that.
    fn unsent(&self) -> usize;

    /// Waits until the client can take a part of the next piece, which is not made before.
    async fn wait_for_client(&self, timeout: Duration) -> Result<(), SendError>;

    /// Waits until the loop has time for the next piece.
    async fn wait_for_loop(&self, size: BodySize);

    /// Waits for the turn of the stream among those of its connection.
    async fn wait_for_turn(&self, size: BodySize) -> Result<Self::Permit, SendError>;

    /// Number of bytes that can be sent at once, at most `want`.
    fn room_now(&self, want: usize) -> usize;

    /// Waits for the turn of the stream, and returns the number of bytes that can be sent in it, at most `want`. It gives the turn
    /// back if there is no room.
    async fn wait_for_room(
        &self,
        permit: &mut Option<Self::Permit>,
        want: usize,
        size: BodySize,
    ) -> Result<usize, SendError>;

    /// The stream as a connection of another protocol, whose bytes are sent in frames of at most `frame_size`.
    fn tunnel(self: &Rc<Self>, frame_size: usize) -> Self::Tunnel;

    /// Returns the next part of the request's body; `None` at the end.
    fn poll_part(&self, cx: &mut Context<'_>) -> Poll<Result<Option<BodyPart>, InputError>> {
        self.poll_incoming(cx).map(|incoming| match incoming {
            Ok(part) => Ok(part.map(|part| match part {
                Incoming::Data(bytes) => BodyPart::Data(bytes),
                Incoming::Trailers(list) => BodyPart::Trailers(list.malformed()),
                // A client sends no heads of responses.
                Incoming::Head(_) => BodyPart::Other,
            })),
            Err(error) if Self::is_local(&error) => Err(InputError::Failed),
            Err(_) => Err(InputError::Closed),
        })
    }

    /// Sends a head before the response (1xx), if there is room for it.
    fn send_interim_head(&self, write: impl FnOnce(&mut FieldWriter<'_>)) {
        if self.state().progress() == Progress::Head && self.send_fields(write, false).is_ok() {
            // The rest leaves before the response.
            let _ = self.poll_flush(&mut Context::from_waker(Waker::noop()));
        }
    }

    /// Frames the head of the response, with which it ends or does not, and returns its size on the wire.
    fn begin(&self, write: impl FnOnce(&mut FieldWriter<'_>), ends: bool) -> Result<usize, SendError> {
        self.state().set_progress(Progress::Body);
        self.send_fields(write, ends)
    }
}

/// Progress of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Nothing of it was sent.
    Head,
    /// The body is being sent.
    Body,
    /// All of it was given to the transport, or will never be.
    Over,
}

/// State of a stream that does not depend on the protocol.
pub(crate) struct StreamState {
    progress: Cell<Progress>,
    /// True if the client's message is no request.
    is_malformed: Cell<bool>,
    intent: Cell<Intent>,
    /// Time until which the client may take nothing.
    deadline: RefCell<Deadline>,
}

impl StreamState {
    /// State of a stream whose request has arrived.
    pub(crate) fn new() -> Self {
        Self {
            progress: Cell::new(Progress::Head),
            is_malformed: Cell::new(false),
            intent: Cell::new(Intent::Answer),
            deadline: RefCell::new(Deadline::new()),
        }
    }

    /// Progress of the response.
    pub(crate) fn progress(&self) -> Progress {
        self.progress.get()
    }

    /// Sets the progress of the response, and returns the one before.
    pub(crate) fn set_progress(&self, progress: Progress) -> Progress {
        self.progress.replace(progress)
    }

    /// Returns true if the request is malformed for reasons that frames do not show.
    pub(crate) fn is_malformed(&self) -> bool {
        self.is_malformed.get()
    }

    /// Marks the request as malformed for reasons that frames do not show.
    pub(super) fn set_malformed(&self) {
        self.is_malformed.set(true);
    }

    /// Sets the intent of the client.
    pub(super) fn set_intent(&self, intent: Intent) {
        self.intent.set(intent);
    }

    /// Takes the intent of the client, which is then fulfilled.
    pub(super) fn take_intent(&self) -> Intent {
        self.intent.replace(Intent::Answer)
    }

    /// Sets the time that [`poll_elapsed`](Self::poll_elapsed) waits for.
    pub(crate) fn set_deadline(&self, span: Duration) {
        self.deadline.borrow_mut().set(span);
    }

    /// Ready when the time has elapsed.
    pub(crate) fn poll_elapsed(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.deadline.borrow_mut().poll_elapsed(cx)
    }
}
