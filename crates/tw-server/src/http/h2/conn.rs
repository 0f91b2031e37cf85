//! One connection of HTTP/2: its transport as the crate `h2` reads and writes it, and what its client has cost so far.
//!
//! What is written is gathered. Frames of many streams leave in one call, when the connection has nothing more to do for now
//! ([`Conn::poll_out`]); only what is large goes to the socket by itself, together with what was gathered before it.

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tw_core::event_loop::SCRATCH_SIZE;
use tw_net::Transport;
use tw_rt::watch;

use crate::event_loop::Loop;
use crate::http::client::Client;

/// Bytes of frames that are gathered for one write.
pub(super) const OUT_MAX: usize = 64 << 10;
/// What is as large as this is not worth being copied behind other frames: the content of a full frame.
const DIRECT_MIN: usize = 16 << 10;
/// Pieces of one write.
const PARTS_MAX: usize = 8;

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
    out: RefCell<Out>,
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

/// Frames on their way to the socket.
#[derive(Default)]
struct Out {
    bytes: Vec<u8>,
    /// How much of them has left.
    sent: usize,
}

impl Out {
    fn rest(&self) -> &[u8] {
        self.bytes.get(self.sent..).unwrap_or_default()
    }

    /// Forgets what has left. A connection that waits for nothing to leave holds no buffer.
    fn consume(&mut self, n: usize, home: &Loop) {
        self.sent += n;
        if self.sent >= self.bytes.len() {
            home.app.give_back_output(std::mem::take(&mut self.bytes));
            self.sent = 0;
        }
    }

    fn push(&mut self, parts: &[IoSlice<'_>], home: &Loop) {
        if self.bytes.is_empty() {
            self.bytes = home.app.take_output();
        }
        // What waits is moved to the front once as much has left, not for every frame.
        if self.sent >= OUT_MAX {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
        parts.iter().for_each(|part| self.bytes.extend_from_slice(part));
    }
}

/// What a client has done that ends its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Abuse {
    /// Frames that nobody needs: settings, pings, priorities, empty ones.
    Flood,
    /// Requests that it does not wait for.
    Resets,
}

impl Conn {
    /// The connection of a client, of which `early` was read already. One turn reads at most `read_max` bytes of it.
    pub(crate) fn new(client: Rc<Client>, transport: Transport, early: Vec<u8>, read_max: usize) -> Rc<Self> {
        Rc::new(Self {
            read: Cell::new((client.accepted, 0)),
            client,
            transport,
            early: RefCell::new(early),
            out: RefCell::default(),
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

    fn poll_read(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut early = self.early.borrow_mut();
        if !early.is_empty() {
            let len = early.len().min(buf.remaining());
            buf.put_slice(early.get(..len).unwrap_or_default());
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
                    buf.put_slice(room.get(..n).unwrap_or_default());
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
        let given = given.get(..PARTS_MAX - 1).unwrap_or(given);
        let len: usize = given.iter().map(|part| part.len()).sum();
        loop {
            let mut out = self.out.borrow_mut();
            let gathered = out.rest().len();
            if len < DIRECT_MIN && gathered + len <= OUT_MAX {
                out.push(given, &self.client.home);
                return Poll::Ready(Ok(len));
            }
            let mut parts = [IoSlice::new(&[]); PARTS_MAX];
            parts[0] = IoSlice::new(out.rest());
            parts[1..=given.len()].copy_from_slice(given);
            let written = self.write_now(&parts[..=given.len()]);
            match written {
                Ok(n) => {
                    if gathered > 0 {
                        out.consume(n.min(gathered), &self.client.home);
                    }
                    if n > gathered {
                        return Poll::Ready(Ok(n - gathered));
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Poll::Ready(Err(e)),
            }
            drop(out);
            ready!(self.transport.poll_writable(cx))?;
        }
    }

    fn write_now(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let written = watch::operation("writing to the client", || self.transport.try_write_vectored(parts))?;
        self.count_wire(written);
        Ok(written)
    }

    /// Writes what was gathered. Ready when all of it has left.
    pub(super) fn poll_out(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut out = self.out.borrow_mut();
            if out.rest().is_empty() {
                return Poll::Ready(Ok(()));
            }
            let written = self.write_now(&[IoSlice::new(out.rest())]);
            match written {
                Ok(n) => {
                    out.consume(n, &self.client.home);
                    continue;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Poll::Ready(Err(e)),
            }
            drop(out);
            ready!(self.transport.poll_writable(cx))?;
        }
    }
}

/// A connection as the crate `h2` uses it.
pub(super) struct Io(pub(super) Rc<Conn>);

impl AsyncRead for Io {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.0.poll_read(cx, buf)
    }
}

impl AsyncWrite for Io {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.0.poll_write(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.poll_write(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// What was gathered leaves when the connection has nothing more to do for now.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.0.poll_out(cx))?;
        Poll::Ready(self.0.transport.shutdown_write())
    }
}
