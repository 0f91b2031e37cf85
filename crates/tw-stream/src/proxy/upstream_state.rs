//! Upstream state of a session: source of the `$upstream_*` variables, and of the end of error log lines. Plain data.

use std::time::Duration;

use tw_connect::{AttemptPeer, UpstreamAttempt};
use tw_log::{ContextVisitor, LineContext};

/// Upstream servers that a session was passed to, in order.
#[derive(Default)]
pub struct UpstreamState {
    /// All attempts.
    pub attempts: Vec<Attempt>,
}

/// Attempt to pass a session to one upstream server.
pub type Attempt = UpstreamAttempt<StreamAttempt>;

/// Part of an attempt that only `stream` has.
pub struct StreamAttempt {
    /// Time until the first byte of the server was there.
    pub first_byte: Option<Duration>,
}

impl UpstreamState {
    /// Adds an attempt.
    pub(crate) fn begin(&mut self, to: AttemptPeer) {
        // Most sessions are passed to one server.
        self.attempts.reserve_exact(1);
        self.attempts.push(Attempt::begin(to, StreamAttempt { first_byte: None }));
    }

    /// The last attempt.
    pub(super) fn current(&mut self) -> Option<&mut Attempt> {
        self.attempts.last_mut()
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

impl LineContext for UpstreamContext<'_> {
    fn visit(&self, visitor: &mut dyn ContextVisitor) {
        let attempt = self.upstream.attempts.last();
        if let Some(attempt) = attempt {
            visitor.quoted("upstream", format_args!("{}", attempt.to.text()));
        }
        let (received, sent) = attempt.map_or((0, 0), |attempt| (attempt.received, attempt.sent));
        visitor.text(format_args!(", bytes from/to client:{}/{}", self.received, self.sent));
        visitor.text(format_args!(", bytes from/to upstream:{received}/{sent}"));
        for (name, bytes) in [
            ("bytes_from_client", self.received),
            ("bytes_to_client", self.sent),
            ("bytes_from_upstream", received),
            ("bytes_to_upstream", sent),
        ] {
            visitor.member(name, format_args!("{bytes}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use tw_log::ContextText;

    use super::*;

    #[test]
    fn context_names_the_server_tried_last() {
        let mut upstream = UpstreamState::default();
        let text = |upstream: &UpstreamState| {
            ContextText(&UpstreamContext { upstream, received: 1, sent: 2 }).to_string()
        };
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
