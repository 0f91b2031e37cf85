//! Counters of the sessions of `stream` and `mail`, which grow while sessions run. A module keeps them ([`ServerCounters`]); a session
//! adds to those of its server from accept to its end. Its server is known once the client cannot name another one any more (SNI).

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

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
        /// Status of the session, in the terms of HTTP.
        status: u16,
        /// Time since its connection was accepted.
        time: Duration,
    },
    /// The connection ended before its session was served, without an error: its client left.
    Discarded,
}

/// Share of one session in the counters of its server. A session that is dropped without an [`end`](Self::end) is discarded.
pub struct SessionMeter {
    state: RefCell<MeterState>,
    /// Index of the loop.
    index: usize,
    accepted: Instant,
}

/// Counters of a session.
enum MeterState {
    /// The client may still name another server: these are the counters of the server so far, and the bytes that none has counted.
    Undecided { counters: Option<Arc<dyn ServerCounters>>, received: u64, sent: u64 },
    /// Counters of the server of the session.
    Decided(Arc<dyn ServerCounters>),
    /// The session is over, or nothing counts it.
    Over,
}

impl SessionMeter {
    /// A meter for a session that was accepted at `accepted`, and may have these counters.
    pub fn new(counters: Option<Arc<dyn ServerCounters>>, index: usize, accepted: Instant) -> Rc<Self> {
        let state = MeterState::Undecided { counters, received: 0, sent: 0 };
        Rc::new(Self { state: RefCell::new(state), index, accepted })
    }

    /// Counts the begin of the session with the counters of its server, and what was counted before. Only the first call counts.
    pub fn decide(&self, counters: Option<&Arc<dyn ServerCounters>>) {
        let mut state = self.state.borrow_mut();
        let MeterState::Undecided { received, sent, .. } = *state else { return };
        *state = match counters {
            Some(counters) => {
                counters.begin(self.index);
                counters.received(self.index, received);
                counters.sent(self.index, sent);
                MeterState::Decided(counters.clone())
            }
            None => MeterState::Over,
        };
    }

    /// Counts bytes that were read of the client.
    pub fn received(&self, bytes: u64) {
        match &mut *self.state.borrow_mut() {
            MeterState::Undecided { received, .. } => *received += bytes,
            MeterState::Decided(counters) => counters.received(self.index, bytes),
            MeterState::Over => {}
        }
    }

    /// Counts bytes that the client has taken.
    pub fn sent(&self, bytes: u64) {
        match &mut *self.state.borrow_mut() {
            MeterState::Undecided { sent, .. } => *sent += bytes,
            MeterState::Decided(counters) => counters.sent(self.index, bytes),
            MeterState::Over => {}
        }
    }

    /// Counts the end of the session.
    pub fn end(&self, status: u16) {
        let time = tw_rt::clock::precise().saturating_duration_since(self.accepted);
        self.count_end(SessionEnd::Finished { status, time });
    }

    fn count_end(&self, end: SessionEnd) {
        let so_far = match &*self.state.borrow() {
            MeterState::Undecided { counters, .. } => counters.clone(),
            MeterState::Decided(_) | MeterState::Over => None,
        };
        self.decide(so_far.as_ref());
        if let MeterState::Decided(counters) = self.state.replace(MeterState::Over) {
            counters.end(self.index, end);
        }
    }
}

impl Drop for SessionMeter {
    fn drop(&mut self) {
        self.count_end(SessionEnd::Discarded);
    }
}
