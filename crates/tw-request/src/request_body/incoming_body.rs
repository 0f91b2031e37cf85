//! Body that a client sends, whatever its protocol: taken as it arrives, within the limits of its location.
//!
//! ```text
//! take ─ all received bytes were taken ─► receive ─ nothing has arrived ─► wait: timeout, least rate
//!   ▲                                        │                              │
//!   └────────────────────────────────────────┴──────────────────────────────┘
//! ```

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;

use super::{BodyLimits, BodyProgress, Drained, InputError};
use crate::client_wait::{ClientWait, WaitLimits};
use crate::request_deadline::RequestDeadline;

/// Body of a request without its framing, as one protocol brings it. After an error, nothing follows.
pub trait BodyInput {
    /// Takes received bytes, at most `want`. A body that is larger than `max_size` bytes is an error; 0 is no limit.
    ///
    /// # Errors
    /// The body is malformed or too large.
    fn take(&mut self, want: usize, max_size: u64) -> Result<Piece, InputError>;

    /// Receives more without waiting, of which the next call [takes](Self::take) `want` bytes at most.
    ///
    /// # Errors
    /// The body is malformed, or the client is gone.
    fn receive(&mut self, want: usize) -> Result<Received, InputError>;

    /// Ready when more was received, as by [`receive`](Self::receive).
    ///
    /// # Errors
    /// Errors of [`receive`](Self::receive).
    fn poll_receive(&mut self, want: usize, cx: &mut Context<'_>) -> Poll<Result<(), InputError>>;

    /// Begins a wait for the client: tells a client that has to know it that the body is wanted.
    fn begin_wait(&mut self, timeout: Duration);

    /// Ready when the timeout of the wait is over.
    fn poll_timeout(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// Charges received bytes to the turn of the loop. Returns false if other tasks have to run before more is done.
    fn charge_turn(&self) -> bool {
        true
    }

    /// Bytes of the body that were taken.
    fn received(&self) -> u64;

    /// Bytes received, with the framing of a chunked body.
    fn wire(&self) -> u64 {
        self.received()
    }

    /// Bytes received, taken or not, by which the rate of the client is measured.
    fn arrived(&self) -> u64;

    /// Bytes of the body known so far: those received and those announced.
    fn announced(&self) -> u64;

    /// Returns true if a part was not taken and may still be.
    fn is_pending(&self) -> bool;

    /// Returns true if the next request follows behind the body, which has to be read to its end before.
    fn precedes_next_request(&self) -> bool {
        false
    }

    /// Returns true if the end of the body is unknown.
    fn is_broken(&self) -> bool {
        false
    }

    /// Returns true if the client awaits `100 Continue` and may not send the body: the begin of its next request is unknown.
    fn may_not_come(&self) -> bool {
        false
    }

    /// Discards received bytes of a body that precedes the next request.
    ///
    /// # Errors
    /// The body is malformed.
    fn discard(&mut self) -> Result<(), InputError> {
        Ok(())
    }

    /// Discards the body from now on: `100 Continue` is not sent for it any more.
    fn decline(&mut self) {}

    /// Takes the bytes behind the body.
    fn take_rest(&mut self) -> Vec<u8> {
        Vec::new()
    }
}

/// Piece of a body that needs no wait.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece {
    /// Bytes of the body.
    Data(Bytes),
    /// All bytes received were taken.
    NeedMore,
    /// The body is complete.
    End,
}

/// Result of receiving without waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received {
    /// Something has arrived.
    Some,
    /// Nothing has arrived.
    Nothing,
}

/// Body that a client sends, as far as it was not taken yet.
pub struct IncomingBody<I: ?Sized = dyn BodyInput> {
    /// Takes over the number of received bytes after each piece.
    progress: Option<BodyProgress>,
    /// Learns when the body waits for the client.
    deadline: Option<Rc<RequestDeadline>>,
    waits: ClientWait,
    input: I,
}

/// Number of times that bytes are received for a piece at hand: the first ones may be framing only.
const RECEIVES_AT_HAND: usize = 2;

impl<I: BodyInput> IncomingBody<I> {
    /// Body of which nothing was taken.
    pub fn new(input: I) -> Box<Self> {
        Box::new(Self { progress: None, deadline: None, waits: ClientWait::default(), input })
    }
}

impl<I: BodyInput + ?Sized> IncomingBody<I> {
    /// Body as its protocol brings it.
    pub(super) fn input(&self) -> &I {
        &self.input
    }

    /// Body as its protocol brings it.
    pub fn input_mut(&mut self) -> &mut I {
        &mut self.input
    }

    /// Takes the bytes behind the body.
    pub fn take_rest(&mut self) -> Vec<u8> {
        self.input.take_rest()
    }

    /// Notes the bytes that are taken from now on in `progress`, too.
    pub(super) fn note_progress(&mut self, progress: BodyProgress) {
        progress.set(self.input.received());
        self.progress = Some(progress);
    }

    /// Notes in `deadline` from now on whether the body waits for the client.
    pub(super) fn note_waits(&mut self, deadline: Rc<RequestDeadline>) {
        self.deadline = Some(deadline);
    }

    /// Waits for the next bytes of the body within `limits`, and takes at most `want` of them; `None` at the end.
    pub(super) async fn next(
        &mut self,
        want: usize,
        limits: BodyLimits,
    ) -> Result<Option<Bytes>, InputError> {
        loop {
            match self.take(want, limits)? {
                Piece::Data(data) => return Ok(Some(data)),
                Piece::End => return Ok(None),
                Piece::NeedMore => self.receive(want, limits.wait()).await?,
            }
            // A client that sends faster than it is read does not keep the loop.
            if !self.input.charge_turn() {
                tw_rt::yield_now().await;
            }
        }
    }

    /// Returns the next piece without waiting, else `None`.
    pub fn at_hand(&mut self, want: usize, limits: BodyLimits) -> Option<Result<Option<Bytes>, InputError>> {
        let mut receives = 0;
        loop {
            match self.take(want, limits) {
                Ok(Piece::Data(data)) => return Some(Ok(Some(data))),
                Ok(Piece::End) => return Some(Ok(None)),
                Ok(Piece::NeedMore) if receives == RECEIVES_AT_HAND => return None,
                Ok(Piece::NeedMore) => receives += 1,
                Err(error) => return Some(Err(error)),
            }
            match self.input.receive(want) {
                Ok(Received::Some) => {}
                Ok(Received::Nothing) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// Discards received bytes of a body that precedes the next request.
    pub(super) fn discard(&mut self) -> Result<(), InputError> {
        let discarded = self.input.discard();
        self.report_progress();
        discarded
    }

    /// Reads and ignores the rest of the body: for `time` in all, at most `timeout` between two reads.
    pub(super) async fn drain(&mut self, time: Duration, timeout: Duration) -> Drained {
        if !self.input.precedes_next_request() {
            return Drained::No;
        }
        let until = tw_rt::clock::now() + time;
        self.input.decline();
        loop {
            match self.discard() {
                Ok(()) if !self.input.is_pending() => return Drained::Yes,
                Ok(()) => {}
                Err(_) => return Drained::No,
            }
            let remaining = until.saturating_duration_since(tw_rt::clock::now()).min(timeout);
            let limits = WaitLimits { timeout: remaining, min_rate: None };
            if remaining.is_zero() || self.receive(usize::MAX, limits).await.is_err() {
                return Drained::No;
            }
            tw_rt::yield_now().await;
        }
    }

    fn take(&mut self, want: usize, limits: BodyLimits) -> Result<Piece, InputError> {
        let piece = self.input.take(want.max(1), limits.max_size);
        self.report_progress();
        piece
    }

    /// Receives more, for which it waits within `limits`.
    async fn receive(&mut self, want: usize, limits: WaitLimits) -> Result<(), InputError> {
        let Self { deadline, waits, input, .. } = self;
        if input.receive(want)? == Received::Some {
            return Ok(());
        }
        let waiting = waits.begin(limits, input.arrived())?;
        input.begin_wait(waiting.timeout());
        let note_wait = |waits| {
            if let Some(deadline) = deadline.as_deref() {
                deadline.set_awaits_body(waits);
            }
        };
        // If this future is dropped, the deadline of the request has passed during the wait, or nobody needs the note.
        note_wait(true);
        let received = poll_fn(|cx| match input.poll_receive(want, cx) {
            Poll::Ready(received) => Poll::Ready(received),
            Poll::Pending => input.poll_timeout(cx).map(|()| Err(waiting.end().into())),
        })
        .await;
        note_wait(false);
        received
    }

    fn report_progress(&self) {
        if let Some(progress) = &self.progress {
            progress.set(self.input.received());
        }
    }
}

#[cfg(test)]
mod tests;
