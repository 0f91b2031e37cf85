//! One stream: the way between a request and its client.

use std::cell::RefCell;
use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ::h2::server::SendResponse;
use ::h2::{Reason, RecvStream, SendStream};
use bytes::Bytes;
use http::{HeaderMap, Response};
use tw_rt::Deadline;

use super::turns::Share;
use super::{Conn, Payload};
use crate::http::failure::Failure;
use crate::http::wire::Gone;

/// A request and the stream it came by.
pub struct Exchange {
    /// The connection it belongs to.
    pub(crate) conn: Rc<Conn>,
    way: RefCell<Way>,
    /// Its turns among the streams of the connection.
    share: Rc<Share>,
    /// What the client says after it has asked for another protocol (RFC 8441), until somebody speaks that.
    other: RefCell<Option<RecvStream>>,
    /// Until when the client may keep us waiting before it takes bytes.
    deadline: RefCell<Deadline>,
}

/// How far the response is.
enum Way {
    /// Nothing of it was sent.
    Head(SendResponse<Payload>),
    /// Its body is being sent.
    Body(SendStream<Payload>),
    /// All of it was, or will never be.
    Over,
}

/// The permit to make the next piece of a response, as long as nothing has to be waited for.
pub(super) struct Turn(Rc<Conn>);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.turns.call();
    }
}

/// Somebody who waits for a turn: who is dropped waits no longer.
struct Waiting<'a>(&'a Exchange);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.conn.turns.leave(self.0.share.id);
    }
}

/// Why a stream has ended, if not by us.
#[derive(Debug)]
enum Cut {
    /// The client has reset it.
    Reset(u32, Reason),
    /// The connection has failed.
    Connection(::h2::Error),
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reset(id, Reason::CANCEL) => write!(f, "client canceled stream {id}"),
            Self::Reset(id, reason) => {
                write!(f, "client terminated stream {id} with status {}", u32::from(*reason))
            }
            Self::Connection(error) => write!(f, "client prematurely closed connection ({error})"),
        }
    }
}

impl Error for Cut {}

impl From<Cut> for Gone {
    fn from(cut: Cut) -> Self {
        Self::new(io::Error::other(cut))
    }
}

impl Exchange {
    pub(super) fn new(conn: Rc<Conn>, respond: SendResponse<Payload>) -> Rc<Self> {
        let share = Share::new(respond.stream_id().as_u32());
        Rc::new(Self {
            conn,
            way: RefCell::new(Way::Head(respond)),
            share,
            other: RefCell::default(),
            deadline: RefCell::new(Deadline::new()),
        })
    }

    /// Its turns.
    pub(super) fn share(&self) -> &Rc<Share> {
        &self.share
    }

    /// Keeps what the client says, who has asked for another protocol.
    pub(super) fn keep_other(&self, stream: RecvStream) {
        *self.other.borrow_mut() = Some(stream);
    }

    /// What the client says in another protocol, if it has asked for one.
    pub(super) fn take_other(&self) -> Option<RecvStream> {
        self.other.borrow_mut().take()
    }

    /// Waits until it is the turn of this stream to make something.
    pub(super) async fn turn(&self) -> Result<Turn, Failure> {
        let _waiting = Waiting(self);
        poll_fn(|cx| match self.conn.turns.poll(&self.share, self.conn.made(), cx) {
            Poll::Ready(()) => Poll::Ready(Ok(Turn(self.conn.clone()))),
            Poll::Pending => self.poll_gone(cx).map(|gone| Err(gone.into())),
        })
        .await
    }

    fn cut(&self, by: Result<Reason, ::h2::Error>) -> Cut {
        match by {
            Ok(reason) => Cut::Reset(self.share.id, reason),
            Err(error) => match error.reason().filter(|_| error.is_reset()) {
                Some(reason) => Cut::Reset(self.share.id, reason),
                None => Cut::Connection(error),
            },
        }
    }

    fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<Gone> {
        let polled = match &mut *self.way.borrow_mut() {
            Way::Head(respond) => respond.poll_reset(cx),
            Way::Body(stream) => stream.poll_reset(cx),
            Way::Over => Poll::Pending,
        };
        polled.map(|by| self.cut(by).into())
    }

    /// Waits until the client is gone: it has reset the stream, or the connection failed.
    pub(crate) async fn gone(&self) -> Gone {
        poll_fn(|cx| self.poll_gone(cx)).await
    }

    /// Waits for `future`, unless the client goes away first.
    pub(crate) async fn unless_gone<F: Future>(&self, future: F) -> Result<F::Output, Gone> {
        let mut future = pin!(future);
        poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Ok(output)),
            Poll::Pending => self.poll_gone(cx).map(Err),
        })
        .await
    }

    /// Sleeps, unless the client goes away meanwhile.
    pub(crate) async fn sleep(&self, span: Duration) -> Result<(), Gone> {
        self.deadline.borrow_mut().set(span);
        self.unless_gone(poll_fn(|cx| self.deadline.borrow_mut().poll_elapsed(cx))).await
    }

    /// Says something before the response (1xx). A client that does not hear it can do without.
    pub(super) fn inform(&self, interim: Response<()>) {
        if let Way::Head(respond) = &mut *self.way.borrow_mut() {
            let _ = respond.send_informational(interim);
        }
    }

    /// Sends the head, with which the response ends or does not.
    pub(super) fn begin(&self, head: Response<()>, ends: bool) -> Result<(), Failure> {
        let mut way = self.way.borrow_mut();
        let Way::Head(respond) = &mut *way else { return Err(self.lost(None)) };
        let stream = respond.send_response(head, ends).map_err(|error| self.lost(Some(error)))?;
        *way = Way::Body(stream);
        Ok(())
    }

    /// Waits until the client may take at least one byte, and says how many, at most about `want`.
    pub(super) async fn room(&self, want: usize, timeout: Duration) -> Result<usize, Failure> {
        match self.room_now(want)? {
            0 => {}
            room => return Ok(room),
        }
        self.deadline.borrow_mut().set(timeout);
        poll_fn(|cx| match self.poll_room(cx) {
            Poll::Pending => self.deadline.borrow_mut().poll_elapsed(cx).map(|()| Err(Failure::Timeout)),
            ready => ready,
        })
        .await
    }

    /// Ready when the client may take some of what was asked for last, and with how much.
    pub(super) fn poll_room(&self, cx: &mut Context<'_>) -> Poll<Result<usize, Failure>> {
        let mut way = self.way.borrow_mut();
        let Way::Body(stream) = &mut *way else { return Poll::Ready(Err(self.lost(None))) };
        match stream.poll_capacity(cx) {
            Poll::Ready(Some(Ok(room))) => Poll::Ready(Ok(room)),
            Poll::Ready(Some(Err(error))) => Poll::Ready(Err(self.lost(Some(error)))),
            Poll::Ready(None) => {
                drop(way);
                Poll::Ready(Err(match self.poll_gone(cx) {
                    Poll::Ready(gone) => gone.into(),
                    Poll::Pending => self.lost(None),
                }))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    /// How many bytes the client may take now, at most about `want`.
    pub(super) fn room_now(&self, want: usize) -> Result<usize, Failure> {
        match &mut *self.way.borrow_mut() {
            Way::Body(stream) => {
                stream.reserve_capacity(want);
                Ok(stream.capacity())
            }
            Way::Head(_) | Way::Over => Err(self.lost(None)),
        }
    }

    /// Sends bytes for which there is room.
    pub(super) fn data(&self, bytes: Bytes, ends: bool) -> Result<(), Failure> {
        match &mut *self.way.borrow_mut() {
            Way::Body(stream) => {
                self.conn.count_worth(bytes.len());
                stream
                    .send_data(Payload::new(&self.conn, bytes), ends)
                    .map_err(|error| self.lost(Some(error)))
            }
            Way::Head(_) | Way::Over => Err(self.lost(None)),
        }
    }

    /// Ends the response with trailers.
    pub(super) fn trailers(&self, trailers: HeaderMap) -> Result<(), Failure> {
        match &mut *self.way.borrow_mut() {
            Way::Body(stream) => stream.send_trailers(trailers).map_err(|error| self.lost(Some(error))),
            Way::Head(_) | Way::Over => Err(self.lost(None)),
        }
    }

    /// Ends the stream: a response that is not complete is cut.
    pub(super) fn end(&self, is_complete: bool, status: u16) {
        let is_gone = self.poll_gone(&mut Context::from_waker(Waker::noop())).is_ready();
        self.conn.count_end(!is_complete && is_gone);
        self.conn.turns.forget(self.share.id);
        // As nginx: a client that was too slow has broken its word.
        let reason = if status == 408 { Reason::PROTOCOL_ERROR } else { Reason::INTERNAL_ERROR };
        match std::mem::replace(&mut *self.way.borrow_mut(), Way::Over) {
            _ if is_complete => {}
            Way::Head(mut respond) => respond.send_reset(reason),
            Way::Body(mut stream) => stream.send_reset(reason),
            Way::Over => {}
        }
    }

    /// Why nothing can be sent any more.
    fn lost(&self, error: Option<::h2::Error>) -> Failure {
        let cut = error.map_or(Cut::Reset(self.share.id, Reason::CANCEL), |error| self.cut(Err(error)));
        Failure::Gone(io::Error::other(cut))
    }
}
