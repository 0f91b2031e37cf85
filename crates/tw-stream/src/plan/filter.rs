//! Filters of the bytes of sessions (`js_filter`), as plans have them. [`session_filter`](crate::session_filter) runs them.

use std::task::{Context, Poll};

use bytes::Bytes;
use tw_connect::relay::RelaySide;

use super::LocalFuture;
use crate::session::StreamSession;
use crate::status::SessionStatus;

/// Filter of the sessions of a server.
pub trait SessionFilter: Send + Sync {
    /// Begins to filter the bytes of `s`.
    ///
    /// # Errors
    /// End of the session, whose reason was logged.
    fn begin<'a>(
        &'a self,
        s: &'a mut StreamSession,
    ) -> LocalFuture<'a, Result<Box<dyn RunningFilter>, SessionStatus>>;
}

/// Filter of one session.
pub trait RunningFilter {
    /// Returns true if the filter has to see the pieces of a side. Others pass.
    fn wants(&self, from: RelaySide) -> bool;

    /// Gives a piece of a side to the filter. [`FilterEvent::Handled`] is the answer.
    ///
    /// # Errors
    /// End of the session, whose reason was logged.
    fn push(&mut self, s: &StreamSession, from: RelaySide, piece: &FilterPiece) -> Result<(), SessionStatus>;

    /// Returns the next event. Has to be polled as long as the session lasts, because the filter may wait for answers about the session.
    ///
    /// # Errors
    /// End of the session, whose reason was logged.
    fn poll_event(
        &mut self,
        s: &mut StreamSession,
        cx: &mut Context<'_>,
    ) -> Poll<Result<FilterEvent, SessionStatus>>;
}

/// Piece of the bytes of one side.
#[derive(Debug, Clone)]
pub struct FilterPiece {
    /// Bytes; may be empty.
    pub data: Bytes,
    /// True if the side has ended behind it.
    pub is_last: bool,
}

/// Event of a filter.
#[derive(Debug)]
pub enum FilterEvent {
    /// The filter sends bytes.
    Send {
        /// Side that gets them.
        to: RelaySide,
        /// The bytes.
        data: Bytes,
    },
    /// The filter has seen the oldest piece that it had not.
    Handled,
    /// The filter is over: all pieces pass, also those that it has not seen.
    Ended,
}
