//! Fill: a response on its way into a cache, and to all clients that requested it meanwhile.
//!
//! ```text
//! upstream server ─► Writer ─► pieces in memory ─► file
//!                                   │                │
//!                                   └─► Follower ◄───┘   client of the request that began it, and all later ones
//! ```
//! The writer is a task of its own: it waits for no client, and continues without any. Clients that are as fast as the upstream
//! server get the bytes from memory; slower ones read the file. If the file takes no more, the fill continues in memory, at the
//! speed of the slowest client, and is not stored. Bytes that the disk has not taken are not read then.

mod continuation;
mod follower;
mod supply;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tw_base::{FatalMutex, Limit};
use tw_cache::format::Meta;
use tw_disk::File;

use tw_request::files::{BlockCheck, OpenFile};

pub(crate) use continuation::take_continuation;
pub(crate) use follower::Follower;
pub(crate) use supply::Continuation;
pub(crate) use supply::{Delivery, DeliveryEnd};

pub(crate) const SUPPLY_LIMITS: &[Limit] = supply::LIMITS;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Bytes of a response on its way into a cache that stay in memory for clients that are a little slower than the upstream
    /// server.
    const WINDOW: u64 = 256 << 10, bytes, "slower ones read the file";
    /// Responses for one key that are complete, or come, and are remembered behind a younger one until they are stored.
    const EARLIER_MAX: usize = 8, count, "the oldest is forgotten: a request between two others may be a miss";
}

/// Fetch of one response for a cache, shared by all its clients.
pub(crate) struct Fill {
    state: FatalMutex<FillState>,
}

struct FillState {
    stage: FillStage,
    /// Body bytes in memory, from `base` on.
    pieces: VecDeque<Bytes>,
    base: u64,
    /// Body bytes received.
    received: u64,
    /// Body bytes that the file has.
    written_len: u64,
    file: Option<PartialFile>,
    /// Body bytes that the disk has taken.
    settled: u64,
    /// Body bytes that may be read from the file.
    readable: u64,
    /// True if the file takes no more.
    is_given_up: bool,
    /// Source of the body.
    supply: supply::Supply,
    end: Option<BodyEnd>,
    /// Byte counts of the exchange with the upstream server, for the request that began it.
    report: Option<ExchangeReport>,
    /// True if the response is stored, or will not be.
    is_placed: bool,
    /// Fill that this one has replaced, until that is stored.
    earlier: Option<Arc<Fill>>,
    /// Followers; `None` is a free slot.
    followers: Vec<Option<FollowerSlot>>,
    /// True if more than one request wants the response.
    is_shared: bool,
    /// Other tasks that wait for a change.
    wakers: Vec<Waker>,
}

/// Position of a follower.
struct FollowerSlot {
    /// Offset in the body.
    at: u64,
    /// Waker of a follower that waits for more. It is kept here because in one list of all wakers a duplicate is expensive to
    /// find.
    waker: Option<Waker>,
}

/// Stage of a fill.
#[derive(Clone)]
enum FillStage {
    /// The upstream server has not responded.
    Requested,
    /// The response has begun.
    Begun(Arc<FillHead>),
    /// The response is not shared.
    Over(FillRefusal),
}

/// Head of a response that is being received.
pub(crate) struct FillHead {
    pub(crate) meta: Meta,
    /// Length of the body, if known.
    pub(crate) len: Option<u64>,
}

/// Reason why a fill has no response to follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FillRefusal {
    /// The response may not be stored: each request goes to the upstream server.
    Private,
    /// The fetch has failed or was cancelled: the next request fetches.
    Abandoned,
}

/// File that is being written.
#[derive(Clone)]
struct PartialFile {
    file: File,
    /// Length of the file's header: offset of the body.
    head: u64,
    /// Checksums of a body that was stored before.
    check: Option<Arc<BlockCheck>>,
}

/// End of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyEnd {
    /// The response is complete.
    Whole,
    /// The response broke off.
    Broken,
}

/// Byte counts of an exchange with an upstream server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExchangeReport {
    /// Bytes sent.
    pub(crate) sent: u64,
    /// Bytes received.
    pub(crate) received: u64,
    /// Duration of the exchange.
    pub(crate) took: Option<Duration>,
    /// Body bytes.
    pub(crate) length: u64,
}

/// Next event for a follower.
enum FollowerEvent {
    Piece(Bytes),
    /// Range of the body, to be read from the file: offset and length.
    Read(PartialFile, u64, usize),
    End(BodyEnd),
    /// The body broke off; this continuation may deliver the rest.
    Continue(Continuation),
}

impl Fill {
    /// Creates a fill whose request is sent now.
    pub(crate) fn new(now: Instant) -> Self {
        let state = FillState {
            stage: FillStage::Requested,
            pieces: VecDeque::new(),
            base: 0,
            received: 0,
            written_len: 0,
            file: None,
            settled: 0,
            readable: 0,
            is_given_up: false,
            supply: supply::Supply::new(now),
            end: None,
            report: None,
            is_placed: false,
            earlier: None,
            followers: Vec::new(),
            is_shared: false,
            wakers: Vec::new(),
        };
        Self { state: FatalMutex::new(state) }
    }

    /// Begins the response.
    pub(crate) fn begin(&self, begun: FillHead) {
        self.change(|state| {
            state.stage = FillStage::Begun(Arc::new(begun));
            state.progressed(tw_rt::clock::now());
        });
    }

    /// Returns the head of the response, if that has begun.
    pub(crate) fn head(&self) -> Option<Arc<FillHead>> {
        match &self.state.lock().stage {
            FillStage::Begun(begun) => Some(begun.clone()),
            FillStage::Requested | FillStage::Over(_) => None,
        }
    }

    /// Returns true if the response has begun.
    pub(crate) fn has_begun(&self) -> bool {
        matches!(self.state.lock().stage, FillStage::Begun(_))
    }

    /// Ends the fill without a shared response.
    pub(crate) fn give_up(&self, over: FillRefusal) {
        self.change(|state| {
            if matches!(state.stage, FillStage::Requested) {
                state.stage = FillStage::Over(over);
            }
        });
    }

    /// Waits for the first byte of the body, or for an end without one.
    pub(crate) async fn wait_for_head(&self, is_head: bool) -> Result<Arc<FillHead>, FillRefusal> {
        poll_fn(|cx| self.poll_begun(is_head, cx)).await
    }

    /// Makes the content of `file` from `head` on the response: it was validated.
    pub(crate) fn refresh(&self, begun: FillHead, file: &OpenFile, head: u64) {
        let len = begun.len.unwrap_or(0);
        self.change(|state| {
            (state.base, state.received, state.written_len) = (len, len, len);
            (state.settled, state.readable) = (len, len);
            let (file, check) = (file.file().clone(), file.check().cloned());
            state.file = Some(PartialFile { file, head, check });
            state.end = Some(BodyEnd::Whole);
            state.stage = FillStage::Begun(Arc::new(begun));
        });
    }

    /// Marks the fill as stored, or as one that will not be.
    pub(crate) fn mark_placed(&self) {
        self.change(|state| (state.is_placed, state.earlier) = (true, None));
    }

    /// Notes that this fill replaces `earlier`, which may be complete and stored first.
    pub(crate) fn set_earlier(self: &Arc<Self>, earlier: Arc<Self>) {
        // Two fills that begin at once may each have seen the other first.
        let mut next = Some(earlier.clone());
        let mut count = 0;
        while let Some(fill) = next {
            if Arc::ptr_eq(&fill, self) {
                return;
            }
            count += 1;
            let mut state = fill.state.lock();
            if count == EARLIER_MAX {
                state.earlier = None;
            }
            next = state.earlier.clone();
        }
        let earlier = if earlier.is_open() { Some(earlier) } else { earlier.earlier() };
        self.state.lock().earlier = earlier;
    }

    /// Returns true if the fill has begun and may still be stored.
    fn is_open(&self) -> bool {
        let state = self.state.lock();
        !state.is_placed && matches!(state.stage, FillStage::Begun(_)) && state.end != Some(BodyEnd::Broken)
    }

    /// Returns the fill that this one has replaced, if that may still be stored.
    pub(crate) fn earlier(&self) -> Option<Arc<Self>> {
        let mut earlier = self.state.lock().earlier.clone()?;
        while !earlier.is_open() {
            earlier = { earlier.state.lock().earlier.clone() }?;
        }
        Some(earlier)
    }

    /// Returns the youngest complete fill: this one, or one that it has replaced and that is not stored yet.
    pub(crate) fn youngest_whole(self: &Arc<Self>) -> Option<Arc<Self>> {
        let mut fill = self.clone();
        while !fill.is_complete() {
            fill = fill.earlier()?;
        }
        Some(fill)
    }

    /// Forgets the replaced fills, unless `is_meant` is false for their response.
    pub(crate) fn forget_earlier(&self, is_meant: &impl Fn(&Meta) -> bool) {
        let mut state = self.state.lock();
        let Some(earlier) = &state.earlier else { return };
        if earlier.head().is_some_and(|begun| !is_meant(&begun.meta)) {
            earlier.forget_earlier(is_meant);
        } else {
            state.earlier = None;
        }
    }

    /// Waits until the fill is stored, or will not be.
    pub(crate) async fn wait_until_placed(&self) {
        poll_fn(|cx| {
            let mut state = self.state.lock();
            if state.is_placed {
                return Poll::Ready(());
            }
            state.wait(cx);
            Poll::Pending
        })
        .await;
    }

    /// Adds a piece of the body.
    pub(crate) fn push(&self, piece: Bytes) {
        self.change(|state| {
            state.received += piece.len() as u64;
            state.pieces.push_back(piece);
        });
    }

    /// Returns the bytes that are not in the file yet, and their offset in the body.
    pub(crate) fn unwritten(&self) -> (u64, Vec<Bytes>) {
        let state = self.state.lock();
        let mut skip = state.written_len - state.base;
        let mut pieces = Vec::new();
        for piece in &state.pieces {
            let len = piece.len() as u64;
            if skip >= len {
                skip -= len;
                continue;
            }
            // No piece is longer than memory.
            pieces.push(piece.slice(skip as usize..));
            skip = 0;
        }
        (state.written_len, pieces)
    }

    /// Number of received bytes that are not in the file.
    pub(crate) fn pending(&self) -> u64 {
        let state = self.state.lock();
        state.received - state.written_len
    }

    /// Number of body bytes received.
    pub(crate) fn received(&self) -> u64 {
        self.state.lock().received
    }

    /// Notes that the file has `len` more bytes of the body, behind a header of `head` bytes; the disk has taken `settled` of
    /// all of them.
    pub(crate) fn note_written(&self, file: &File, head: u64, len: u64, settled: u64) {
        let mut state = self.state.lock();
        state.written_len += len;
        (state.settled, state.readable) = (settled, state.written_len);
        state.file.get_or_insert_with(|| PartialFile { file: file.clone(), head, check: None });
        state.trim();
    }

    /// Stops writing the file: followers get the rest from memory. With `is_lost`, the bytes that the disk had not taken are
    /// lost.
    pub(crate) fn stop_file(&self, is_lost: bool) {
        self.change(|state| {
            state.is_given_up = true;
            if is_lost {
                state.readable = state.settled;
            }
        });
    }

    /// Returns true if the file may be read up to this offset of the body.
    fn may_read(&self, upto: u64) -> bool {
        upto <= self.state.lock().readable
    }

    /// Number of leading body bytes that can leave memory once they are on the disk: the only request for them has read them.
    pub(crate) fn needless(&self) -> u64 {
        let state = self.state.lock();
        if state.is_shared { 0 } else { state.slowest().unwrap_or(state.received) }
    }

    /// Returns true if a new follower can get the whole body.
    pub(crate) fn is_followable(&self) -> bool {
        let state = self.state.lock();
        state.has_from(0) && state.end != Some(BodyEnd::Broken)
    }

    /// Notes that another request wants the response.
    pub(crate) fn mark_shared(&self) {
        self.state.lock().is_shared = true;
    }

    /// Waits until fewer than `room` bytes are in memory only. Returns `false` if no follower is left and the file takes no
    /// more.
    pub(crate) fn poll_room(&self, room: u64, cx: &mut Context<'_>) -> Poll<bool> {
        let mut state = self.state.lock();
        if state.is_given_up && state.slowest().is_none() {
            return Poll::Ready(false);
        }
        let has_room = state.received - state.held_from() < room;
        state.rests(!has_room);
        if has_room {
            return Poll::Ready(true);
        }
        state.wait(cx);
        Poll::Pending
    }

    /// Ends the body.
    pub(crate) fn end(&self, ended: BodyEnd, report: Option<ExchangeReport>) {
        self.change(|state| (state.end, state.report) = (Some(ended), state.report.or(report)));
    }

    /// Returns the head of a complete response, with its length.
    pub(crate) fn complete_head(&self) -> Option<Arc<FillHead>> {
        let state = self.state.lock();
        let FillStage::Begun(begun) = &state.stage else { return None };
        if state.end != Some(BodyEnd::Whole) {
            return None;
        }
        let len = Some(state.received);
        Some(if begun.len == len {
            begun.clone()
        } else {
            Arc::new(FillHead { meta: begun.meta.clone(), len })
        })
    }

    /// Returns true if the body is complete.
    pub(crate) fn is_complete(&self) -> bool {
        self.state.lock().end == Some(BodyEnd::Whole)
    }

    /// Returns true if the body has ended, complete or not.
    pub(crate) fn has_ended(&self) -> bool {
        self.state.lock().end.is_some()
    }

    fn change(&self, change: impl FnOnce(&mut FillState)) {
        let wakers = {
            let mut state = self.state.lock();
            change(&mut state);
            state.take_wakers()
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    fn poll_next(
        self: &Arc<Self>,
        id: usize,
        at: u64,
        want: usize,
        cx: &mut Context<'_>,
    ) -> Poll<FollowerEvent> {
        let mut state = self.state.lock();
        if at < state.base {
            // Bytes that are no longer in memory were written.
            let Some(file) = state.file.clone().filter(|_| at < state.readable) else {
                return Poll::Ready(FollowerEvent::End(BodyEnd::Broken));
            };
            let len = usize::try_from(state.readable - at).unwrap_or(usize::MAX).min(want);
            state.set_position(id, at + len as u64);
            return Poll::Ready(FollowerEvent::Read(file, at, len));
        }
        let mut skip = at - state.base;
        for piece in &state.pieces {
            let len = piece.len() as u64;
            if skip < len {
                let from = skip as usize;
                let piece = piece.slice(from..piece.len().min(from + want));
                state.set_position(id, at + piece.len() as u64);
                let wakers = if state.is_given_up {
                    state.trim();
                    std::mem::take(&mut state.wakers)
                } else {
                    Vec::new()
                };
                drop(state);
                wakers.into_iter().for_each(Waker::wake);
                return Poll::Ready(FollowerEvent::Piece(piece));
            }
            skip -= len;
        }
        if let Some(ended) = state.end {
            return Poll::Ready(FollowerEvent::End(ended));
        }
        if let Some(continuation) = state.take_next(self) {
            return Poll::Ready(FollowerEvent::Continue(continuation));
        }
        if let Some(Some(place)) = state.followers.get_mut(id) {
            match &mut place.waker {
                Some(waker) => waker.clone_from(cx.waker()),
                none => *none = Some(cx.waker().clone()),
            }
        }
        Poll::Pending
    }

    /// Adds a follower at `at`. Returns its slot, or `None` if those bytes are gone.
    fn add_follower(&self, at: u64) -> Option<usize> {
        let mut state = self.state.lock();
        if !state.has_from(at) {
            return None;
        }
        let place = Some(FollowerSlot { at, waker: None });
        if let Some(free) = state.followers.iter().position(Option::is_none) {
            state.followers[free] = place;
            return Some(free);
        }
        state.followers.push(place);
        Some(state.followers.len() - 1)
    }

    fn remove_follower(&self, id: usize) {
        self.change(|state| {
            if let Some(place) = state.followers.get_mut(id) {
                *place = None;
            }
            state.lost_follower();
            state.trim();
        });
    }
}

impl FillState {
    fn wait(&mut self, cx: &Context<'_>) {
        if !self.wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
            self.wakers.push(cx.waker().clone());
        }
    }

    /// Takes all wakers; they are woken after the lock is released.
    fn take_wakers(&mut self) -> Vec<Waker> {
        let mut wakers = std::mem::take(&mut self.wakers);
        wakers.extend(self.followers.iter_mut().flatten().filter_map(|place| place.waker.take()));
        wakers
    }

    fn set_position(&mut self, id: usize, at: u64) {
        if let Some(Some(place)) = self.followers.get_mut(id) {
            place.at = at;
        }
    }

    /// Returns true if all bytes from `at` on are in memory or in the file.
    fn has_from(&self, at: u64) -> bool {
        at >= self.base || self.readable >= self.base
    }

    /// Offset of the slowest follower.
    fn slowest(&self) -> Option<u64> {
        self.followers.iter().flatten().map(|place| place.at).min()
    }

    /// Offset from which bytes stay in memory.
    fn held_from(&self) -> u64 {
        match self.is_given_up {
            true => self.slowest().unwrap_or(self.received).max(self.base),
            false => self.written_len,
        }
    }

    /// Removes bytes from memory that are no longer needed.
    fn trim(&mut self) {
        let window = if self.is_given_up { 0 } else { WINDOW };
        let needed = self.held_from().min(self.received.saturating_sub(window));
        while let Some(first) = self.pieces.front()
            && self.base + first.len() as u64 <= needed
        {
            self.base += first.len() as u64;
            self.pieces.pop_front();
        }
    }
}

#[cfg(test)]
mod tests;
