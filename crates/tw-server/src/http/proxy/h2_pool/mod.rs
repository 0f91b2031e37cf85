//! Trunks: connections to upstream servers that carry the requests of many clients at once, in HTTP/2 (RFC 9113; `tw-http2` knows
//! frames, HPACK and windows).
//!
//! ```text
//! table: those of one loop ── a berth ──► stream: one request, which is asked and answered like one on a connection of its own
//!   └─► life: one task for each trunk: connect, shake hands, then whatever frames need ◄── io: they leave together
//! ```
//! A berth is leased like a connection is taken. A trunk that is still being opened has berths, too: who wants one waits for the same
//! connection. Whatever happens to a stream concerns nobody else; what ends a trunk ends the streams it carries.

mod connection_task;
mod head;
mod io;
mod stream;
mod stream_permit;
mod table;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use tw_base::Limit;
use tw_http2::Connection;
use tw_net::{Addr, ConnectOptions};
use tw_upstream::PeerId;

use super::failure::{AttemptFailure, AttemptStage, UpstreamFailure};
use super::keepalive_pool::KeepAlive;

pub use stream::Stream;
pub(super) use stream::{End, StreamEvent};
pub(super) use stream_permit::acquire_stream;
pub(crate) use table::H2Pool;
pub(super) use table::{Wanted, dedicated};

/// Requests that one trunk carries at once, however many more its server would take.
const STREAMS_MAX: usize = 100;
/// Bytes of one response that wait for whoever reads it.
const STREAM_WINDOW: u32 = 128 << 10;
/// The same of all responses of a trunk: as much as all its streams may have, so that none waits for another's reader.
const TRUNK_WINDOW: u32 = STREAM_WINDOW * STREAMS_MAX as u32;
/// Bytes of requests that wait for the socket of a trunk.
const GATHERED_MAX: usize = 256 << 10;
/// What is taken of a head, in sizes of what is allowed: more is counted there than names and values (RFC 9113 section 6.5.2).
const LIST_FACTOR: u32 = 2;

pub(crate) const LIMITS: &[Limit] = &[
    Limit::count(
        "STREAMS_MAX",
        STREAMS_MAX as u64,
        "Requests that one connection of HTTP/2 to an upstream server carries at once, if the server allows as many",
        "another connection is opened",
    ),
    Limit::bytes(
        "STREAM_WINDOW",
        STREAM_WINDOW as u64,
        "Bytes of one response in HTTP/2 of an upstream server that were not taken yet",
        "the upstream server has to wait (flow control)",
    ),
    Limit::bytes(
        "GATHERED_MAX",
        GATHERED_MAX as u64,
        "Bytes for an upstream server in HTTP/2 that wait for the socket",
        "no more of the bodies of requests is taken for it until some have left",
    ),
    io::LIMITS[0],
    io::LIMITS[1],
    table::LIMIT,
];

// DIFF(nginx): requests in HTTP/2 share connections.
/// One connection that carries many requests.
pub(crate) struct H2Connection {
    peer: PeerId,
    to: Addr,
    options: ConnectOptions,
    /// Bytes of a head that its server was told.
    list_size: u32,
    is_secured: bool,
    keepalive: KeepAlive,
    state: RefCell<State>,
    fate: Cell<Fate>,
    /// Berths that are leased.
    berths: Cell<usize>,
    /// Requests that were sent.
    requests: Cell<u64>,
    /// Requests that were answered.
    answered: Cell<u64>,
    /// Bytes that may have come of responses that nobody waited for any more.
    unwanted: Cell<u64>,
    opened: Instant,
    /// Who waits until it is open.
    waiting: RefCell<Vec<Waker>>,
    /// Its task, to be told that a berth was given back.
    life: RefCell<Option<Waker>>,
}

/// How far a trunk is.
enum State {
    Opening,
    Open(Rc<Connection>),
    /// It never was open.
    Failed(Rc<UpstreamFailure>, AttemptStage),
    /// It is closed, for this reason if that is known.
    Closed(Option<&'static str>),
}

/// What will become of a trunk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It takes requests.
    Useful,
    /// It takes none any more, and goes with the last one.
    Retired,
}

impl H2Connection {
    /// Berths it has in all.
    fn capacity(&self) -> usize {
        if self.fate.get() == Fate::Retired {
            return 0;
        }
        match &*self.state.borrow() {
            // What its server allows is not known yet; whom it refuses may come again.
            State::Opening => STREAMS_MAX,
            State::Open(connection) if connection.is_open() => connection.streams_max().min(STREAMS_MAX),
            State::Open(_) => 0,
            State::Failed(..) | State::Closed(_) => 0,
        }
    }

    /// Takes a berth, for which there must be room.
    fn lease(self: &Rc<Self>) -> StreamPermit {
        self.berths.set(self.berths.get() + 1);
        self.requests.set(self.requests.get() + 1);
        let age = tw_rt::clock::now().saturating_duration_since(self.opened);
        if self.requests.get() >= self.keepalive.requests || age >= self.keepalive.time {
            self.retire();
        }
        StreamPermit(self.clone())
    }

    /// No more requests are sent on it.
    fn retire(&self) {
        self.fate.set(Fate::Retired);
        self.wake();
    }

    /// Its task is this one.
    fn is_driven_by(&self, waker: &Waker) {
        let mut life = self.life.borrow_mut();
        if !life.as_ref().is_some_and(|life| life.will_wake(waker)) {
            *life = Some(waker.clone());
        }
    }

    fn wake(&self) {
        if let Some(life) = self.life.take() {
            life.wake();
        }
    }

    /// Whether a request can be sent on it now, by who has a berth.
    fn has_room(&self) -> bool {
        match &*self.state.borrow() {
            State::Open(connection) => {
                connection.is_open() && connection.streams() < connection.streams_max()
            }
            _ => false,
        }
    }

    /// It is closed, for this reason if that is known.
    fn close(&self, why: Option<&'static str>) {
        if matches!(*self.state.borrow(), State::Opening | State::Open(_)) {
            self.settle(State::Closed(why));
        }
    }

    /// Says how far it is to everybody who waits for that.
    fn settle(&self, state: State) {
        *self.state.borrow_mut() = state;
        self.waiting.take().into_iter().for_each(Waker::wake);
    }

    /// Waits until it is open.
    fn poll_open(&self, cx: &mut Context<'_>) -> Poll<Result<(), AttemptFailure>> {
        match &*self.state.borrow() {
            State::Open(_) => Poll::Ready(Ok(())),
            State::Failed(failure, stage) => {
                Poll::Ready(Err(UpstreamFailure::Shared(failure.clone()).at(*stage)))
            }
            State::Closed(_) => Poll::Ready(Err(UpstreamFailure::Closed.at(AttemptStage::Connecting))),
            State::Opening => {
                let mut waiting = self.waiting.borrow_mut();
                if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                    waiting.push(cx.waker().clone());
                }
                Poll::Pending
            }
        }
    }

    /// Why it was closed, if that was its server's doing.
    fn why_closed(&self) -> Option<&'static str> {
        match &*self.state.borrow() {
            State::Closed(why) => *why,
            _ => None,
        }
    }

    fn is_idle(&self) -> bool {
        self.berths.get() == 0
    }
}

/// The permit for one request on a trunk.
pub(super) struct StreamPermit(Rc<H2Connection>);

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let Self(h2_connection) = self;
        h2_connection.berths.set(h2_connection.berths.get().saturating_sub(1));
        if h2_connection.is_idle() {
            h2_connection.wake();
        }
    }
}
