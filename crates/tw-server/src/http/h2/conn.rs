//! One connection of HTTP/2: its transport, what knows its frames (`tw-http2`), and what its client has cost so far.
//!
//! Frames of all streams are gathered, and leave in one call when the connection has nothing more to do for now
//! ([`Http2Connection::poll_out`]), or when it is a lot. A connection on which nothing happens has no buffer: bytes are read into one of the
//! loop's.

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use tw_core::event_loop::{BULK_MIN, BodySize, BulkTurn, SCRATCH_SIZE};
use tw_http2::{Connection, ConnectionError};
use tw_net::Transport;
use tw_rt::watch;

use super::settings::{ConnectionSettings, OUT_MAX};
use super::stream_scheduler::{MADE_MAX, MadeBytes, StreamPriority, StreamScheduler};
use crate::http::client::Client;

/// Bytes that a client may spend on frames beyond what its requests and responses are worth (as in nginx).
pub(super) const FLOOD_ALLOWANCE: u64 = 1 << 20;
/// So many bytes may go over the wire for one of a head or a body (as in nginx).
const FLOOD_FACTOR: u64 = 8;
// DIFF(nginx): there is no such limit.
/// Requests that a client may take back before they are answered, beyond as many as it has let be answered.
pub(super) const RESETS_MAX: u64 = 100;

/// No stream.
const NOBODY: u32 = 0;

/// A connection of HTTP/2.
pub(crate) struct Http2Connection {
    /// Client of the connection.
    pub(crate) client: Rc<Client>,
    /// Transport.
    pub(crate) transport: Transport,
    /// Frames in both directions.
    pub(super) frames: Connection,
    /// Settings of the server.
    pub(super) settings: ConnectionSettings,
    /// Bytes that were read before.
    early: RefCell<Vec<u8>>,
    pub(super) turns: StreamScheduler,
    /// The stream that waits for a turn among the large bodies of the loop, and its place. After a piece, the place is kept with
    /// [`NOBODY`], for the stream that is woken once the piece is written.
    making: RefCell<(u32, BulkTurn)>,
    /// Turn for writing bytes that the socket has not taken before.
    writing: RefCell<BulkTurn>,
    /// Set while the socket has not taken everything.
    is_behind: Cell<bool>,
    /// Set when nothing is written any more.
    is_over: Cell<bool>,
    /// Bytes that were made and that it has not tried to write.
    untried: Cell<usize>,
    /// The last turn in which something was read, and how much.
    read: Cell<(Instant, usize)>,
    /// Bytes that came.
    came: Cell<u64>,
    /// Bytes that went.
    went: Cell<u64>,
    /// Bytes of responses that were made.
    worth: Cell<u64>,
    /// Requests that were answered.
    answered: Cell<u64>,
    /// Requests that the client took back before.
    resets: Cell<u64>,
}

/// Abuse that ends a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Abuse {
    /// Needless frames: settings, pings, priorities, empty ones.
    Flood,
    /// Requests that it does not wait for.
    Resets,
}

impl Http2Connection {
    /// The connection of a client, of which `early` was read already.
    pub(super) fn new(
        client: Rc<Client>,
        transport: Transport,
        early: Vec<u8>,
        settings: ConnectionSettings,
    ) -> Rc<Self> {
        Rc::new(Self {
            read: Cell::new((client.accepted, 0)),
            client,
            transport,
            frames: settings.begin(),
            settings,
            early: RefCell::new(early),
            turns: StreamScheduler::default(),
            making: RefCell::default(),
            writing: RefCell::default(),
            is_behind: Cell::new(false),
            is_over: Cell::new(false),
            untried: Cell::new(0),
            came: Cell::new(0),
            went: Cell::new(0),
            worth: Cell::new(0),
            answered: Cell::new(0),
            resets: Cell::new(0),
        })
    }

    /// Bytes that came.
    pub(super) fn came(&self) -> u64 {
        self.came.get()
    }

    /// Bytes that came and went: what has changed has moved.
    pub(super) fn moved(&self) -> u64 {
        self.came.get() + self.went.get()
    }

    /// Counts a request that is over.
    pub(super) fn count_end(&self, is_taken_back: bool) {
        let count = if is_taken_back { &self.resets } else { &self.answered };
        count.set(count.get() + 1);
    }

    /// Returns the abuse of the client, if its limit is passed.
    pub(super) fn abuse(&self) -> Option<Abuse> {
        if self.moved() / FLOOD_FACTOR > self.frames.payload_bytes() + self.worth.get() + FLOOD_ALLOWANCE {
            return Some(Abuse::Flood);
        }
        (self.resets.get() > self.answered.get() + RESETS_MAX).then_some(Abuse::Resets)
    }

    /// Counts bytes of a response that were made, and sees how much waits for the socket since.
    pub(super) fn count_made(&self, bytes: usize) {
        let made = &self.client.home.app.made;
        made.set(made.get() + bytes);
        self.worth.set(self.worth.get() + bytes as u64);
        self.untried.set(self.untried.get() + bytes);
        self.turns.gathered(self.frames.out_len());
    }

    /// Bytes made by the loop, compared with its limit.
    pub(super) fn made(&self) -> MadeBytes {
        match self.client.home.app.made.get() {
            ..MADE_MAX => MadeBytes::Little,
            _ => MadeBytes::Enough,
        }
    }

    /// Ready when it is the turn of a stream, among those of the connection, and of the connection among the large bodies of its
    /// loop. A stream that waits no longer has to [leave](Self::leave).
    pub(super) fn poll_turn(
        &self,
        share: &Rc<StreamPriority>,
        size: BodySize,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        share.size.set(size);
        if size == BodySize::Large && !self.is_over.get() {
            let (holder, place) = &mut *self.making.borrow_mut();
            if self.turns.is_next(share) {
                *holder = share.id;
                if self.client.home.budget.poll_bulk_run(place, cx).is_pending() {
                    self.turns.wait(share, cx);
                    return Poll::Pending;
                }
                *holder = NOBODY;
            } else if *holder == share.id || *holder == NOBODY && self.turns.has_room() {
                // Who is next takes a place of its own: this one would hold up the others.
                place.leave();
            }
        }
        self.turns.poll(share, self.made(), cx)
    }

    /// Forgets that a stream waits for its turn.
    pub(super) fn leave(&self, id: u32) {
        if self.turns.leave(id) {
            let (holder, place) = &mut *self.making.borrow_mut();
            if [id, NOBODY].contains(holder) {
                place.leave();
            }
        }
    }

    /// Ends the turn of a stream, which has made its piece or has none yet: the next one may make its own.
    pub(super) fn end_turn(&self) {
        self.turns.call();
        if self.is_behind.get() {
            self.end_run();
        } else if self.frames.out_len() == 0 {
            self.keep_run();
        }
    }

    /// Gives up the place that is kept for the next piece.
    fn end_run(&self) {
        let (holder, place) = &mut *self.making.borrow_mut();
        if *holder == NOBODY {
            place.leave();
        }
    }

    /// Keeps the place for the next piece only if the stream that makes it was woken.
    fn keep_run(&self) {
        if !self.turns.is_next_large() {
            self.end_run();
        }
    }

    /// Gives up its places, when nothing is written any more.
    pub(super) fn leave_line(&self) {
        self.is_over.set(true);
        self.writing.borrow_mut().leave();
        self.making.borrow_mut().1.leave();
    }

    /// Notes that the connection has tried to write all bytes made.
    fn has_tried(&self) {
        let made = &self.client.home.app.made;
        made.set(made.get() - self.untried.take());
    }

    /// Takes over what is there to be read, as much as fits into a buffer of the loop's. Nothing while much waits for the
    /// socket: a client that takes nothing may ask for nothing.
    ///
    /// # Errors
    /// Why nothing more will come. All streams have learnt it.
    pub(super) fn poll_in(&self, cx: &mut Context<'_>) -> Poll<Result<(), ConnectionError>> {
        if self.frames.out_len() >= OUT_MAX {
            match self.poll_out(cx) {
                Poll::Ready(Err(e)) => return Poll::Ready(Err(self.failed(e.into()))),
                Poll::Pending if self.frames.out_len() >= OUT_MAX => return Poll::Pending,
                Poll::Ready(Ok(())) | Poll::Pending => {}
            }
        }
        let early = self.early.take();
        if !early.is_empty() {
            self.came.set(self.came.get() + early.len() as u64);
            return Poll::Ready(self.frames.receive(&early));
        }
        let turn = tw_rt::clock::now();
        let (last, had) = self.read.get();
        let had = if last == turn { had } else { 0 };
        let read_max = self.settings.recv_buffer_size;
        if had >= read_max {
            // A client that sends faster than we read does not keep the loop.
            let mut others = pin!(tw_rt::yield_now());
            let _ = others.as_mut().poll(cx);
            return Poll::Pending;
        }
        let want = (read_max - had).min(SCRATCH_SIZE);
        loop {
            let mut scratch = self.client.home.buffers.scratch.borrow_mut();
            let room = scratch.get_mut(..want).unwrap_or_default();
            match self.transport.try_read_into(room) {
                Ok(0) => return Poll::Ready(Err(self.failed(ConnectionError::Closed))),
                Ok(n) => {
                    self.read.set((turn, had + n));
                    self.came.set(self.came.get() + n as u64);
                    return Poll::Ready(self.frames.receive(room.get(..n).unwrap_or_default()));
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                // It has ended TLS without a word.
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                    return Poll::Ready(Err(self.failed(ConnectionError::Closed)));
                }
                Err(e) => return Poll::Ready(Err(self.failed(e.into()))),
            }
            drop(scratch);
            if let Err(e) = ready!(self.transport.poll_readable(cx)) {
                return Poll::Ready(Err(self.failed(e.into())));
            }
        }
    }

    fn failed(&self, why: ConnectionError) -> ConnectionError {
        self.frames.fail(why);
        why
    }

    /// Writes what was gathered. Ready when all of it has left.
    pub(super) fn poll_out(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.has_tried();
        while self.frames.out_len() > 0 {
            let is_behind = self.is_behind.get() && self.frames.out_len() >= BULK_MIN;
            if is_behind {
                self.end_run();
                ready!(self.client.home.budget.poll_bulk_run(&mut self.writing.borrow_mut(), cx));
            }
            self.is_behind.set(false);
            let write = || self.frames.write(|parts| self.transport.try_write_vectored(parts));
            match watch::operation("writing to the client", write) {
                Ok(n) => {
                    if is_behind {
                        self.client.home.budget.spent(n);
                    }
                    self.went.set(self.went.get() + n as u64);
                    self.turns.gathered(self.frames.out_len());
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    let ready = self.transport.poll_writable(cx);
                    self.is_behind.set(true);
                    self.writing.borrow_mut().leave();
                    self.end_run();
                    ready!(ready)?;
                }
                Err(e) => return Poll::Ready(Err(e)),
            }
        }
        self.writing.borrow_mut().leave();
        self.keep_run();
        Poll::Ready(Ok(()))
    }
}

impl Drop for Http2Connection {
    fn drop(&mut self) {
        self.has_tried();
    }
}
