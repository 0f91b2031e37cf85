//! The body of a request as a stream of HTTP/2 or HTTP/3 brings it. What is taken may be sent anew: the window of the stream bounds
//! what waits here.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use tw_fields::FieldWriter;
use tw_rt::Deadline;

use super::{BodyPart, RequestStream};
use crate::http::client_wait::ClientWait;
use crate::http::h2::Http2Stream;
use crate::http::h3::Http3Stream;
use crate::http::request_body::{BodyLimits, BodyProgress, InputError};
use crate::http::request_deadline::RequestDeadline;

/// RFC 9110 section 15.2.1.
const CONTINUE: u16 = 100;

/// Stream that brings a body.
#[derive(Clone)]
pub(crate) enum BodyStream {
    /// Stream of HTTP/2.
    H2(Rc<Http2Stream>),
    /// Stream of HTTP/3.
    H3(Rc<Http3Stream>),
}

impl From<Rc<Http2Stream>> for BodyStream {
    fn from(stream: Rc<Http2Stream>) -> Self {
        Self::H2(stream)
    }
}

impl From<Rc<Http3Stream>> for BodyStream {
    fn from(stream: Rc<Http3Stream>) -> Self {
        Self::H3(stream)
    }
}

impl BodyStream {
    /// Returns the next part; `None` at the end.
    fn poll_part(&self, cx: &mut Context<'_>) -> Poll<Result<Option<BodyPart>, InputError>> {
        match self {
            Self::H2(stream) => stream.poll_part(cx),
            Self::H3(stream) => stream.poll_part(cx),
        }
    }

    /// Returns true if the client has ended its side and everything was taken.
    fn has_ended(&self) -> bool {
        match self {
            Self::H2(stream) => stream.has_ended(),
            Self::H3(stream) => stream.has_ended(),
        }
    }

    /// Notes that bytes were taken: the client may send as many anew.
    fn taken(&self, bytes: usize) {
        match self {
            Self::H2(stream) => stream.release(bytes),
            // The transport counts them itself.
            Self::H3(_) => {}
        }
    }

    /// Lets the client send more ahead, because the body is wanted.
    fn widen(&self) {
        match self {
            Self::H2(stream) => stream.widen(),
            // The window of a stream of HTTP/3 always has the configured size of the buffer.
            Self::H3(_) => {}
        }
    }

    /// Sends a head before the response (1xx).
    fn inform(&self, write: impl FnOnce(&mut FieldWriter<'_>)) {
        match self {
            Self::H2(stream) => stream.inform(write),
            Self::H3(stream) => stream.inform(write),
        }
    }
}

/// The body of a request, as far as it was not taken yet.
pub struct StreamBody {
    stream: BodyStream,
    /// Bytes received and not taken.
    came: Bytes,
    /// Length announced in the head.
    length: Option<u64>,
    stage: Stage,
    expects: Expects,
    received: u64,
    /// Takes over `received` after each piece.
    progress: Option<BodyProgress>,
    /// Until when the client may pause.
    deadline: Deadline,
    waits: ClientWait,
    /// Learns when the body waits for the client.
    request_deadline: Option<Rc<RequestDeadline>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The body has not been waited for.
    Unwanted,
    Coming,
    Over,
}

/// Condition for which the client waits before it sends the body.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Expects {
    /// A `100 Continue`.
    Continue,
    Nothing,
}

impl StreamBody {
    /// The body that follows a head, which announces so many bytes, or how many only its end will tell.
    pub(super) fn new(stream: BodyStream, length: Option<u64>, expects: Expects) -> Self {
        let is_over = length.is_none_or(|length| length == 0) && stream.has_ended();
        Self {
            stream,
            came: Bytes::new(),
            length,
            stage: if is_over { Stage::Over } else { Stage::Unwanted },
            expects,
            received: 0,
            progress: None,
            deadline: Deadline::new(),
            waits: ClientWait::default(),
            request_deadline: None,
        }
    }

    /// Bytes of the body that were taken.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// Notes the bytes that are taken from now on in `progress`, too.
    pub(crate) fn note_progress(&mut self, progress: BodyProgress) {
        progress.set(self.received);
        self.progress = Some(progress);
    }

    /// Notes in `deadline` from now on whether the body waits for the client.
    pub(crate) fn note_waits(&mut self, deadline: Rc<RequestDeadline>) {
        self.request_deadline = Some(deadline);
    }

    fn note_wait(&self, waits: bool) {
        if let Some(deadline) = &self.request_deadline {
            deadline.set_awaits_body(waits);
        }
    }

    /// Bytes of the body that have arrived.
    fn arrived(&self) -> u64 {
        self.received + self.came.len() as u64
    }

    /// Bytes of the body as far as they are known.
    pub(crate) fn announced(&self) -> u64 {
        self.length.unwrap_or(0).max(self.arrived())
    }

    /// Returns true if a part was not taken and may still be.
    pub(crate) fn is_pending(&self) -> bool {
        self.stage != Stage::Over
    }

    /// Waits for the next bytes of the body as long as `terms` grant, and takes at most `want` of them; `None` at the end.
    pub(crate) async fn next(&mut self, want: usize, terms: BodyLimits) -> Result<Option<Bytes>, InputError> {
        if let Poll::Ready(next) = self.poll_next(want, terms, &mut Context::from_waker(Waker::noop())) {
            return next;
        }
        self.invite();
        let waiting = self.waits.begin(terms.wait(), self.arrived())?;
        self.deadline.set(waiting.timeout());
        self.note_wait(true);
        let next = poll_fn(|cx| match self.poll_next(want, terms, cx) {
            Poll::Ready(next) => Poll::Ready(next),
            Poll::Pending => self.deadline.poll_elapsed(cx).map(|()| Err(waiting.end().into())),
        })
        .await;
        self.note_wait(false);
        next
    }

    /// Returns the next piece without waiting, else `None`.
    pub(crate) fn at_hand(
        &mut self,
        want: usize,
        terms: BodyLimits,
    ) -> Option<Result<Option<Bytes>, InputError>> {
        match self.poll_next(want, terms, &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(next) => Some(next),
            Poll::Pending => None,
        }
    }

    fn poll_next(
        &mut self,
        want: usize,
        terms: BodyLimits,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, InputError>> {
        while self.came.is_empty() {
            if self.stage == Stage::Over {
                return Poll::Ready(Ok(None));
            }
            let Poll::Ready(came) = self.stream.poll_part(cx) else { return Poll::Pending };
            match self.take(came) {
                Ok(Some(bytes)) => self.came = bytes,
                Ok(None) => self.stage = Stage::Over,
                Err(error) => {
                    self.stage = Stage::Over;
                    return Poll::Ready(Err(error));
                }
            }
        }
        let received = self.received;
        if terms.max_size > 0 && self.announced() > terms.max_size {
            return Poll::Ready(Err(InputError::TooLarge { received, coming: self.announced() - received }));
        }
        if self.ends_with(want) {
            ready!(self.poll_end(cx))?;
        }
        let piece = self.came.split_to(want.max(1).min(self.came.len()));
        self.received += piece.len() as u64;
        if let Some(progress) = &self.progress {
            progress.set(self.received);
        }
        let is_whole = self.length.is_none_or(|length| self.arrived() == length);
        if self.came.is_empty() && is_whole && self.stream.has_ended() {
            // The body is complete, and its end is known.
            self.stage = Stage::Over;
        }
        Poll::Ready(Ok(Some(piece)))
    }

    /// Returns true if the next piece is the last one that was announced.
    fn ends_with(&self, want: usize) -> bool {
        self.came.len() <= want.max(1) && self.length == Some(self.arrived())
    }

    /// Waits for the end of a body of which all announced bytes were received: trailers may still make it malformed.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), InputError>> {
        while self.stage != Stage::Over && !self.stream.has_ended() {
            let came = ready!(self.stream.poll_part(cx));
            let taken = match came {
                Ok(Some(BodyPart::Data(bytes))) if !bytes.is_empty() => Err(InputError::TooLong),
                came => self.take(came),
            };
            match taken {
                Ok(Some(_)) => {}
                Ok(None) => self.stage = Stage::Over,
                Err(error) => {
                    (self.stage, self.came) = (Stage::Over, Bytes::new());
                    return Poll::Ready(Err(error));
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Checks received bytes against the length of the body; `None` at the end.
    fn take(&self, came: Result<Option<BodyPart>, InputError>) -> Result<Option<Bytes>, InputError> {
        match came? {
            Some(BodyPart::Data(bytes)) => {
                self.stream.taken(bytes.len());
                let arrived = self.received + bytes.len() as u64;
                match self.length {
                    Some(length) if arrived > length => Err(InputError::TooLong),
                    _ => Ok(Some(bytes)),
                }
            }
            // Trailers are not used, but they may be malformed.
            Some(BodyPart::Trailers(Some(failure))) => Err(InputError::Trailers(failure)),
            Some(BodyPart::Trailers(None) | BodyPart::Other) => Ok(Some(Bytes::new())),
            None => match self.length {
                Some(length) if self.arrived() < length => {
                    Err(InputError::TooShort { received: self.received, length })
                }
                _ => Ok(None),
            },
        }
    }

    // DIFF(nginx): a client that expects `100 Continue` gets it in HTTP/2 and HTTP/3, too.
    /// Invites the client to send the body: by `100 Continue` (RFC 9110 section 10.1.1) if it expects that, and by a window that has room.
    fn invite(&mut self) {
        if self.stage == Stage::Unwanted {
            self.stage = Stage::Coming;
            self.stream.widen();
        }
        if std::mem::replace(&mut self.expects, Expects::Nothing) == Expects::Continue {
            self.stream.inform(|fields| fields.status(CONTINUE));
        }
    }
}
