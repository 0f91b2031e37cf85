//! Connection from accept to close: its streams are requests of their own, and it is closed by its client, a timeout or its loop.
//!
//! ```text
//!            ┌──────────────── streams, each a task of its own ───────────┐
//!            ▼                                                            │
//! preface → busy ─ the last stream has ended → idle ─ a stream begins ────┘
//!            │                                   │
//!            └─ told to leave: GOAWAY ───────────┴─ its time is over, its place is wanted: GOAWAY → (lingering) close
//! ```
//! Limits of clients are here and in `tw-http2` ([`LIMITS`]); a client that exceeds one gets GOAWAY, with one line in the error log.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use tw_base::Limit;
use tw_core::event_loop::{EvictableConnection, LevelGuard, LoopCounter};
use tw_http2::{ConnectionError, ErrorCode, Event, FieldSection, PREFACE, Stream};
use tw_log::Level;
use tw_net::Transport;
use tw_rt::watch::Subject;
use tw_rt::{Deadline, Panicked, TaskSet};

use super::conn::{Abuse, FLOOD_ALLOWANCE, RESETS_MAX};
use super::settings::{CONNECTION_WINDOW, ConnectionSettings, OUT_MAX};
use super::stream::WANTED_WINDOW;
use super::stream_scheduler::{MADE_MAX, UPDATES_MAX, WAITING_MAX};
use super::{Http2Connection, Http2Stream};
use crate::http::client::Client;
use crate::http::h1::LAST_WAIT;
use crate::http::lifecycle;
use crate::http::lingering_close::linger_close;
use crate::http::streams::serve_request;
use crate::metrics::HttpVersion;

/// Limits of HTTP/2 connections.
pub(crate) const LIMITS: &[Limit] = &[
    Limit::bytes(
        "CONNECTION_WINDOW",
        CONNECTION_WINDOW as u64,
        "Bytes of request bodies on one connection of HTTP/2 that were not taken yet",
        "the client has to wait (flow control)",
    ),
    Limit::bytes(
        "WANTED_WINDOW",
        WANTED_WINDOW as u64,
        "Bytes of one request body in HTTP/2 that its client may send ahead once it is wanted, if `http2_body_preread_size` is not more",
        "the client has to wait (flow control)",
    ),
    Limit::bytes(
        "OUT_MAX",
        OUT_MAX as u64,
        "Bytes of frames of HTTP/2 that are gathered for one write",
        "nothing more is read or made for the connection",
    ),
    Limit::bytes(
        "WAITING_MAX",
        WAITING_MAX as u64,
        "Bytes of all responses of a connection of HTTP/2 that wait for its socket",
        "no more of them is made; each stream finishes the piece that it makes",
    ),
    Limit::bytes(
        "MADE_MAX",
        MADE_MAX as u64,
        "Bytes of responses in HTTP/2 that a loop has made before their connections have tried to write them",
        "no more are made until some have",
    ),
    Limit::count(
        "UPDATES_MAX",
        UPDATES_MAX as u64,
        "Streams of one connection of HTTP/2 whose priority its client changes (PRIORITY_UPDATE)",
        "the oldest one has the priority that its request has asked for",
    ),
    Limit::bytes(
        "FLOOD_ALLOWANCE",
        FLOOD_ALLOWANCE,
        "Bytes of frames beyond eight times those of heads and bodies: settings, pings, priorities, empty frames",
        "the connection is closed (ENHANCE_YOUR_CALM)",
    ),
    Limit::count(
        "RESETS_MAX",
        RESETS_MAX,
        "Requests that a client takes back before they are answered, beyond as many as it lets be answered",
        "the connection is closed (ENHANCE_YOUR_CALM)",
    ),
];

/// End of a connection.
enum End {
    /// All requests are answered, or the time is over.
    Over,
    /// Ended by the engine, closed by the client, or failed.
    Broken(ConnectionError),
    /// The socket takes nothing any more.
    Failed(ConnectionError),
    /// The client takes nothing.
    Stuck,
    /// One of its requests has panicked.
    Panicked,
}

/// Serves a connection until it is closed; `early` was read of it already.
pub(crate) fn serve(client: Rc<Client>, transport: Transport, early: Vec<u8>) -> impl Future<Output = ()> {
    let conn = ConnectionSettings::of(&client)
        .map(|settings| Http2Connection::new(client, transport, early, settings));
    async move {
        if let Some(conn) = conn {
            live(conn).await;
        }
    }
}

async fn live(conn: Rc<Http2Connection>) {
    let _open = LevelGuard::new(&conn.client.home.tally.open_http2);
    let mut life = ConnectionState::new(&conn);
    let end = poll_fn(|cx| life.poll(cx)).await;
    let (was_closing, mut streams) = (life.stage != Stage::Open, std::mem::take(&mut life.streams));
    drop(life);
    conn.leave_line();
    log_end(&conn.client, &end, streams.is_empty());
    // They learn that their client is gone, and write their lines.
    conn.frames.set_driver(None);
    conn.frames.fail(match end {
        End::Over | End::Panicked => ConnectionError::Closed,
        End::Broken(why) | End::Failed(why) => why,
        End::Stuck => io::Error::from(io::ErrorKind::TimedOut).into(),
    });
    while !streams.is_empty() {
        let _ = poll_fn(|cx| streams.poll_ended(cx)).await;
    }
    if was_closing && matches!(end, End::Over) || matches!(end, End::Broken(ConnectionError::Local(..))) {
        // What the client sends while it does not know yet would reset what it has not read yet.
        Box::pin(linger_close(&conn.client, &conn.transport, LAST_WAIT, LAST_WAIT)).await;
    }
}

/// End of log lines.
const WHILE: &str = "while processing HTTP/2 connection";

/// Writes down why a connection has ended, unless that is as usual.
fn log_end(client: &Client, end: &End, is_idle: bool) {
    match end {
        End::Over | End::Broken(ConnectionError::Local(_, "")) => {}
        End::Broken(ConnectionError::Local(_, what)) => {
            client.log(Level::Info, format_args!("client {what} {WHILE}"))
        }
        // Who leaves nothing behind may go.
        End::Broken(ConnectionError::Closed) if is_idle => {}
        End::Broken(ConnectionError::Closed) => {
            client.log(Level::Info, format_args!("client prematurely closed connection {WHILE}"));
        }
        End::Broken(ConnectionError::Io(_, Some(errno))) => {
            client.log(Level::Info, format_args!("recv() failed ({errno}) {WHILE}"));
        }
        End::Failed(ConnectionError::Io(_, Some(errno))) => {
            client.log(Level::Info, format_args!("send() failed ({errno}) {WHILE}"));
        }
        End::Broken(why) | End::Failed(why) => client.log(Level::Info, format_args!("{why} {WHILE}")),
        End::Stuck => {
            client.log(Level::Info, format_args!("client timed out (110: Connection timed out) {WHILE}"));
        }
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
    Closing,
}

// DIFF(nginx): the priorities of RFC 7540 are not looked at, those of RFC 9218 are (`turns`).
/// A connection while it is served.
struct ConnectionState<'c> {
    conn: &'c Rc<Http2Connection>,
    streams: TaskSet<(), ()>,
    stage: Stage,
    /// Number of streams begun after the first GOAWAY.
    late: u32,
    /// While no stream is open.
    idle: Option<Idle<'c>>,
    /// Until when the connection may be without a stream, or may take to close.
    deadline: Deadline,
    /// Until when the client may take nothing, and what had moved when that began.
    stuck: Deadline,
    moved: u64,
}

/// A connection that could be closed to make room, and is counted as waiting.
struct Idle<'c> {
    evictable: EvictableConnection<'c>,
    _waiting: LevelGuard<'c>,
}

impl<'c> ConnectionState<'c> {
    fn new(conn: &'c Rc<Http2Connection>) -> Self {
        Self {
            conn,
            streams: TaskSet::default(),
            stage: Stage::Open,
            late: 0,
            idle: None,
            deadline: Deadline::new(),
            stuck: Deadline::new(),
            moved: 0,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        let frames = &self.conn.frames;
        // What streams write from here on leaves in this turn.
        frames.set_driver(None);
        loop {
            if self.conn.client.home.connections.is_stopping() {
                self.leave();
            }
            while let Poll::Ready(((), outcome)) = self.streams.poll_ended(cx) {
                if outcome == Err(Panicked) {
                    return Poll::Ready(End::Panicked);
                }
            }
            // Whatever a client still says that was sent away is for nobody.
            while self.stage != Stage::Closing
                && let Poll::Ready(came) = self.conn.poll_in(cx)
            {
                if let Err(why) = came {
                    // What is still to be said goes as far as the socket takes it. Who is gone need not hear it.
                    let _ = self.conn.poll_out(cx);
                    return Poll::Ready(End::Broken(why));
                }
                self.take_events(cx);
            }
            if let Some(abuse) = self.conn.abuse().filter(|_| self.stage != Stage::Closing) {
                self.send_away(abuse);
            }
            match self.conn.poll_out(cx) {
                Poll::Ready(Ok(())) if frames.is_over() => return Poll::Ready(End::Over),
                Poll::Ready(Ok(())) => self.stuck.clear(),
                Poll::Ready(Err(error)) => return Poll::Ready(End::Failed(error.into())),
                Poll::Pending => {
                    if self.stuck.at().is_none() || self.moved != self.conn.moved() {
                        self.moved = self.conn.moved();
                        self.stuck.set(self.conn.settings.send_timeout);
                    }
                    if self.stuck.poll_elapsed(cx).is_ready() {
                        return Poll::Ready(End::Stuck);
                    }
                }
            }
            self.rest(cx);
            if self.stage == Stage::Closing && self.deadline.poll_elapsed(cx).is_ready() {
                return Poll::Ready(End::Over);
            }
            // Whoever rests has perhaps something to say before.
            if frames.out_len() == 0 || self.stuck.at().is_some() {
                frames.set_driver(Some(cx.waker()));
                return Poll::Pending;
            }
        }
    }

    /// Takes over what came.
    fn take_events(&mut self, cx: &mut Context<'_>) {
        while let Some(event) = self.conn.frames.next() {
            match event {
                Event::Request(stream, list) => {
                    if !self.conn.turns.has_room() {
                        // A socket that fails is found out by whoever writes next.
                        let _ = self.conn.poll_out(cx);
                    }
                    self.accept(stream, list, cx);
                }
                Event::RequestCanceled => self.conn.count_end(true),
                Event::Priority { stream, value } => self.conn.turns.update(stream, &value),
            }
        }
    }

    /// Begins to answer a request.
    fn accept(&mut self, stream: Stream, list: FieldSection, cx: &mut Context<'_>) {
        let conn = self.conn;
        let client = &conn.client;
        match self.stage {
            Stage::Open => {}
            Stage::Leaving if self.late < self.conn.settings.streams_max => self.late += 1,
            Stage::Leaving | Stage::Closing => return stream.reset(ErrorCode::REFUSED_STREAM),
        }
        self.idle = None;
        lifecycle::count_request(client, HttpVersion::Http2);
        let keep = &self.conn.settings.keepalive;
        let is_last = keep.timeout.is_zero()
            || client.requests.get() >= keep.requests
            || tw_rt::clock::now().saturating_duration_since(client.accepted) > keep.time;
        if is_last {
            self.leave();
        }
        let handle = Http2Stream::new(conn.clone(), stream);
        let mut answering: Pin<Box<dyn Future<Output = ()>>> = Box::pin(serve_request(handle, list));
        // Most requests never wait: they need no task. But one client's crowd is not served ahead of other clients.
        if client.home.budget.may_copy(0) && answering.as_mut().poll(cx).is_ready() {
            return;
        }
        self.streams.spawn((), Subject { kind: "request of connection", id: client.id }, answering);
    }

    // DIFF(nginx): what the client began before it could know is answered: it is told twice (RFC 9113 section 6.8).
    /// Tells the client to begin no more streams. Those that are open go on.
    fn leave(&mut self) {
        if self.stage == Stage::Open {
            self.stage = Stage::Leaving;
            self.idle = None;
            self.conn.frames.send_goaway();
        }
    }

    /// Tells the client that the connection ends now.
    fn close(&mut self, reason: ErrorCode) {
        if self.stage != Stage::Closing {
            self.stage = Stage::Closing;
            self.idle = None;
            self.conn.frames.close(reason);
            self.deadline.set(LAST_WAIT);
        }
    }

    fn send_away(&mut self, abuse: Abuse) {
        let what = match abuse {
            Abuse::Flood => "http2 flood detected",
            Abuse::Resets => "client took back too many requests",
        };
        self.conn.client.log(Level::Info, format_args!("{what} {WHILE}"));
        self.close(ErrorCode::ENHANCE_YOUR_CALM);
    }

    // DIFF(nginx): frames that begin no stream do not make it longer.
    /// Rests while no stream is open, for as long as that may be.
    fn rest(&mut self, cx: &mut Context<'_>) {
        let conn = self.conn;
        if self.stage == Stage::Closing {
            return;
        }
        if !self.streams.is_empty() || conn.frames.streams() > 0 {
            self.idle = None;
            return;
        }
        let home = &conn.client.home;
        if self.idle.is_none() {
            if conn.frames.out_len() > 0 {
                // The last response has not left.
                return;
            }
            let timeout = match self.stage {
                Stage::Open if conn.client.requests.get() == 0 => self.conn.settings.header_timeout,
                Stage::Open => self.conn.settings.keepalive.timeout,
                Stage::Leaving | Stage::Closing => LAST_WAIT,
            };
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
        let is_late = self.deadline.poll_elapsed(cx).is_ready();
        if is_late && conn.came() < PREFACE.len() as u64 {
            conn.client
                .log(Level::Info, format_args!("client timed out (110: Connection timed out) {WHILE}"));
        }
        if is_called || is_late {
            self.close(ErrorCode::NO_ERROR);
        }
    }
}
