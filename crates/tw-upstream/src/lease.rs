//! Permit to use a peer for one request. Dropping it releases the connection.

use std::sync::Arc;

use crate::balance::LeastTime;
use crate::peer::{Peer, PeerChange};
use crate::peer_state::signed;

/// Request in progress to a peer. [`done`](Self::done) reports its outcome; dropping the lease gives the request up,
/// which says nothing about the peer.
///
/// No call waits or allocates.
// DIFF(nginx): a request that is given up, because its client has left, does not mark a peer as live that has failed before.
#[derive(Debug)]
#[must_use]
pub struct Lease {
    peer: Arc<Peer>,
    began_ms: u64,
    /// The only peer of its group: failures do not count.
    is_single: bool,
    /// Measure for `least_time`.
    measure: Option<LeastTime>,
    is_inflight: bool,
    connect_ms: Option<u64>,
    header_ms: Option<u64>,
}

/// Outcome of a request to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerOutcome {
    /// Success; also an error response that is not worth another peer.
    Success,
    /// Response that another peer may improve, and that says nothing against this one (403, 404).
    Next,
    /// Error, timeout, or a response that counts as one.
    Failed,
}

impl Lease {
    pub(crate) fn new(peer: Arc<Peer>, now: u64, is_single: bool, measure: Option<LeastTime>) -> Self {
        let is_inflight = measure.is_some_and(|measure| measure.inflight);
        if is_inflight {
            peer.state.times.begin(signed(now));
        }
        Self { peer, began_ms: now, is_single, measure, is_inflight, connect_ms: None, header_ms: None }
    }

    /// Peer to send the request to.
    pub fn peer(&self) -> &Arc<Peer> {
        &self.peer
    }

    /// Records that the connection is established. A reused connection has no such time.
    pub fn connected(&mut self, now: u64) {
        let span = self.span(now);
        self.connect_ms = Some(span);
        self.peer.state.counters.connect.record_ns(nanos(span));
        self.note(LeastTime::is_by_connect, span, now);
    }

    /// Records that the head, or the first byte, of the response has arrived.
    pub fn header(&mut self, now: u64) {
        let span = self.span(now);
        self.header_ms = Some(span);
        self.peer.state.counters.header.record_ns(nanos(span));
        self.note(LeastTime::is_by_header, span, now);
    }

    /// Counts the status of the response.
    pub fn status(&self, status: u16) {
        let class = usize::from(status / 100).checked_sub(1);
        if let Some(counter) = class.and_then(|class| self.peer.state.counters.responses.get(class)) {
            counter.add(1);
        }
    }

    /// Counts sent bytes.
    pub fn sent(&self, bytes: u64) {
        self.peer.state.counters.sent.add(bytes);
    }

    /// Counts received bytes.
    pub fn received(&self, bytes: u64) {
        self.peer.state.counters.received.add(bytes);
    }

    /// Reports success as soon as a connection is established, for protocols without responses (nginx's stream, over
    /// TCP).
    pub fn passed(&self, now: u64) -> PeerChange {
        if self.is_single { PeerChange::Unchanged } else { self.peer.passed(signed(now)) }
    }

    /// Ends the request. Only a success counts for the averages of times, so that a peer is not preferred that fails
    /// quickly.
    pub fn done(mut self, outcome: PeerOutcome, now: u64) -> PeerChange {
        let state = &self.peer.state;
        let span = self.span(now);
        if outcome == PeerOutcome::Success {
            state.counters.response.record_ns(nanos(span));
            self.average(span);
        }
        self.lands(span, now);
        match (outcome, self.is_single) {
            (PeerOutcome::Failed, true) => {
                self.peer.state.counters.fails.add(1);
                PeerChange::Unchanged
            }
            (_, true) => PeerChange::Unchanged,
            (PeerOutcome::Failed, false) => self.peer.failed(signed(now)),
            (PeerOutcome::Success | PeerOutcome::Next, false) => self.peer.passed(signed(now)),
        }
    }

    fn span(&self, now: u64) -> u64 {
        now.saturating_sub(self.began_ms)
    }

    /// With `inflight` the average is updated as early as possible.
    fn note(&mut self, is_by: fn(LeastTime) -> bool, span: u64, now: u64) {
        if let Some(measure) = self.measure
            && self.is_inflight
            && is_by(measure)
        {
            self.peer.state.times.of(measure.by).add(span);
            self.lands(span, now);
        }
    }

    /// Ends the request's part in `least_time … inflight`.
    fn lands(&mut self, span: u64, now: u64) {
        if std::mem::take(&mut self.is_inflight) {
            self.peer.state.times.end(signed(span), signed(now));
        }
    }

    fn average(&self, span: u64) {
        let times = &self.peer.state.times;
        let is_noted = |is_by: fn(LeastTime) -> bool| self.measure.is_some_and(|m| m.inflight && is_by(m));
        times.response.add(span);
        if let Some(connect) = self.connect_ms
            && !is_noted(LeastTime::is_by_connect)
        {
            times.connect.add(connect);
        }
        if let Some(header) = self.header_ms
            && !is_noted(LeastTime::is_by_header)
        {
            times.header.add(header);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.is_inflight {
            self.peer.state.times.forget();
        }
        self.peer.state.give_back();
    }
}

fn nanos(ms: u64) -> u64 {
    ms.saturating_mul(1_000_000)
}
