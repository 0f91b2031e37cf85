//! Life of a connection that has streams, from its first poll until its last request has ended.

use std::fmt;
use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use tw_log::Level;

use super::connection_end::log_end;
use super::{ConnectionRequests, EndReason, IdleEnd, Shutdown, StreamProtocol};

/// Next step of a connection whose requests have ended.
pub(crate) enum IdleStep {
    /// Something has to leave before.
    Wait,
    /// The connection is idle for this time at most.
    Idle(Duration),
    /// No request may follow: the connection closes, and may take this time.
    Close(Duration),
}

/// Connection while it is served.
pub(crate) trait StreamConnection<'c> {
    /// Protocol of the connection.
    const PROTOCOL: &'static StreamProtocol;
    /// End of a connection.
    type End;
    /// Reason for which a connection is closed by this end.
    type CloseReason: Default;

    /// Serves what is there to be done. Ready at the end of the connection.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Self::End>;

    /// Requests of the connection.
    fn requests(&mut self) -> &mut ConnectionRequests<'c>;

    /// Progress of the shutdown.
    fn shutdown(&mut self) -> &mut Shutdown;

    /// Sends the first GOAWAY: the client begins no more streams.
    fn announce_shutdown(&mut self);

    /// Sends the last GOAWAY, with the error code of `reason`.
    fn announce_close(&mut self, reason: Self::CloseReason);

    /// Returns true while a stream has no request yet, or its request has ended and the stream has not.
    fn has_streams(&self) -> bool;

    /// Next step while there is neither a request nor a stream, and the connection is not idle.
    fn idle_step(&self) -> IdleStep;

    /// Frees memory that an idle connection does not need.
    fn shrink(&mut self);

    /// Closes the connection at the end of its idle time.
    fn close_idle(&mut self, end: IdleEnd, cx: &mut Context<'_>);

    /// Reason for the error log; `None` if the end is ordinary or was logged when it happened. A connection without requests is idle.
    fn end_reason(end: &Self::End, is_idle: bool) -> Option<EndReason<'_>>;

    /// Writes a line about the connection into the main error log.
    fn log(&self, level: Level, message: fmt::Arguments<'_>);

    /// Closes the connection for its streams, which find that their client is gone, and for the client, if it has to be told.
    fn close(&mut self, end: &Self::End);

    /// Tells the client to begin no more streams. Those that are open go on.
    fn begin_shutdown(&mut self) {
        if self.shutdown().begin() {
            self.requests().end_idle();
            self.announce_shutdown();
        }
    }

    /// Tells the client that the connection ends now, and closes it when everything has left, or after this time.
    fn begin_close(&mut self, reason: Self::CloseReason, time: Duration) {
        if self.shutdown().begin_close(time) {
            self.requests().end_idle();
            self.announce_close(reason);
        }
    }

    /// Makes the connection idle while no stream is open, and closes it when that has been too long.
    fn check_idle(&mut self, cx: &mut Context<'_>) {
        if self.shutdown().is_closing() {
            return;
        }
        if !self.requests().is_empty() || self.has_streams() {
            return self.requests().end_idle();
        }
        if !self.requests().is_idle() {
            match self.idle_step() {
                IdleStep::Wait => return,
                IdleStep::Close(time) => return self.begin_close(Self::CloseReason::default(), time),
                IdleStep::Idle(timeout) => {
                    self.requests().begin_idle(timeout);
                    self.shrink();
                }
            }
        }
        if let Poll::Ready(end) = self.requests().poll_idle_end(cx) {
            self.close_idle(end, cx);
        }
    }
}

/// Serves a connection until it has ended, and its requests with it.
pub(crate) async fn serve_connection<'c, C: StreamConnection<'c>>(connection: &mut C) -> C::End {
    let end = poll_fn(|cx| connection.poll(cx)).await;
    connection.requests().end_idle();
    let is_idle = connection.requests().is_empty();
    if let Some(reason) = C::end_reason(&end, is_idle) {
        log_end(|level, message| connection.log(level, message), C::PROTOCOL, &reason);
    }
    connection.close(&end);
    connection.requests().finish().await;
    end
}
