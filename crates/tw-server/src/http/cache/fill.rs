//! A response on its way into a cache, and to everybody who has asked for it meanwhile.
//!
//! ```text
//! upstream server ─► Writer ─► pieces in memory ─► file
//!                                   │                │
//!                                   └─► Follower ◄───┘   the client whose request began it, and all who came later
//! ```
//! The writer is a task of its own: it waits for no client, and goes on without any. Who reads as fast as it writes gets the bytes
//! as they come, from memory; who falls behind reads what was written. When the file takes no more, what is under way goes on
//! in memory, as fast as the slowest client, and is not kept. What the disk has not taken nobody reads then.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tw_base::{FatalMutex, Limit};
use tw_cache::format::Meta;
use tw_disk::{Disk, File};
use tw_log::Level;

use super::lookup;
use crate::http::body::{AlreadyLogged, Pull};
use crate::http::plan::LocalFuture;
use crate::http::request::Request;

mod supply;

pub(crate) use supply::Continuation;
pub(super) use supply::{Delivery, Finish};

/// Bytes of a body that stay in memory behind what came last, for who is a little slower.
const WINDOW: u64 = 256 << 10;

pub(super) const SUPPLY_LIMITS: &[Limit] = supply::LIMITS;

/// Fills of one key that are remembered behind a younger one until they are stored.
const EARLIER_MAX: usize = 8;

pub(crate) const LIMITS: &[Limit] = &[
    Limit::bytes(
        "WINDOW",
        WINDOW,
        "Bytes of a response on its way into a cache that stay in memory for clients that are a little slower than the upstream server",
        "slower ones read the file",
    ),
    Limit::count(
        "EARLIER_MAX",
        EARLIER_MAX as u64,
        "Responses for one key that are complete, or come, and are remembered behind a younger one until they are stored",
        "the oldest is forgotten: a request between two others may be a miss",
    ),
];

/// A response that is asked for, or comes.
pub(super) struct Fill {
    state: FatalMutex<State>,
}

struct State {
    stage: Stage,
    /// Bytes of the body in memory: those from `base` on.
    pieces: VecDeque<Bytes>,
    base: u64,
    /// Bytes of the body that came.
    received: u64,
    /// How many of them are in the file.
    written: u64,
    file: Option<Written>,
    /// How many of those the disk has.
    settled: u64,
    /// How many may be read.
    readable: u64,
    /// The file takes no more.
    is_given_up: bool,
    /// Source of the body.
    supply: supply::Supply,
    end: Option<Ended>,
    /// What the exchange with the upstream server has come to, for who began it.
    report: Option<Report>,
    /// Nobody finds it here any more.
    is_placed: bool,
    /// The fill that this one has taken the place of, as long as that may not be stored yet.
    earlier: Option<Arc<Fill>>,
    /// Who follows; `None` is free.
    followers: Vec<Option<Place>>,
    /// Whether it was asked for more than once.
    is_shared: bool,
    /// Who else waits.
    wakers: Vec<Waker>,
}

/// Somebody who follows.
struct Place {
    /// Where in the body.
    at: u64,
    /// Waits for more. Here, because in one list of all nobody would find out cheaply that he is in it already.
    waker: Option<Waker>,
}

/// Where a response has come to.
#[derive(Clone)]
enum Stage {
    /// Nobody knows what it will be.
    Asked,
    /// It comes.
    Begun(Arc<Begun>),
    /// It is none for others.
    Over(Over),
}

/// The head of a response that comes.
pub(super) struct Begun {
    pub(super) meta: Meta,
    /// Bytes of the body, if known.
    pub(super) len: Option<u64>,
}

/// Why there is nothing to follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Over {
    /// The response is not one to be kept: everybody asks for himself.
    Private,
    /// Whoever asked has failed or gone: the next one asks.
    Abandoned,
}

/// A file that is written.
#[derive(Clone)]
struct Written {
    file: File,
    /// Bytes in front of the body.
    head: u64,
}

/// How a response has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// It is complete.
    Whole,
    /// It is not.
    Broken,
}

/// What an exchange with an upstream server has come to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Report {
    /// Bytes that were sent.
    pub(super) sent: u64,
    /// Bytes that were received.
    pub(super) received: u64,
    /// How long it took.
    pub(super) took: Option<Duration>,
    /// Bytes of the body.
    pub(super) length: u64,
}

/// What a follower gets.
enum Next {
    Piece(Bytes),
    /// What is in the file, at this place.
    Read(File, u64, usize),
    End(Ended),
    /// Nothing more comes unless this continues it.
    Continue(Continuation),
}

impl Fill {
    /// One that is asked for now.
    pub(super) fn asked(now: Instant) -> Self {
        let state = State {
            stage: Stage::Asked,
            pieces: VecDeque::new(),
            base: 0,
            received: 0,
            written: 0,
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

    /// The response comes.
    pub(super) fn begin(&self, begun: Begun) {
        self.change(|state| {
            state.stage = Stage::Begun(Arc::new(begun));
            state.progressed(tw_rt::clock::now());
        });
    }

    /// The head of the response, if that comes.
    pub(super) fn comes(&self) -> Option<Arc<Begun>> {
        match &self.state.lock().stage {
            Stage::Begun(begun) => Some(begun.clone()),
            Stage::Asked | Stage::Over(_) => None,
        }
    }

    /// Whether the response comes.
    pub(super) fn has_begun(&self) -> bool {
        matches!(self.state.lock().stage, Stage::Begun(_))
    }

    /// There will be no response for others.
    pub(super) fn give_up(&self, over: Over) {
        self.change(|state| {
            if matches!(state.stage, Stage::Asked) {
                state.stage = Stage::Over(over);
            }
        });
    }

    /// Waits until the first byte of its body is there, or what takes its place.
    pub(super) async fn begun(&self, is_head: bool) -> Result<Arc<Begun>, Over> {
        poll_fn(|cx| self.poll_begun(is_head, cx)).await
    }

    /// The response is what the file has, and is valid again.
    pub(super) fn refresh(&self, begun: Begun, file: &File) {
        let (len, head) = (begun.len.unwrap_or(0), u64::from(begun.meta.header_size));
        self.change(|state| {
            (state.base, state.received, state.written) = (len, len, len);
            (state.settled, state.readable) = (len, len);
            state.file = Some(Written { file: file.clone(), head });
            state.end = Some(Ended::Whole);
            state.stage = Stage::Begun(Arc::new(begun));
        });
    }

    /// It has its place, or will not get one.
    pub(super) fn leave(&self) {
        self.change(|state| (state.is_placed, state.earlier) = (true, None));
    }

    /// Others find this fill in the place of `earlier`, which may be complete and stored before this one is.
    pub(super) fn comes_after(self: &Arc<Self>, earlier: Arc<Self>) {
        // Two that begin at once may each have seen the other first.
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

    /// Returns true if it has begun and may still be stored.
    fn is_open(&self) -> bool {
        let state = self.state.lock();
        !state.is_placed && matches!(state.stage, Stage::Begun(_)) && state.end != Some(Ended::Broken)
    }

    /// The fill that this one has taken the place of, if it may still be stored.
    pub(super) fn earlier(&self) -> Option<Arc<Self>> {
        let mut earlier = self.state.lock().earlier.clone()?;
        while !earlier.is_open() {
            earlier = { earlier.state.lock().earlier.clone() }?;
        }
        Some(earlier)
    }

    /// The youngest response that is complete: this one, or one that it has taken the place of and that is not stored yet.
    pub(super) fn youngest_whole(self: &Arc<Self>) -> Option<Arc<Self>> {
        let mut fill = self.clone();
        while !fill.is_complete() {
            fill = fill.earlier()?;
        }
        Some(fill)
    }

    /// Forgets the fills that this one has taken the place of, unless they are known to be something else than what `is_meant`
    /// says.
    pub(super) fn part_with_earlier(&self, is_meant: &impl Fn(&Meta) -> bool) {
        let mut state = self.state.lock();
        let Some(earlier) = &state.earlier else { return };
        if earlier.comes().is_some_and(|begun| !is_meant(&begun.meta)) {
            earlier.part_with_earlier(is_meant);
        } else {
            state.earlier = None;
        }
    }

    /// Waits until it has its place.
    pub(super) async fn placed(&self) {
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

    /// Bytes of the body that came.
    pub(super) fn push(&self, piece: Bytes) {
        self.change(|state| {
            state.received += piece.len() as u64;
            state.pieces.push_back(piece);
        });
    }

    /// What the file has not got yet.
    pub(super) fn unwritten(&self) -> (u64, Vec<Bytes>) {
        let state = self.state.lock();
        let mut skip = state.written - state.base;
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
        (state.written, pieces)
    }

    /// Bytes that came and are not in the file.
    pub(super) fn pending(&self) -> u64 {
        let state = self.state.lock();
        state.received - state.written
    }

    /// Bytes of the body that came.
    pub(super) fn received(&self) -> u64 {
        self.state.lock().received
    }

    /// So many more bytes of the body are in the file, behind `head` others; `settled` of all of them are on the disk.
    pub(super) fn wrote(&self, file: &File, head: u64, len: u64, settled: u64) {
        let mut state = self.state.lock();
        state.written += len;
        (state.settled, state.readable) = (settled, state.written);
        state.file.get_or_insert_with(|| Written { file: file.clone(), head });
        state.trim();
    }

    /// The file takes no more: who follows now gets the rest from memory. With `is_lost`, what the disk did not have is gone.
    pub(super) fn give_file_up(&self, is_lost: bool) {
        self.change(|state| {
            state.is_given_up = true;
            if is_lost {
                state.readable = state.settled;
            }
        });
    }

    /// Whether so many bytes of the body may be read in the file.
    fn may_read(&self, upto: u64) -> bool {
        upto <= self.state.lock().readable
    }

    /// Bytes of the body from the beginning that nobody needs in memory, once they are on the disk: it was asked for once, and
    /// whoever did that has them.
    pub(super) fn needless(&self) -> u64 {
        let state = self.state.lock();
        if state.is_shared { 0 } else { state.slowest().unwrap_or(state.received) }
    }

    /// Whether who comes now can get all of it.
    pub(super) fn is_followable(&self) -> bool {
        let state = self.state.lock();
        state.has_from(0) && state.end != Some(Ended::Broken)
    }

    /// Somebody else has asked for it, too.
    pub(super) fn share(&self) {
        self.state.lock().is_shared = true;
    }

    /// Waits until fewer than `room` bytes are in memory only. `false` if nobody wants more.
    pub(super) fn poll_room(&self, room: u64, cx: &mut Context<'_>) -> Poll<bool> {
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

    /// Nothing more comes.
    pub(super) fn end(&self, ended: Ended, report: Option<Report>) {
        self.change(|state| (state.end, state.report) = (Some(ended), state.report.or(report)));
    }

    /// The head of a response that is complete, with its length.
    pub(super) fn whole(&self) -> Option<Arc<Begun>> {
        let state = self.state.lock();
        let Stage::Begun(begun) = &state.stage else { return None };
        if state.end != Some(Ended::Whole) {
            return None;
        }
        let len = Some(state.received);
        Some(if begun.len == len { begun.clone() } else { Arc::new(Begun { meta: begun.meta.clone(), len }) })
    }

    /// Whether all of it has come.
    pub(super) fn is_complete(&self) -> bool {
        self.state.lock().end == Some(Ended::Whole)
    }

    /// Returns true if nothing more comes, be it whole or not.
    pub(super) fn has_ended(&self) -> bool {
        self.state.lock().end.is_some()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let wakers = {
            let mut state = self.state.lock();
            change(&mut state);
            state.take_wakers()
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    fn poll_next(self: &Arc<Self>, id: usize, at: u64, want: usize, cx: &mut Context<'_>) -> Poll<Next> {
        let mut state = self.state.lock();
        if at < state.base {
            // What is no longer in memory was written.
            let Some(Written { file, head }) = state.file.clone().filter(|_| at < state.readable) else {
                return Poll::Ready(Next::End(Ended::Broken));
            };
            let len = usize::try_from(state.readable - at).unwrap_or(usize::MAX).min(want);
            state.came_to(id, at + len as u64);
            return Poll::Ready(Next::Read(file, head + at, len));
        }
        let mut skip = at - state.base;
        for piece in &state.pieces {
            let len = piece.len() as u64;
            if skip < len {
                let from = skip as usize;
                let piece = piece.slice(from..piece.len().min(from + want));
                state.came_to(id, at + piece.len() as u64);
                let wakers = if state.is_given_up {
                    state.trim();
                    std::mem::take(&mut state.wakers)
                } else {
                    Vec::new()
                };
                drop(state);
                wakers.into_iter().for_each(Waker::wake);
                return Poll::Ready(Next::Piece(piece));
            }
            skip -= len;
        }
        if let Some(ended) = state.end {
            return Poll::Ready(Next::End(ended));
        }
        if let Some(continuation) = state.take_next(self) {
            return Poll::Ready(Next::Continue(continuation));
        }
        if let Some(Some(place)) = state.followers.get_mut(id) {
            match &mut place.waker {
                Some(known) => known.clone_from(cx.waker()),
                none => *none = Some(cx.waker().clone()),
            }
        }
        Poll::Pending
    }

    /// One more who reads, from `at` on; `None` if that is nowhere any more.
    fn enter(&self, at: u64) -> Option<usize> {
        let mut state = self.state.lock();
        if !state.has_from(at) {
            return None;
        }
        let place = Some(Place { at, waker: None });
        if let Some(free) = state.followers.iter().position(Option::is_none) {
            state.followers[free] = place;
            return Some(free);
        }
        state.followers.push(place);
        Some(state.followers.len() - 1)
    }

    fn part(&self, id: usize) {
        self.change(|state| {
            if let Some(place) = state.followers.get_mut(id) {
                *place = None;
            }
            state.lost_follower();
            state.trim();
        });
    }
}

impl State {
    fn wait(&mut self, cx: &Context<'_>) {
        if !self.wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
            self.wakers.push(cx.waker().clone());
        }
    }

    /// All who wait, to be woken when the lock is free again.
    fn take_wakers(&mut self) -> Vec<Waker> {
        let mut wakers = std::mem::take(&mut self.wakers);
        wakers.extend(self.followers.iter_mut().flatten().filter_map(|place| place.waker.take()));
        wakers
    }

    fn came_to(&mut self, id: usize, at: u64) {
        if let Some(Some(place)) = self.followers.get_mut(id) {
            place.at = at;
        }
    }

    /// Whether what comes from `at` on is in memory or may be read.
    fn has_from(&self, at: u64) -> bool {
        at >= self.base || self.readable >= self.base
    }

    /// Where the slowest follower is.
    fn slowest(&self) -> Option<u64> {
        self.followers.iter().flatten().map(|place| place.at).min()
    }

    /// From where on bytes must stay in memory.
    fn held_from(&self) -> u64 {
        match self.is_given_up {
            true => self.slowest().unwrap_or(self.received).max(self.base),
            false => self.written,
        }
    }

    /// Forgets what nobody needs in memory.
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

/// Somebody who gets a response that comes.
pub(super) struct Follower {
    fill: Arc<Fill>,
    id: usize,
    at: u64,
    /// Where what is wanted ends, if known.
    end: Option<u64>,
    disk: Disk,
    /// Whether the request is to know what the exchange has come to.
    reports: bool,
}

impl Follower {
    /// Somebody who gets what comes from `from` on, until `end` if that is known. `None` if that is nowhere any more: the file
    /// takes no more, and nobody else was so far behind.
    pub(super) fn new(fill: Arc<Fill>, from: u64, end: Option<u64>, disk: Disk) -> Option<Self> {
        let id = fill.enter(from)?;
        Some(Self { fill, id, at: from, end, disk, reports: false })
    }

    /// The same for the request that began it: it learns in the end what the exchange has come to.
    #[must_use]
    pub(super) fn reporting(mut self) -> Self {
        self.reports = true;
        self
    }

    /// Tells the request once what the exchange has come to.
    fn report(&mut self, r: &mut Request) {
        if !self.reports {
            return;
        }
        let Some(report) = self.fill.state.lock().report else { return };
        self.reports = false;
        if let Some(attempt) = r.facts.upstream.attempts.last_mut() {
            attempt.record_totals(report.sent, report.received, report.length, report.took);
        }
    }

    async fn piece(&mut self, want: usize, r: &mut Request) -> io::Result<Option<Bytes>> {
        let left = self.end.map_or(u64::MAX, |end| end.saturating_sub(self.at));
        let want = want.min(usize::try_from(left).unwrap_or(usize::MAX));
        if want == 0 {
            self.report(r);
            return Ok(None);
        }
        let next = loop {
            match poll_fn(|cx| self.fill.poll_next(self.id, self.at, want, cx)).await {
                // DIFF(nginx): one range request continues it for all. Should that fail, the fill says what comes of it.
                Next::Continue(continuation) => lookup::continue_fill(r, continuation),
                next => break next,
            }
        };
        let piece = match next {
            Next::Continue(_) => return Err(io::Error::other(AlreadyLogged)),
            Next::Piece(piece) => piece,
            Next::Read(file, offset, len) => {
                let read = self.disk.read(&mut r.costs.account, &file, offset, vec![0; len]).await;
                match read {
                    // It was lost while it was read.
                    Ok(_) if !self.fill.may_read(self.at + len as u64) => {
                        return Err(io::Error::other(AlreadyLogged));
                    }
                    Ok(data) if !data.is_empty() => data.into(),
                    Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    Err(error) => {
                        r.log(
                            Level::Crit,
                            format_args!("{error} while reading a response that is being cached"),
                        );
                        return Err(io::Error::other(AlreadyLogged));
                    }
                }
            }
            Next::End(ended) => {
                self.report(r);
                return match ended {
                    Ended::Whole => Ok(None),
                    // The writer has told why.
                    Ended::Broken => Err(io::Error::other(AlreadyLogged)),
                };
            }
        };
        self.at += piece.len() as u64;
        self.report(r);
        Ok(Some(piece))
    }
}

impl Pull for Follower {
    fn next<'a>(&'a mut self, want: usize, r: &'a mut Request) -> LocalFuture<'a, io::Result<Option<Bytes>>> {
        Box::pin(self.piece(want, r))
    }

    fn remaining(&self) -> Option<u64> {
        self.end.map(|end| end - self.at)
    }

    fn part(&self, start: u64, len: u64) -> Option<Box<dyn Pull>> {
        let end = self.end?;
        let from = self.at.saturating_add(start).min(end);
        let to = from.saturating_add(len).min(end);
        Some(Box::new(Self::new(self.fill.clone(), from, Some(to), self.disk.clone())?))
    }

    fn flushes(&self) -> bool {
        // Whoever follows gets what comes as it comes.
        true
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.fill.part(self.id);
    }
}

#[cfg(test)]
mod tests;
