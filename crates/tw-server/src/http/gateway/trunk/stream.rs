//! One request on a trunk, and its response: what there is of both, and what is wrong with it.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{Reason, RecvStream, SendStream};
use http::response::Parts;
use http::{HeaderMap, Request};
use tw_rt::Deadline;

use super::life::described;
use super::{Berth, State};
use crate::http::gateway::fault::Fault;

/// One request on a trunk. Dropped before its end, it is taken back; the trunk goes on.
pub struct Stream {
    receiving: RefCell<Receiving>,
    sending: RefCell<Option<SendStream<Bytes>>>,
    /// What came and was not taken.
    came: RefCell<Option<Result<Came, Fault>>>,
    /// What was taken and is no content, for the codec.
    news: RefCell<Option<News>>,
    write: RefCell<Deadline>,
    berth: Berth,
}

/// How far the response is.
enum Receiving {
    /// Nobody has asked for one.
    Unasked,
    Head(ResponseFuture),
    Body(RecvStream),
    Over,
}

/// Something that came.
enum Came {
    Content(Bytes),
    News(News),
}

/// What came and is no content.
pub(in crate::http::gateway) enum News {
    /// A head in front of the one that counts.
    Interim(Box<Parts>),
    /// The head, and whether anything follows.
    Head(Box<Parts>, End),
    /// The end, and the fields there.
    End(Option<HeaderMap>),
}

/// Whether a response has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::http::gateway) enum End {
    Here,
    NotYet,
}

impl Stream {
    pub(super) fn new(berth: Berth) -> Self {
        Self {
            receiving: RefCell::new(Receiving::Unasked),
            sending: RefCell::new(None),
            came: RefCell::new(None),
            news: RefCell::new(None),
            write: RefCell::new(Deadline::new()),
            berth,
        }
    }

    /// Whether its trunk is secured.
    pub(in crate::http::gateway) fn is_secured(&self) -> bool {
        self.berth.0.is_secured
    }

    /// Where it leads.
    pub(in crate::http::gateway) fn to(&self) -> &tw_net::Addr {
        &self.berth.0.to
    }

    /// Whether its trunk has served others before.
    pub(in crate::http::gateway) fn is_reused(&self) -> bool {
        self.berth.0.answered.get() > 0
    }

    /// No other requests go where this one went.
    pub(in crate::http::gateway) fn retire_trunk(&self) {
        self.berth.0.retire();
    }

    /// Asks, with a request that ends with its head or does not.
    ///
    /// # Errors
    /// The trunk takes no more requests.
    pub(in crate::http::gateway) fn ask(&self, request: Request<()>, end: End) -> Result<(), Fault> {
        let state = self.berth.0.state.borrow();
        let State::Open(requests) = &*state else { return Err(self.closed()) };
        // Each has its own, because one that waits for its number would hold up the others.
        let mut requests = requests.clone();
        drop(state);
        let asked = requests.send_request(request, end == End::Here);
        let (response, body) = asked.map_err(|error| self.fault(&error))?;
        *self.receiving.borrow_mut() = Receiving::Head(response);
        if end == End::NotYet {
            *self.sending.borrow_mut() = Some(body);
        }
        Ok(())
    }

    /// Waits until the server may take at least one byte, and says how many, at most about `want`.
    ///
    /// # Errors
    /// It takes no more, or none in time.
    pub(in crate::http::gateway) async fn room(
        &self,
        want: usize,
        timeout: Duration,
    ) -> Result<usize, Fault> {
        if let Some(stream) = &mut *self.sending.borrow_mut() {
            stream.reserve_capacity(want);
            match stream.capacity() {
                0 => {}
                room => return Ok(room),
            }
        }
        self.write.borrow_mut().set(timeout);
        poll_fn(|cx| {
            let mut sending = self.sending.borrow_mut();
            let Some(stream) = &mut *sending else { return Poll::Ready(Err(refused())) };
            match stream.poll_capacity(cx) {
                Poll::Ready(Some(Ok(room))) => Poll::Ready(Ok(room)),
                Poll::Ready(Some(Err(_)) | None) => Poll::Ready(Err(refused())),
                Poll::Pending => self.write.borrow_mut().poll_elapsed(cx).map(|()| Err(Fault::SendTimeout)),
            }
        })
        .await
    }

    /// Sends content for which there is room.
    ///
    /// # Errors
    /// The server takes no more.
    pub(in crate::http::gateway) fn send(&self, content: Bytes, end: End) -> Result<(), Fault> {
        let mut sending = self.sending.borrow_mut();
        let Some(stream) = &mut *sending else { return Err(refused()) };
        stream.send_data(content, end == End::Here).map_err(|_| refused())
    }

    /// Ready when there is something to be taken.
    pub(in crate::http::gateway) fn poll_came(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut came = self.came.borrow_mut();
        if came.is_none() {
            *came = Some(ready!(self.poll_next(cx)));
        }
        Poll::Ready(())
    }

    /// Takes what is there: content is returned, everything else is [news](Self::news). `None`: there is nothing.
    ///
    /// # Errors
    /// What is wrong with the response.
    pub(in crate::http::gateway) fn take(&self) -> Result<Option<Bytes>, Fault> {
        if self.poll_came(&mut Context::from_waker(Waker::noop())).is_pending() {
            return Ok(None);
        }
        match self.came.take().transpose()? {
            None => Ok(None),
            Some(Came::Content(content)) => Ok(Some(content)),
            Some(Came::News(news)) => {
                *self.news.borrow_mut() = Some(news);
                Ok(Some(Bytes::new()))
            }
        }
    }

    /// What was taken last, if it was no content.
    pub(in crate::http::gateway) fn news(&self) -> Option<News> {
        self.news.take()
    }

    fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Result<Came, Fault>> {
        let mut receiving = self.receiving.borrow_mut();
        let polled = ready!(self.poll_receiving(&mut receiving, cx));
        if polled.is_err() {
            *receiving = Receiving::Over;
        }
        Poll::Ready(polled.map_err(|error| self.fault(&error)))
    }

    fn poll_receiving(
        &self,
        receiving: &mut Receiving,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Came, h2::Error>> {
        let trunk = &self.berth.0;
        let count = |bytes: usize| trunk.worth.set(trunk.worth.get() + bytes as u64);
        match receiving {
            Receiving::Unasked | Receiving::Over => Poll::Pending,
            Receiving::Head(response) => {
                if let Some(interim) = ready!(response.poll_informational(cx)) {
                    let (parts, ()) = interim?.into_parts();
                    count(size_of(&parts.headers));
                    return Poll::Ready(Ok(Came::News(News::Interim(Box::new(parts)))));
                }
                let (parts, body) = ready!(Pin::new(response).poll(cx))?.into_parts();
                trunk.answered.set(trunk.answered.get() + 1);
                count(size_of(&parts.headers));
                let end = if body.is_end_stream() { End::Here } else { End::NotYet };
                *receiving = if end == End::Here { Receiving::Over } else { Receiving::Body(body) };
                Poll::Ready(Ok(Came::News(News::Head(Box::new(parts), end))))
            }
            Receiving::Body(body) => loop {
                let content = match ready!(body.poll_data(cx)) {
                    Some(Ok(content)) => content,
                    Some(Err(error)) => return Poll::Ready(Err(error)),
                    None => {
                        let trailers = ready!(body.poll_trailers(cx))?;
                        count(trailers.as_ref().map_or(0, size_of));
                        *receiving = Receiving::Over;
                        return Poll::Ready(Ok(Came::News(News::End(trailers))));
                    }
                };
                // Who is asked here has room for it. That a stream which is closed has no window matters to nobody.
                let _ = body.flow_control().release_capacity(content.len());
                if !content.is_empty() {
                    count(content.len());
                    return Poll::Ready(Ok(Came::Content(content)));
                }
            },
        }
    }

    fn closed(&self) -> Fault {
        match self.berth.0.why_closed() {
            Some(why) => Fault::Invalid(why.into()),
            None => Fault::Closed,
        }
    }

    /// What an error of the crate means.
    fn fault(&self, error: &h2::Error) -> Fault {
        let code = |reason: Option<Reason>| reason.map_or(0, u32::from);
        match error.reason() {
            // It had no look at the request (RFC 9113 sections 6.8 and 8.7).
            reason if error.is_go_away() && error.is_remote() => {
                Fault::Refused(format!("upstream sent goaway with error {}", code(reason)).into())
            }
            reason if error.is_reset() && error.is_remote() => {
                let text = format!("upstream rejected request with error {}", code(reason)).into();
                match reason {
                    Some(Reason::REFUSED_STREAM) => Fault::Refused(text),
                    _ => Fault::Invalid(text),
                }
            }
            Some(reason) if error.is_library() => Fault::Invalid(described(reason).into()),
            _ => match error.get_io() {
                Some(error) if let Some(errno) = error.raw_os_error() => {
                    Fault::Receive(io::Error::from_raw_os_error(errno))
                }
                _ => self.closed(),
            },
        }
    }
}

/// The server takes nothing more of a request; it may have said why.
fn refused() -> Fault {
    Fault::Send(io::Error::from_raw_os_error(rustix::io::Errno::PIPE.raw_os_error()))
}

/// Bytes of names and values.
pub(super) fn size_of(fields: &HeaderMap) -> usize {
    fields.iter().map(|(name, value)| name.as_str().len() + value.len()).sum()
}
