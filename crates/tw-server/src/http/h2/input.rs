//! The body of a request as a stream of HTTP/2 brings it. What is taken may be sent anew: the window of the stream bounds what
//! waits here.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use ::h2::RecvStream;
use bytes::Bytes;
use http::{Response, StatusCode};
use tw_rt::Deadline;

use super::Exchange;
use crate::http::request_body::{InputError, Terms};

/// The body of a request, as far as it was not taken yet.
pub struct Input {
    exchange: Rc<Exchange>,
    stream: RecvStream,
    /// What came and was not taken.
    came: Bytes,
    /// What the head announces.
    length: Option<u64>,
    stage: Stage,
    hundred: Hundred,
    received: u64,
    /// Until when the client may pause.
    deadline: Deadline,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Coming,
    Over,
}

/// Whether the client was told to send the body.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hundred {
    Awaited,
    Settled,
}

impl Input {
    /// The body that follows a head, which announces so many bytes, or how many only its end will tell.
    pub(super) fn new(
        exchange: &Rc<Exchange>,
        stream: RecvStream,
        length: Option<u64>,
        is_awaited: bool,
    ) -> Self {
        Self {
            exchange: exchange.clone(),
            stream,
            came: Bytes::new(),
            length,
            stage: Stage::Coming,
            hundred: if is_awaited { Hundred::Awaited } else { Hundred::Settled },
            received: 0,
            deadline: Deadline::new(),
        }
    }

    /// Bytes of the body that were taken.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// Bytes of the body as far as they are known.
    pub(crate) fn announced(&self) -> u64 {
        self.length.unwrap_or(0).max(self.received + self.came.len() as u64)
    }

    /// Whether something of it was not taken and may still be.
    pub(crate) fn is_pending(&self) -> bool {
        self.stage == Stage::Coming
    }

    /// Waits for the next bytes of the body as long as `terms` grant, and takes at most `want` of them; `None` at the end.
    pub(crate) async fn next(&mut self, want: usize, terms: Terms) -> Result<Option<Bytes>, InputError> {
        if let Poll::Ready(next) = self.poll_next(want, terms, &mut Context::from_waker(Waker::noop())) {
            return next;
        }
        self.invite();
        self.deadline.set(terms.timeout);
        poll_fn(|cx| match self.poll_next(want, terms, cx) {
            Poll::Ready(next) => Poll::Ready(next),
            Poll::Pending => self.deadline.poll_elapsed(cx).map(|()| Err(InputError::Timeout)),
        })
        .await
    }

    /// The same if nobody has to be waited for; else `None`.
    pub(crate) fn at_hand(&mut self, want: usize, terms: Terms) -> Option<Result<Option<Bytes>, InputError>> {
        match self.poll_next(want, terms, &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(next) => Some(next),
            Poll::Pending => None,
        }
    }

    fn poll_next(
        &mut self,
        want: usize,
        terms: Terms,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, InputError>> {
        while self.came.is_empty() {
            if self.stage == Stage::Over {
                return Poll::Ready(Ok(None));
            }
            match self.stream.poll_data(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(bytes))) => {
                    // What is taken may be sent anew. That a stream which is closed has no window matters to nobody.
                    let _ = self.stream.flow_control().release_capacity(bytes.len());
                    self.exchange.conn.count_worth(bytes.len());
                    self.came = bytes;
                }
                Poll::Ready(Some(Err(error))) => {
                    self.stage = Stage::Over;
                    let is_ours = error.is_library() && error.is_reset();
                    return Poll::Ready(Err(if is_ours { InputError::Failed } else { InputError::Closed }));
                }
                Poll::Ready(None) => {
                    self.stage = Stage::Over;
                    return Poll::Ready(Ok(None));
                }
            }
        }
        let received = self.received;
        if terms.max_size > 0 && self.announced() > terms.max_size {
            return Poll::Ready(Err(InputError::TooLarge { received, coming: self.announced() - received }));
        }
        let piece = self.came.split_to(want.max(1).min(self.came.len()));
        self.received += piece.len() as u64;
        if self.came.is_empty() && self.stream.is_end_stream() {
            // Who has all of it need not ask for the end.
            self.stage = Stage::Over;
        }
        Poll::Ready(Ok(Some(piece)))
    }

    // DIFF(nginx): who waits for a word gets one in HTTP/2, too.
    /// Says that the body is wanted (RFC 9110 10.1.1), if the client waits for that.
    fn invite(&mut self) {
        if std::mem::replace(&mut self.hundred, Hundred::Settled) == Hundred::Awaited {
            let mut interim = Response::new(());
            *interim.status_mut() = StatusCode::CONTINUE;
            self.exchange.inform(interim);
        }
    }
}
