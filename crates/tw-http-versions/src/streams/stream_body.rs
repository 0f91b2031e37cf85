//! The body of a request as a stream brings it. What is taken may be sent anew: the window of the stream bounds what waits here.

use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use tw_rt::Deadline;

use super::{BodyPart, RequestStream};
use tw_request::request_body::{BodyInput, InputError, Piece, Received};

/// RFC 9110 section 15.2.1.
const CONTINUE: u16 = 100;

/// The body of a request, as far as it was not taken yet.
pub(super) struct StreamBody<S> {
    stream: Rc<S>,
    /// Bytes received and not taken.
    came: Bytes,
    /// Length announced in the head.
    length: Option<u64>,
    stage: Stage,
    expects: Expects,
    received: u64,
    /// Until when the client may pause.
    deadline: Deadline,
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

impl<S: RequestStream> StreamBody<S> {
    /// The body that follows a head, which announces so many bytes, or how many only its end will tell.
    pub(super) fn new(stream: Rc<S>, length: Option<u64>, expects: Expects) -> Self {
        let is_over = length.is_none_or(|length| length == 0) && stream.has_ended();
        Self {
            stream,
            came: Bytes::new(),
            length,
            stage: if is_over { Stage::Over } else { Stage::Unwanted },
            expects,
            received: 0,
            deadline: Deadline::new(),
        }
    }

    /// Receives the next bytes. Ready also at the end of the body.
    fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), InputError>> {
        while self.came.is_empty() && self.stage != Stage::Over {
            let part = ready!(self.stream.poll_part(cx));
            match self.check(part) {
                Ok(Some(bytes)) => self.came = bytes,
                Ok(None) => self.stage = Stage::Over,
                Err(error) => {
                    self.stage = Stage::Over;
                    return Poll::Ready(Err(error));
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Returns true if the next piece is the last one that was announced.
    fn ends_with(&self, want: usize) -> bool {
        self.came.len() <= want.max(1) && self.length == Some(self.arrived())
    }

    /// Returns true if nothing follows the bytes that were received.
    fn is_end_known(&self) -> bool {
        self.stage == Stage::Over || self.stream.has_ended()
    }

    /// Waits for the end of a body of which all announced bytes were received: trailers may still make it malformed.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), InputError>> {
        while !self.is_end_known() {
            let part = ready!(self.stream.poll_part(cx));
            let checked = match part {
                Ok(Some(BodyPart::Data(bytes))) if !bytes.is_empty() => Err(InputError::TooLong),
                part => self.check(part),
            };
            match checked {
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
    fn check(&self, part: Result<Option<BodyPart>, InputError>) -> Result<Option<Bytes>, InputError> {
        match part? {
            Some(BodyPart::Data(bytes)) => {
                self.stream.release(bytes.len());
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
}

impl<S: RequestStream> BodyInput for StreamBody<S> {
    fn take(&mut self, want: usize, max_size: u64) -> Result<Piece, InputError> {
        if self.came.is_empty() {
            return Ok(if self.stage == Stage::Over { Piece::End } else { Piece::NeedMore });
        }
        if max_size > 0 && self.announced() > max_size {
            let coming = self.announced() - self.received;
            return Err(InputError::TooLarge { received: self.received, coming });
        }
        if self.ends_with(want) && !self.is_end_known() {
            return Ok(Piece::NeedMore);
        }
        let piece = self.came.split_to(want.max(1).min(self.came.len()));
        self.received += piece.len() as u64;
        let is_whole = self.length.is_none_or(|length| self.arrived() == length);
        if self.came.is_empty() && is_whole && self.stream.has_ended() {
            // The body is complete, and its end is known.
            self.stage = Stage::Over;
        }
        Ok(Piece::Data(piece))
    }

    fn receive(&mut self, want: usize) -> Result<Received, InputError> {
        match self.poll_receive(want, &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(received) => received.map(|()| Received::Some),
            Poll::Pending => Ok(Received::Nothing),
        }
    }

    fn poll_receive(&mut self, want: usize, cx: &mut Context<'_>) -> Poll<Result<(), InputError>> {
        if self.came.is_empty() {
            return self.poll_bytes(cx);
        }
        if self.ends_with(want) { self.poll_end(cx) } else { Poll::Ready(Ok(())) }
    }

    // DIFF(nginx): a client that expects `100 Continue` gets it in HTTP/2 and HTTP/3, too.
    /// Invites the client to send the body: by `100 Continue` (RFC 9110 section 10.1.1) if it expects that, and by a window that has room.
    fn begin_wait(&mut self, timeout: Duration) {
        if self.stage == Stage::Unwanted {
            self.stage = Stage::Coming;
            self.stream.widen();
        }
        if std::mem::replace(&mut self.expects, Expects::Nothing) == Expects::Continue {
            self.stream.send_interim_head(|fields| fields.status(CONTINUE));
        }
        self.deadline.set(timeout);
    }

    fn poll_timeout(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.deadline.poll_elapsed(cx)
    }

    fn received(&self) -> u64 {
        self.received
    }

    fn arrived(&self) -> u64 {
        self.received + self.came.len() as u64
    }

    fn announced(&self) -> u64 {
        self.length.unwrap_or(0).max(self.arrived())
    }

    fn is_pending(&self) -> bool {
        self.stage != Stage::Over
    }
}
