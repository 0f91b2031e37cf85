//! Connection from accept to close: its streams are requests of their own, and it is closed by its client, a timeout or its loop.
//!
//! ```text
//!            ┌──────────────── streams, each a task of its own ───────────┐
//!            ▼                                                            │
//! preface → busy ─ the last stream has ended → idle ─ a stream begins ────┘
//!            │                                   │
//!            └─ graceful shutdown: GOAWAY ───────┴─ idle for too long, or evicted: GOAWAY → (lingering) close
//! ```
//! Limits of clients are here and in `tw-http2` (`LIMITS`), and in `streams`; a client that exceeds one gets GOAWAY, with one line in the error log.

use std::fmt;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

use tw_core::event_loop::LevelGuard;
use tw_http2::{ConnectionError, ErrorCode, Event, FieldSection, PREFACE, Stream};
use tw_log::Level;
use tw_net::Transport;
use tw_rt::Deadline;

use super::Http2Connection;
use super::protocol::PROTOCOL;
use super::settings::{CONNECTION_WINDOW, Http2Settings, OUT_MAX};
use super::stream::{Http2Stream, WANTED_WINDOW};
use super::stream_scheduler::WAITING_MAX;
use super::untried_bytes::MADE_MAX;
use crate::lingering_close::{LAST_WAIT, linger_close};
use crate::streams::{
    Abuse, ConnectionRequests, EndReason, IdleEnd, IdleStep, ReceivedHead, Shutdown, Stage, StreamConnection,
    StreamProtocol, log_end, serve_connection,
};
use tw_request::client::Client;

tw_base::limits! {
    /// Limits of HTTP/2 connections.
    pub(crate) const LIMITS;

    /// Bytes of request bodies on one connection of HTTP/2 that were not taken yet.
    constant bytes CONNECTION_WINDOW, "the client has to wait (flow control)";
    /// Bytes of one request body in HTTP/2 that its client may send ahead once it is wanted, if `http2_body_preread_size` is
    /// not more.
    constant bytes WANTED_WINDOW, "the client has to wait (flow control)";
    /// Bytes of frames of HTTP/2 that are gathered for one write.
    constant bytes OUT_MAX, "nothing more is read or made for the connection";
    /// Bytes of all responses of a connection of HTTP/2 that wait for its socket; 16 KiB while less than half of memory_budget
    /// is left.
    constant bytes WAITING_MAX, "no more of them is made; each stream finishes the piece that it makes";
    /// Bytes of responses in HTTP/2 that a loop has made before their connections have tried to write them.
    constant bytes MADE_MAX, "no more are made until some have";
}

/// End of a connection.
enum End {
    /// All requests are answered, or the time is over.
    Over,
    /// Ended by the engine, closed by the client, or failed.
    Broken(ConnectionError),
    /// The socket takes nothing any more.
    Failed(ConnectionError),
    /// The client takes nothing.
    Stalled,
    /// One of its requests has panicked.
    Panicked,
}

/// Error code of the last GOAWAY.
struct CloseCode(ErrorCode);

impl Default for CloseCode {
    fn default() -> Self {
        Self(ErrorCode::NO_ERROR)
    }
}

/// Serves a connection until it is closed; `early` was read of it already.
pub fn serve(client: Rc<Client>, transport: Transport, early: Vec<u8>) -> impl Future<Output = ()> {
    let conn =
        Http2Settings::of(&client).map(|settings| Http2Connection::new(client, transport, early, settings));
    async move {
        if let Some(conn) = conn {
            run(conn).await;
        }
    }
}

async fn run(conn: Rc<Http2Connection>) {
    let _open = LevelGuard::new(&conn.client.event_loop.tally.open_http2);
    let mut state = ConnectionState::new(&conn);
    let end = serve_connection(&mut state).await;
    let was_announced = state.shutdown.stage() != Stage::Open && matches!(end, End::Over);
    if was_announced || matches!(end, End::Broken(ConnectionError::Local(..))) {
        // Bytes that the client sends before it has read GOAWAY would reset the connection, and GOAWAY with it.
        Box::pin(linger_close(&conn.client, &conn.transport, LAST_WAIT, LAST_WAIT)).await;
    }
}

// DIFF(nginx): the priorities of RFC 7540 are not looked at, those of RFC 9218 are (`scheduler`).
/// A connection while it is served.
struct ConnectionState<'c> {
    conn: &'c Rc<Http2Connection>,
    requests: ConnectionRequests<'c>,
    shutdown: Shutdown,
    /// Number of streams begun after the first GOAWAY.
    late: u32,
    /// Time until which the client may take nothing, and the bytes transferred when that began.
    stalled: Deadline,
    transferred: u64,
}

impl<'c> StreamConnection<'c> for ConnectionState<'c> {
    const PROTOCOL: &'static StreamProtocol = &PROTOCOL;
    type End = End;
    type CloseReason = CloseCode;

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        self.poll_end(cx)
    }

    fn requests(&mut self) -> &mut ConnectionRequests<'c> {
        &mut self.requests
    }

    fn shutdown(&mut self) -> &mut Shutdown {
        &mut self.shutdown
    }

    // DIFF(nginx): requests that the client had sent before it could read GOAWAY are answered: there are two (RFC 9113 section 6.8).
    fn announce_shutdown(&mut self) {
        self.conn.frames.send_goaway();
    }

    fn announce_close(&mut self, CloseCode(code): CloseCode) {
        self.conn.frames.close(code);
    }

    fn has_streams(&self) -> bool {
        self.conn.frames.streams() > 0
    }

    // DIFF(nginx): frames that begin no stream do not make the idle time longer.
    fn idle_step(&self) -> IdleStep {
        if self.conn.frames.out_len() > 0 {
            // The last response has not left.
            return IdleStep::Wait;
        }
        match self.shutdown.stage() {
            Stage::Open => IdleStep::Idle(self.requests.idle_timeout()),
            Stage::Draining | Stage::Drained | Stage::Closing => IdleStep::Idle(LAST_WAIT),
        }
    }

    fn shrink(&mut self) {
        self.conn.frames.shrink();
    }

    fn close_idle(&mut self, end: IdleEnd, _cx: &mut Context<'_>) {
        if end == IdleEnd::TimedOut && self.conn.cost.received() < PREFACE.len() as u64 {
            log_end(|level, message| self.log(level, message), &PROTOCOL, &EndReason::TimedOut);
        }
        self.begin_close(CloseCode::default(), LAST_WAIT);
    }

    fn end_reason(end: &End, is_idle: bool) -> Option<EndReason<'_>> {
        Some(match end {
            End::Over | End::Panicked | End::Broken(ConnectionError::Local(_, "")) => return None,
            End::Broken(ConnectionError::Local(_, action)) => EndReason::Violation(action),
            // A client may close a connection without requests.
            End::Broken(ConnectionError::Closed) if is_idle => return None,
            End::Broken(ConnectionError::Closed) => EndReason::ClosedByClient,
            End::Broken(ConnectionError::Io(_, Some(errno))) => EndReason::ReceiveFailed(*errno),
            End::Failed(ConnectionError::Io(_, Some(errno))) => EndReason::SendFailed(*errno),
            End::Broken(error) | End::Failed(error) => EndReason::Other(error),
            End::Stalled => EndReason::TimedOut,
        })
    }

    fn log(&self, level: Level, message: fmt::Arguments<'_>) {
        self.conn.client.log(level, message);
    }

    fn close(&mut self, end: &End) {
        let conn = self.conn;
        conn.give_up_turns();
        conn.frames.set_driver(None);
        conn.frames.fail(match end {
            End::Over | End::Panicked => ConnectionError::Closed,
            End::Broken(error) | End::Failed(error) => *error,
            End::Stalled => io::Error::from(io::ErrorKind::TimedOut).into(),
        });
    }
}

impl<'c> ConnectionState<'c> {
    fn new(conn: &'c Rc<Http2Connection>) -> Self {
        Self {
            conn,
            requests: ConnectionRequests::new(&conn.client, &conn.settings.shared),
            shutdown: Shutdown::new(),
            late: 0,
            stalled: Deadline::new(),
            transferred: 0,
        }
    }

    /// Serves what is there to be done. Ready at the end of the connection.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        let conn = self.conn;
        // Frames that streams add from here on leave in this turn.
        conn.frames.set_driver(None);
        loop {
            if conn.client.event_loop.connections.is_stopping() {
                self.begin_shutdown();
            }
            if self.requests.poll_panicked(cx).is_ready() {
                return Poll::Ready(End::Panicked);
            }
            // After the last GOAWAY, nothing that the client sends matters.
            while !self.shutdown.is_closing()
                && let Poll::Ready(received) = conn.poll_receive(cx)
            {
                if let Err(error) = received {
                    // The rest of the frames leaves as far as the socket takes it.
                    let _ = conn.poll_send(cx);
                    return Poll::Ready(End::Broken(error));
                }
                self.take_events(cx);
            }
            self.requests.serve_held_back(cx);
            conn.frames.reset_unwanted();
            if let Some(abuse) = conn.abuse().filter(|_| !self.shutdown.is_closing()) {
                self.close_for_abuse(abuse);
            }
            match conn.poll_send(cx) {
                Poll::Ready(Ok(())) if conn.frames.is_over() => return Poll::Ready(End::Over),
                Poll::Ready(Ok(())) => self.stalled.clear(),
                Poll::Ready(Err(error)) => return Poll::Ready(End::Failed(error.into())),
                Poll::Pending => {
                    let transferred = conn.cost.transferred();
                    if self.stalled.at().is_none() || self.transferred != transferred {
                        self.transferred = transferred;
                        self.stalled.set(conn.settings.shared.send_timeout);
                    }
                    if self.stalled.poll_elapsed(cx).is_ready() {
                        return Poll::Ready(End::Stalled);
                    }
                }
            }
            self.check_idle(cx);
            if self.shutdown.poll_close_timeout(cx).is_ready() {
                return Poll::Ready(End::Over);
            }
            // The check may have added frames.
            if conn.frames.out_len() == 0 || self.stalled.at().is_some() {
                if conn.frames.out_len() == 0 && conn.frames.has_unwanted() {
                    // The resets leave in the next turn: the end of a request may arrive before.
                    cx.waker().wake_by_ref();
                }
                conn.frames.set_driver(Some(cx.waker()));
                return Poll::Pending;
            }
        }
    }

    /// Takes over events of the frames.
    fn take_events(&mut self, cx: &mut Context<'_>) {
        while let Some(event) = self.conn.frames.next() {
            match event {
                Event::Request(stream, list) => {
                    if !self.conn.scheduler.has_room() {
                        // The next write finds the error of a socket that fails.
                        let _ = self.conn.poll_send(cx);
                    }
                    self.accept(stream, list, cx);
                }
                Event::RequestCanceled => self.conn.cost.count_end(true),
                Event::Priority { stream, value } => self.conn.scheduler.update(stream, &value),
            }
        }
    }

    /// Begins to answer a request.
    fn accept(&mut self, stream: Stream, list: FieldSection, cx: &mut Context<'_>) {
        match self.shutdown.stage() {
            Stage::Open => {}
            Stage::Draining if self.late < self.conn.settings.streams_max => self.late += 1,
            Stage::Draining | Stage::Drained | Stage::Closing => {
                return stream.reset(ErrorCode::REFUSED_STREAM);
            }
        }
        if self.requests.count_request(&PROTOCOL) {
            self.begin_shutdown();
        }
        self.requests.serve(Http2Stream::new(self.conn.clone(), stream), ReceivedHead::Fields(list), cx);
    }

    fn close_for_abuse(&mut self, abuse: Abuse) {
        let text = match abuse {
            Abuse::Flood => "http2 flood detected",
            Abuse::Resets => "client took back too many requests",
        };
        log_end(|level, message| self.log(level, message), &PROTOCOL, &EndReason::Other(&text));
        self.begin_close(CloseCode(ErrorCode::ENHANCE_YOUR_CALM), LAST_WAIT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::streams::serve_request;
    use tw_request::memory_share::Hold;

    fn size_of_future<A, B, F>(_: impl Fn(A, B) -> F) -> usize {
        size_of::<F>()
    }

    /// The memory of the task of a request that has to wait, without that request.
    #[test]
    fn future_of_a_request_is_small() {
        let size =
            size_of_future(|stream: Rc<Http2Stream>, head| serve_request(stream, head, Hold::default()));
        assert!(size <= 1152, "{size}");
    }
}
