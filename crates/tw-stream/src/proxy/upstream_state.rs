//! Upstream state of a session: source of the `$upstream_*` variables, and of the end of error log lines. Plain data.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tw_upstream::Peer;

/// Upstream servers that a session was passed to, in order.
#[derive(Default)]
pub struct UpstreamState {
    /// All attempts.
    pub attempts: Vec<Attempt>,
}

/// Attempt to pass a session to one upstream server.
pub struct Attempt {
    to: AttemptPeer,
    begun: Instant,
    /// Time until the connection was there.
    pub connected: Option<Duration>,
    /// Time until the first byte of the server was there.
    pub first_byte: Option<Duration>,
    /// Time until the attempt was over.
    pub ended: Option<Duration>,
    /// Bytes sent to the server.
    pub sent: u64,
    /// Bytes received from the server.
    pub received: u64,
}

/// Target of an attempt.
pub(super) enum AttemptPeer {
    Peer(Arc<Peer>),
    /// Name of a group without an available peer.
    Nobody(Arc<str>),
}

impl UpstreamState {
    /// Adds an attempt.
    pub(super) fn begin(&mut self, to: AttemptPeer) {
        // Most sessions are passed to one server.
        self.attempts.reserve_exact(1);
        let begun = tw_rt::clock::now();
        self.attempts.push(Attempt {
            to,
            begun,
            connected: None,
            first_byte: None,
            ended: None,
            sent: 0,
            received: 0,
        });
    }

    /// The last attempt.
    pub(super) fn current(&mut self) -> Option<&mut Attempt> {
        self.attempts.last_mut()
    }
}

impl Attempt {
    /// Address of the peer, or name of the group.
    pub fn address(&self) -> &str {
        match &self.to {
            AttemptPeer::Peer(peer) => peer.text(),
            AttemptPeer::Nobody(name) => name,
        }
    }

    /// Time from its begin to `at`.
    pub(super) fn span(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.begun)
    }

    /// Sets the time until the connection was there.
    pub(super) fn connect(&mut self) {
        self.connected = Some(self.span(tw_rt::clock::now()));
    }

    /// Sets the time until it was over.
    pub(super) fn end(&mut self) {
        self.ended = Some(self.span(tw_rt::clock::now()));
    }
}

/// `, upstream: "192.0.2.1:80", bytes from/to client:1/2, bytes from/to upstream:2/1`, for the error log.
pub(crate) struct UpstreamContext<'a> {
    pub(crate) upstream: &'a UpstreamState,
    /// Bytes received from the client.
    pub(crate) received: u64,
    /// Bytes sent to the client.
    pub(crate) sent: u64,
}

impl fmt::Display for UpstreamContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let attempt = self.upstream.attempts.last();
        if let Some(attempt) = attempt {
            write!(f, ", upstream: \"{}\"", attempt.address())?;
        }
        let (received, sent) = attempt.map_or((0, 0), |attempt| (attempt.received, attempt.sent));
        write!(f, ", bytes from/to client:{}/{}", self.received, self.sent)?;
        write!(f, ", bytes from/to upstream:{received}/{sent}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn context_names_the_server_tried_last() {
        let mut upstream = UpstreamState::default();
        let text = |upstream: &UpstreamState| UpstreamContext { upstream, received: 1, sent: 2 }.to_string();
        let none = ", bytes from/to client:1/2, bytes from/to upstream:0/0";
        assert_eq!(text(&upstream), none);
        upstream.begin(AttemptPeer::Nobody("one".into()));
        upstream.begin(AttemptPeer::Nobody("two".into()));
        if let Some(attempt) = upstream.current() {
            (attempt.sent, attempt.received) = (3, 4);
        }
        let expected = ", upstream: \"two\", bytes from/to client:1/2, bytes from/to upstream:4/3";
        assert_eq!(text(&upstream), expected);
    }
}
