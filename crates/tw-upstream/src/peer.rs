//! One address of an upstream server, and its availability.
//!
//! ```text
//!            max_fails failures               fail_timeout_ms later
//! usable ───────────────────────► left alone ───────────────────────► one request tries it
//!   ▲                                  ▲            it fails                    │
//!   │                                  └────────────────────────────────────────┤
//!   └───────────────────────────────────────── it succeeds ─────────────────────┘
//! ```

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use md5::{Digest, Md5};
use tw_net::Addr;

use crate::peer_state::{Health, PeerState, signed};
use crate::server::{AdminState, PeerParams};

/// Step of a peer with all of its weight, per unit of weight. During a slow start steps are fractions of it.
pub(crate) const WHOLE_STEP: i64 = 1024;

/// Identifier of a peer as long as it is in its group, also over reloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub u32);

impl Default for PeerId {
    fn default() -> Self {
        Self(u32::MAX)
    }
}

/// Identifier of a server of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerId(pub u32);

/// One address of a server. It never changes: new parameters make a new `Peer` with the same [`PeerState`].
#[derive(Debug)]
pub struct Peer {
    pub(crate) id: PeerId,
    pub(crate) server: ServerId,
    pub(crate) name: Arc<str>,
    pub(crate) addr: Addr,
    text: Box<str>,
    sid: Arc<[u8]>,
    pub(crate) params: PeerParams,
    pub(crate) state: Arc<PeerState>,
}

/// Availability of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerStatus {
    /// Gets requests.
    Up,
    /// Taken out by an operator.
    Down,
    /// Gets only requests that are bound to it.
    Draining,
    /// Has failed too often, and no request has succeeded since.
    Unavailable,
    /// Health checks have failed.
    Unhealthy,
    /// Has not passed its first health check yet.
    Checking,
}

/// Change of a peer's availability by an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerChange {
    /// No change.
    Unchanged,
    /// The peer has failed `max_fails` times and is out for `fail_timeout`. nginx: "upstream server temporarily
    /// disabled", at `warn`.
    Disabled,
    /// The peer is available again.
    Recovered,
}

impl Peer {
    pub(crate) fn new(
        id: PeerId,
        server: ServerId,
        name: Arc<str>,
        addr: Addr,
        params: PeerParams,
        state: Arc<PeerState>,
    ) -> Self {
        let text: Box<str> = addr.to_string().into();
        let sid = params.route.clone().unwrap_or_else(|| hex(&Md5::digest(text.as_bytes())));
        Self { id, server, name, addr, text, sid, params, state }
    }

    /// Copy of the peer with other parameters.
    pub(crate) fn with(&self, params: PeerParams) -> Self {
        let name = self.name.clone();
        let addr = self.addr.clone();
        Self::new(self.id, self.server, name, addr, params, self.state.clone())
    }

    /// Identifier in the group.
    pub fn id(&self) -> PeerId {
        self.id
    }

    /// The server it belongs to.
    pub fn server(&self) -> ServerId {
        self.server
    }

    /// The name of its server as written, or the target of its SRV record.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Address to connect to.
    pub fn addr(&self) -> &Addr {
        &self.addr
    }

    /// The address as `$upstream_addr` shows it: `192.0.2.1:80`, `unix:/run/app.sock`.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Identifier for `sticky`: the route, or 32 hexadecimal digits.
    pub fn sid(&self) -> &Arc<[u8]> {
        &self.sid
    }

    /// Parameters of the peer.
    pub fn params(&self) -> &PeerParams {
        &self.params
    }

    /// State that all loops share.
    pub fn state(&self) -> &Arc<PeerState> {
        &self.state
    }

    /// Status for status pages.
    pub fn status(&self) -> PeerStatus {
        let params = &self.params;
        let state = &self.state;
        match (params.admin, state.health()) {
            (AdminState::Down, _) => PeerStatus::Down,
            (AdminState::Drain, _) => PeerStatus::Draining,
            (AdminState::Up, Health::Unhealthy) => PeerStatus::Unhealthy,
            (AdminState::Up, Health::Checking) => PeerStatus::Checking,
            (AdminState::Up, Health::Healthy) if self.has_failed_too_often() => PeerStatus::Unavailable,
            (AdminState::Up, Health::Healthy) => PeerStatus::Up,
        }
    }

    fn has_failed_too_often(&self) -> bool {
        self.params.max_fails > 0 && self.state.fails.load(Relaxed) >= self.params.max_fails
    }

    /// Returns true if an unbound request may be sent to the peer.
    pub(crate) fn is_usable(&self, now: i64) -> bool {
        self.params.admin == AdminState::Up && self.is_usable_if_bound(now) && !self.state.is_spared(now)
    }

    /// Returns true if a request that `sticky` binds to the peer may be sent to it.
    pub(crate) fn is_usable_if_bound(&self, now: i64) -> bool {
        let is_left_alone = || {
            self.has_failed_too_often()
                && now - self.state.checked_ms.load(Relaxed) <= signed(self.params.fail_timeout_ms)
        };
        self.is_open() && !is_left_alone()
    }

    /// Returns true if the peer can be used when failures do not count: the only peer of a group has no failures.
    pub(crate) fn is_open(&self) -> bool {
        let PeerParams { admin, max_conns, .. } = self.params;
        admin != AdminState::Down
            && self.state.health() == Health::Healthy
            && (max_conns == 0 || self.state.connections() < max_conns)
    }

    /// Time at which it may be tried again, if it is out because of failures.
    pub(crate) fn retry_ms(&self) -> Option<i64> {
        let is_left_alone = self.status() == PeerStatus::Unavailable;
        is_left_alone.then(|| {
            self.state.checked_ms.load(Relaxed) + signed(self.params.fail_timeout_ms).saturating_add(1)
        })
    }

    /// Current weight in steps: all of it, or the part that a slow start has reached; at least one step.
    pub(crate) fn steps(&self, now: i64) -> i64 {
        i64::from(self.params.weight) * self.ramp(now)
    }

    fn ramp(&self, now: i64) -> i64 {
        let span = signed(self.params.slow_start_ms);
        let since = now - self.state.ramp_ms.load(Relaxed);
        if since >= span { WHOLE_STEP } else { (WHOLE_STEP * since.max(0) / span).max(1) }
    }

    /// One round of the smooth weighted round robin for this peer: adds its gain to its current weight, and restores
    /// part of the weight lost by failures. Under the lock of the group. Source: nginx, `ngx_http_upstream_get_peer`.
    pub(crate) fn advance(&self, now: i64) -> Advance {
        let state = &self.state;
        let reduced = state.reduced.load(Relaxed).min(self.params.weight);
        let step = i64::from(self.params.weight - reduced) * self.ramp(now);
        let current = state.current.load(Relaxed) + step;
        state.current.store(current, Relaxed);
        if reduced > 0 {
            // A loop that reduces it at the same moment wins.
            let _ = state.reduced.compare_exchange(reduced, reduced - 1, Relaxed, Relaxed);
        }
        Advance { current, step }
    }

    /// Takes a permit for one request, unless the limit is reached.
    pub(crate) fn take(&self) -> bool {
        self.state.take(self.params.max_conns)
    }

    /// Records that it was chosen: after `fail_timeout` this request shows if it works again.
    pub(crate) fn chosen(&self, now: i64) {
        let state = &self.state;
        if now - state.checked_ms.load(Relaxed) > signed(self.params.fail_timeout_ms) {
            state.checked_ms.store(now, Relaxed);
        }
        state.note_trial(now);
        state.selected_ms.store(now, Relaxed);
        state.counters.requests.add(1);
    }

    /// Records a failed attempt. Source: nginx, `ngx_http_upstream_free_round_robin_peer`.
    pub(crate) fn failed(&self, now: i64) -> PeerChange {
        let params = &self.params;
        let state = &self.state;
        state.counters.fails.add(1);
        state.forget_hint();
        let fails = state.fails.fetch_add(1, Relaxed).saturating_add(1);
        state.failed_ms.store(now, Relaxed);
        state.checked_ms.store(now, Relaxed);
        if params.max_fails == 0 {
            return PeerChange::Unchanged;
        }
        let less = |reduced: u32| Some((reduced + params.weight / params.max_fails).min(params.weight));
        let _ = state.reduced.fetch_update(Relaxed, Relaxed, less);
        if fails < params.max_fails {
            return PeerChange::Unchanged;
        }
        if fails == params.max_fails {
            state.counters.unavail.add(1);
            state.goes_out(now);
        }
        PeerChange::Disabled
    }

    /// Records a successful attempt: if it was the trial after failures, these no longer count.
    pub(crate) fn passed(&self, now: i64) -> PeerChange {
        let state = &self.state;
        state.forget_hint();
        if state.fails.load(Relaxed) == 0 || state.failed_ms.load(Relaxed) >= state.checked_ms.load(Relaxed) {
            return PeerChange::Unchanged;
        }
        let fails = state.fails.swap(0, Relaxed);
        if self.params.max_fails == 0 || fails < self.params.max_fails {
            return PeerChange::Unchanged;
        }
        if state.health() == Health::Healthy {
            state.comes_back(now);
        }
        PeerChange::Recovered
    }
}

/// Result of [`Peer::advance`].
pub(crate) struct Advance {
    /// New current weight.
    pub(crate) current: i64,
    /// Increase.
    pub(crate) step: i64,
}

/// As nginx writes it in `$upstream_addr`.
impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn hex(bytes: &[u8]) -> Arc<[u8]> {
    let digit = |value: u8| if value < 10 { b'0' + value } else { b'a' + value - 10 };
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(params: PeerParams) -> Peer {
        let addr = Addr::Inet("127.0.0.1:8080".parse().unwrap());
        Peer::new(PeerId(1), ServerId(1), "a".into(), addr, params, Arc::new(PeerState::new(Arc::default())))
    }

    #[test]
    fn sticky_identifier_is_the_route_or_the_md5_of_the_address() {
        assert_eq!(&**peer(PeerParams::default()).sid(), b"5958c386bf5e9109ac10d2a628645aea".as_slice());
        let route = PeerParams { route: Some(b"r1".as_slice().into()), ..PeerParams::default() };
        assert_eq!(&**peer(route).sid(), b"r1".as_slice());
    }

    #[test]
    fn failures_count_until_a_trial_request_succeeds() {
        let peer =
            peer(PeerParams { max_fails: 2, fail_timeout_ms: 1000, weight: 5, ..PeerParams::default() });
        peer.chosen(5000);
        assert_eq!(peer.failed(5000), PeerChange::Unchanged);
        assert!(peer.is_usable(5000));
        assert_eq!(peer.failed(5400), PeerChange::Disabled);
        // 5 / 2 of the weight for each failure.
        assert_eq!(peer.state.reduced.load(Relaxed), 4);
        assert_eq!((peer.status(), peer.retry_ms()), (PeerStatus::Unavailable, Some(6401)));
        assert!(!peer.is_usable(6400) && peer.is_usable(6401));
        // The outcome of a request that began before the failure does not count.
        assert_eq!(peer.passed(6401), PeerChange::Unchanged);
        peer.chosen(6401);
        assert!(!peer.is_usable(6402), "one request at a time tells");
        assert_eq!(peer.passed(6500), PeerChange::Recovered);
        assert_eq!((peer.status(), peer.state.counters.downtime_ms.value()), (PeerStatus::Up, 1100));
        assert_eq!(peer.state.counters.unavail.value(), 1);
    }

    #[test]
    fn slow_start_restores_the_weight_gradually() {
        let peer = peer(PeerParams { slow_start_ms: 1000, weight: 2, ..PeerParams::default() });
        assert_eq!(peer.steps(50), 2 * WHOLE_STEP);
        peer.state.comes_back(10_000);
        for (now, expected) in [(10_000, 2), (10_250, 512), (10_500, 1024), (11_000, 2048), (20_000, 2048)] {
            assert_eq!(peer.steps(now), expected, "{now}");
        }
    }
}
