//! Connection from its handshake to its close: its streams are requests of their own, and it is closed by its client, a timeout or its
//! loop.
//!
//! ```text
//!            ┌──────────────── streams, each a task of its own ───────────┐
//!            ▼                                                            │
//! SETTINGS → busy ─ the last stream has ended → idle ─ a stream begins ───┘
//!            │                                   │
//!            └─ told to leave: GOAWAY, then a last one ─┴─ its time is over, its place is wanted → responses arrive, close
//! ```
//! Limits of clients are here and in `tw-http3` ([`LIMITS`]); a client that exceeds one gets CONNECTION_CLOSE, with one line in the error
//! log.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tw_base::Limit;
use tw_core::event_loop::{EvictableConnection, LevelGuard, LoopCounter};
use tw_http3::{ConnectionError, ErrorCode, Event, FieldSection, LocalStream, Stream};
use tw_log::Level;
use tw_quic::StreamId;
use tw_rt::watch::Subject;
use tw_rt::{Deadline, Panicked, TaskSet};

use super::conn::{Abuse, FLOOD_ALLOWANCE, READ_MAX, RESETS_MAX, ReadOutcome, UPDATES_MAX, closed};
use super::settings::ConnectionSettings;
use super::{Http3Connection, Http3Stream};
use crate::http::client::Client;
use crate::http::h1::LAST_WAIT;
use crate::http::lifecycle;
use crate::http::streams::serve_request;
use crate::metrics::HttpVersion;

/// Least time between the two GOAWAY frames: requests that were sent before the first one arrived come until then.
const GOAWAY_WAIT_MIN: Duration = Duration::from_millis(50);
/// Round trips between them.
const GOAWAY_ROUND_TRIPS: u32 = 3;
/// Turns after which the endpoint has sent the close of a connection: it gathers packets for one. A loop that ends does not wait for
/// its endpoints, but for its connections.
const CLOSE_TURNS: usize = 3;
/// Reads of one turn, each of `READ_MAX` bytes.
const TURN_READS: usize = 4;

/// Limits of HTTP/3 connections.
pub(crate) const LIMITS: &[Limit] = &[
    Limit::count(
        "UPDATES_MAX",
        UPDATES_MAX as u64,
        "Streams of one connection of HTTP/3 whose priority its client changes (PRIORITY_UPDATE)",
        "the oldest one has the priority that its request has asked for",
    ),
    Limit::bytes(
        "FLOOD_ALLOWANCE",
        FLOOD_ALLOWANCE,
        "Bytes in HTTP/3 beyond eight times those of heads and bodies: settings, priorities, empty and unknown frames",
        "the connection is closed (H3_EXCESSIVE_LOAD)",
    ),
    Limit::count(
        "RESETS_MAX",
        RESETS_MAX,
        "Requests in HTTP/3 that a client takes back before they are answered, beyond as many as it lets be answered",
        "the connection is closed (H3_EXCESSIVE_LOAD)",
    ),
    Limit::bytes(
        "READ_MAX",
        READ_MAX as u64,
        "Bytes of one stream of HTTP/3 that were read and not yet parsed",
        "the client has to wait (flow control)",
    ),
];

/// End of a connection.
enum End {
    /// All requests are answered, or the time is over.
    Over,
    /// Ended by the engine, closed by the client, or failed.
    Broken(ConnectionError),
    /// One of its requests has panicked.
    Panicked,
}

/// Serves a connection until it is closed.
pub(crate) async fn serve(client: Rc<Client>, quic: tw_quic::Connection) {
    if let Some(settings) = ConnectionSettings::of(&client) {
        live(Http3Connection::new(client, quic, settings)).await;
    }
}

async fn live(conn: Rc<Http3Connection>) {
    let _open = LevelGuard::new(&conn.client.home.tally.open_http3);
    let mut life = ConnectionState::new(&conn);
    let end = poll_fn(|cx| life.poll(cx)).await;
    let mut streams = std::mem::take(&mut life.streams);
    drop(life);
    log_end(&conn, &end, streams.is_empty());
    conn.frames.set_driver(None);
    let (code, reason) = match end {
        End::Over => (ErrorCode::NO_ERROR, ""),
        End::Broken(ConnectionError::Local(code, words)) => (code, words),
        End::Broken(_) => (ErrorCode::NO_ERROR, ""),
        End::Panicked => (ErrorCode::INTERNAL_ERROR, ""),
    };
    conn.quic.close(code.into(), reason.as_bytes());
    // They learn that their client is gone, and write their lines.
    conn.frames.fail(match end {
        End::Over | End::Panicked => ConnectionError::Closed,
        End::Broken(why) => why,
    });
    while !streams.is_empty() {
        let _ = poll_fn(|cx| streams.poll_ended(cx)).await;
    }
    for _ in 0..CLOSE_TURNS {
        tw_rt::yield_now().await;
    }
}

/// End of log lines.
const WHILE: &str = "while processing HTTP/3 connection";

/// Writes down why a connection has ended, unless that is as usual.
fn log_end(conn: &Http3Connection, end: &End, is_idle: bool) {
    match end {
        End::Over | End::Broken(ConnectionError::Local(_, "")) => {}
        End::Broken(ConnectionError::Local(_, what)) => {
            conn.log(Level::Info, format_args!("client {what} {WHILE}"));
        }
        // Who leaves nothing behind may go.
        End::Broken(
            ConnectionError::Closed | ConnectionError::Peer(ErrorCode::NO_ERROR) | ConnectionError::TimedOut,
        ) if is_idle => {}
        End::Broken(ConnectionError::Closed | ConnectionError::Peer(ErrorCode::NO_ERROR)) => {
            conn.log(Level::Info, format_args!("client prematurely closed connection {WHILE}"));
        }
        End::Broken(ConnectionError::TimedOut) => {
            conn.log(Level::Info, format_args!("client timed out (110: Connection timed out) {WHILE}"));
        }
        End::Broken(why) => conn.log(Level::Info, format_args!("{why} {WHILE}")),
        // That was told when it happened.
        End::Panicked => {}
    }
}

/// State of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The client may begin streams.
    Open,
    /// A first GOAWAY was sent; begun requests are still served.
    Leaving,
    /// The last GOAWAY was sent.
    Settled,
    /// No request is left: the last responses arrive.
    Closing,
}

/// A stream whose request has not arrived.
struct Beginning {
    stream: StreamId,
    since: Instant,
    /// True once its head waits for the table of fields.
    is_blocked: bool,
}

/// A connection while it is served.
struct ConnectionState<'c> {
    conn: &'c Rc<Http3Connection>,
    streams: TaskSet<(), ()>,
    stage: Stage,
    /// Streams whose requests have not arrived, the oldest first.
    beginning: Vec<Beginning>,
    /// Unidirectional streams of the client.
    unidirectional: Vec<StreamId>,
    /// Unidirectional streams of this end.
    control: Option<StreamId>,
    decoder: Option<StreamId>,
    /// While no stream is open.
    idle: Option<Idle<'c>>,
    /// Until when the connection may be without a stream, or may take to close.
    deadline: Deadline,
    /// Until when the oldest request has to arrive.
    head_deadline: Deadline,
    /// Time of the last GOAWAY.
    settle: Deadline,
}

/// A connection that could be closed to make room, and is counted as waiting.
struct Idle<'c> {
    evictable: EvictableConnection<'c>,
    _waiting: LevelGuard<'c>,
}

impl<'c> ConnectionState<'c> {
    fn new(conn: &'c Rc<Http3Connection>) -> Self {
        Self {
            conn,
            streams: TaskSet::default(),
            stage: Stage::Open,
            beginning: Vec::new(),
            unidirectional: Vec::new(),
            control: None,
            decoder: None,
            idle: None,
            deadline: Deadline::new(),
            head_deadline: Deadline::new(),
            settle: Deadline::new(),
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        let conn = self.conn;
        conn.frames.set_driver(None);
        if conn.client.home.connections.is_stopping() {
            self.leave();
        }
        while let Poll::Ready(((), outcome)) = self.streams.poll_ended(cx) {
            if outcome == Err(Panicked) {
                return Poll::Ready(End::Panicked);
            }
        }
        if let Poll::Ready(error) = conn.quic.poll_closed(cx) {
            // The frames may have a reason of their own.
            return Poll::Ready(End::Broken(conn.frames.error().unwrap_or(closed(&error))));
        }
        self.read(cx);
        if let Some(abuse) = conn.abuse() {
            return Poll::Ready(End::Broken(abusive(abuse)));
        }
        if self.settle.poll_elapsed(cx).is_ready() && self.stage == Stage::Leaving {
            self.stage = Stage::Settled;
            self.settle.clear();
            conn.frames.settle_goaway();
        }
        conn.send_signals();
        conn.write_local(LocalStream::Control, &mut self.control, cx);
        conn.write_local(LocalStream::QpackDecoder, &mut self.decoder, cx);
        if let Some(error) = conn.frames.error() {
            return Poll::Ready(End::Broken(error));
        }
        self.rest(cx);
        if self.stage == Stage::Closing {
            let is_late = self.deadline.poll_elapsed(cx).is_ready();
            if conn.poll_delivered(cx).is_ready() || is_late {
                return Poll::Ready(End::Over);
            }
        }
        conn.frames.set_driver(Some(cx.waker()));
        Poll::Pending
    }

    /// Reads unidirectional streams and the heads of requests.
    fn read(&mut self, cx: &mut Context<'_>) {
        let conn = self.conn;
        while let Poll::Ready(Ok(stream)) = conn.quic.poll_accept_uni(cx) {
            self.unidirectional.push(stream);
        }
        while let Poll::Ready(Ok(stream)) = conn.quic.poll_accept_bidi(cx) {
            self.beginning.push(Beginning { stream, since: tw_rt::clock::now(), is_blocked: false });
        }
        let mut reads = TURN_READS + self.unidirectional.len() + self.beginning.len();
        let mut streams = std::mem::take(&mut self.unidirectional);
        streams.retain(|stream| {
            while conn.frames.error().is_none() {
                if reads == 0 {
                    cx.waker().wake_by_ref();
                    return true;
                }
                match conn.poll_read(*stream, cx) {
                    Poll::Pending => return true,
                    Poll::Ready(ReadOutcome::Some) => reads -= 1,
                    Poll::Ready(ReadOutcome::End) => return false,
                }
            }
            true
        });
        self.unidirectional = streams;
        self.take_events(cx);
        let mut beginning = std::mem::take(&mut self.beginning);
        beginning.retain_mut(|beginning| self.read_head(beginning, &mut reads, cx));
        self.beginning = beginning;
        self.take_events(cx);
        self.check_heads(cx);
    }

    /// Reads the head of a request, and begins to answer it. Returns true if more of the head has to come.
    fn read_head(&mut self, beginning: &mut Beginning, reads: &mut usize, cx: &mut Context<'_>) -> bool {
        let (conn, stream) = (self.conn, beginning.stream);
        if beginning.is_blocked {
            return self.is_waiting(stream, cx);
        }
        loop {
            if *reads == 0 {
                cx.waker().wake_by_ref();
                return true;
            }
            let Poll::Ready(outcome) = conn.poll_read(stream, cx) else { return true };
            *reads -= 1;
            if matches!(outcome, ReadOutcome::Some) && conn.frames.wants_bytes(stream.value()) {
                continue;
            }
            beginning.is_blocked = conn.frames.is_blocked(stream.value());
            if matches!(outcome, ReadOutcome::Some) && !beginning.is_blocked {
                // The end often arrives right behind the head.
                let _ = conn.poll_read(stream, cx);
            }
            self.take_events(cx);
            return beginning.is_blocked && self.is_waiting(stream, cx);
        }
    }

    /// Returns true while a head waits for insertions into the table of fields, with which its request begins, and the client has
    /// not given up.
    fn is_waiting(&self, stream: StreamId, cx: &mut Context<'_>) -> bool {
        let conn = self.conn;
        if conn.frames.is_blocked(stream.value()) {
            // An error of the frames ends the connection, which finds it.
            if let Poll::Ready(code) = conn.quic.poll_reset(stream, cx) {
                let _ = conn.frames.receive_reset(stream.value(), code.into());
            } else if let Poll::Ready(tw_quic::StreamError::Stopped(code)) =
                conn.quic.poll_stopped(stream, cx)
            {
                let _ = conn.frames.receive_stop_sending(stream.value(), code.into());
            }
        }
        conn.frames.is_blocked(stream.value())
    }

    /// Ends streams whose requests do not arrive.
    fn check_heads(&mut self, cx: &mut Context<'_>) {
        let timeout = self.conn.settings.header_timeout;
        let Some(oldest) = self.beginning.first() else { return self.head_deadline.clear() };
        let age = tw_rt::clock::now().saturating_duration_since(oldest.since);
        if age < timeout {
            self.head_deadline.set(timeout - age);
            if self.head_deadline.poll_elapsed(cx).is_pending() {
                return;
            }
        }
        let conn = self.conn;
        conn.log(
            Level::Info,
            format_args!("client timed out (110: Connection timed out) while reading client request headers"),
        );
        let stream = self.beginning.remove(0).stream;
        conn.quic.stop_sending(stream, ErrorCode::REQUEST_INCOMPLETE.into());
        conn.quic.reset(stream, ErrorCode::REQUEST_INCOMPLETE.into());
        conn.frames.reset_stream(stream.value(), ErrorCode::REQUEST_INCOMPLETE);
        cx.waker().wake_by_ref();
    }

    /// Takes over events of the frames.
    fn take_events(&mut self, cx: &mut Context<'_>) {
        while let Some(event) = self.conn.frames.next() {
            match event {
                Event::Request(stream, list) => self.accept(stream, list, cx),
                Event::RequestCanceled => self.conn.count_end(true),
                Event::Priority { stream, value } => self.conn.update_priority(stream, &value),
            }
        }
    }

    /// Begins to answer a request.
    fn accept(&mut self, stream: Stream, list: FieldSection, cx: &mut Context<'_>) {
        let conn = self.conn;
        let client = &conn.client;
        if self.stage == Stage::Closing {
            return stream.reset(ErrorCode::REQUEST_REJECTED);
        }
        self.idle = None;
        lifecycle::count_request(client, HttpVersion::Http3);
        let keep = &conn.settings.keepalive;
        let is_last = keep.timeout.is_zero()
            || client.requests.get() >= keep.requests
            || tw_rt::clock::now().saturating_duration_since(client.accepted) > keep.time;
        if is_last {
            self.leave();
        }
        let handle = Http3Stream::new(conn.clone(), stream);
        let mut answering: Pin<Box<dyn Future<Output = ()>>> = Box::pin(serve_request(handle, list));
        // Most requests never wait: they need no task. But one client's crowd is not served ahead of other clients.
        if client.home.budget.may_copy(0) && answering.as_mut().poll(cx).is_ready() {
            return;
        }
        self.streams.spawn((), Subject { kind: "request of connection", id: client.id }, answering);
    }

    // DIFF(nginx): what the client began before it could know is answered: it is told twice (RFC 9114 section 5.2).
    /// Tells the client to begin no more streams. Those that are open go on.
    fn leave(&mut self) {
        if self.stage == Stage::Open {
            self.stage = Stage::Leaving;
            self.idle = None;
            self.conn.client.debug(format_args!("http3: first GOAWAY"));
            self.conn.frames.send_goaway();
            let round_trips = self.conn.quic.statistics().rtt.saturating_mul(GOAWAY_ROUND_TRIPS);
            self.settle.set(round_trips.clamp(GOAWAY_WAIT_MIN, LAST_WAIT));
        }
    }

    /// Rests while no stream is open, for as long as that may be.
    fn rest(&mut self, cx: &mut Context<'_>) {
        let conn = self.conn;
        if self.stage == Stage::Closing {
            return;
        }
        if !self.streams.is_empty() || !self.beginning.is_empty() {
            self.idle = None;
            return;
        }
        match self.stage {
            Stage::Open => {}
            // The last GOAWAY is due soon.
            Stage::Leaving => return,
            Stage::Settled | Stage::Closing => return self.close(),
        }
        let home = &conn.client.home;
        if self.idle.is_none() {
            let is_new = conn.client.requests.get() == 0;
            let timeout = if is_new { conn.settings.header_timeout } else { conn.settings.keepalive.timeout };
            self.deadline.set(timeout);
            self.streams.shrink();
            conn.frames.shrink();
            let waiting: &'c LoopCounter = &home.tally.waiting;
            self.idle = Some(Idle {
                evictable: EvictableConnection::new(&home.connections, &conn.client.slot),
                _waiting: LevelGuard::new(waiting),
            });
        }
        let is_called = self.idle.as_mut().is_some_and(|idle| idle.evictable.poll_evicted(cx).is_ready());
        if is_called || self.deadline.poll_elapsed(cx).is_ready() {
            self.close();
            cx.waker().wake_by_ref();
        }
    }

    /// Closes the connection once its responses have arrived.
    fn close(&mut self) {
        self.stage = Stage::Closing;
        self.idle = None;
        self.conn.frames.settle_goaway();
        self.deadline.set(LAST_WAIT);
    }
}

/// Error of a connection whose client has passed a limit.
fn abusive(abuse: Abuse) -> ConnectionError {
    let what = match abuse {
        Abuse::Flood => "has flooded http3",
        Abuse::Resets => "took back too many requests",
    };
    ConnectionError::Local(ErrorCode::EXCESSIVE_LOAD, what)
}
