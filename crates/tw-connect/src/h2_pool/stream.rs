//! One stream: a request and its response.

use std::cell::{Cell, OnceCell, RefCell};
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use tw_http2::{ConnectionError, ErrorCode, FieldSection, Incoming, StreamError};
use tw_rt::Deadline;

use super::connection::{ConnectionState, ResponseState, STREAM_WINDOW, StreamPermit};
use super::head::RequestText;
use crate::failure::UpstreamFailure;

/// Request on a shared connection. Dropping it before its end resets the stream and leaves the connection open.
pub struct UpstreamStream {
    /// HTTP/2 stream, once the request has been sent.
    carrier: OnceCell<tw_http2::Stream>,
    response: Cell<ResponseState>,
    /// Event received and not taken yet.
    came: RefCell<Option<Result<Item, UpstreamFailure>>>,
    /// Event taken that is no content, for the codec.
    news: RefCell<Option<StreamEvent>>,
    write: RefCell<Deadline>,
    permit: StreamPermit,
}

/// Something that came.
enum Item {
    Content(Bytes),
    StreamEvent(StreamEvent),
}

/// Stream event other than content.
pub enum StreamEvent {
    /// A head in front of the one that counts.
    Interim(FieldSection),
    /// The head.
    Head(FieldSection),
    /// The end, and the fields there.
    End(Option<Box<FieldSection>>),
}

/// End-of-message flag.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum StreamEnd {
    /// The message ends here.
    WithThis,
    /// More of it follows.
    NotYet,
}

impl UpstreamStream {
    pub(super) fn new(permit: StreamPermit) -> Self {
        Self {
            carrier: OnceCell::new(),
            response: Cell::new(ResponseState::Coming),
            came: RefCell::new(None),
            news: RefCell::new(None),
            write: RefCell::new(Deadline::new()),
            permit,
        }
    }

    /// Address of the server.
    pub fn to(&self) -> &tw_net::Addr {
        &self.permit.0.to
    }

    /// Returns true if the connection has carried earlier requests.
    pub fn is_reused(&self) -> bool {
        self.permit.0.answered.get() > 0
    }

    /// No other requests go where this one went.
    pub fn retire_connection(&self) {
        self.permit.0.retire();
    }

    /// Asks, with a request that ends with its head or does not. The head is written in lines.
    ///
    /// # Errors
    /// The request cannot be expressed in HTTP/2, or the connection takes no more requests.
    pub fn send_request(&self, head: &[u8], end: StreamEnd) -> Result<(), UpstreamFailure> {
        let h2_connection = &self.permit.0;
        let request = RequestText::read(head, h2_connection.is_secured)?;
        let ConnectionState::Open(connection) = &*h2_connection.state.borrow() else {
            return Err(self.closed());
        };
        let sent = connection.send_request(|list| request.write(list), end == StreamEnd::WithThis);
        let carrier = sent.map_err(|cut| self.failure(cut))?;
        // If this stream has sent a request before, the second one is dropped, which cancels it.
        let _ = self.carrier.set(carrier);
        Ok(())
    }

    /// Waits until the server may take at least one byte, and says how many, at most `want`.
    ///
    /// # Errors
    /// The server takes no more bytes, or none in time.
    pub async fn wait_for_capacity(&self, want: usize, timeout: Duration) -> Result<usize, UpstreamFailure> {
        if let Poll::Ready(room) = self.poll_room(want, &mut Context::from_waker(Waker::noop())) {
            return room;
        }
        self.write.borrow_mut().set(timeout);
        poll_fn(|cx| match self.poll_room(want, cx) {
            Poll::Ready(room) => Poll::Ready(room),
            Poll::Pending => {
                self.write.borrow_mut().poll_elapsed(cx).map(|()| Err(UpstreamFailure::SendTimeout))
            }
        })
        .await
    }

    fn poll_room(&self, want: usize, cx: &mut Context<'_>) -> Poll<Result<usize, UpstreamFailure>> {
        let Some(carrier) = self.carrier.get() else { return Poll::Ready(Err(refused())) };
        carrier.poll_send_capacity(cx).map(|room| room.map(|room| room.min(want)).map_err(|_| refused()))
    }

    /// Sends content for which there is room.
    ///
    /// # Errors
    /// The server takes no more.
    pub fn send(&self, content: Bytes, end: StreamEnd) -> Result<(), UpstreamFailure> {
        let Some(carrier) = self.carrier.get() else { return Err(refused()) };
        carrier.send_data(content, end == StreamEnd::WithThis).map_err(|_| refused())
    }

    /// Ready when there is something to be taken.
    pub fn poll_input(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut came = self.came.borrow_mut();
        if came.is_none() {
            *came = Some(ready!(self.poll_next(cx)));
        }
        Poll::Ready(())
    }

    /// Takes what is there: content is returned, everything else is news. `None`: there is nothing.
    ///
    /// # Errors
    /// The response is malformed, or the stream or its connection ended early.
    pub fn take(&self) -> Result<Option<Bytes>, UpstreamFailure> {
        if self.poll_input(&mut Context::from_waker(Waker::noop())).is_pending() {
            return Ok(None);
        }
        match self.came.take().transpose()? {
            None => Ok(None),
            Some(Item::Content(content)) => Ok(Some(content)),
            Some(Item::StreamEvent(news)) => {
                *self.news.borrow_mut() = Some(news);
                Ok(Some(Bytes::new()))
            }
        }
    }

    /// Event taken last, if it was no content.
    pub fn take_event(&self) -> Option<StreamEvent> {
        self.news.take()
    }

    fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Result<Item, UpstreamFailure>> {
        let Some(carrier) = self.carrier.get() else { return Poll::Pending };
        loop {
            if self.response.get() == ResponseState::Over {
                return Poll::Pending;
            }
            let news = match ready!(carrier.poll_incoming(cx)) {
                Ok(Some(Incoming::Data(content))) => {
                    // The caller has room for the content, so the flow-control window is opened again at once.
                    carrier.release(content.len());
                    if content.is_empty() {
                        continue;
                    }
                    return Poll::Ready(Ok(Item::Content(content)));
                }
                Ok(Some(Incoming::Head(list))) if is_interim(&list) => StreamEvent::Interim(list),
                Ok(Some(Incoming::Head(list))) => {
                    let answered = &self.permit.0.answered;
                    answered.set(answered.get() + 1);
                    if list.ends() {
                        self.response.set(ResponseState::Over);
                    }
                    StreamEvent::Head(list)
                }
                Ok(Some(Incoming::Trailers(list))) => {
                    self.response.set(ResponseState::Over);
                    StreamEvent::End(Some(list))
                }
                // DIFF(nginx): whatever came behind the end.
                Ok(None) => {
                    self.response.set(ResponseState::Over);
                    StreamEvent::End(None)
                }
                Err(cut) => {
                    self.response.set(ResponseState::Over);
                    return Poll::Ready(Err(self.failure(cut)));
                }
            };
            return Poll::Ready(Ok(Item::StreamEvent(news)));
        }
    }

    fn closed(&self) -> UpstreamFailure {
        match self.permit.0.close_reason() {
            Some(why) => UpstreamFailure::Invalid(why.into()),
            None => UpstreamFailure::Closed,
        }
    }

    /// Failure that a reset of the stream amounts to.
    fn failure(&self, cut: StreamError) -> UpstreamFailure {
        match cut {
            // The server has not processed the request (RFC 9113 sections 6.8 and 8.7).
            StreamError::Refused(reason) => UpstreamFailure::Refused(
                format!("upstream sent goaway with error {}", u32::from(reason)).into(),
            ),
            StreamError::Reset(reason) => {
                let text = format!("upstream rejected request with error {}", u32::from(reason)).into();
                match reason {
                    ErrorCode::REFUSED_STREAM => UpstreamFailure::Refused(text),
                    _ => UpstreamFailure::Invalid(text),
                }
            }
            StreamError::Local(_, words) | StreamError::Connection(ConnectionError::Local(_, words))
                if !words.is_empty() =>
            {
                UpstreamFailure::Invalid(format!("upstream {words}").into())
            }
            StreamError::Connection(ConnectionError::Io(_, Some(errno))) => {
                UpstreamFailure::Receive(io::Error::from_raw_os_error(errno.0))
            }
            StreamError::Connection(ConnectionError::Io(io::ErrorKind::InvalidData, None)) => {
                UpstreamFailure::Invalid("upstream broke TLS".into())
            }
            StreamError::Local(..) | StreamError::Connection(_) => self.closed(),
        }
    }
}

fn is_interim(head: &FieldSection) -> bool {
    (100..200).contains(&head.status())
}

/// Counts the end of the request, and the bytes that the server may still send for one that is abandoned: as many as its window had room
/// for.
impl Drop for UpstreamStream {
    fn drop(&mut self) {
        if self.carrier.get().is_none() {
            return;
        }
        let h2_connection = &self.permit.0;
        if self.response.get() == ResponseState::Coming {
            h2_connection.unwanted.set(h2_connection.unwanted.get() + u64::from(STREAM_WINDOW));
        }
        h2_connection.count_end(self.response.get());
    }
}

/// The server takes nothing more of a request; it may have said why.
fn refused() -> UpstreamFailure {
    UpstreamFailure::Send(io::Error::from_raw_os_error(rustix::io::Errno::PIPE.raw_os_error()))
}
