//! Ends of a relay whose bytes go through the filter of the session.
//!
//! ```text
//! relay ─ read ─► FilteredEnd: bytes that the filter has sent for the other side
//!                     └─ none ─► read of the connection ─► piece of the filter, or passed
//! ```
//! The filter has one piece of each side at once, and none while one side does not take what it has sent: the connections wait then.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use tw_connect::relay::{RelayEnd, RelaySide};
use tw_connect::upstream_connection::ReadOutcome;
use tw_core::event_loop::Buffers;

use crate::plan::FilterPiece;
use crate::session::StreamSession;
use crate::session_filter::{FilterOutput, FilterQueue, OUTPUT_KEPT_MAX, check_output};
use crate::status::SessionStatus;

/// Filter of a session while it is relayed.
pub(super) struct FilteredRelay<'a> {
    session: RefCell<&'a mut StreamSession>,
    queue: RefCell<FilterQueue>,
    from_client: FilteredSide,
    from_server: FilteredSide,
    /// End of the session by the filter.
    failure: Cell<Option<SessionStatus>>,
}

/// Bytes of one side.
#[derive(Default)]
struct FilteredSide {
    /// Bytes that were read before the relay began.
    early: Cell<Bytes>,
    /// Bytes for the other side.
    output: RefCell<VecDeque<Bytes>>,
    output_size: Cell<usize>,
    /// True once the filter has seen the end of this side.
    is_ended: Cell<bool>,
    /// Waker of the relay, if the other side waits until this output is taken.
    gated: Cell<Option<Waker>>,
}

/// One end of a relay, with the filter of the session.
pub(super) struct FilteredEnd<'a, 'b, E> {
    relay: &'a FilteredRelay<'b>,
    side: RelaySide,
    end: E,
}

impl<E: Copy> Clone for FilteredEnd<'_, '_, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E: Copy> Copy for FilteredEnd<'_, '_, E> {}

impl FilteredSide {
    fn add(&self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.output_size.update(|size| size + bytes.len());
            self.output.borrow_mut().push_back(bytes);
        }
    }

    /// The next bytes for the other side, `max` at most.
    fn next(&self, max: usize) -> Option<Bytes> {
        let mut output = self.output.borrow_mut();
        let first = output.front_mut()?;
        let bytes = first.split_to(first.len().min(max.max(1)));
        if first.is_empty() {
            output.pop_front();
        }
        self.output_size.update(|size| size.saturating_sub(bytes.len()));
        if !self.is_full()
            && let Some(waker) = self.gated.take()
        {
            waker.wake();
        }
        Some(bytes)
    }

    fn is_full(&self) -> bool {
        self.output_size.get() > OUTPUT_KEPT_MAX
    }
}

impl<'a> FilteredRelay<'a> {
    /// Relay of `session`, of whose client `early` was read already.
    pub(super) fn new(session: &'a mut StreamSession, queue: FilterQueue, early: Bytes) -> Self {
        Self {
            session: RefCell::new(session),
            queue: RefCell::new(queue),
            from_client: FilteredSide { early: Cell::new(early), ..FilteredSide::default() },
            from_server: FilteredSide::default(),
            failure: Cell::new(None),
        }
    }

    /// One end of the relay.
    pub(super) fn end<E>(&self, side: RelaySide, end: E) -> FilteredEnd<'_, 'a, E> {
        FilteredEnd { relay: self, side, end }
    }

    fn side(&self, side: RelaySide) -> &FilteredSide {
        match side {
            RelaySide::Client => &self.from_client,
            RelaySide::Server => &self.from_server,
        }
    }

    /// Takes the events of the filter, before the relay is polled.
    ///
    /// # Errors
    /// End of the session, whose reason was logged.
    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Result<(), SessionStatus> {
        if let Some(status) = self.failure.get() {
            return Err(status);
        }
        let mut session = self.session.borrow_mut();
        self.queue.borrow_mut().poll(&mut session, cx, |output| match output {
            FilterOutput::Bytes(to, bytes) => self.side(to.other()).add(bytes),
            FilterOutput::End(side) => self.side(side).is_ended.set(true),
        })?;
        [&self.from_client, &self.from_server]
            .into_iter()
            .try_for_each(|side| check_output(&session, side.output_size.get()))
    }

    /// Gives a piece to the filter.
    fn push(&self, from: RelaySide, piece: FilterPiece) -> io::Result<()> {
        let session = self.session.borrow();
        self.queue.borrow_mut().push(&session, from, piece).map_err(|status| {
            self.failure.set(Some(status));
            io::ErrorKind::Other.into()
        })
    }

    /// End of the session by the filter, after an error of the relay.
    pub(super) fn failure(&self) -> Option<SessionStatus> {
        self.failure.get()
    }
}

impl<E: RelayEnd> RelayEnd for FilteredEnd<'_, '_, E> {
    fn read(&self, buffers: &Buffers, max: usize) -> io::Result<(ReadOutcome, Bytes)> {
        let own = self.relay.side(self.side);
        if let Some(bytes) = own.next(max) {
            return Ok((ReadOutcome::Some, bytes));
        }
        if own.is_ended.get() {
            return Ok((ReadOutcome::Closed, Bytes::new()));
        }
        if self.relay.queue.borrow().is_busy(self.side) || self.relay.side(self.side.other()).is_full() {
            return Ok((ReadOutcome::Nothing, Bytes::new()));
        }
        let early = own.early.take();
        let (outcome, bytes) = if early.is_empty() {
            match self.end.read(buffers, max) {
                // The protocol inside knows whether the data is complete.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    (ReadOutcome::Closed, Bytes::new())
                }
                read => read?,
            }
        } else {
            (ReadOutcome::Some, early)
        };
        if outcome == ReadOutcome::Nothing || !self.relay.queue.borrow().wants(self.side) {
            return Ok((outcome, bytes));
        }
        self.relay.push(self.side, FilterPiece { data: bytes, is_last: outcome == ReadOutcome::Closed })?;
        Ok((ReadOutcome::Nothing, Bytes::new()))
    }

    fn try_write(&self, bytes: &Bytes) -> io::Result<usize> {
        self.end.try_write(bytes)
    }

    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.end.poll_writable(cx)
    }

    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let own = self.relay.side(self.side);
        if own.output_size.get() > 0 || own.is_ended.get() {
            return Poll::Ready(Ok(()));
        }
        // The filter wakes the relay when it has seen the piece.
        if self.relay.queue.borrow().is_busy(self.side) {
            return Poll::Pending;
        }
        let other = self.relay.side(self.side.other());
        if other.is_full() {
            other.gated.set(Some(cx.waker().clone()));
            return Poll::Pending;
        }
        self.end.poll_readable(cx)
    }

    fn shutdown_write(&self) -> io::Result<()> {
        self.end.shutdown_write()
    }

    fn tells_end(&self) -> bool {
        self.end.tells_end()
    }
}
