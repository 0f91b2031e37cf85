//! Attempts at the servers of a group, one after the other: the steps that all protocols share.
//!
//! ```text
//! resolve_names ─► begin_selection ─► select_peer ─► the protocol connects, and sends ─► a connection
//!                                         ▲                   │ failure
//!                                         └─ may retry? ◄─ record_failure, end_lease
//! ```
//! A protocol adds the middle, and decides after which failures a session may be passed to another server.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use tw_core::session::Session;
use tw_disk::Pool;
use tw_log::Level;
use tw_upstream::{BalanceKey, KeyKind, Lease, PeerChange, PeerOutcome, PeerSelection, Rng};

use crate::failure::{AttemptFailure, AttemptStage, UpstreamFailure};
use crate::group::{UpstreamGroup, now_ms};
use crate::protocol::ConnectingProtocol;
use crate::resolving::Resolving;
use crate::upstream_attempt::{AttemptPeer, PassedSession};
use crate::{queue, upstream_names};

/// Session that records its attempts.
pub trait AttemptingSession: PassedSession {
    /// Records the begin of an attempt, and how long the session has waited in the queue of the group.
    fn begin_attempt(&mut self, to: AttemptPeer, queued: Option<Duration>);

    /// Records the failure of the current attempt, and logs it. Every failure of this module is to be recorded once.
    fn record_failure(&mut self, failure: &AttemptFailure);
}

/// Limits of the attempts of one session.
#[derive(Debug, Clone, Copy)]
pub struct AttemptLimits {
    /// `next_upstream_tries`; 0 is no limit.
    pub tries: u64,
    /// `next_upstream_timeout`; zero is no limit.
    pub timeout: Duration,
}

impl AttemptLimits {
    /// Returns true if attempts that began at `began` may not go on.
    pub fn is_past_deadline(&self, began: Instant) -> bool {
        !self.timeout.is_zero() && tw_rt::clock::now().saturating_duration_since(began) >= self.timeout
    }
}

/// Resolves the names of servers, as far as there are no addresses yet. `resolving` is that of the location or server, which one of the
/// group replaces.
///
/// # Errors
/// No server has an address: an attempt without a peer.
pub async fn resolve_names<P: ConnectingProtocol>(
    s: &mut P::Session,
    group: &UpstreamGroup<P>,
    resolving: &Resolving,
    pool: &Pool,
) -> Result<(), AttemptFailure>
where
    P::Session: AttemptingSession,
{
    let resolving = group.resolving.as_ref().unwrap_or(resolving);
    let ready = upstream_names::ensure_addresses(&group.names, &group.peers, resolving, pool).await;
    // DIFF(nginx): a single name that is not resolved is an attempt, too, so that a log has the reason.
    ready.map_err(|failure| record_nobody(s, group, failure, None))
}

/// Begins the selection of peers with the key that the balancing method needs.
pub fn begin_selection<P: ConnectingProtocol>(
    s: &P::Session,
    group: &UpstreamGroup<P>,
    limits: &AttemptLimits,
) -> PeerSelection
where
    P::Session: AttemptingSession,
{
    let key = match group.peers.method().key_kind() {
        KeyKind::Nothing => BalanceKey::None,
        KeyKind::Client => {
            s.client_addr().inet().map_or(BalanceKey::None, |addr| BalanceKey::Client(addr.ip()))
        }
        KeyKind::Text => BalanceKey::Text(group.key.as_ref().map_or_else(Vec::new, |key| key.value(s))),
    };
    group.peers.start_selection(key, None, u32::try_from(limits.tries).unwrap_or(u32::MAX))
}

/// Selects the peer of the next attempt, if need be after a wait in the queue of the group, and records the attempt.
///
/// # Errors
/// There is no peer, or none is free in time: an attempt without a peer.
pub async fn select_peer<P: ConnectingProtocol>(
    s: &mut P::Session,
    group: &UpstreamGroup<P>,
    selection: &mut PeerSelection,
    random: &RefCell<Rng>,
) -> Result<Lease, AttemptFailure>
where
    P::Session: AttemptingSession,
{
    let (selected, queued) = queue::select(&group.peers, group.queue, selection, random).await;
    record_selection(s, group, selected, queued)
}

/// Records the begin of an attempt at the peer that was selected after `queued`, or at nobody.
///
/// # Errors
/// There is no peer.
pub fn record_selection<P: ConnectingProtocol>(
    s: &mut P::Session,
    group: &UpstreamGroup<P>,
    selected: Result<Lease, UpstreamFailure>,
    queued: Option<Duration>,
) -> Result<Lease, AttemptFailure>
where
    P::Session: AttemptingSession,
{
    let lease = selected.map_err(|failure| record_nobody(s, group, failure, queued))?;
    s.begin_attempt(AttemptPeer::Peer(lease.peer().clone()), queued);
    Ok(lease)
}

/// Records the begin of an attempt without a peer.
#[cold]
fn record_nobody<P: ConnectingProtocol>(
    s: &mut P::Session,
    group: &UpstreamGroup<P>,
    failure: UpstreamFailure,
    queued: Option<Duration>,
) -> AttemptFailure
where
    P::Session: AttemptingSession,
{
    s.begin_attempt(AttemptPeer::Nobody(group.peers.name().clone()), queued);
    failure.at(AttemptStage::Connecting)
}

/// Ends the lease of a failed attempt with the outcome that counts for its peer. A failure that is none of the server leaves no trace.
pub fn end_lease<S: AttemptingSession>(s: &S, lease: Lease, failure: &AttemptFailure, outcome: PeerOutcome) {
    if failure.cause.is_local() {
        return drop(lease);
    }
    if lease.done(outcome, now_ms()) == PeerChange::Disabled {
        s.log(Level::Warn, format_args!("upstream server temporarily disabled {}", failure.stage));
    }
}

#[cfg(test)]
mod tests {
    use tw_upstream::PeerParams;

    use super::*;
    use crate::test_session::{TestSession, group};

    #[test]
    fn attempts_end_after_their_time_unless_it_is_zero() {
        let now = tw_rt::clock::now();
        let hour = Duration::from_secs(3600);
        let Some(earlier) = now.checked_sub(Duration::from_secs(60)) else { return };
        for (timeout, began, expected) in [
            (Duration::ZERO, earlier, false),
            (hour, earlier, false),
            (Duration::from_secs(60), earlier, true),
            (Duration::from_secs(1), earlier, true),
            (Duration::from_secs(1), now + hour, false),
        ] {
            let limits = AttemptLimits { tries: 0, timeout };
            assert_eq!(limits.is_past_deadline(began), expected, "{timeout:?}");
        }
    }

    /// Lines of the log after an attempt that ended with this failure, and whether its peer is still selected.
    fn end_attempt(cause: UpstreamFailure, outcome: PeerOutcome) -> (Vec<String>, bool) {
        let s = TestSession::new();
        let group = group(PeerParams { max_fails: 1, fail_timeout_ms: 60_000, ..PeerParams::default() });
        let mut random = Rng::seeded(1);
        let mut select = || {
            let mut selection = group.start_selection(BalanceKey::None, None, 0);
            group.select(&mut selection, now_ms(), &mut random)
        };
        let lease = select().unwrap();
        end_lease(&s, lease, &cause.at(AttemptStage::Sending), outcome);
        (s.lines.take(), select().is_ok())
    }

    #[test]
    fn only_failures_of_the_server_disable_it() {
        let disabled = "warn: upstream server temporarily disabled while sending request to upstream";
        assert_eq!(
            end_attempt(UpstreamFailure::SendTimeout, PeerOutcome::Failed),
            (vec![disabled.to_owned()], false)
        );
        assert_eq!(end_attempt(UpstreamFailure::Status(404), PeerOutcome::Next), (Vec::new(), true));
        assert_eq!(end_attempt(UpstreamFailure::Unsent, PeerOutcome::Failed), (Vec::new(), true));
    }
}
