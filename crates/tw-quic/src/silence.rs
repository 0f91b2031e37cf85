//! Clients that have vanished while this side waits for the end of their connections, as a process that is about to end does.
//!
//! Packets without an acknowledgement are sent again until the idle timeout, and the timeout begins anew with every packet that arrives and
//! with the first one that is sent behind it (RFC 9000, section 10.1). That is too long for a process that has nothing else to do. So the
//! client gets a PING, which it has to acknowledge, in each period; the connection is closed at the end of one in which nothing has arrived.

use std::time::{Duration, Instant};

use quinn_proto as engine;

// DIFF(nginx): a worker process that is about to end does not wait for clients that have vanished until `keepalive_timeout` is over.
/// Least time without a packet after which a client has vanished. The engine has sent its PING again by then: with a round trip of 300 ms,
/// three times.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Least number of round trips of that time: three probe timeouts (RFC 9000, section 10.1), each of which is three round trips at first
/// (RFC 9002, section 6.2).
pub(crate) const SILENCE_ROUND_TRIPS: u32 = 9;

/// Watch for the silence of a client.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) enum SilenceWatch {
    /// Any silence is fine until the idle timeout.
    #[default]
    Off,
    /// The first period begins when the endpoint looks at the connection.
    Ordered,
    /// A period, at whose beginning this number of datagrams had arrived.
    Until(Instant, u64),
}

impl SilenceWatch {
    /// End of the period.
    pub(crate) fn deadline(self) -> Option<Instant> {
        match self {
            Self::Off | Self::Ordered => None,
            Self::Until(at, _) => Some(at),
        }
    }

    /// Begins a period, if one is due, or returns true: the client has vanished.
    pub(crate) fn check(&mut self, engine: &mut engine::Connection, now: Instant) -> bool {
        let all = engine.stats();
        match *self {
            Self::Off => return false,
            Self::Until(at, _) if now < at => return false,
            Self::Until(_, before) if all.udp_rx.datagrams == before => return true,
            Self::Ordered | Self::Until(..) => {}
        }
        engine.ping();
        let period = SILENCE_MAX.max(all.path.rtt.saturating_mul(SILENCE_ROUND_TRIPS));
        *self = Self::Until(now + period, all.udp_rx.datagrams);
        false
    }
}
