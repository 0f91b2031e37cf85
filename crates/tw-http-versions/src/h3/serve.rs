//! Connection from its handshake to its close: its streams are requests of their own, and it is closed by its client, a timeout or its
//! loop.
//!
//! ```text
//!            ┌──────────────── streams, each a task of its own ───────────┐
//!            ▼                                                            │
//! SETTINGS → busy ─ the last stream has ended → idle ─ a stream begins ───┘
//!            │                                   │
//!            └─ graceful shutdown: GOAWAY, then a last one ─┴─ idle for too long, or evicted → responses arrive, close
//! ```
//! Limits of clients are here and in `tw-http3` (`LIMITS`), and in `streams`; a client that exceeds one gets CONNECTION_CLOSE, with one line in the error
//! log.

use std::fmt;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tw_core::event_loop::LevelGuard;
use tw_http3::{ConnectionError, ErrorCode, Event, LocalStream, Stream};
use tw_log::Level;
use tw_quic::StreamId;
use tw_rt::Deadline;

use super::Http3Connection;
use super::conn::{PIECE_MIN, READ_MAX, ReadOutcome, WAITING_MAX, closed};
use super::protocol::PROTOCOL;
use super::stream::Http3Stream;
use crate::lingering_close::LAST_WAIT;
use crate::streams::{
    Abuse, ConnectionRequests, ConnectionSettings, EndReason, IdleEnd, IdleStep, ReceivedHead, Shutdown,
    Stage, StreamConnection, StreamProtocol, serve_connection,
};
use tw_request::client::Client;

/// Least time between the two GOAWAY frames: requests that were sent before the first one had arrived arrive until then.
const GOAWAY_WAIT_MIN: Duration = Duration::from_millis(50);
/// Round trips between them.
const GOAWAY_ROUND_TRIPS: u32 = 3;
/// Reads of one turn, each of `READ_MAX` bytes.
const TURN_READS: usize = 4;

tw_base::limits! {
    /// Limits of HTTP/3 connections.
    pub(crate) const LIMITS;

    /// Bytes of one stream of HTTP/3 that were read and not yet parsed.
    constant bytes READ_MAX, "the client has to wait (flow control)";
    /// Bytes of all responses of a connection of HTTP/3 that its transport has not taken; 16 KiB while less than half of
    /// memory_budget is left.
    constant bytes WAITING_MAX,
        "its streams make small pieces; a stream makes none while it has a head or a piece that the transport has not taken";
    /// Bytes of such a small piece.
    constant bytes PIECE_MIN, "the rest is made when the transport has taken it";
}

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
pub async fn serve(client: Rc<Client>, quic: tw_quic::Connection) {
    if let Some(settings) = ConnectionSettings::of(&client, |shared, _| Some(shared)) {
        run(Http3Connection::new(client, quic, settings)).await;
    }
}

async fn run(conn: Rc<Http3Connection>) {
    let _open = LevelGuard::new(&conn.client.event_loop.tally.open_http3);
    let mut state = ConnectionState::new(&conn);
    serve_connection(&mut state).await;
    // A loop that ends waits for its connections, but not for its endpoints.
    poll_fn(|cx| conn.quic.poll_close_sent(cx)).await;
}

/// A stream whose request has not arrived.
struct PendingRequest {
    stream: StreamId,
    since: Instant,
    /// True once its head waits for the table of fields.
    is_blocked: bool,
}

/// A connection while it is served.
struct ConnectionState<'c> {
    conn: &'c Rc<Http3Connection>,
    requests: ConnectionRequests<'c>,
    shutdown: Shutdown,
    /// Streams whose requests have not arrived, the oldest first.
    pending: Vec<PendingRequest>,
    /// Unidirectional streams of the client.
    unidirectional: Vec<StreamId>,
    /// Unidirectional streams of this end.
    control: Option<StreamId>,
    decoder: Option<StreamId>,
    /// Time until which the oldest request has to arrive.
    head_deadline: Deadline,
    /// Time of the last GOAWAY.
    last_goaway: Deadline,
}

impl<'c> StreamConnection<'c> for ConnectionState<'c> {
    const PROTOCOL: &'static StreamProtocol = &PROTOCOL;
    type End = End;
    type CloseReason = ();

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        self.poll_end(cx)
    }

    fn requests(&mut self) -> &mut ConnectionRequests<'c> {
        &mut self.requests
    }

    fn shutdown(&mut self) -> &mut Shutdown {
        &mut self.shutdown
    }

    // DIFF(nginx): requests that the client had sent before it could read GOAWAY are answered: there are two (RFC 9114 section 5.2).
    fn announce_shutdown(&mut self) {
        self.conn.client.debug(format_args!("http3: first GOAWAY"));
        self.conn.frames.send_goaway();
        let round_trips = self.conn.quic.statistics().rtt.saturating_mul(GOAWAY_ROUND_TRIPS);
        self.last_goaway.set(round_trips.clamp(GOAWAY_WAIT_MIN, LAST_WAIT));
    }

    fn announce_close(&mut self, (): ()) {
        self.conn.frames.settle_goaway();
    }

    fn has_streams(&self) -> bool {
        !self.pending.is_empty()
    }

    fn idle_step(&self) -> IdleStep {
        match self.shutdown.stage() {
            Stage::Open => IdleStep::Idle(self.requests.idle_timeout()),
            // The last GOAWAY is due soon.
            Stage::Draining => IdleStep::Wait,
            Stage::Drained | Stage::Closing => IdleStep::Close(self.conn.settings.send_timeout),
        }
    }

    fn shrink(&mut self) {
        self.conn.frames.shrink();
        self.conn.quic.shrink();
        self.conn.write_order.shrink();
        self.pending.shrink_to_fit();
    }

    fn close_idle(&mut self, end: IdleEnd, cx: &mut Context<'_>) {
        let time = match end {
            IdleEnd::TimedOut => self.conn.settings.send_timeout,
            IdleEnd::Evicted => LAST_WAIT,
        };
        self.begin_close((), time);
        cx.waker().wake_by_ref();
    }

    fn end_reason(end: &End, is_idle: bool) -> Option<EndReason<'_>> {
        Some(match end {
            End::Over | End::Panicked | End::Broken(ConnectionError::Local(_, "")) => return None,
            End::Broken(ConnectionError::Local(_, action)) => EndReason::Violation(action),
            // A client may leave a connection without requests.
            End::Broken(
                ConnectionError::Closed
                | ConnectionError::Peer(ErrorCode::NO_ERROR)
                | ConnectionError::TimedOut,
            ) if is_idle => return None,
            End::Broken(ConnectionError::Closed | ConnectionError::Peer(ErrorCode::NO_ERROR)) => {
                EndReason::ClosedByClient
            }
            End::Broken(ConnectionError::TimedOut) => EndReason::TimedOut,
            End::Broken(error) => EndReason::Other(error),
        })
    }

    fn log(&self, level: Level, message: fmt::Arguments<'_>) {
        self.conn.log(level, message);
    }

    fn close(&mut self, end: &End) {
        let conn = self.conn;
        conn.frames.set_driver(None);
        let (code, reason) = match end {
            End::Over => (ErrorCode::NO_ERROR, ""),
            End::Broken(ConnectionError::Local(code, action)) => (*code, *action),
            End::Broken(_) => (ErrorCode::NO_ERROR, ""),
            End::Panicked => (ErrorCode::INTERNAL_ERROR, ""),
        };
        conn.quic.close(code.into(), reason.as_bytes());
        conn.frames.fail(match end {
            End::Over | End::Panicked => ConnectionError::Closed,
            End::Broken(error) => *error,
        });
    }
}

impl<'c> ConnectionState<'c> {
    fn new(conn: &'c Rc<Http3Connection>) -> Self {
        Self {
            conn,
            requests: ConnectionRequests::new(&conn.client, &conn.settings),
            shutdown: Shutdown::new(),
            pending: Vec::new(),
            unidirectional: Vec::new(),
            control: None,
            decoder: None,
            head_deadline: Deadline::new(),
            last_goaway: Deadline::new(),
        }
    }

    /// Serves what is there to be done. Ready at the end of the connection.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        let conn = self.conn;
        conn.frames.set_driver(None);
        if conn.client.event_loop.connections.is_stopping() {
            conn.quic.close_when_silent();
            self.begin_shutdown();
        }
        if self.requests.poll_panicked(cx).is_ready() {
            return Poll::Ready(End::Panicked);
        }
        if let Poll::Ready(error) = conn.quic.poll_closed(cx) {
            // The frames may have a reason of their own.
            return Poll::Ready(End::Broken(conn.frames.error().unwrap_or(closed(&error))));
        }
        self.read(cx);
        self.requests.serve_held_back(cx);
        if let Some(abuse) = conn.abuse() {
            return Poll::Ready(End::Broken(abuse_error(abuse)));
        }
        if self.last_goaway.poll_elapsed(cx).is_ready() && self.shutdown.stage() == Stage::Draining {
            self.shutdown.set_drained();
            self.last_goaway.clear();
            conn.frames.settle_goaway();
        }
        conn.send_signals();
        conn.write_local(LocalStream::Control, &mut self.control, cx);
        conn.write_local(LocalStream::QpackDecoder, &mut self.decoder, cx);
        if let Some(error) = conn.frames.error() {
            return Poll::Ready(End::Broken(error));
        }
        self.check_idle(cx);
        if self.shutdown.is_closing() {
            let is_late = self.shutdown.poll_close_timeout(cx).is_ready();
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
            self.pending.push(PendingRequest { stream, since: tw_rt::clock::now(), is_blocked: false });
        }
        let mut reads = TURN_READS + self.unidirectional.len() + self.pending.len();
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
        let mut pending = std::mem::take(&mut self.pending);
        pending.retain_mut(|request| self.read_head(request, &mut reads, cx));
        self.pending = pending;
        self.take_events(cx);
        self.check_heads(cx);
    }

    /// Reads the head of a request, and begins to answer it. Returns true if more of the head has to come.
    fn read_head(&mut self, request: &mut PendingRequest, reads: &mut usize, cx: &mut Context<'_>) -> bool {
        let conn = self.conn;
        let stream = request.stream;
        if request.is_blocked {
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
            request.is_blocked = conn.frames.is_blocked(stream.value());
            if matches!(outcome, ReadOutcome::Some) && !request.is_blocked {
                // The end often arrives right behind the head.
                let _ = conn.poll_read(stream, cx);
            }
            self.take_events(cx);
            return request.is_blocked && self.is_waiting(stream, cx);
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
        let Some(oldest) = self.pending.first() else { return self.head_deadline.clear() };
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
        let stream = self.pending.remove(0).stream;
        conn.quic.stop_sending(stream, ErrorCode::REQUEST_INCOMPLETE.into());
        conn.quic.reset(stream, ErrorCode::REQUEST_INCOMPLETE.into());
        conn.frames.reset_stream(stream.value(), ErrorCode::REQUEST_INCOMPLETE);
        cx.waker().wake_by_ref();
    }

    /// Takes over events of the frames.
    fn take_events(&mut self, cx: &mut Context<'_>) {
        while let Some(event) = self.conn.frames.next() {
            match event {
                Event::Request(stream, list) => self.accept(stream, ReceivedHead::Fields(list), cx),
                Event::RequestLine(stream, line) => self.accept(stream, ReceivedHead::Line(line), cx),
                Event::RequestCanceled => self.conn.cost.count_end(true),
                Event::Priority { stream, value } => self.conn.update_priority(stream, &value),
            }
        }
    }

    /// Begins to answer a request.
    fn accept(&mut self, stream: Stream, head: ReceivedHead, cx: &mut Context<'_>) {
        if self.shutdown.is_closing() {
            return stream.reset(ErrorCode::REQUEST_REJECTED);
        }
        if self.requests.count_request(&PROTOCOL) {
            self.begin_shutdown();
        }
        self.requests.serve(Http3Stream::new(self.conn.clone(), stream), head, cx);
    }
}

/// Error of a connection whose client has passed a limit.
fn abuse_error(abuse: Abuse) -> ConnectionError {
    let action = match abuse {
        Abuse::Flood => "has flooded http3",
        Abuse::Resets => "took back too many requests",
    };
    ConnectionError::Local(ErrorCode::EXCESSIVE_LOAD, action)
}
