//! Attempts to pass a session to upstream servers, and the `$upstream_*` variables that sessions of every protocol have (nginx:
//! ngx_http_upstream_module, ngx_stream_upstream_module): one value for each attempt, commas between, and colons between passes.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tw_core::session::Session;
use tw_core::vars::write::{put, put_maybe, put_number, put_seconds};
use tw_core::vars::{Value, VarDef};
use tw_upstream::Peer;

/// Attempt to pass a session to one upstream server. `O` is what the protocol knows of it besides.
pub struct UpstreamAttempt<O> {
    /// Peer, or name of a group without one.
    pub to: AttemptPeer,
    begun: Instant,
    /// Time until the connection was there.
    pub connected: Option<Duration>,
    /// Time until the attempt was over.
    pub ended: Option<Duration>,
    /// Bytes sent to the server.
    pub sent: u64,
    /// Bytes received from the server.
    pub received: u64,
    own: O,
}

impl<O> Deref for UpstreamAttempt<O> {
    type Target = O;

    fn deref(&self) -> &O {
        &self.own
    }
}

impl<O> DerefMut for UpstreamAttempt<O> {
    fn deref_mut(&mut self) -> &mut O {
        &mut self.own
    }
}

/// Target of an attempt.
pub enum AttemptPeer {
    /// Selected peer.
    Peer(Arc<Peer>),
    /// Name of a group without an available peer.
    Nobody(Arc<str>),
}

impl AttemptPeer {
    /// Address of the peer, or name of the group.
    pub fn text(&self) -> &str {
        match self {
            Self::Peer(peer) => peer.text(),
            Self::Nobody(name) => name,
        }
    }
}

impl<O> UpstreamAttempt<O> {
    /// An attempt that begins now.
    pub fn begin(to: AttemptPeer, own: O) -> Self {
        Self { to, begun: tw_rt::clock::now(), connected: None, ended: None, sent: 0, received: 0, own }
    }

    /// Time of its begin.
    pub fn begun(&self) -> Instant {
        self.begun
    }

    /// Time from its begin to `at`.
    pub fn span(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.begun)
    }

    /// Duration so far, or the whole one.
    pub fn elapsed(&self) -> Duration {
        self.ended.unwrap_or_else(|| self.span(tw_rt::clock::now()))
    }

    /// Sets the duration.
    pub fn end(&mut self) {
        self.ended = Some(self.elapsed());
    }
}

/// A session that can be passed to upstream servers.
pub trait PassedSession: Session {
    /// Knowledge of the protocol about an attempt.
    type OwnAttempt;

    /// All attempts, in order.
    fn attempts(&self) -> &[UpstreamAttempt<Self::OwnAttempt>];

    /// Attempts of each pass to a group of servers that had one, in order.
    fn passes(&self) -> impl Iterator<Item = &[UpstreamAttempt<Self::OwnAttempt>]> {
        std::iter::once(self.attempts()).filter(|attempts| !attempts.is_empty())
    }
}

/// Variables of upstream servers for the sessions of one protocol.
pub struct UpstreamVariables<S>(PhantomData<S>);

impl<S: PassedSession> UpstreamVariables<S> {
    /// The variables.
    pub const ALL: &'static [VarDef<S>] = &[
        VarDef::one(
            "upstream_addr",
            |s, out| put_each(s, out, |attempt, out| put(out, attempt.to.text().as_bytes())),
            "Addresses of the upstream servers that were tried.",
        ),
        VarDef::one(
            "upstream_connect_time",
            |s, out| put_each(s, out, |attempt, out| put_span(out, attempt.connected)),
            "Seconds until a connection to them was there.",
        ),
        VarDef::one(
            "upstream_bytes_received",
            |s, out| put_each(s, out, |attempt, out| put_number(out, attempt.received)),
            "Bytes that they have sent.",
        ),
        VarDef::one(
            "upstream_bytes_sent",
            |s, out| put_each(s, out, |attempt, out| put_number(out, attempt.sent)),
            "Bytes that were sent to them.",
        ),
        VarDef::one(
            "upstream_last_addr",
            |s, out| put_maybe(out, s.attempts().last().map(|attempt| attempt.to.text().as_bytes())),
            "Address of the upstream server that was tried last.",
        ),
        VarDef::one(
            "upstream_last_server_name",
            |s, out| match s.attempts().last().map(|attempt| &attempt.to) {
                Some(AttemptPeer::Peer(peer)) => put(out, peer.name().as_bytes()),
                Some(AttemptPeer::Nobody(_)) | None => Value::Missing,
            },
            "Name of the upstream server that was tried last, as the configuration has it.",
        ),
    ];
}

/// Appends a value for each attempt, with a comma between those of one pass and a colon between passes.
pub fn put_each<S: PassedSession>(
    s: &S,
    out: &mut Vec<u8>,
    put_one: impl Fn(&UpstreamAttempt<S::OwnAttempt>, &mut Vec<u8>) -> Value,
) -> Value {
    let mut value = Value::Missing;
    for attempts in s.passes() {
        for (at, attempt) in attempts.iter().enumerate() {
            if at > 0 {
                out.extend_from_slice(b", ");
            } else if value == Value::Found {
                out.extend_from_slice(b" : ");
            }
            if put_one(attempt, out) == Value::Missing {
                out.push(b'-');
            }
            value = Value::Found;
        }
    }
    value
}

/// Appends a time that may not have been reached.
pub fn put_span(out: &mut Vec<u8>, span: Option<Duration>) -> Value {
    span.map_or(Value::Missing, |span| put_seconds(out, span))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_session::TestSession;

    #[test]
    fn values_of_attempts_have_commas_and_those_of_passes_colons() {
        let mut s = TestSession::new();
        for (passes, expected) in [
            (&[][..], None),
            (&["a"][..], Some("a")),
            (&["ab"], Some("a, b")),
            (&["-b"], Some("-, b")),
            (&["-"], Some("-")),
            (&["ab", "c"], Some("a, b : c")),
            (&["a", "-", "c"], Some("a : - : c")),
        ] {
            let names = passes.concat();
            let begin = |name: char| UpstreamAttempt::begin(AttemptPeer::Nobody(name.to_string().into()), ());
            s.attempts = names.chars().map(begin).collect();
            s.passes = passes.iter().map(|pass| pass.len()).collect();
            let mut out = Vec::new();
            let value = put_each(&s, &mut out, |attempt, out| match attempt.to.text() {
                "-" => Value::Missing,
                name => put(out, name.as_bytes()),
            });
            assert_eq!(value == Value::Found, expected.is_some(), "{passes:?}");
            assert_eq!(String::from_utf8(out).unwrap(), expected.unwrap_or_default(), "{passes:?}");
        }
    }

    #[test]
    fn duration_of_an_attempt_stays_once_it_has_ended() {
        let mut attempt = UpstreamAttempt::begin(AttemptPeer::Nobody("a".into()), ());
        attempt.ended = Some(Duration::from_secs(7));
        attempt.end();
        assert_eq!(
            (attempt.elapsed(), attempt.ended),
            (Duration::from_secs(7), Some(Duration::from_secs(7)))
        );
        assert_eq!(attempt.span(attempt.begun() + Duration::from_secs(3)), Duration::from_secs(3));
    }
}
