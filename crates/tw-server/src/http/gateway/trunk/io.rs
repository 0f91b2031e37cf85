//! What a trunk runs over: its transport as the crate `h2` reads and writes it. What is written is gathered, and leaves when the trunk
//! has nothing more to do for now ([`Io::poll_out`]): frames of many streams in one call.

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::ReadBuf;
use tw_base::Limit;
use tw_core::event_loop::SCRATCH_SIZE;
use tw_net::Transport;
use tw_rt::watch;

use crate::event_loop::Loop;
use crate::http::frames::Gathers;

/// Bytes that are gathered for one write.
const GATHERED_MAX: usize = 64 << 10;
/// Bytes that a server may spend on frames beyond what its responses are worth.
const IDLE_TALK_MAX: u64 = 128 << 10;
/// So many bytes may come for one of a head or a body.
const TALK_FACTOR: u64 = 8;

pub(super) const LIMITS: &[Limit] = &[
    Limit::bytes(
        "GATHERED_MAX",
        GATHERED_MAX as u64,
        "Bytes for an upstream server in HTTP/2 that are gathered for one write",
        "nothing more is sent on the connection until some have left",
    ),
    Limit::bytes(
        "IDLE_TALK_MAX",
        IDLE_TALK_MAX,
        "Bytes of frames of an upstream server beyond eight times those of heads and bodies: settings, pings, empty frames",
        "the connection is closed, and its requests fail (502)",
    ),
];

/// The bytes of a trunk.
pub(super) struct Io {
    transport: Transport,
    home: Rc<Loop>,
    out: RefCell<Out>,
    came: Cell<u64>,
}

#[derive(Default)]
struct Out {
    bytes: Vec<u8>,
    /// How much of them has left.
    sent: usize,
}

impl Io {
    pub(super) fn new(transport: Transport, home: Rc<Loop>) -> Rc<Self> {
        Rc::new(Self { transport, home, out: RefCell::default(), came: Cell::new(0) })
    }

    /// Whether more came than `worth` bytes of heads and bodies can be the reason for.
    pub(super) fn is_flooded(&self, worth: u64) -> bool {
        self.came.get() / TALK_FACTOR > worth + IDLE_TALK_MAX
    }
}

impl Gathers for Io {
    fn poll_read(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        // A server that sends faster than we read does not keep the loop.
        if !self.home.budget.may_copy(0) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let want = buf.remaining().min(SCRATCH_SIZE);
        loop {
            let mut scratch = self.home.buffers.scratch.borrow_mut();
            let room = scratch.get_mut(..want).unwrap_or_default();
            let read =
                watch::operation("reading from an upstream server", || self.transport.try_read_into(room));
            match read {
                Ok(n) => {
                    buf.put_slice(room.get(..n).unwrap_or_default());
                    self.came.set(self.came.get() + n as u64);
                    let _ = self.home.budget.may_copy(n);
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
        if self.out.borrow().bytes.len() >= GATHERED_MAX {
            ready!(self.poll_out(cx))?;
        }
        let out = &mut *self.out.borrow_mut();
        if out.bytes.is_empty() {
            out.bytes = self.home.app.take_output();
        }
        let before = out.bytes.len();
        for part in given {
            let room = GATHERED_MAX.saturating_sub(out.bytes.len());
            out.bytes.extend_from_slice(part.get(..room).unwrap_or(part));
        }
        Poll::Ready(Ok(out.bytes.len() - before))
    }

    fn poll_out(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let out = &mut *self.out.borrow_mut();
        while let Some(rest) = out.bytes.get(out.sent..).filter(|rest| !rest.is_empty()) {
            let write = || self.transport.try_write(rest);
            match watch::operation("writing to an upstream server", write) {
                Ok(n) => out.sent += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    ready!(self.transport.poll_writable(cx))?;
                }
                Err(e) => return Poll::Ready(Err(e)),
            }
        }
        if out.sent > 0 {
            self.home.app.give_back_output(std::mem::take(&mut out.bytes));
            out.sent = 0;
        }
        Poll::Ready(Ok(()))
    }

    fn end(&self) {
        let _ = self.transport.shutdown_write();
    }
}
