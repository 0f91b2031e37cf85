//! State of a connection, which its handles and its endpoint share.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::net::IpAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::Bytes;
use engine::{Dir, Event, StreamEvent};
use quinn_proto as engine;
use tw_base::memory;

use crate::config::{SEND_WINDOW_LOW, SEND_WINDOW_MAX, SEND_WINDOW_MIN, STREAMS_GROWTH, varint};
use crate::endpoint::driver::Driver;
use crate::endpoint::state::EndpointState;
use crate::error::ConnectionError;
use crate::path_watch::{PacketLimits, PathWatch, Receiver};
use crate::peer_address::{DATAGRAM_MIN, PeerAddress, SendAllowance};
use crate::qlog::{Migration, Recorder};
use crate::silence::SilenceWatch;
use crate::stream_id::StreamId;
use crate::transmit::{MESSAGE_SIZE_MAX, SEGMENTS_MAX};
use crate::waiters::{Waiters, remember};

/// State of a connection, which its handles and the endpoint share.
pub(crate) struct Shared {
    /// Number of the connection in the engine.
    pub(crate) handle: engine::ConnectionHandle,
    /// Number that no other connection of the endpoint has.
    pub(crate) serial: u64,
    /// `None` once the engine has nothing to do for it any more.
    engine: RefCell<Option<engine::Connection>>,
    /// True while the engine works, and for good if it has panicked.
    is_busy: Cell<bool>,
    pub(crate) endpoint: Weak<EndpointState>,
    pub(crate) waiters: RefCell<Waiters>,
    /// Buffer for the streams that can be written again.
    writable: RefCell<Vec<engine::StreamId>>,
    /// Reason of the end, once there is one.
    pub(crate) end: RefCell<Option<ConnectionError>>,
    /// Order of this side to close, until the engine has it.
    close: RefCell<Option<(u64, Bytes)>>,
    /// Progress of the close of this side.
    pub(crate) closing: Cell<Closing>,
    pub(crate) drop_code: Cell<u64>,
    pub(crate) handles: Cell<usize>,
    pub(crate) is_handshaking: Rc<Cell<bool>>,
    /// True while the endpoint counts its handshake.
    pub(crate) is_counted: Cell<bool>,
    pub(crate) peer: RefCell<PeerAddress>,
    watch: Arc<PathWatch>,
    /// Recorder, if the connection is recorded.
    recorder: Option<Arc<Recorder>>,
    pub(crate) local: Option<IpAddr>,
    bidi_streams_max: u64,
    /// Sum that the engine may keep of sent data.
    send_window: Cell<u64>,
    /// True while the endpoint has it in its queue.
    pub(crate) is_queued: Cell<bool>,
    /// Time at which the endpoint looks at its timers.
    pub(crate) armed: Cell<Option<Instant>>,
    silence: Cell<SilenceWatch>,
}

/// A connection that the engine has accepted.
pub(crate) struct EngineConnection {
    /// Number of the connection in the engine.
    pub(crate) handle: engine::ConnectionHandle,
    /// State of the connection in the engine.
    pub(crate) engine: engine::Connection,
    /// Streams in both directions that the client may have open at the same time.
    pub(crate) bidi_streams_max: u64,
    /// Watch over packets of 1-RTT.
    pub(crate) watch: Arc<PathWatch>,
    /// Recorder, if the connection is recorded.
    pub(crate) recorder: Option<Arc<Recorder>>,
}

/// Result of letting the engine make a message.
pub(crate) enum Made {
    Message(engine::Transmit),
    /// Message larger than the receiver may get; to the engine, it is lost in the network.
    Dropped,
    /// There is nothing to send, or nothing may be sent now.
    Nothing,
}

/// Progress of the close of this side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closing {
    /// Not ordered, or its packets were sent or cannot be.
    Done,
    /// The engine does not know of it yet.
    Ordered,
    /// The engine makes its packets.
    Executed,
}

impl Shared {
    pub(crate) fn new(accepted: EngineConnection, serial: u64, endpoint: Weak<EndpointState>) -> Rc<Self> {
        let EngineConnection { handle, engine, bidi_streams_max, watch, recorder } = accepted;
        let peer = PeerAddress::new(engine.remote_address());
        Rc::new(Self {
            handle,
            serial,
            local: engine.local_ip(),
            engine: RefCell::new(Some(engine)),
            is_busy: Cell::new(false),
            endpoint,
            waiters: RefCell::default(),
            writable: RefCell::default(),
            end: RefCell::default(),
            close: RefCell::default(),
            closing: Cell::new(Closing::Done),
            drop_code: Cell::new(0),
            handles: Cell::new(0),
            is_handshaking: Rc::new(Cell::new(true)),
            is_counted: Cell::new(true),
            peer: RefCell::new(peer),
            watch,
            recorder,
            bidi_streams_max,
            send_window: Cell::new(SEND_WINDOW_MIN),
            is_queued: Cell::new(false),
            armed: Cell::new(None),
            silence: Cell::default(),
        })
    }

    /// Records something, if the connection is recorded.
    pub(crate) fn record(&self, record: impl FnOnce(&Recorder)) {
        if let Some(recorder) = &self.recorder {
            record(recorder);
        }
    }

    /// Calls the engine for a task.
    pub(crate) fn with<T>(
        &self,
        call: impl FnOnce(&mut engine::Connection) -> T,
    ) -> Result<T, ConnectionError> {
        if let Some(reason) = &*self.end.borrow() {
            return Err(reason.clone());
        }
        let outcome = self.call(call);
        if outcome.is_none() {
            // The endpoint finds out.
            self.queue();
        }
        outcome.ok_or(ConnectionError::EngineFailed)
    }

    /// Calls the engine, unless the connection is gone or the engine has panicked in it.
    pub(crate) fn call<T>(&self, call: impl FnOnce(&mut engine::Connection) -> T) -> Option<T> {
        if self.is_busy.get() {
            return None;
        }
        let mut engine = self.engine.borrow_mut();
        let engine = engine.as_mut()?;
        self.is_busy.set(true);
        let outcome = call(engine);
        self.is_busy.set(false);
        Some(outcome)
    }

    /// True if the engine has panicked in this connection.
    pub(crate) fn is_broken(&self) -> bool {
        self.is_busy.get()
    }

    pub(crate) fn is_established(&self) -> bool {
        !self.is_handshaking.get()
    }

    /// Makes one message of one or more datagrams in `buffer`, if there is something to send and room for it.
    pub(crate) fn make_message(
        &self,
        engine: &mut engine::Connection,
        now: Instant,
        buffer: &mut Vec<u8>,
    ) -> Made {
        let mtu = |engine: &engine::Connection| usize::from(engine.current_mtu());
        let (mut room, limits_responses) = {
            let mut peer = self.peer.borrow_mut();
            (peer.room(|| mtu(engine)), peer.limits_responses())
        };
        if let SendAllowance::Packet(size) = room
            && mtu(engine) > DATAGRAM_MIN
        {
            // The port has changed, not the address, so the engine goes on with the MTU of the old path, of which nothing is known here.
            engine.path_changed(now);
            if size >= DATAGRAM_MIN {
                room = SendAllowance::Datagram;
            }
        }
        let (segments, size) = match room {
            SendAllowance::Closed => return Made::Nothing,
            SendAllowance::Packet(size) => (1, Some(size)),
            SendAllowance::Datagram => (1, None),
            SendAllowance::Open => (SEGMENTS_MAX.min(MESSAGE_SIZE_MAX / mtu(engine)), None),
        };
        self.watch.limit(PacketLimits { size, small_responses: limits_responses });
        let transmit = engine.poll_transmit(now, segments, buffer);
        self.watch.limit(PacketLimits::default());
        let Some(mut transmit) = transmit else { return Made::Nothing };
        transmit.size -= self.watch.take_surplus().min(transmit.size);
        let mut peer = self.peer.borrow_mut();
        if let Some(candidate) = peer.candidate() {
            let is_new = transmit.destination == candidate;
            self.watch.packets_made(if is_new { Receiver::NewAddress } else { Receiver::Other });
        }
        match peer.take(transmit.destination, transmit.size as u64) {
            true => Made::Message(transmit),
            false => Made::Dropped,
        }
    }

    /// Frees memory that an idle connection does not need.
    pub(crate) fn shrink(&self) {
        self.peer.borrow_mut().shrink();
        self.waiters.borrow_mut().shrink();
        self.writable.take();
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.end.borrow().is_some()
    }

    /// Lets the endpoint look at the connection.
    pub(crate) fn queue(&self) {
        if !self.is_queued.get()
            && let Some(endpoint) = self.endpoint.upgrade()
        {
            endpoint.queue(self.handle, self.serial);
        }
    }

    pub(crate) fn close(&self, code: u64, reason: Bytes) {
        self.close_because(code, reason, ConnectionError::Closed);
    }

    /// Closes the connection; tasks get this error.
    fn close_because(&self, code: u64, reason: Bytes, error: ConnectionError) {
        if self.end.borrow().is_none() {
            *self.close.borrow_mut() = Some((code, reason));
            self.closing.set(Closing::Ordered);
            self.record(|recorder| recorder.closed(&error, Some(code)));
            self.end_with(error);
            self.queue();
        }
    }

    /// Closes the connection once its client is silent for too long.
    pub(crate) fn watch_silence(&self) {
        if let SilenceWatch::Off = self.silence.get() {
            self.silence.set(SilenceWatch::Ordered);
            self.queue();
        }
    }

    /// Closes the connection if its client has been silent for too long.
    fn check_silence(&self, engine: &mut engine::Connection, now: Instant) {
        let mut watch = self.silence.get();
        if !self.has_ended() && watch.check(engine, now) {
            self.close_because(self.drop_code.get(), Bytes::new(), ConnectionError::TimedOut);
        }
        self.silence.set(watch);
    }

    /// Time at which there is something to do, if nothing happens before.
    pub(crate) fn next_timeout(&self, engine: &mut engine::Connection) -> Option<Instant> {
        let silence = self.silence.get().deadline().filter(|_| !self.has_ended());
        engine.poll_timeout().into_iter().chain(silence).min()
    }

    /// Notes the end of the connection, and wakes every task.
    pub(crate) fn ended(&self, reason: ConnectionError) {
        if !self.has_ended() {
            self.record(|recorder| recorder.closed(&reason, None));
        }
        self.end_with(reason);
    }

    fn end_with(&self, reason: ConnectionError) {
        self.end.borrow_mut().get_or_insert(reason);
        let waiters = std::mem::take(&mut *self.waiters.borrow_mut());
        waiters.wake_all();
    }

    /// Frees the engine's part.
    pub(crate) fn free(&self) {
        self.close_sent();
        if let Ok(mut engine) = self.engine.try_borrow_mut() {
            *engine = None;
        }
    }

    pub(crate) fn poll_accept(&self, dir: Dir, cx: &Context<'_>) -> Poll<Result<StreamId, ConnectionError>> {
        let max = self.bidi_streams_max;
        let accepted = self.with(|engine| {
            let id = engine.streams().accept(dir)?;
            // A client that opens many streams may open more: see `FIRST_STREAMS_MAX`.
            if dir == Dir::Bi {
                let allowed = engine.max_concurrent_streams(dir);
                if allowed < max && engine.streams().remote_open_streams(dir) * 2 >= allowed {
                    let more = allowed.saturating_mul(STREAMS_GROWTH).min(max);
                    engine.set_max_concurrent_streams(dir, varint(more));
                }
            }
            Some(id)
        });
        match accepted {
            Ok(Some(id)) => Poll::Ready(Ok(id.into())),
            Ok(None) => {
                remember(self.waiters.borrow_mut().accept(dir), cx);
                Poll::Pending
            }
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    /// Executes the order to close, if there is one, also one because of the client's silence.
    pub(crate) fn execute_close(&self, engine: &mut engine::Connection, now: Instant) {
        self.check_silence(engine, now);
        if let Some((code, reason)) = self.close.take() {
            engine.close(now, varint(code), reason);
            self.closing.set(Closing::Executed);
        }
    }

    /// Notes that the packets of the close were sent, or cannot be, and wakes the task that waits for that.
    pub(crate) fn close_sent(&self) {
        if self.closing.replace(Closing::Done) != Closing::Done {
            self.waiters.borrow_mut().close_sent.take().into_iter().for_each(Waker::wake);
        }
    }

    /// Brings events of the engine to the endpoint and to the tasks that wait for them.
    pub(crate) fn exchange(&self, engine: &mut engine::Connection, driver: &mut Driver) {
        let mut writable = self.writable.take();
        loop {
            while let Some(event) = engine.poll_endpoint_events() {
                if let Some(answer) = driver.endpoint_event(self, event) {
                    engine.handle_event(answer);
                }
            }
            let Some(event) = engine.poll() else { break };
            match event {
                Event::Stream(StreamEvent::Writable { id }) => writable.push(id),
                event => self.on_event(event),
            }
        }
        self.wake_writers(engine, &mut writable);
        *self.writable.borrow_mut() = writable;
        driver.note_handshake(self);
        self.update_peer(engine);
        self.update_send_window(engine);
        self.record(|recorder| {
            recorder.recovery(&engine.stats());
            recorder.flush();
        });
    }

    /// Lets as much wait for acknowledgements as the path can have under way, or little while memory is low.
    fn update_send_window(&self, engine: &mut engine::Connection) {
        let last = self.send_window.get();
        let window = match memory::is_low() {
            true => SEND_WINDOW_LOW,
            false => {
                let wanted_number = engine.congestion_state().window().saturating_mul(2);
                wanted_number.clamp(SEND_WINDOW_MIN, SEND_WINDOW_MAX).max(last)
            }
        };
        if window != last {
            self.send_window.set(window);
            engine.set_send_window(window);
        }
    }

    /// Wakes the tasks that wait to write on streams for which there is room. Those of more urgent streams run first.
    fn wake_writers(&self, engine: &mut engine::Connection, writable: &mut Vec<engine::StreamId>) {
        if writable.len() > 1 {
            let mut priority = |id: &engine::StreamId| engine.send_stream(*id).priority().unwrap_or_default();
            writable.sort_by_cached_key(|id| Reverse(priority(id)));
        }
        let mut waiters = self.waiters.borrow_mut();
        for id in writable.drain(..) {
            waiters.wake(id.into(), |stream| stream.write.take().into_iter().for_each(Waker::wake));
        }
    }

    fn on_event(&self, event: Event) {
        let mut waiters = self.waiters.borrow_mut();
        let wake = |waker: Option<Waker>| waker.into_iter().for_each(Waker::wake);
        let stream = |id: engine::StreamId| StreamId::from(id);
        match event {
            Event::HandshakeDataReady | Event::DatagramReceived | Event::DatagramsUnblocked => {}
            Event::Connected => {
                self.is_handshaking.set(false);
                self.peer.borrow_mut().prove_first();
                self.record(Recorder::established);
                wake(waiters.established.take());
            }
            Event::ConnectionLost { reason } => {
                drop(waiters);
                self.ended(reason.into());
            }
            Event::Stream(StreamEvent::Opened { dir }) => wake(waiters.accept(dir).take()),
            Event::Stream(StreamEvent::Available { dir: Dir::Uni }) => wake(waiters.open_uni.take()),
            Event::Stream(StreamEvent::Available { dir: Dir::Bi }) => {}
            Event::Stream(StreamEvent::Readable { id }) => {
                wake(waiters.take_uni_read(stream(id)));
                waiters.wake(stream(id), |stream| {
                    wake(stream.read.take());
                    wake(stream.reset.take());
                });
            }
            Event::Stream(StreamEvent::Writable { .. }) => {}
            Event::Stream(StreamEvent::Finished { id } | StreamEvent::Stopped { id, .. }) => {
                waiters.wake(stream(id), |stream| {
                    wake(stream.write.take());
                    wake(stream.end.take());
                });
            }
        }
    }

    /// Records an address of the client that has been validated.
    fn update_peer(&self, engine: &engine::Connection) {
        let current = engine.remote_address();
        let followed = self.peer.borrow_mut().follow(current, self.watch.is_proved());
        let Some(migration) = followed else { return };
        match migration {
            Migration::Started => self.watch.start(),
            Migration::Abandoned | Migration::Complete => self.watch.stop(),
        }
        self.record(|recorder| recorder.migration(migration, current));
    }
}
