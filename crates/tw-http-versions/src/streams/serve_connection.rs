//! Life of a connection that has streams, from its first poll until its last request has ended.

use std::fmt;
use std::future::poll_fn;
use std::task::{Context, Poll};

use tw_log::Level;

use super::connection_end::log_end;
use super::{ConnectionRequests, EndReason, StreamProtocol};

/// Connection while it is served.
pub(crate) trait StreamConnection<'c> {
    /// Protocol of the connection.
    const PROTOCOL: &'static StreamProtocol;
    /// End of a connection.
    type End;

    /// Serves what is there to be done. Ready at the end of the connection.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Self::End>;

    /// Requests of the connection.
    fn requests(&mut self) -> &mut ConnectionRequests<'c>;

    /// Reason for the error log; `None` if the end is ordinary or was logged when it happened. A connection without requests is idle.
    fn end_reason(end: &Self::End, is_idle: bool) -> Option<EndReason<'_>>;

    /// Writes a line about the connection into the main error log.
    fn log(&self, level: Level, message: fmt::Arguments<'_>);

    /// Closes the connection for its streams, which find that their client is gone, and for the client, if it has to be told.
    fn close(&mut self, end: &Self::End);
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
