//! The life of a connection: streams come, each is answered by itself, and the connection ends when its client, its time or
//! its loop says so.
//!
//! ```text
//!            ┌──────────────── streams, each a task of its own ───────────┐
//!            ▼                                                            │
//! preface → busy ─ the last stream has ended → idle ─ a stream begins ────┘
//!            │                                   │
//!            └─ told to leave: GOAWAY ───────────┴─ its time is over, its place is wanted: GOAWAY → (lingering) close
//! ```
//! What clients can do to a server in this protocol is bounded here and in the crate `h2` ([`LIMITS`]); who goes beyond is told
//! GOAWAY, with one line in the error log.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use ::h2::server::{Builder, Connection, SendResponse};
use ::h2::{Error, Reason, RecvStream};
use http::Request as Asked;
use tw_base::Limit;
use tw_core::event_loop::{Expendable, Number, OneMore};
use tw_core::regex::Captures;
use tw_log::Level;
use tw_net::Transport;
use tw_rt::watch::Subject;
use tw_rt::{Deadline, Panicked, TaskSet};

use super::conn::{Abuse, FLOOD_ALLOWANCE, OUT_MAX, RESETS_MAX};
use super::turns::{MADE_MAX, UPDATES_MAX, WAITING_MAX};
use super::{Conn, Exchange, Payload, stream};
use crate::core::location::KeepAlive;
use crate::http::client::Client;
use crate::http::frames::{Frames, Gathers};
use crate::http::generation::ServerId;
use crate::http::h1::LAST_WAIT;
use crate::http::linger::linger_close;
use crate::http::waiting::{Unready, ready_or_called};

/// Bytes of all bodies of a connection that its client may send before some are taken.
const CONNECTION_WINDOW: u32 = 1 << 20;
/// What a field of a head takes beside name and value (RFC 9113 section 6.5.2).
const FIELD_OVERHEAD: usize = 32;
/// Streams that a client may reset before we have looked at them: with the next one it is sent away.
const RESETS_UNSEEN_MAX: usize = 20;
/// Streams that are reset for what is wrong with them.
const ERRORS_MAX: usize = 100;

/// What bounds connections of HTTP/2.
pub(crate) const LIMITS: &[Limit] = &[
    Limit::bytes(
        "CONNECTION_WINDOW",
        CONNECTION_WINDOW as u64,
        "Bytes of request bodies on one connection of HTTP/2 that were not taken yet",
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
    Limit::count(
        "RESETS_UNSEEN_MAX",
        RESETS_UNSEEN_MAX as u64,
        "Requests that a client takes back as fast as it makes them, before a loop has looked at them",
        "the connection is closed (ENHANCE_YOUR_CALM)",
    ),
    Limit::count(
        "ERRORS_MAX",
        ERRORS_MAX as u64,
        "Streams of one connection that are reset because they break the protocol",
        "the connection is closed (ENHANCE_YOUR_CALM)",
    ),
];

/// Why nothing more is done on a connection.
enum End {
    /// It is closed in both directions, or has failed.
    Closed(Result<(), Error>),
    /// The client takes nothing.
    Stuck,
    /// The socket has failed.
    Failed(io::Error),
    /// One of its requests has panicked.
    Panicked,
}

/// What holds for a connection, by the configuration it began with.
struct Terms {
    streams_max: u32,
    window: u32,
    list_max: u32,
    keepalive: KeepAlive,
    header_timeout: Duration,
    send_timeout: Duration,
    recv_buffer_size: usize,
}

impl Terms {
    /// Those of the server whose name the client has sent, else of the default server.
    fn of(client: &Client) -> Option<Self> {
        let generation = client.home.generation();
        let group = client.group(&generation)?;
        let name = client.tls.get().and_then(|secured| secured.server_name.as_deref());
        let named = |name: &str| group.names.find(name.as_bytes(), &mut Captures::default()).ok().flatten();
        let id: ServerId = name.and_then(named).map_or(group.default_server, |(id, _)| id);
        let server = generation.server(id);
        let (head, core) = (&server.settings.head, &generation.plan(server.plan).core);
        let list_max = head.large_buffer_size.saturating_mul(head.large_buffers_count);
        let list_max = list_max.saturating_add(head.max_headers.saturating_mul(FIELD_OVERHEAD));
        Some(Self {
            streams_max: server.http2.streams_max,
            window: server.http2.body_preread_size,
            list_max: u32::try_from(list_max).unwrap_or(u32::MAX),
            keepalive: core.keepalive,
            header_timeout: server.settings.client_header_timeout,
            send_timeout: core.send.timeout,
            recv_buffer_size: server.http2.recv_buffer_size,
        })
    }

    // DIFF(nginx): a list of fields that is too large costs its stream, and the connection only if it is four times that.
    fn builder(&self) -> Builder {
        let mut builder = Builder::new();
        builder
            .max_concurrent_streams(self.streams_max)
            .initial_window_size(self.window)
            .initial_connection_window_size(CONNECTION_WINDOW.max(self.window))
            .max_header_list_size(self.list_max)
            .max_send_buffer_size(WAITING_MAX)
            .enable_connect_protocol()
            .max_pending_accept_reset_streams(RESETS_UNSEEN_MAX)
            .max_local_error_reset_streams(Some(ERRORS_MAX));
        builder
    }
}

/// Serves a connection until it is closed; `early` was read of it already.
pub(crate) async fn serve(client: Rc<Client>, transport: Transport, early: Vec<u8>) {
    let Some(terms) = Terms::of(&client) else { return };
    let conn = Conn::new(client, transport, early, terms.recv_buffer_size);
    let Some(connection) = Box::pin(begin(&conn, &terms)).await else { return };
    let mut life = Life::new(&conn, connection, terms);
    let end = poll_fn(|cx| life.poll(cx)).await;
    let (was_told, mut streams) = (life.stage != Stage::Open, std::mem::take(&mut life.streams));
    drop(life);
    tell(&conn.client, &end);
    // They learn that their client is gone, and write their lines.
    while !streams.is_empty() {
        let _ = poll_fn(|cx| streams.poll_ended(cx)).await;
    }
    let broke = matches!(end, End::Closed(Err(ref error)) if !error.is_io());
    if was_told && matches!(end, End::Closed(Ok(()))) || broke {
        // What the client sends while it does not know yet would reset what it has not read yet.
        Box::pin(linger_close(&conn.client, &conn.transport, LAST_WAIT, LAST_WAIT)).await;
    }
}

/// Exchanges what a connection begins with; `None` if nothing comes of it, which has been logged.
async fn begin(conn: &Rc<Conn>, terms: &Terms) -> Option<Connection<Frames<Conn>, Payload>> {
    let client = &conn.client;
    let mut handshake = pin!(terms.builder().handshake(Frames(conn.clone())));
    let deadline = RefCell::new(Deadline::new());
    let mut connection = None;
    let begun = ready_or_called(client, &deadline, terms.header_timeout, |cx| {
        let polled = handshake.as_mut().poll(cx);
        if let Poll::Ready(Err(error)) = conn.poll_out(cx) {
            return Poll::Ready(Err(error));
        }
        polled.map(|made| {
            connection = Some(made);
            Ok(())
        })
    });
    match begun.await {
        Ok(()) => {}
        Err(Unready::Timeout) => {
            client.log(
                Level::Info,
                format_args!(
                    "client timed out (110: Connection timed out) while processing HTTP/2 connection"
                ),
            );
        }
        Err(Unready::Called | Unready::Failed) => {}
    }
    match connection? {
        Ok(connection) => Some(connection),
        Err(error) => {
            tell(client, &End::Closed(Err(error)));
            None
        }
    }
}

/// Writes down why a connection has ended, unless that is as usual.
fn tell(client: &Client, end: &End) {
    const WHILE: &str = "while processing HTTP/2 connection";
    match end {
        End::Closed(Ok(())) => {}
        End::Closed(Err(error)) if error.is_remote() => {
            client.log(Level::Info, format_args!("client sent GOAWAY: {error} {WHILE}"));
        }
        End::Closed(Err(error)) => client.log(Level::Info, format_args!("{error} {WHILE}")),
        End::Stuck => {
            client.log(Level::Info, format_args!("client timed out (110: Connection timed out) {WHILE}"));
        }
        End::Failed(error) => {
            let text = tw_base::Errno(error.raw_os_error().unwrap_or_default());
            client.log(Level::Info, format_args!("send() failed ({text}) {WHILE}"));
        }
        // That was told when it happened.
        End::Panicked => {}
    }
}

/// Where a connection stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Its client may begin streams.
    Open,
    /// The client was told to begin no more; what it has begun is answered.
    Leaving,
    /// The client was told that it ends now.
    Closing,
}

// DIFF(nginx): the priorities of RFC 7540 are not looked at, those of RFC 9218 are (`turns`).
/// A connection while it is served.
struct Life<'c> {
    conn: &'c Rc<Conn>,
    connection: Connection<Frames<Conn>, Payload>,
    streams: TaskSet<(), ()>,
    terms: Terms,
    stage: Stage,
    /// Streams that were begun after the client was told to begin no more.
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
    expendable: Expendable<'c, Client>,
    _waiting: OneMore<'c>,
}

impl<'c> Life<'c> {
    fn new(conn: &'c Rc<Conn>, connection: Connection<Frames<Conn>, Payload>, terms: Terms) -> Self {
        Self {
            conn,
            connection,
            streams: TaskSet::default(),
            terms,
            stage: Stage::Open,
            late: 0,
            idle: None,
            deadline: Deadline::new(),
            stuck: Deadline::new(),
            moved: 0,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        loop {
            if self.conn.client.home.connections.is_stopping() {
                self.leave();
            }
            while let Poll::Ready(((), outcome)) = self.streams.poll_ended(cx) {
                if outcome == Err(Panicked) {
                    return Poll::Ready(End::Panicked);
                }
            }
            let was = self.stage;
            while let Poll::Ready(accepted) = self.connection.poll_accept(cx) {
                match accepted {
                    Some(Ok((asked, respond))) => {
                        if !self.conn.turns.has_room()
                            && let Poll::Ready(Err(error)) = self.conn.poll_out(cx)
                        {
                            return Poll::Ready(End::Failed(error));
                        }
                        self.accept(asked, respond, cx);
                    }
                    Some(Err(error)) => return Poll::Ready(End::Closed(self.last_words(cx, Err(error)))),
                    None => return Poll::Ready(End::Closed(self.last_words(cx, Ok(())))),
                }
            }
            if let Some(abuse) = self.conn.abuse().filter(|_| self.stage != Stage::Closing) {
                self.send_away(abuse);
            }
            match self.conn.poll_out(cx) {
                Poll::Ready(Ok(())) => self.stuck.clear(),
                Poll::Ready(Err(error)) => return Poll::Ready(End::Failed(error)),
                Poll::Pending => {
                    if self.stuck.at().is_none() || self.moved != self.conn.wire() {
                        self.moved = self.conn.wire();
                        self.stuck.set(self.terms.send_timeout);
                    }
                    if self.stuck.poll_elapsed(cx).is_ready() {
                        return Poll::Ready(End::Stuck);
                    }
                }
            }
            self.rest(cx);
            if self.stage == Stage::Closing && self.deadline.poll_elapsed(cx).is_ready() {
                return Poll::Ready(End::Closed(Ok(())));
            }
            if self.stage == was {
                return Poll::Pending;
            }
        }
    }

    /// Sends what the crate has still said, as far as the socket takes it.
    fn last_words(&self, cx: &mut Context<'_>, closed: Result<(), Error>) -> Result<(), Error> {
        // Who is gone need not hear it.
        let _ = self.conn.poll_out(cx);
        closed
    }

    /// Begins to answer a request.
    fn accept(&mut self, asked: Asked<RecvStream>, mut respond: SendResponse<Payload>, cx: &mut Context<'_>) {
        let conn = self.conn;
        let client = &conn.client;
        match self.stage {
            Stage::Open => {}
            Stage::Leaving if self.late < self.terms.streams_max => self.late += 1,
            Stage::Leaving | Stage::Closing => return respond.send_reset(Reason::REFUSED_STREAM),
        }
        self.idle = None;
        client.requests.set(client.requests.get() + 1);
        client.home.tally.sessions.add(1);
        client.home.knock();
        let keep = &self.terms.keepalive;
        let is_last = keep.timeout.is_zero()
            || client.requests.get() >= keep.requests
            || tw_rt::clock::now().saturating_duration_since(client.accepted) > keep.time;
        if is_last {
            self.leave();
        }
        let exchange = Exchange::new(conn.clone(), respond);
        let mut answering: Pin<Box<dyn Future<Output = ()>>> = Box::pin(stream::answer(exchange, asked));
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
            self.connection.graceful_shutdown();
        }
    }

    /// Tells the client that the connection ends now.
    fn close(&mut self, reason: Reason) {
        if self.stage != Stage::Closing {
            self.stage = Stage::Closing;
            self.idle = None;
            self.connection.abrupt_shutdown(reason);
            self.deadline.set(LAST_WAIT);
        }
    }

    fn send_away(&mut self, abuse: Abuse) {
        let (what, reason) = match abuse {
            Abuse::Flood => ("http2 flood detected", Reason::ENHANCE_YOUR_CALM),
            Abuse::Resets => ("client took back too many requests", Reason::ENHANCE_YOUR_CALM),
            Abuse::Wrong(reason) => ("client sent a PRIORITY_UPDATE that cannot be", reason),
        };
        self.conn.client.log(Level::Info, format_args!("{what} while processing HTTP/2 connection"));
        self.close(reason);
    }

    // DIFF(nginx): frames that begin no stream do not make it longer.
    /// Rests while no stream is open, for as long as that may be.
    fn rest(&mut self, cx: &mut Context<'_>) {
        if self.stage == Stage::Closing {
            return;
        }
        if !self.streams.is_empty() || self.connection.has_streams() {
            self.idle = None;
            return;
        }
        let conn = self.conn;
        let home = &conn.client.home;
        if self.idle.is_none() {
            let timeout = match self.stage {
                Stage::Open if conn.client.requests.get() == 0 => self.terms.header_timeout,
                Stage::Open => self.terms.keepalive.timeout,
                Stage::Leaving | Stage::Closing => LAST_WAIT,
            };
            self.deadline.set(timeout);
            conn.shrink();
            let waiting: &'c Number = &home.tally.waiting;
            self.idle = Some(Idle {
                expendable: Expendable::new(&home.connections, &conn.client.place),
                _waiting: OneMore::in_level(waiting),
            });
        }
        let is_called = self.idle.as_mut().is_some_and(|idle| idle.expendable.poll_called(cx).is_ready());
        if is_called || self.deadline.poll_elapsed(cx).is_ready() {
            self.close(Reason::NO_ERROR);
        }
    }
}
