//! Source of a fill's body: the exchange that began it, or a range request that continues where that stalled or broke off.
//!
//! ```text
//! first exchange ─► stalls, or breaks off ─► Wanted ─► Asked: range request of a follower ─► it delivers
//!                          ▲                                          │ refused, or it fails
//!                          └── the first one continues, if it can ◄───┘     otherwise the fill is broken
//! ```
//! A continuation is requested once for all followers, by the first of them that has nothing left to send; its bytes reach
//! all of them through the fill and the writer's file.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tw_cache::policy::{self, MissingRange, Resumption};
use tw_http::Fields;

use super::{BodyEnd, ExchangeReport, Fill, FillHead, FillRefusal, FillStage, FillState};

tw_base::limits! {
    /// Limits of continued fills.
    pub(crate) const LIMITS;

    /// Bytes a second with which a response on its way into a cache makes progress.
    ///
    /// Far below what a response that anybody waits for has, and far above what only keeps a connection from timing out.
    const PROGRESS_RATE: u64 = 1 << 10, bytes,
        "after `proxy_cache_lock_age` it counts as stalled, and another request may ask for it";
    /// Range requests by which one response on its way into a cache is continued when it stalls or breaks off.
    const CONTINUATIONS_MAX: u32 = 4, count, "its clients get what came, and nothing is stored";
}

/// Source of a fill's body.
pub(super) struct Supply {
    /// Number of the exchange whose bytes count; 0 is the one that began the fill.
    current: u32,
    /// True if that exchange may deliver more.
    is_alive: bool,
    next: NextSource,
    /// Number of continuations requested.
    continuations: u32,
    /// Bytes delivered by all exchanges, including those that the fill had already.
    delivered: u64,
    /// Time of the last progress, and the number of bytes delivered by then.
    mark: (Instant, u64),
    /// Lowest rate that is progress, bytes a second.
    rate: u64,
    /// True while reading is paused because the disk or the clients are behind.
    is_resting: bool,
}

/// State of a fill's continuation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NextSource {
    /// No continuation is needed.
    None,
    /// The first follower without bytes to send requests it.
    Wanted,
    /// The continuation with this number is requested.
    Requested(u32),
}

impl Supply {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            current: 0,
            is_alive: true,
            next: NextSource::None,
            continuations: 0,
            delivered: 0,
            mark: (now, 0),
            rate: PROGRESS_RATE,
            is_resting: false,
        }
    }

    fn delivers(&mut self, now: Instant, len: usize) {
        self.delivered += len as u64;
        let span = now.saturating_duration_since(self.mark.0).as_secs_f64();
        // Neither number is near the limits of the type.
        if (self.delivered - self.mark.1) as f64 >= self.rate as f64 * span {
            self.mark = (now, self.delivered);
        }
    }
}

/// Permit to continue a fill by a range request. Dropping it leaves the fill to the exchange that still delivers, or breaks it
/// off.
#[must_use = "dropping it gives the continuation up"]
pub(crate) struct Continuation {
    fill: Arc<Fill>,
    number: u32,
    /// First byte of the requested range.
    pub(crate) from: u64,
    /// Value of `If-Range`.
    pub(crate) validator: Bytes,
    is_taken: bool,
}

impl Continuation {
    /// Accepts the response with this head: it delivers the fill from now on. Returns `None` if it is of another representation
    /// or range, or is not needed any more.
    pub(crate) fn accept(mut self, status: u16, fields: &Fields) -> Option<Delivery> {
        let mut state = self.fill.state.lock();
        let FillStage::Begun(begun) = &state.stage else { return None };
        let missing = MissingRange { from: self.from, length: begun.len };
        let Resumption { begins_at, length } =
            policy::continues(&begun.meta.fields, missing, status, fields)?;
        if state.end.is_some() || state.supply.next != NextSource::Requested(self.number) {
            return None;
        }
        let supply = &mut state.supply;
        (supply.current, supply.is_alive, supply.next) = (self.number, true, NextSource::None);
        // The previous exchange may have delivered more meanwhile.
        let skip = state.received - begins_at;
        let wakers = state.take_wakers();
        drop(state);
        wakers.into_iter().for_each(std::task::Waker::wake);
        self.is_taken = true;
        Some(Delivery { fill: self.fill.clone(), number: self.number, skip, length, is_over: false })
    }
}

impl Drop for Continuation {
    fn drop(&mut self) {
        if !self.is_taken {
            self.fill.change(|state| state.give_next_up(self.number));
        }
    }
}

/// Permit to deliver the body of a fill. Dropping it before the end counts as a failure.
pub(crate) struct Delivery {
    fill: Arc<Fill>,
    number: u32,
    /// Bytes to skip: the fill has them already.
    skip: u64,
    /// Length of the whole body, if known.
    length: Option<u64>,
    is_over: bool,
}

impl Delivery {
    /// Delivery by the exchange that began `fill`.
    pub(crate) fn first(fill: &Arc<Fill>) -> Self {
        Self { fill: fill.clone(), number: 0, skip: 0, length: None, is_over: false }
    }

    /// Fill that is delivered.
    pub(crate) fn fill(&self) -> &Arc<Fill> {
        &self.fill
    }

    /// Adds a piece of the body.
    pub(crate) fn push(&mut self, mut piece: Bytes) {
        let len = piece.len();
        let skipped = self.skip.min(len as u64);
        self.skip -= skipped;
        let now = tw_rt::clock::now();
        // No piece is longer than memory.
        let piece = piece.split_off(skipped as usize);
        self.fill.change(|state| {
            if state.supply.current != self.number || state.end.is_some() {
                return;
            }
            state.supply.delivers(now, len);
            if !piece.is_empty() {
                state.received += piece.len() as u64;
                state.pieces.push_back(piece);
            }
        });
    }

    /// Returns true if another exchange delivers now. The task is woken when that changes.
    pub(crate) fn is_superseded(&self, cx: &mut Context<'_>) -> bool {
        let mut state = self.fill.state.lock();
        if state.supply.current != self.number {
            return true;
        }
        if state.supply.next != NextSource::None {
            state.wait(cx);
        }
        false
    }

    /// Ends the delivery. If the body broke off, a continuation is requested where that is possible.
    pub(crate) fn end(mut self, body_end: BodyEnd, report: Option<ExchangeReport>) -> DeliveryEnd {
        self.is_over = true;
        let (number, length) = (self.number, self.length);
        let mut finish = DeliveryEnd::Superseded;
        self.fill.change(|state| {
            state.report = state.report.or(report);
            if state.supply.current != number || state.end.is_some() {
                return;
            }
            let is_whole = body_end == BodyEnd::Whole && length.is_none_or(|length| length == state.received);
            finish = if is_whole {
                state.end = Some(BodyEnd::Whole);
                DeliveryEnd::Whole
            } else {
                state.lose()
            };
        });
        finish
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if !self.is_over {
            self.fill.change(|state| {
                if state.supply.current == self.number && state.end.is_none() {
                    let _ = state.lose();
                }
            });
        }
    }
}

/// Outcome of one delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeliveryEnd {
    /// The body is complete.
    Whole,
    /// The body broke off, and a continuation is requested.
    Continued,
    /// The body broke off for good.
    Broken,
    /// Another exchange delivers the body.
    Superseded,
}

impl FillState {
    /// Requests a continuation, if there is a follower to send it and a validator.
    fn want_next(&mut self) -> bool {
        if self.supply.next != NextSource::None {
            return true;
        }
        let FillStage::Begun(begun) = &self.stage else { return false };
        let has_followers = self.followers.iter().any(Option::is_some);
        let may = self.end.is_none()
            && self.supply.continuations < CONTINUATIONS_MAX
            && has_followers
            && policy::strong_validator(begun.meta.status, &begun.meta.fields).is_some();
        if may {
            self.supply.next = NextSource::Wanted;
        }
        may
    }

    /// Handles the loss of the delivering exchange.
    fn lose(&mut self) -> DeliveryEnd {
        self.supply.is_alive = false;
        if self.want_next() {
            return DeliveryEnd::Continued;
        }
        self.end = Some(BodyEnd::Broken);
        DeliveryEnd::Broken
    }

    /// Cancels the continuation with this number.
    fn give_next_up(&mut self, number: u32) {
        if self.supply.next == NextSource::Requested(number) {
            self.no_next();
        }
    }

    fn no_next(&mut self) {
        self.supply.next = NextSource::None;
        if !self.supply.is_alive {
            self.end.get_or_insert(BodyEnd::Broken);
        }
    }

    /// Cancels the wanted continuation if the last follower has left.
    pub(super) fn lost_follower(&mut self) {
        if self.supply.next == NextSource::Wanted && self.followers.iter().all(Option::is_none) {
            self.no_next();
        }
    }

    pub(super) fn progressed(&mut self, now: Instant) {
        self.supply.mark = (now, self.supply.delivered);
    }

    pub(super) fn rests(&mut self, is_resting: bool) {
        if std::mem::replace(&mut self.supply.is_resting, is_resting) && !is_resting {
            self.progressed(tw_rt::clock::now());
        }
    }

    fn stalls_at(&self, age: Duration) -> Option<Instant> {
        let may_stall = self.end.is_none() && !self.supply.is_resting;
        may_stall.then(|| self.supply.mark.0 + age)
    }

    /// Takes the permit for the wanted continuation, for a follower without bytes to send.
    pub(super) fn take_next(&mut self, fill: &Arc<Fill>) -> Option<Continuation> {
        if self.supply.next != NextSource::Wanted {
            return None;
        }
        let FillStage::Begun(begun) = &self.stage else { return None };
        let validator = policy::strong_validator(begun.meta.status, &begun.meta.fields)?;
        self.supply.continuations += 1;
        let (number, from) = (self.supply.continuations, self.received);
        self.supply.next = NextSource::Requested(number);
        // It gets its time before another request fetches the whole response.
        self.progressed(tw_rt::clock::now());
        Some(Continuation { fill: fill.clone(), number, from, validator, is_taken: false })
    }
}

impl Fill {
    /// Returns the time at which the fill stalls if there is no progress for `age`. `None` if it cannot stall.
    pub(crate) fn stalls_at(&self, age: Duration) -> Option<Instant> {
        self.state.lock().stalls_at(age)
    }

    /// Returns true if the fill has made no progress for `age`: no further request waits for it.
    pub(crate) fn is_stalled(&self, now: Instant, age: Duration) -> bool {
        self.stalls_at(age).is_some_and(|at| at <= now)
    }

    /// Counts the location's rate limit as progress, however low it is.
    pub(crate) fn expect_rate(&self, rate: u64) {
        let mut state = self.state.lock();
        state.supply.rate = PROGRESS_RATE.min(rate / 2);
    }

    /// Notes that the fill has stalled: a continuation is requested if several requests wait for it.
    pub(crate) fn stalled(&self) {
        self.change(|state| {
            if state.is_shared {
                state.want_next();
            }
        });
    }

    /// Waits until `pending` bytes are not in the file yet, or the fill has ended.
    pub(crate) fn poll_pending(&self, pending: u64, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state.lock();
        if state.end.is_some() || state.received - state.written_len >= pending {
            return Poll::Ready(());
        }
        state.wait(cx);
        Poll::Pending
    }

    /// Waits for the head and the first byte of the response, or its end. With `is_head` the head is enough.
    pub(super) fn poll_begun(
        &self,
        is_head: bool,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Arc<FillHead>, FillRefusal>> {
        let mut state = self.state.lock();
        match &state.stage {
            FillStage::Requested => {}
            FillStage::Begun(begun) => {
                let has_bytes = state.received > 0 || begun.len == Some(0) || is_head;
                match state.end {
                    Some(BodyEnd::Broken) if !has_bytes => return Poll::Ready(Err(FillRefusal::Abandoned)),
                    None if !has_bytes => {}
                    _ => return Poll::Ready(Ok(begun.clone())),
                }
            }
            FillStage::Over(over) => return Poll::Ready(Err(*over)),
        }
        state.wait(cx);
        Poll::Pending
    }
}
