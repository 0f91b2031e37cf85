//! End of a session over datagrams: its counts, the outcome for its server, its line in the log and its status.

use std::io;
use std::time::{Duration, Instant};

use tw_base::Errno;
use tw_connect::group::now_ms;
use tw_core::session::Session;
use tw_log::Level;
use tw_upstream::{Lease, PeerChange, PeerOutcome};

use super::session_drop::log_drop;
use crate::datagram_client::DatagramEnding;
use crate::session::{SessionStatus, StreamSession};
use crate::session_record::ExchangeCounts;

/// End of a session.
pub(super) enum SessionEnd {
    /// All responses that were expected are there.
    Done,
    /// Nothing has come in time.
    Timeout,
    /// The network has reported an error.
    Failed(io::Error),
    /// The loop needs its place, or its address is gone.
    Client(DatagramEnding),
    /// The loop has stopped, and nothing more is to be expected.
    Stopped,
    /// The server gets no sessions any more (`proxy_session_drop`).
    Dropped,
    /// The session goes on in the next process.
    HandedOver,
    /// The filter has ended the session, and has logged the reason.
    Filter(SessionStatus),
}

/// Takes over what was counted.
pub(super) fn record(
    s: &mut StreamSession,
    count: &ExchangeCounts,
    first_byte: Option<Instant>,
    before: Option<Duration>,
) {
    s.received += count.from_client;
    s.sent += count.to_client;
    let Some(attempt) = s.upstream.as_mut().and_then(|upstream| upstream.current()) else { return };
    attempt.end();
    attempt.first_byte = before.or_else(|| first_byte.map(|at| attempt.span(at)));
    (attempt.sent, attempt.received) = (count.to_server, count.from_server);
}

pub(super) fn end_lease(s: &StreamSession, lease: Lease, outcome: PeerOutcome) {
    if lease.done(outcome, now_ms()) == PeerChange::Disabled {
        s.log(Level::Warn, format_args!("upstream server temporarily disabled while proxying connection"));
    }
}

/// Logs the end of a session, and returns its status.
pub(super) fn log_end(
    s: &StreamSession,
    end: &SessionEnd,
    count: &ExchangeCounts,
    is_complete: bool,
) -> SessionStatus {
    let info = |what: &str| {
        let ExchangeCounts { requests, responses, from_server, to_server, .. } = count;
        let received = s.received;
        let sent = s.sent;
        s.client.write(
            Level::Info,
            format_args!(
                "{what}, packets from/to client:{requests}/{responses}, bytes from/to client:{received}/{sent}, \
                 bytes from/to upstream:{from_server}/{to_server}"
            ),
        );
        SessionStatus::OK
    };
    match end {
        SessionEnd::Done => info("udp done"),
        SessionEnd::Timeout if is_complete => info("udp timed out"),
        SessionEnd::Timeout => {
            let message = "upstream timed out (110: Connection timed out) while proxying connection";
            s.log(Level::Error, format_args!("{message}"));
            SessionStatus::BAD_GATEWAY
        }
        SessionEnd::Stopped => info("disconnected on shutdown"),
        SessionEnd::Filter(status) => *status,
        SessionEnd::HandedOver => {
            info("session goes on in the next worker process");
            SessionStatus::PASSED
        }
        SessionEnd::Dropped => {
            log_drop(s);
            SessionStatus::BAD_GATEWAY
        }
        SessionEnd::Client(DatagramEnding::AddressGone) => info("listening socket closed"),
        SessionEnd::Client(DatagramEnding::Evicted) => {
            info("session ended to make room");
            SessionStatus::SERVICE_UNAVAILABLE
        }
        // DIFF(nginx): nginx waits for `proxy_timeout` unless it counts the error as the response that it expects, with status 200.
        SessionEnd::Failed(error) => {
            let errno = Errno(error.raw_os_error().unwrap_or_default());
            s.log(
                Level::Error,
                format_args!("recv() failed ({errno}) while proxying and reading from upstream"),
            );
            SessionStatus::BAD_GATEWAY
        }
    }
}
