//! Snapshots of groups for metrics, status pages and an API: plain numbers, copied without the locks that requests
//! take.

use std::sync::Arc;

use crate::group::Group;
use crate::peer::{Peer, PeerId, PeerStatus, ServerId};
use crate::server::PeerParams;

/// A group at one moment.
#[derive(Clone, Debug)]
pub struct GroupSnapshot {
    /// Name of the group.
    pub name: Arc<str>,
    /// Number of its list of peers; grows with each change.
    pub generation: u64,
    /// Number of requests in the queue.
    pub waiting: usize,
    /// Peers of the group, those that are not backup first.
    pub peers: Vec<PeerSnapshot>,
}

/// A peer at one moment.
#[derive(Clone, Debug)]
pub struct PeerSnapshot {
    /// Identifier in the group.
    pub id: PeerId,
    /// The server it belongs to.
    pub server: ServerId,
    /// The name of that server as written.
    pub name: Arc<str>,
    /// Address of the peer as `$upstream_addr` shows it.
    pub addr: Box<str>,
    /// Parameters of the peer.
    pub params: PeerParams,
    /// Availability.
    pub status: PeerStatus,
    /// Requests under way.
    pub connections: u32,
    /// Number of times it was chosen.
    pub requests: u64,
    /// Responses by the first digit of their status, 1 to 5.
    pub responses: [u64; 5],
    /// Attempts that failed.
    pub fails: u64,
    /// Number of times it was out because of failures.
    pub unavail: u64,
    /// Health checks made, failed, and how often they found it unhealthy.
    pub checks: CheckCounts,
    /// Bytes sent to it.
    pub sent: u64,
    /// Bytes received from it.
    pub received: u64,
    /// Milliseconds in which it was left alone.
    pub downtime_ms: u64,
    /// Time at which it was last chosen, in milliseconds of the caller's clock.
    pub selected_ms: Option<u64>,
    /// Moving average of the time until connected, in milliseconds.
    pub connect_ms: u64,
    /// Moving average of the time until the head of the response, in milliseconds.
    pub header_ms: u64,
    /// Moving average of the time until the end of the response, in milliseconds.
    pub response_ms: u64,
}

/// Counters of health checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckCounts {
    /// Checks made.
    pub checks: u64,
    /// Checks failed.
    pub fails: u64,
    /// Number of times the peer became unhealthy.
    pub unhealthy: u64,
    /// Result of the latest check; `None` before the first one.
    pub last_passed: Option<bool>,
}

impl Group {
    /// A copy of all numbers but the histograms, which are read one by one ([`PeerCounters`](crate::PeerCounters)). Takes the lock of the group once, to clone a reference.
    pub fn snapshot(&self, now: u64) -> GroupSnapshot {
        let list = self.list();
        GroupSnapshot {
            name: self.name().clone(),
            generation: list.generation(),
            waiting: self.queue_len(),
            peers: list.peers().map(|peer| peer.snapshot(now)).collect(),
        }
    }
}

impl Peer {
    /// A copy of its numbers.
    pub fn snapshot(&self, now: u64) -> PeerSnapshot {
        let state = &self.state;
        let counters = &self.state.counters;
        PeerSnapshot {
            id: self.id,
            server: self.server,
            name: self.name.clone(),
            addr: self.text().into(),
            params: self.params.clone(),
            status: self.status(),
            connections: state.connections(),
            requests: counters.requests.value(),
            responses: counters.responses.each_ref().map(|class| class.value()),
            fails: counters.fails.value(),
            unavail: counters.unavail.value(),
            checks: CheckCounts {
                checks: counters.checks.value(),
                fails: counters.check_fails.value(),
                unhealthy: counters.unhealthy.value(),
                last_passed: state.last_check(),
            },
            sent: counters.sent.value(),
            received: counters.received.value(),
            downtime_ms: state.downtime_ms(now),
            selected_ms: state.selected_ms(),
            connect_ms: state.times.connect.value(),
            header_ms: state.times.header.value(),
            response_ms: state.times.response.value(),
        }
    }
}
