//! Counters of sessions, which grow while sessions run. A module keeps them ([`ServerCounters`]); a session adds to those of its
//! server from accept to its end.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::session::SessionStatus;

/// Counters of the sessions of a server. Loops add at the same time; each call names its loop.
pub trait ServerCounters: Send + Sync {
    /// Counts an accepted connection, whose session begins.
    fn begin(&self, index: usize);

    /// Counts bytes that were read of a client.
    fn received(&self, index: usize, bytes: u64);

    /// Counts bytes that a client has taken.
    fn sent(&self, index: usize, bytes: u64);

    /// Counts the end of a session.
    fn end(&self, index: usize, end: SessionEnd);
}

/// End of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionEnd {
    /// The session was served or refused.
    Finished {
        /// Status of the session.
        status: SessionStatus,
        /// Time since its connection was accepted.
        time: Duration,
    },
    /// The connection ended before its session was served, without an error: its client left.
    Discarded,
}

/// Share of one session in the counters of its server. A session that is dropped without an [`end`](Self::end) is discarded.
pub(crate) struct SessionMeter {
    counters: Option<Arc<dyn ServerCounters>>,
    /// Index of the loop.
    index: usize,
    accepted: Instant,
    is_over: Cell<bool>,
}

impl SessionMeter {
    /// Counts the begin of a session.
    pub(crate) fn begin(
        counters: Option<Arc<dyn ServerCounters>>,
        index: usize,
        accepted: Instant,
    ) -> Rc<Self> {
        if let Some(counters) = &counters {
            counters.begin(index);
        }
        Rc::new(Self { counters, index, accepted, is_over: Cell::new(false) })
    }

    /// Counts bytes that were read of the client.
    pub(crate) fn received(&self, bytes: u64) {
        if let Some(counters) = &self.counters {
            counters.received(self.index, bytes);
        }
    }

    /// Counts bytes that the client has taken.
    pub(crate) fn sent(&self, bytes: u64) {
        if let Some(counters) = &self.counters {
            counters.sent(self.index, bytes);
        }
    }

    /// Counts the end of the session.
    pub(crate) fn end(&self, status: SessionStatus) {
        let time = tw_rt::clock::precise().saturating_duration_since(self.accepted);
        self.count_end(SessionEnd::Finished { status, time });
    }

    fn count_end(&self, end: SessionEnd) {
        if let (Some(counters), false) = (&self.counters, self.is_over.replace(true)) {
            counters.end(self.index, end);
        }
    }
}

impl Drop for SessionMeter {
    fn drop(&mut self) {
        self.count_end(SessionEnd::Discarded);
    }
}
