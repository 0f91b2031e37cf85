//! Endpoint: all connections of one listening address on one loop.
//!
//! ```text
//! Endpoint::receive ─┬─► known connection: engine ─► wakes tasks that wait on the handle
//!                    ├─► client hello is whole ─► IncomingConnection ─ server chosen ─► accept ─► Connection
//!                    └─► ID of another loop or process ─► Received::Elsewhere: pass it on
//! Endpoint::poll_work ─► Endpoint::fill ─► messages to be sent; Endpoint::next_timeout ─► Endpoint::on_timeout
//! ```
//! A panic of the engine ends the connection in which it happened, or, if it concerns the endpoint, all of them; then the endpoint goes on
//! with a new engine.

pub(crate) mod driver;
mod receive;
mod send;
pub(crate) mod state;

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use engine::ConnectionHandle;
use quinn_proto as engine;

use self::driver::{Driver, INTERNAL_ERROR};
use self::send::Visit;
use self::state::EndpointState;
use crate::config::{EndpointConfig, HELLO_TIMEOUT, server_config};
use crate::connection::Connection;
use crate::hello::LongHeader;
use crate::incoming::IncomingConnection;
use crate::keys::Origin;
use crate::tls::SessionStart;
use crate::transmit::TransmitBatch;
use crate::wall_clock::WallClock;

pub use self::state::EndpointStatistics;

/// A datagram that has arrived.
#[derive(Debug, Clone, Copy)]
pub struct Datagram<'a> {
    /// Content.
    pub bytes: &'a [u8],
    /// Sender.
    pub peer: SocketAddr,
    /// Local address that it was sent to, if the socket tells.
    pub local: Option<IpAddr>,
    /// Mark of explicit congestion notification, the two low bits of the traffic class; 0 for none.
    pub ecn: u8,
}

/// Result of a datagram.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "matched at once, and large once for each connection")]
pub enum Received {
    /// Nothing is left to do.
    Done,
    /// A client wants to connect.
    Connecting(IncomingConnection),
    /// Datagram of a connection of another loop or process.
    Elsewhere(Origin),
    /// A client wants to connect to an endpoint that takes no more connections ([`Endpoint::stop_accepting`]).
    Refused,
}

/// Connections of one listening address on one loop. Clones are handles of the same endpoint.
#[derive(Clone)]
pub struct Endpoint(Rc<EndpointState>);

/// Work of [`Endpoint::fill`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Packets, to which tasks that have been woken may add.
    Packets,
    /// A PATH_CHALLENGE for a client that has moved, which may receive little before it has answered.
    PathChallenge,
}

impl Endpoint {
    /// An endpoint without connections. `unix` is the time since 1970 at `now`. The first one in a process draws random numbers
    /// for the first time, which a loop may not.
    pub fn new(config: EndpointConfig, now: Instant, unix: Duration) -> Self {
        let clock = Arc::new(WallClock::new(now, unix));
        Self(Rc::new(EndpointState {
            driver: RefCell::new(Driver::new(config, clock, 0)),
            table: RefCell::default(),
            queue: RefCell::default(),
            has_moved_client: Cell::default(),
            closing: RefCell::default(),
            waker: RefCell::default(),
            statistics: Cell::default(),
        }))
    }

    /// Uses these settings for further connections. The keys of connection IDs and stateless resets stay.
    pub fn set_config(&self, config: EndpointConfig) {
        let mut driver = self.0.driver.borrow_mut();
        let server =
            server_config(&config.keys, driver.clock.clone(), Arc::new(SessionStart::Reject(INTERNAL_ERROR)));
        driver.server = Arc::new(server);
        driver.accepting = None;
        driver.config.retry = config.retry;
        let server = driver.server.clone();
        driver.engine.set_server_config(Some(server));
    }

    /// Takes no more connections: what would begin one is [`Received::Refused`].
    pub fn stop_accepting(&self) {
        self.0.driver.borrow_mut().is_accepting = false;
    }

    /// Takes a datagram. Answers are ready for [`Endpoint::fill`].
    pub fn receive(&self, now: Instant, datagram: &Datagram<'_>) -> Received {
        let state = &self.0;
        let outcome = state.guard(|| {
            let mut driver = state.driver.borrow_mut();
            driver.clock.set(now);
            state.receive(&mut driver, now, datagram)
        });
        state.remove_drained();
        state.wake();
        outcome.unwrap_or(Received::Done)
    }

    /// Origin of a datagram with a long header, if its connection ID is one of this key. For an ID that a client has chosen the result is
    /// random.
    pub fn origin_of_handshake(&self, bytes: &[u8]) -> Option<Origin> {
        let header = LongHeader::read(&mut &*bytes)?;
        self.0.driver.borrow().config.keys.origin(header.destination)
    }

    /// Answers a datagram of a connection that is lost, whatever loop it belonged to, with a stateless reset.
    pub fn reset(&self, now: Instant, datagram: &Datagram<'_>) {
        self.0.driver.borrow().foreign.ignore(true);
        // The datagram belongs to no connection of this endpoint, so it has no other effect.
        let _ = self.receive(now, datagram);
        self.0.driver.borrow().foreign.ignore(false);
    }

    /// Ready while [`Endpoint::fill`] has something to do.
    pub fn poll_work(&self, cx: &mut Context<'_>) -> Poll<Work> {
        if self.0.has_moved_client.take() {
            return Poll::Ready(Work::PathChallenge);
        }
        if !self.0.queue.borrow().is_empty() || !self.0.driver.borrow().responses.is_empty() {
            return Poll::Ready(Work::Packets);
        }
        let waker = &mut *self.0.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Adds messages to a batch until it is full or nothing is left to be sent. If the batch is empty, those that were in it were sent.
    pub fn fill(&self, now: Instant, batch: &mut TransmitBatch) {
        let state = &self.0;
        state.note_closes_sent(batch);
        while !batch.is_full() {
            let Some(response) = state.driver.borrow_mut().responses.pop_front() else { break };
            batch.push(response);
        }
        while !batch.is_full() {
            let Some(shared) = state.queue.borrow_mut().pop_front() else { break };
            shared.is_queued.set(false);
            if state.guard(|| state.visit(&shared, now, batch)) == Some(Visit::Cut) {
                state.queue(shared.handle, shared.serial);
            }
        }
        state.remove_drained();
        state.note_closes_sent(batch);
    }

    /// Time at which [`Endpoint::on_timeout`] has something to do.
    pub fn next_timeout(&self) -> Option<Instant> {
        let driver = self.0.driver.borrow();
        let timer = driver.timers.peek().map(|Reverse((at, ..))| *at);
        let hello = driver.hello_order.front().map(|(at, _)| *at + HELLO_TIMEOUT);
        timer.into_iter().chain(hello).min()
    }

    /// Runs timers that are due at `now`.
    pub fn on_timeout(&self, now: Instant) {
        let state = &self.0;
        state.guard(|| state.driver.borrow_mut().expire_hellos(now));
        loop {
            let mut driver = state.driver.borrow_mut();
            let Some(Reverse((at, handle, serial))) = driver.timers.peek().copied() else { break };
            if at > now {
                break;
            }
            driver.timers.pop();
            drop(driver);
            let Some(shared) = state.find(ConnectionHandle(handle), serial) else { continue };
            if shared.armed.get() != Some(at) {
                continue;
            }
            shared.armed.set(None);
            shared.record(|recorder| recorder.set_time(now));
            state.guard(|| {
                shared.call(|engine| {
                    if engine.poll_timeout().is_some_and(|at| at <= now) {
                        engine.handle_timeout(now);
                        shared.exchange(engine, &mut state.driver.borrow_mut());
                    }
                })
            });
            state.queue(shared.handle, shared.serial);
        }
        state.remove_drained();
    }

    /// Wakes the task of [`Endpoint::poll_work`].
    pub fn wake(&self) {
        self.0.wake();
    }

    /// Closes all connections.
    pub fn close(&self, code: u64, reason: &[u8]) {
        let all: Vec<_> = self.0.table.borrow().iter().flatten().cloned().collect();
        for shared in all {
            Connection::new(shared).close(code, reason);
        }
    }

    /// Number of connections, including those that are closing.
    pub fn connections(&self) -> usize {
        self.0.table.borrow().iter().flatten().count()
    }

    /// Number of handshakes under way.
    pub fn handshakes(&self) -> usize {
        self.0.driver.borrow().half_open()
    }

    /// Counters.
    pub fn statistics(&self) -> EndpointStatistics {
        self.0.statistics.get()
    }
}
