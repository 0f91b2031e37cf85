//! The least time that a peer needs for what it has to do: its average time, by its connections, for its weight.
//! Source: nginx, `ngx_http_upstream_least_time_module.c`; the constants are its.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::least_conn;
use super::method::{LeastTime, TimeKind};
use super::view::View;
use crate::peer::Peer;
use crate::peer_state::{Average, Times, signed};
use crate::selection::PeerSelection;

/// Above so many milliseconds all are equally slow, and connections decide.
const SLOWEST_MS: u64 = 5000;
/// Times that differ by less are the same.
const CLOSE_MS: u64 = 20;

pub(super) fn choose<'a>(
    view: &View<'a>,
    selection: &PeerSelection,
    measure: LeastTime,
) -> Option<&'a Arc<Peer>> {
    if let Some(bound) = view.bound(selection) {
        return Some(bound);
    }
    if measure.inflight {
        let free = view.tier.peers.iter().filter(|peer| view.is_free(selection, peer));
        free.for_each(|peer| peer.state.times.look(view.now));
    }
    least_conn::least(view, selection, |peer| cost(peer, measure, view.now))
}

/// The time in which a peer would have done what it has to do and one request more, in milliseconds.
pub(super) fn cost(peer: &Peer, measure: LeastTime, now: i64) -> u64 {
    let times = &peer.state.times;
    let mut time = times.of(measure.by).value();
    // Whole seconds, or a fail_timeout of 0 would halve it every millisecond.
    let span = signed(peer.params.fail_timeout_ms) / 1000;
    let idle = now.saturating_sub(peer.state.checked_ms.load(Relaxed)) / 1000;
    if idle > span {
        // The time is halved for each fail_timeout without requests, so that a slow peer gets another chance.
        time = u32::try_from(idle / (span + 1)).ok().and_then(|shift| time.checked_shr(shift)).unwrap_or(0);
    }
    if measure.inflight && times.flight.lock().requests > 0 {
        time = time.max(times.inflight.value());
    }
    time = if time > SLOWEST_MS { SLOWEST_MS } else { time + CLOSE_MS - time % CLOSE_MS };
    time.saturating_mul(1 + u64::from(peer.state.connections()))
}

impl Times {
    pub(crate) fn of(&self, time: TimeKind) -> &Average {
        match time {
            TimeKind::Connect => &self.connect,
            TimeKind::Header => &self.header,
            TimeKind::LastByte => &self.response,
        }
    }

    /// A request begins.
    pub(crate) fn begin(&self, now: i64) {
        let mut flight = self.flight.lock();
        if flight.requests > 0 {
            flight.spent_ms += (now - flight.changed_ms) * flight.requests;
        }
        flight.changed_ms = now;
        flight.requests += 1;
    }

    /// The time of a request is known.
    pub(crate) fn end(&self, span: i64, now: i64) {
        let mut flight = self.flight.lock();
        if flight.requests > 1 {
            flight.spent_ms += (now - flight.changed_ms) * flight.requests - span;
            flight.changed_ms = now;
        } else {
            flight.spent_ms = 0;
        }
        flight.requests -= 1;
    }

    /// A request was given up: its share goes.
    pub(crate) fn forget(&self) {
        let mut flight = self.flight.lock();
        flight.spent_ms -= flight.spent_ms / flight.requests.max(1);
        flight.requests -= 1;
    }

    /// Adds what those under way have taken, on average, to its own average.
    fn look(&self, now: i64) {
        let flight = self.flight.lock();
        if flight.requests > 0 {
            let each = flight.spent_ms / flight.requests + (now - flight.changed_ms);
            self.inflight.add(u64::try_from(each).unwrap_or(0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_in_flight_add_up_and_end() {
        let times = Times::default();
        let flight = || {
            let flight = times.flight.lock();
            (flight.spent_ms, flight.requests)
        };
        times.begin(100);
        times.begin(110);
        assert_eq!(flight(), (10, 2));
        times.look(120);
        // 10 / 2 + 10
        assert_eq!(times.inflight.value(), 15);
        times.end(30, 130);
        assert_eq!(flight(), (20, 1));
        times.begin(140);
        assert_eq!(flight(), (30, 2));
        times.forget();
        assert_eq!(flight(), (15, 1));
        times.end(40, 150);
        assert_eq!(flight(), (0, 0));
    }
}
