//! One connection of HTTP/2: its transport, its frames (`tw-http2`), and the cost that its client has caused so far.
//!
//! Frames of all streams are gathered, and leave in one call when the connection has nothing more to do for now
//! ([`Http2Connection::poll_send`]), or when it is a lot. A connection on which nothing happens has no buffer: bytes are read into one of the
//! loop's.

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use tw_base::memory::MemoryHolder;
use tw_core::event_loop::{BULK_MIN, BodySize, BulkTurn, SCRATCH_SIZE};
use tw_http2::{Connection, ConnectionError};
use tw_net::Transport;
use tw_rt::watch;

use super::settings::{Http2Settings, OUT_MAX};
use super::stream_scheduler::{StreamPriority, StreamScheduler};
use super::untried_bytes::{MadeBytes, UntriedBytes};
use crate::streams::{Abuse, ClientCost};
use tw_request::client::Client;
use tw_request::memory_share::Hold;

/// Number of no stream.
const NO_STREAM: u32 = 0;

/// A connection of HTTP/2.
pub(crate) struct Http2Connection {
    /// Client of the connection.
    pub(crate) client: Rc<Client>,
    /// Transport.
    pub(crate) transport: Transport,
    /// Frames in both directions.
    pub(super) frames: Connection,
    /// Settings of the server.
    pub(super) settings: Http2Settings,
    /// Bytes that were read before.
    early: RefCell<Vec<u8>>,
    pub(super) scheduler: StreamScheduler,
    /// The stream that waits for a turn among the large bodies of the loop, and its place. After a piece, the place is kept with
    /// [`NO_STREAM`], for the stream that is woken once the piece is written.
    bulk_turn: RefCell<(u32, BulkTurn)>,
    /// Turn for writing bytes that the socket has not taken before.
    write_turn: RefCell<BulkTurn>,
    /// Set while the socket has not taken everything.
    is_behind: Cell<bool>,
    /// Set when nothing is written any more.
    is_over: Cell<bool>,
    /// Memory of what the socket has not taken.
    memory: RefCell<Hold>,
    /// Bytes that were made and that it has not tried to write.
    untried: Cell<usize>,
    /// Sum of these bytes on the loop.
    made: UntriedBytes,
    /// The last turn in which something was read, and how much.
    read: Cell<(Instant, usize)>,
    /// Cost of the client.
    pub(super) cost: ClientCost,
}

impl Http2Connection {
    /// The connection of a client, of which `early` was read already.
    pub(super) fn new(
        client: Rc<Client>,
        transport: Transport,
        early: Vec<u8>,
        settings: Http2Settings,
    ) -> Rc<Self> {
        let memory = Hold::new(client.memory_share(MemoryHolder::Http2), 0);
        let made = client.event_loop.part::<UntriedBytes>().clone();
        Rc::new(Self {
            read: Cell::new((client.accepted, 0)),
            client,
            transport,
            frames: settings.begin(),
            settings,
            early: RefCell::new(early),
            scheduler: StreamScheduler::default(),
            bulk_turn: RefCell::default(),
            write_turn: RefCell::default(),
            is_behind: Cell::new(false),
            is_over: Cell::new(false),
            memory: RefCell::new(memory),
            untried: Cell::new(0),
            made,
            cost: ClientCost::default(),
        })
    }

    /// Returns the abuse of the client, if its limit is passed.
    pub(super) fn abuse(&self) -> Option<Abuse> {
        self.cost.abuse(self.frames.payload_bytes())
    }

    /// Counts bytes of a response that were made, and notes how much waits for the socket since.
    pub(super) fn count_made(&self, bytes: usize) {
        self.made.add(bytes);
        self.cost.count_response(bytes);
        self.untried.set(self.untried.get() + bytes);
        self.scheduler.set_gathered(self.frames.out_len());
    }

    /// Bytes made by the loop, compared with its limit.
    pub(super) fn made(&self) -> MadeBytes {
        self.made.amount()
    }

    /// Ready when it is the turn of a stream, among those of the connection, and of the connection among the large bodies of its
    /// loop. A stream that waits no longer has to [stop waiting](Self::stop_waiting).
    pub(super) fn poll_turn(
        &self,
        stream: &Rc<StreamPriority>,
        size: BodySize,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        stream.size.set(size);
        if size == BodySize::Large && !self.is_over.get() {
            let (holder, place) = &mut *self.bulk_turn.borrow_mut();
            if self.scheduler.is_next(stream) {
                *holder = stream.id;
                if self.client.event_loop.budget.poll_bulk_run(place, cx).is_pending() {
                    self.scheduler.wait(stream, cx);
                    return Poll::Pending;
                }
                *holder = NO_STREAM;
            } else if *holder == stream.id || *holder == NO_STREAM && self.scheduler.has_room() {
                // The next stream takes a place of its own: this one would hold up the others.
                place.leave();
            }
        }
        self.scheduler.poll(stream, self.made(), cx)
    }

    /// Forgets that a stream waits for its turn.
    pub(super) fn stop_waiting(&self, id: u32) {
        if self.scheduler.stop_waiting(id) {
            let (holder, place) = &mut *self.bulk_turn.borrow_mut();
            if [id, NO_STREAM].contains(holder) {
                place.leave();
            }
        }
    }

    /// Ends the turn of a stream, which has made its piece or has none yet: the next one may make its own.
    pub(super) fn end_turn(&self) {
        self.scheduler.wake_next();
        if self.is_behind.get() {
            self.end_run();
        } else if self.frames.out_len() == 0 {
            self.keep_run();
        }
    }

    /// Gives up the place that is kept for the next piece.
    fn end_run(&self) {
        let (holder, place) = &mut *self.bulk_turn.borrow_mut();
        if *holder == NO_STREAM {
            place.leave();
        }
    }

    /// Keeps the place for the next piece only if the stream that makes it was woken.
    fn keep_run(&self) {
        if !self.scheduler.is_next_large() {
            self.end_run();
        }
    }

    /// Gives up its turns, when nothing is written any more.
    pub(super) fn give_up_turns(&self) {
        self.is_over.set(true);
        self.write_turn.borrow_mut().leave();
        self.bulk_turn.borrow_mut().1.leave();
    }

    /// Notes that the connection has tried to write all bytes made.
    fn note_write_attempt(&self) {
        self.made.subtract(self.untried.take());
    }

    /// Receives as much as fits into a buffer of the loop. Nothing while much waits for the socket: a client that takes nothing
    /// may ask for nothing.
    ///
    /// # Errors
    /// The reason for the end of the connection, which all streams have got.
    pub(super) fn poll_receive(&self, cx: &mut Context<'_>) -> Poll<Result<(), ConnectionError>> {
        if self.frames.out_len() >= OUT_MAX {
            match self.poll_send(cx) {
                Poll::Ready(Err(e)) => return Poll::Ready(Err(self.fail(e.into()))),
                Poll::Pending if self.frames.out_len() >= OUT_MAX => return Poll::Pending,
                Poll::Ready(Ok(())) | Poll::Pending => {}
            }
        }
        let early = self.early.take();
        if !early.is_empty() {
            self.cost.count_received(early.len());
            return Poll::Ready(self.frames.receive(&early));
        }
        let turn = tw_rt::clock::now();
        let (last, had) = self.read.get();
        let had = if last == turn { had } else { 0 };
        let read_max = self.settings.recv_buffer_size;
        if had >= read_max {
            // A client that sends faster than it is read does not keep the loop busy.
            let mut others = pin!(tw_rt::yield_now());
            let _ = others.as_mut().poll(cx);
            return Poll::Pending;
        }
        let want = (read_max - had).min(SCRATCH_SIZE);
        loop {
            let mut scratch = self.client.event_loop.buffers.scratch.borrow_mut();
            let room = scratch.get_mut(..want).unwrap_or_default();
            match self.transport.try_read_into(room) {
                Ok(0) => return Poll::Ready(Err(self.fail(ConnectionError::Closed))),
                Ok(n) => {
                    self.read.set((turn, had + n));
                    self.cost.count_received(n);
                    return Poll::Ready(self.frames.receive(room.get(..n).unwrap_or_default()));
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                // The client closed the TLS connection without a `close_notify`.
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                    return Poll::Ready(Err(self.fail(ConnectionError::Closed)));
                }
                Err(e) => return Poll::Ready(Err(self.fail(e.into()))),
            }
            drop(scratch);
            if let Err(e) = ready!(self.transport.poll_readable(cx)) {
                return Poll::Ready(Err(self.fail(e.into())));
            }
        }
    }

    fn fail(&self, error: ConnectionError) -> ConnectionError {
        self.frames.fail(error);
        error
    }

    /// Writes the gathered frames. Ready when all of them have left.
    pub(super) fn poll_send(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.note_write_attempt();
        while self.frames.out_len() > 0 {
            let is_behind = self.is_behind.get() && self.frames.out_len() >= BULK_MIN;
            if is_behind {
                self.end_run();
                ready!(self.client.event_loop.budget.poll_bulk_run(&mut self.write_turn.borrow_mut(), cx));
            }
            self.is_behind.set(false);
            let write = || self.frames.write(|parts| self.transport.try_write_vectored(parts));
            match watch::operation("writing to the client", write) {
                Ok(n) => {
                    if is_behind {
                        self.client.event_loop.budget.spent(n);
                    }
                    self.cost.count_sent(n);
                    self.scheduler.set_gathered(self.frames.out_len());
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    let ready = self.transport.poll_writable(cx);
                    self.is_behind.set(true);
                    self.memory.borrow_mut().set(self.frames.out_len());
                    self.write_turn.borrow_mut().leave();
                    self.end_run();
                    ready!(ready)?;
                }
                Err(e) => return Poll::Ready(Err(e)),
            }
        }
        self.memory.borrow_mut().set(0);
        self.write_turn.borrow_mut().leave();
        self.keep_run();
        Poll::Ready(Ok(()))
    }
}

impl Drop for Http2Connection {
    fn drop(&mut self) {
        self.note_write_attempt();
    }
}
