//! One connection of HTTP/2: its transport as the crate `h2` reads and writes it, and what its client has cost so far.
//!
//! What is written is gathered, and leaves in one call when the connection has nothing more to do for now
//! ([`Conn::poll_out`]), or when it is a lot. Heads of frames and what is small are copied; what is large is shared with whoever
//! made it ([`Payload`](super::Payload)).

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use ::h2::Reason;
use bytes::Bytes;
use tokio::io::ReadBuf;
use tw_core::event_loop::SCRATCH_SIZE;
use tw_net::Transport;
use tw_rt::watch;

use super::out::Out;
use super::sight::{Seen, Sight};
use super::turns::{MADE_MAX, Made, Turns};
use crate::http::client::Client;
use crate::http::frames::Gathers;

/// Bytes of frames that are gathered for one write.
pub(super) const OUT_MAX: usize = 256 << 10;

/// Bytes that a client may spend on frames beyond what its requests and responses are worth (as in nginx).
pub(super) const FLOOD_ALLOWANCE: u64 = 1 << 20;
/// So many bytes may go over the wire for one of a head or a body (as in nginx).
const FLOOD_FACTOR: u64 = 8;
// DIFF(nginx): there is no such limit.
/// Requests that a client may take back before they are answered, beyond as many as it has let be answered.
pub(super) const RESETS_MAX: u64 = 100;

/// A connection of HTTP/2.
pub(crate) struct Conn {
    /// Whose it is.
    pub(crate) client: Rc<Client>,
    /// What carries its bytes.
    pub(crate) transport: Transport,
    /// What was read of it before.
    early: RefCell<Vec<u8>>,
    sight: RefCell<Sight>,
    /// What its client has done that ends it.
    wrong: Cell<Option<Reason>>,
    out: RefCell<Out>,
    /// What the crate writes next is made of.
    shown: RefCell<Bytes>,
    pub(super) turns: Turns,
    /// Bytes that were made and that it has not tried to write.
    untried: Cell<usize>,
    /// Bytes that one turn reads.
    read_max: usize,
    /// The last turn in which something was read, and how much.
    read: Cell<(Instant, usize)>,
    /// Bytes that came and went.
    wire: Cell<u64>,
    /// Bytes of heads and bodies among them.
    worth: Cell<u64>,
    /// Requests that were answered.
    answered: Cell<u64>,
    /// Requests that the client took back before.
    resets: Cell<u64>,
}

/// What a client has done that ends its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Abuse {
    /// Frames that nobody needs: settings, pings, priorities, empty ones.
    Flood,
    /// Requests that it does not wait for.
    Resets,
    /// A frame that cannot be.
    Wrong(Reason),
}

impl Conn {
    /// The connection of a client, of which `early` was read already. One turn reads at most `read_max` bytes of it.
    pub(crate) fn new(client: Rc<Client>, transport: Transport, early: Vec<u8>, read_max: usize) -> Rc<Self> {
        Rc::new(Self {
            read: Cell::new((client.accepted, 0)),
            client,
            transport,
            early: RefCell::new(early),
            sight: RefCell::new(Sight::new()),
            wrong: Cell::new(None),
            out: RefCell::default(),
            shown: RefCell::default(),
            turns: Turns::default(),
            untried: Cell::new(0),
            read_max,
            wire: Cell::new(0),
            worth: Cell::new(0),
            answered: Cell::new(0),
            resets: Cell::new(0),
        })
    }

    /// Counts bytes of a head or a body.
    pub(super) fn count_worth(&self, bytes: usize) {
        self.worth.set(self.worth.get() + bytes as u64);
    }

    fn count_wire(&self, bytes: usize) {
        self.wire.set(self.wire.get() + bytes as u64);
    }

    /// Bytes that came and went: what has changed has moved.
    pub(super) fn wire(&self) -> u64 {
        self.wire.get()
    }

    /// Counts a request that is over.
    pub(super) fn count_end(&self, is_taken_back: bool) {
        let count = if is_taken_back { &self.resets } else { &self.answered };
        count.set(count.get() + 1);
    }

    /// What the client does that nobody needs to bear.
    pub(super) fn abuse(&self) -> Option<Abuse> {
        if let Some(reason) = self.wrong.get() {
            return Some(Abuse::Wrong(reason));
        }
        if self.wire.get() / FLOOD_FACTOR > self.worth.get() + FLOOD_ALLOWANCE {
            return Some(Abuse::Flood);
        }
        (self.resets.get() > self.answered.get() + RESETS_MAX).then_some(Abuse::Resets)
    }

    /// Gives back the memory that nothing waits in.
    pub(super) fn shrink(&self) {
        let mut early = self.early.borrow_mut();
        if early.is_empty() {
            *early = Vec::new();
        }
    }

    /// Counts bytes of a response that were made.
    pub(super) fn count_made(&self, bytes: usize) {
        let made = &self.client.home.app.made;
        made.set(made.get() + bytes);
        self.untried.set(self.untried.get() + bytes);
    }

    /// Whether its loop has made enough for now.
    pub(super) fn made(&self) -> Made {
        match self.client.home.app.made.get() {
            ..MADE_MAX => Made::Little,
            _ => Made::Enough,
        }
    }

    /// What was made has had its chance to leave.
    fn has_tried(&self) {
        let made = &self.client.home.app.made;
        made.set(made.get() - self.untried.take());
    }

    /// Says which bytes the next slices are of that are written.
    pub(super) fn show(&self, bytes: &Bytes) {
        self.shown.borrow_mut().clone_from(bytes);
    }

    /// Looks at what has come before the crate does.
    fn look(&self, came: &[u8]) {
        self.sight.borrow_mut().look(came, |seen| match seen {
            Seen::Update { stream, value } => self.turns.update(stream, value),
            Seen::Wrong(reason) => self.wrong.set(Some(reason)),
        });
    }
}

impl Gathers for Conn {
    fn poll_read(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut early = self.early.borrow_mut();
        if !early.is_empty() {
            let len = early.len().min(buf.remaining());
            let some = early.get(..len).unwrap_or_default();
            self.look(some);
            buf.put_slice(some);
            early.drain(..len);
            return Poll::Ready(Ok(()));
        }
        drop(early);
        let turn = tw_rt::clock::now();
        let (last, had) = self.read.get();
        let had = if last == turn { had } else { 0 };
        if had >= self.read_max {
            // A client that sends faster than we read does not keep the loop.
            let mut others = pin!(tw_rt::yield_now());
            let _ = others.as_mut().poll(cx);
            return Poll::Pending;
        }
        let want = buf.remaining().min(SCRATCH_SIZE);
        loop {
            let mut scratch = self.client.home.buffers.scratch.borrow_mut();
            let room = scratch.get_mut(..want).unwrap_or_default();
            match self.transport.try_read_into(room) {
                Ok(n) => {
                    let came = room.get(..n).unwrap_or_default();
                    self.look(came);
                    buf.put_slice(came);
                    self.read.set((turn, had + n));
                    self.count_wire(n);
                    return Poll::Ready(Ok(()));
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Poll::Ready(Err(e)),
            }
            drop(scratch);
            ready!(self.transport.poll_readable(cx))?;
        }
    }

    fn poll_write(&self, cx: &mut Context<'_>, given: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if self.out.borrow().len() >= OUT_MAX {
            ready!(self.poll_out(cx))?;
        }
        let mut out = self.out.borrow_mut();
        let len = out.push(given, &self.shown.take(), &self.client.home);
        self.turns.gathered(out.len());
        Poll::Ready(Ok(len))
    }

    fn poll_out(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.has_tried();
        loop {
            let mut out = self.out.borrow_mut();
            if out.len() == 0 {
                return Poll::Ready(Ok(()));
            }
            let write = |parts: &[IoSlice<'_>]| self.transport.try_write_vectored(parts);
            match watch::operation("writing to the client", || out.write(write)) {
                Ok(n) => {
                    out.consume(n, &self.client.home);
                    self.count_wire(n);
                    let left = out.len();
                    drop(out);
                    self.turns.gathered(left);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    drop(out);
                    ready!(self.transport.poll_writable(cx))?;
                }
                Err(e) => return Poll::Ready(Err(e)),
            }
        }
    }

    fn end(&self) {
        let _ = self.transport.shutdown_write();
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        self.has_tried();
    }
}
