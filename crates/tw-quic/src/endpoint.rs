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

mod driver;
mod receive;
mod send;

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use engine::ConnectionHandle;
use quinn_proto as engine;

use self::driver::INTERNAL_ERROR;
use self::send::Visit;
use crate::config::{EndpointConfig, HELLO_TIMEOUT, server_config};
use crate::connection::Connection;
use crate::error::ConnectionError;
use crate::hello::LongHeader;
use crate::incoming::IncomingConnection;
use crate::keys::Origin;
use crate::path_watch::PathWatch;
use crate::qlog::Recorder;
use crate::shared::Shared;
use crate::tls::SessionStart;
use crate::transmit::TransmitBatch;
use crate::wall_clock::WallClock;

pub(crate) use self::driver::Driver;

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

pub(crate) struct EndpointState {
    pub(crate) driver: RefCell<Driver>,
    /// Connections by their numbers in the engine.
    table: RefCell<Vec<Option<Rc<Shared>>>>,
    /// Connections that may have something to send, or whose timers have changed.
    queue: RefCell<VecDeque<Rc<Shared>>>,
    /// True while a client that has moved waits for its PATH_CHALLENGE.
    has_moved_client: Cell<bool>,
    /// Connections whose close is in the batch.
    closing: RefCell<Vec<Rc<Shared>>>,
    waker: RefCell<Option<Waker>>,
    statistics: Cell<EndpointStatistics>,
}

/// Work of [`Endpoint::fill`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Packets, to which tasks that have been woken may add.
    Packets,
    /// A PATH_CHALLENGE for a client that has moved, which may receive little before it has answered.
    PathChallenge,
}

/// Counters of an endpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EndpointStatistics {
    /// Connections that were accepted.
    pub accepted: u64,
    /// Handshakes that have failed, or were refused.
    pub refused: u64,
    /// Retry packets.
    pub retries: u64,
    /// Stateless resets.
    pub resets: u64,
    /// Datagrams that were dropped because of a limit.
    pub dropped: u64,
    /// Panics of the engine.
    pub panics: u64,
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

impl EndpointState {
    pub(crate) fn count(&self, count: impl FnOnce(&mut EndpointStatistics)) {
        let mut statistics = self.statistics.get();
        count(&mut statistics);
        self.statistics.set(statistics);
    }

    pub(crate) fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    pub(crate) fn add(
        self: &Rc<Self>,
        driver: &mut Driver,
        (handle, engine): (ConnectionHandle, engine::Connection),
        settings: (u64, Arc<PathWatch>),
        recorder: Option<Arc<Recorder>>,
    ) -> Rc<Shared> {
        let serial = driver.next_serial;
        driver.next_serial += 1;
        let this: Weak<Self> = Rc::downgrade(self);
        let shared = Shared::new((handle, engine), serial, this, settings, recorder);
        driver.handshakes += 1;
        let mut table = self.table.borrow_mut();
        if table.len() <= handle.0 {
            table.resize(handle.0 + 1, None);
        }
        if let Some(slot) = table.get_mut(handle.0) {
            *slot = Some(shared.clone());
        }
        drop(table);
        shared.call(|engine| shared.exchange(engine, driver));
        shared
    }

    fn find(&self, handle: ConnectionHandle, serial: u64) -> Option<Rc<Shared>> {
        let table = self.table.borrow();
        table.get(handle.0)?.as_ref().filter(|shared| shared.serial == serial).cloned()
    }

    /// Adds a connection to the queue, unless it is there or gone.
    pub(crate) fn queue(&self, handle: ConnectionHandle, serial: u64) {
        let Some(shared) = self.find(handle, serial) else { return };
        if !shared.is_queued.replace(true) {
            self.queue.borrow_mut().push_back(shared);
            self.wake();
        }
    }

    /// Notes that the packets of closes were sent, if none is left in the batch.
    fn note_closes_sent(&self, batch: &TransmitBatch) {
        if batch.is_empty() {
            self.closing.take().iter().for_each(|shared| shared.close_sent());
        }
    }

    /// Calls the engine. `None` if it has panicked: what the panic concerns has been ended.
    pub(crate) fn guard<T>(&self, call: impl FnOnce() -> T) -> Option<T> {
        // State that a panic may leave half changed is dropped.
        match catch_unwind(AssertUnwindSafe(call)) {
            Ok(done) => Some(done),
            Err(_) => {
                self.count(|statistics| statistics.panics += 1);
                self.recover();
                None
            }
        }
    }

    /// Ends the connections that a panic concerns.
    fn recover(&self) {
        let is_of_endpoint = self.driver.borrow().is_busy;
        if is_of_endpoint {
            let all = std::mem::take(&mut *self.table.borrow_mut());
            self.queue.borrow_mut().clear();
            let old = {
                let mut driver = self.driver.borrow_mut();
                let mut new = Driver::new(driver.config.clone(), driver.clock.clone(), driver.epoch + 1);
                new.is_accepting = driver.is_accepting;
                std::mem::replace(&mut *driver, new)
            };
            for shared in all.into_iter().flatten() {
                shared.ended(ConnectionError::EngineFailed);
                shared.free();
            }
            // Parts of the connection may be half changed: a second panic here must not end the loop.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(old)));
            return;
        }
        let broken: Vec<_> =
            self.table.borrow().iter().flatten().filter(|shared| shared.is_broken()).cloned().collect();
        for shared in broken {
            self.forget(&shared);
        }
    }

    /// Ends a connection in which the engine has panicked.
    fn forget(&self, shared: &Rc<Shared>) {
        shared.ended(ConnectionError::EngineFailed);
        let mut driver = self.driver.borrow_mut();
        driver.uncount(shared);
        driver.with_engine(|engine| engine.handle_event(shared.handle, engine::EndpointEvent::drained()));
        drop(driver);
        if let Some(slot) = self.table.borrow_mut().get_mut(shared.handle.0) {
            *slot = None;
        }
        let _ = catch_unwind(AssertUnwindSafe(|| shared.free()));
    }

    /// Removes connections that the engine has forgotten.
    fn remove_drained(&self) {
        let drained = std::mem::take(&mut self.driver.borrow_mut().drained);
        for handle in drained {
            let shared = self.table.borrow_mut().get_mut(handle.0).and_then(Option::take);
            if let Some(shared) = shared {
                // A connection that is drained without an event timed out while it was closing.
                shared.ended(ConnectionError::TimedOut);
                self.driver.borrow_mut().uncount(&shared);
                shared.free();
            }
        }
    }
}
