//! `health_check` of one server, and the answer that it expects.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tw_connect::UpstreamGroup;
use tw_core::regex::{Match, Regex};
use tw_upstream::HealthCheckParams;

use crate::plan::Plan;
use crate::protocol::Stream;
use crate::proxy::ProxySettings;

tw_base::limits! {
    /// Limits of checks.
    pub(crate) const LIMITS;

    /// Bytes of an answer to a health check of `stream`.
    pub(super) const ANSWER_MAX: usize = 64 << 10, bytes, "the check has failed";
    /// Time for the answer to a health check of `stream`.
    directive "health_check_timeout", "the check has failed";
}

/// `health_check` of one server.
pub struct HealthCheck {
    /// Intervals and thresholds.
    pub params: HealthCheckParams,
    /// Transport of the check.
    pub transport: CheckTransport,
    /// `health_check_timeout`
    pub timeout: Duration,
    /// `port=`: where checks go, if not to the port of the server.
    pub port: Option<u16>,
    /// `match=`; without it, a connection suffices.
    pub criteria: Option<Arc<HealthCriteria>>,
    /// Servers that are checked.
    pub target: CheckTarget,
}

/// Transport of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckTransport {
    /// A TCP connection.
    Tcp,
    /// Datagrams (`udp`).
    Udp,
}

/// Destination of the sessions of a server whose peers can be checked.
#[derive(Clone)]
pub struct CheckTarget {
    /// The group.
    pub group: Arc<UpstreamGroup<Stream>>,
    /// Settings of the connections.
    pub proxy: Arc<ProxySettings>,
}

/// Conditions of a `match` block.
pub struct HealthCriteria {
    /// Name of the block.
    pub name: Box<str>,
    /// Bytes that are sent first.
    pub send: Option<Bytes>,
    /// Condition on the bytes that come.
    pub expect: Option<Expectation>,
}

/// Condition on an answer.
pub enum Expectation {
    /// The answer begins with these bytes.
    Prefix(Box<[u8]>),
    /// The answer, as far as it has come, matches.
    Pattern(Regex),
}

/// State of an answer of which a part has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AnswerState {
    /// The answer is as expected.
    Matches,
    /// The answer differs, whatever follows.
    Differs,
    /// The bytes that follow decide.
    Open,
}

impl Expectation {
    /// Looks at the bytes that have come so far.
    pub(super) fn state(&self, answer: &[u8]) -> AnswerState {
        match self {
            Self::Prefix(prefix) if answer.starts_with(prefix) => AnswerState::Matches,
            Self::Prefix(prefix) if prefix.starts_with(answer) => AnswerState::Open,
            Self::Prefix(_) => AnswerState::Differs,
            // A match that was given up is none.
            Self::Pattern(regex) if regex.is_match(answer) == Ok(Match::Yes) => AnswerState::Matches,
            Self::Pattern(_) => AnswerState::Open,
        }
    }
}

impl Plan {
    /// Sets the health check of the group that the sessions of the server are passed to.
    pub fn set_health_check(&mut self, check: Arc<HealthCheck>) {
        self.health_check = Some(check);
    }
}

#[cfg(test)]
mod tests {
    use tw_core::regex::Caseless;

    use super::*;

    #[test]
    fn answers_match_as_they_arrive() {
        use AnswerState::{Differs, Matches, Open};
        let prefix = Expectation::Prefix(b"220 ".as_slice().into());
        let pattern = Expectation::Pattern(Regex::new(b"200 OK", Caseless::No).unwrap());
        for (answer, by_prefix, by_pattern) in [
            ("", Open, Open),
            ("22", Open, Open),
            ("220 mail", Matches, Open),
            ("500", Differs, Open),
            ("HTTP/1.1 200 OK\r\n", Differs, Matches),
        ] {
            assert_eq!(prefix.state(answer.as_bytes()), by_prefix, "{answer}");
            assert_eq!(pattern.state(answer.as_bytes()), by_pattern, "{answer}");
        }
    }
}
