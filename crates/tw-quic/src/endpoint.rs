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

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use aws_lc_rs::rand;
use bytes::BytesMut;
use engine::{ConnectionHandle, DatagramEvent, EcnCodepoint};
use quinn_proto as engine;
use tw_base::FatalMutex;

use crate::config::{
    EndpointConfig, HANDSHAKES_MAX, HANDSHAKES_WITHOUT_RETRY_MAX, HELLO_TIMEOUT, HELLOS_MAX,
    PAYLOAD_SIZE_MAX, RESET_INTERVAL, RESPONSES_MAX, RetryPolicy, TransportConfig, server_config,
};
use crate::connection::Connection;
use crate::error::ConnectionError;
use crate::hello::{HelloReader, LongHeader, Progress};
use crate::incoming::IncomingConnection;
use crate::keys::{CONNECTION_ID_LEN, ConnectionIds, ForeignOrigin, Origin};
use crate::path_watch::PathWatch;
use crate::qlog::{Direction, Recorder};
use crate::shared::{Closing, Shared};
use crate::tls::{SessionStart, VERSION_1};
use crate::transmit::{Outgoing, TransmitBatch};
use crate::wall_clock::WallClock;

/// Datagrams of one message. Longer ones would hold up those of other connections.
const SEGMENTS_MAX: usize = 44;
/// Datagrams of one connection before others have their turn; the last message may exceed it.
const DATAGRAMS_OF_VISIT: usize = 2 * SEGMENTS_MAX;
/// Bit of the first byte of a packet with a long header (RFC 9000, section 17).
const LONG_HEADER: u8 = 0x80;
/// Alert `internal_error`: the engine's own configuration never accepts.
const INTERNAL_ERROR: u8 = 80;

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
    /// Connections whose close is in the batch.
    closing: RefCell<Vec<Rc<Shared>>>,
    waker: RefCell<Option<Waker>>,
    statistics: Cell<EndpointStatistics>,
}

/// The part of an endpoint that only the endpoint itself changes.
pub(crate) struct Driver {
    engine: engine::Endpoint,
    /// True while the engine works, and after a panic of it.
    is_busy: bool,
    /// Number of the engine: what belongs to an earlier one is void.
    pub(crate) epoch: u64,
    pub(crate) config: EndpointConfig,
    pub(crate) server: Arc<engine::ServerConfig>,
    /// Configuration of the last connection that was accepted, with the place of the session of the next one.
    accepting: Option<(Arc<engine::ServerConfig>, Arc<SessionStart>)>,
    clock: Arc<WallClock>,
    foreign: Arc<ForeignOrigin>,
    /// ID that the next connection has, because its client is told so.
    pub(crate) reserved: Arc<FatalMutex<Option<[u8; CONNECTION_ID_LEN]>>>,
    /// Client hellos of which parts are missing, by the ID that the client has chosen.
    hellos: HashMap<Box<[u8]>, PendingHello>,
    /// Order of their arrival; some are gone.
    hello_order: VecDeque<(Instant, Box<[u8]>)>,
    /// Connections that wait for the choice of a server, or whose handshake is not complete.
    pub(crate) handshakes: usize,
    /// Answers without a connection.
    responses: VecDeque<Outgoing>,
    timers: BinaryHeap<Reverse<(Instant, usize, u64)>>,
    next_serial: u64,
    drained: Vec<ConnectionHandle>,
    is_accepting: bool,
}

/// A connection whose client hello is not whole.
struct PendingHello {
    incoming: engine::Incoming,
    reader: HelloReader,
    /// Length of the first datagram.
    first_len: u64,
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
        // It belongs to nothing here, so there is nothing else to do.
        let _ = self.receive(now, datagram);
        self.0.driver.borrow().foreign.ignore(false);
    }

    /// Ready while [`Endpoint::fill`] has something to do.
    pub fn poll_work(&self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.0.queue.borrow().is_empty() || !self.0.driver.borrow().responses.is_empty() {
            return Poll::Ready(());
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
        // All that a panic may leave half changed is thrown away.
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
            // Its parts may be half changed: a second panic here must not end the loop.
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
                // One that was drained without an event had timed out while it was closing.
                shared.ended(ConnectionError::TimedOut);
                self.driver.borrow_mut().uncount(&shared);
                shared.free();
            }
        }
    }

    fn receive(self: &Rc<Self>, driver: &mut Driver, now: Instant, datagram: &Datagram<'_>) -> Received {
        let destination = {
            let header = LongHeader::read(&mut &*datagram.bytes);
            header.filter(LongHeader::is_initial).map(|header| header.destination)
        };
        // The engine takes what it is given; the hello is read from a copy.
        let pending = destination.and_then(|id| driver.hellos.get_mut(id));
        let progress = pending.map(|pending| pending.reader.read(datagram.bytes));
        let mut out = Vec::new();
        let ecn = EcnCodepoint::from_bits(datagram.ecn & 3);
        let bytes = BytesMut::from(datagram.bytes);
        let (peer, local) = (datagram.peer, datagram.local);
        let event = driver.with_engine(|engine| engine.handle(now, peer, local, ecn, bytes, &mut out));
        match event {
            None => {
                if let Some(origin) = driver.foreign.take() {
                    return Received::Elsewhere(origin);
                }
            }
            Some(DatagramEvent::Response(transmit)) => {
                // A packet with a short header of no known connection.
                if datagram.bytes.first().is_some_and(|first| first & LONG_HEADER == 0) {
                    self.count(|statistics| statistics.resets += 1);
                }
                driver.respond(Outgoing::new(out, transmit));
            }
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                let shared = self.table.borrow().get(handle.0).cloned().flatten();
                let Some(shared) = shared else { return Received::Done };
                shared.record(|recorder| {
                    recorder.set_time(now);
                    recorder.datagrams(Direction::Received, datagram.bytes.len(), None, datagram.ecn);
                });
                shared.call(|engine| {
                    engine.handle_event(event);
                    shared.exchange(engine, driver);
                });
                self.queue(shared.handle, shared.serial);
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                let Some(destination) = destination else { return Received::Done };
                return self.connecting(driver, now, incoming, (destination, datagram.bytes));
            }
        }
        let (Some(Progress::Whole), Some(destination)) = (progress, destination) else {
            return Received::Done;
        };
        match driver.hellos.remove(destination) {
            Some(pending) => Received::Connecting(self.incoming(driver, pending)),
            None => Received::Done,
        }
    }

    /// Handles the first datagram of a client.
    fn connecting(
        self: &Rc<Self>,
        driver: &mut Driver,
        now: Instant,
        incoming: engine::Incoming,
        (destination, bytes): (&[u8], &[u8]),
    ) -> Received {
        if !driver.is_accepting {
            driver.with_engine(|engine| engine.ignore(incoming));
            return Received::Refused;
        }
        let half_open = driver.half_open();
        // DIFF(nginx): also without `quic_retry`, while many handshakes are under way; and a token that is not valid is as none: the client
        // gets a new Retry packet, not INVALID_TOKEN (RFC 9000, section 8.1.3).
        let wants_proof =
            driver.config.retry == RetryPolicy::Always || half_open >= HANDSHAKES_WITHOUT_RETRY_MAX;
        if wants_proof && !incoming.remote_address_validated() {
            let mut out = Vec::new();
            if let Ok(transmit) = driver.with_engine(|engine| engine.retry(incoming, &mut out)) {
                driver.respond(Outgoing::new(out, transmit));
                self.count(|statistics| statistics.retries += 1);
            }
            return Received::Done;
        }
        if half_open >= HANDSHAKES_MAX {
            driver.with_engine(|engine| engine.ignore(incoming));
            self.count(|statistics| statistics.dropped += 1);
            return Received::Done;
        }
        let mut reader = HelloReader::new(destination);
        let progress = reader.read(bytes);
        let pending = PendingHello { incoming, reader, first_len: bytes.len() as u64 };
        if progress == Progress::Whole {
            return Received::Connecting(self.incoming(driver, pending));
        }
        if driver.hellos.len() >= HELLOS_MAX {
            driver.forget_oldest_hello();
            self.count(|statistics| statistics.dropped += 1);
        }
        driver.hellos.insert(destination.into(), pending);
        driver.hello_order.push_back((now, destination.into()));
        Received::Done
    }

    fn incoming(self: &Rc<Self>, driver: &mut Driver, pending: PendingHello) -> IncomingConnection {
        let PendingHello { incoming, reader, first_len } = pending;
        driver.handshakes += 1;
        let destination = reader.destination().into();
        IncomingConnection {
            destination,
            first_len,
            peer: incoming.remote_address(),
            local: incoming.local_ip(),
            incoming: Some(incoming),
            hello: reader.into_bytes(),
            recorder: None,
            epoch: driver.epoch,
            endpoint: self.clone(),
        }
    }

    /// Lets a connection send, and sets its timer.
    fn visit(&self, shared: &Rc<Shared>, now: Instant, batch: &mut TransmitBatch) -> Visit {
        if shared.is_broken() {
            self.count(|statistics| statistics.panics += 1);
            self.forget(shared);
            return Visit::Whole;
        }
        shared.record(|recorder| recorder.set_time(now));
        let visit = shared.call(|engine| {
            shared.execute_close(engine, now);
            let (mut visit, mut made) = (Visit::Cut, 0);
            while made < DATAGRAMS_OF_VISIT && !batch.is_full() {
                if !shared.may_send(engine) {
                    visit = Visit::Whole;
                    break;
                }
                let mut buffer = batch.buffer();
                let segments = if shared.is_unproved() { 1 } else { SEGMENTS_MAX };
                match engine.poll_transmit(now, segments, &mut buffer) {
                    Some(transmit) => {
                        shared.packets_made(transmit.destination);
                        let message = Outgoing::new(buffer, transmit);
                        made += message.datagrams();
                        let Outgoing { bytes, segment, ecn, .. } = &message;
                        shared.record(|recorder| {
                            recorder.datagrams(Direction::Sent, bytes.len(), *segment, *ecn);
                        });
                        batch.push(message);
                    }
                    None => {
                        batch.give_back(buffer);
                        visit = Visit::Whole;
                        break;
                    }
                }
            }
            if shared.closing.get() == Closing::Executed && !batch.is_full() {
                self.closing.borrow_mut().push(shared.clone());
            }
            let mut driver = self.driver.borrow_mut();
            shared.exchange(engine, &mut driver);
            if let Some(at) = shared.next_timeout(engine) {
                // A timer that is later than the one that is set is looked at when that one is due.
                if shared.armed.get().is_none_or(|armed| at < armed) {
                    shared.armed.set(Some(at));
                    driver.timers.push(Reverse((at, shared.handle.0, shared.serial)));
                }
            }
            visit
        });
        visit.unwrap_or(Visit::Whole)
    }
}

/// Result of letting a connection send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Visit {
    /// Nothing is left, or nothing may be sent now.
    Whole,
    /// There may be more.
    Cut,
}

impl Driver {
    fn new(config: EndpointConfig, clock: Arc<WallClock>, epoch: u64) -> Self {
        let foreign = Arc::new(ForeignOrigin::default());
        let reserved = Arc::<FatalMutex<_>>::default();
        let mut seed = [0; 32];
        // Without random numbers no handshake succeeds either.
        let _ = rand::fill(&mut seed);
        let mut own = engine::EndpointConfig::new(config.keys.reset.clone());
        let (keys, origin) = (config.keys.clone(), config.origin);
        let (noted, next) = (foreign.clone(), reserved.clone());
        own.supported_versions(vec![VERSION_1])
            .min_reset_interval(RESET_INTERVAL)
            .rng_seed(Some(seed))
            .cid_generator(move || {
                let (keys, foreign, reserved) = (keys.clone(), noted.clone(), next.clone());
                Box::new(ConnectionIds { keys, own: origin, foreign, reserved })
            });
        // The size is within the range that the engine allows.
        let _ = own.max_udp_payload_size(PAYLOAD_SIZE_MAX);
        let refusal = Arc::new(SessionStart::Reject(INTERNAL_ERROR));
        let server = Arc::new(server_config(&config.keys, clock.clone(), refusal));
        Self {
            engine: engine::Endpoint::new(Arc::new(own), Some(server.clone()), true, None),
            is_busy: false,
            epoch,
            config,
            server,
            accepting: None,
            clock,
            foreign,
            reserved,
            hellos: HashMap::new(),
            hello_order: VecDeque::new(),
            handshakes: 0,
            responses: VecDeque::new(),
            timers: BinaryHeap::new(),
            next_serial: epoch << 40,
            drained: Vec::new(),
            is_accepting: true,
        }
    }

    /// Configuration of a connection that is about to be accepted, and the place of its session. Connections with the same settings share it.
    pub(crate) fn accepting(
        &mut self,
        transport: &TransportConfig,
    ) -> (Arc<engine::ServerConfig>, Arc<SessionStart>) {
        let is_same = |config: &engine::ServerConfig| Arc::ptr_eq(&config.transport, &transport.engine);
        let accepting = self.accepting.take().filter(|(config, _)| is_same(config)).unwrap_or_else(|| {
            let start = Arc::new(SessionStart::Begun(FatalMutex::default()));
            let mut config = (*self.server).clone();
            config.crypto = start.clone();
            config.transport = transport.engine.clone();
            (Arc::new(config), start)
        });
        self.accepting.insert(accepting).clone()
    }

    pub(crate) fn with_engine<T>(&mut self, call: impl FnOnce(&mut engine::Endpoint) -> T) -> T {
        self.is_busy = true;
        let outcome = call(&mut self.engine);
        self.is_busy = false;
        outcome
    }

    /// Handshakes under way.
    fn half_open(&self) -> usize {
        self.hellos.len() + self.handshakes
    }

    /// Counts a handshake as over, once, if it is.
    fn uncount(&mut self, shared: &Shared) {
        if shared.is_counted.replace(false) {
            self.handshakes = self.handshakes.saturating_sub(1);
        }
    }

    /// Queues an answer without a connection. One that is too many is lost, as in the network.
    pub(crate) fn respond(&mut self, message: Outgoing) {
        if self.responses.len() < RESPONSES_MAX {
            self.responses.push_back(message);
        }
    }

    /// Hands an event of a connection to the engine of the endpoint.
    pub(crate) fn endpoint_event(
        &mut self,
        shared: &Shared,
        event: engine::EndpointEvent,
    ) -> Option<engine::ConnectionEvent> {
        if event.is_drained() {
            self.drained.push(shared.handle);
        }
        self.with_engine(|engine| engine.handle_event(shared.handle, event))
    }

    /// Notes that a handshake is over, if it is.
    pub(crate) fn note_handshake(&mut self, shared: &Shared) {
        if shared.is_established() || shared.has_ended() {
            self.uncount(shared);
        }
    }

    fn forget_oldest_hello(&mut self) {
        while let Some((_, id)) = self.hello_order.pop_front() {
            if let Some(pending) = self.hellos.remove(&id) {
                self.with_engine(|engine| engine.ignore(pending.incoming));
                return;
            }
        }
    }

    fn expire_hellos(&mut self, now: Instant) {
        while let Some((at, _)) = self.hello_order.front() {
            if *at + HELLO_TIMEOUT > now {
                break;
            }
            if let Some((_, id)) = self.hello_order.pop_front()
                && let Some(pending) = self.hellos.remove(&id)
            {
                self.with_engine(|engine| engine.ignore(pending.incoming));
            }
        }
    }
}

impl EndpointState {
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
}
