//! Upstream servers that a request was sent to, as the `$upstream_*` variables show them.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tw_upstream::Peer;

use super::failure::UpstreamFailure;
use crate::http::cache;
use crate::http::header_names::HeaderNames;
use crate::http::upstream_response::UpstreamResponse;

/// The servers that a request was sent to, in order, and the last answer.
#[derive(Default)]
pub struct UpstreamState {
    /// Attempts in order.
    pub attempts: Vec<Attempt>,
    /// Response of the last attempt.
    pub answer: UpstreamResponse,
    /// Result of the cache lookup.
    pub cache: cache::CacheInfo,
    /// `X-Accel-Charset`: what the character set of the response is, whatever the response says.
    pub charset: Option<Bytes>,
    /// Trailer fields that the client does not get; `None` if it gets no trailers at all.
    pub(crate) trailers_hidden: Option<Arc<HeaderNames>>,
    /// URL for log lines: scheme, and path with arguments.
    pub(super) url: Option<(&'static str, Bytes)>,
    /// The `Set-Cookie` of `sticky` for the server that was chosen last.
    pub(super) cookie: Option<Vec<u8>>,
}

/// One server that was asked.
pub struct Attempt {
    /// Peer, or the name of a group that had none available.
    pub(crate) to: AttemptPeer,
    /// The status of its answer, or the one of what went wrong; 0 if there is none yet.
    pub status: u16,
    /// Cause of the failure, in a few words.
    pub(crate) failure: Option<Box<str>>,
    /// Time spent in the queue of the group (`queue`).
    pub(crate) queued: Option<Duration>,
    begun: Instant,
    pub(crate) connected: Option<Duration>,
    pub(crate) header: Option<Duration>,
    pub(crate) ended: Option<Duration>,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    /// Bytes of the body.
    pub(crate) length: u64,
}

/// Target of an attempt.
pub(crate) enum AttemptPeer {
    Peer(Arc<Peer>),
    /// A group in which nobody may be asked, or a name.
    Nobody(Arc<str>),
}

impl AttemptPeer {
    /// Address of the peer, or name of the group.
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Peer(peer) => peer.text(),
            Self::Nobody(name) => name,
        }
    }
}

impl UpstreamState {
    /// Forgets everything and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.attempts.clear();
        self.answer.clear();
        self.charset = None;
        self.trailers_hidden = None;
        self.url = None;
        self.cookie = None;
        self.cache.clear();
    }

    pub(super) fn begin(&mut self, to: AttemptPeer, queued: Option<Duration>) {
        self.answer.clear();
        // Most requests ask one server.
        self.attempts.reserve_exact(1);
        self.attempts.push(Attempt {
            to,
            status: 0,
            failure: None,
            queued,
            begun: tw_rt::clock::now(),
            connected: None,
            header: None,
            ended: None,
            sent: 0,
            received: 0,
            length: 0,
        });
    }

    /// Notes what is wrong with the server that was asked last.
    pub(super) fn record_failure(&mut self, failure: &UpstreamFailure) {
        if let Some(attempt) = self.attempts.last_mut() {
            attempt.failure = failure.cause().map(|cause| cause.to_string().into());
        }
    }

    /// The request is over: so is what it waited for.
    pub(crate) fn close(&mut self) {
        if let Some(attempt) = self.attempts.last_mut() {
            attempt.end();
        }
    }

    pub(super) fn current(&mut self) -> Option<&mut Attempt> {
        self.attempts.last_mut()
    }
}

impl Attempt {
    /// Duration so far, or in all once the attempt has ended.
    pub(crate) fn elapsed(&self) -> Duration {
        self.ended.unwrap_or_else(|| tw_rt::clock::now().saturating_duration_since(self.begun))
    }

    pub(super) fn end(&mut self) {
        self.ended = Some(self.elapsed());
    }

    /// Records the totals of an exchange that went on without its request.
    pub(crate) fn record_totals(&mut self, sent: u64, received: u64, length: u64, took: Option<Duration>) {
        (self.sent, self.received, self.length, self.ended) = (sent, received, length, took);
    }
}

/// `, upstream: "http://192.0.2.1:80/path"`, for the error log.
pub(crate) struct UpstreamContext<'a>(pub(crate) &'a UpstreamState);

impl fmt::Display for UpstreamContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Some((scheme, uri)), Some(attempt)) = (&self.0.url, self.0.attempts.last()) else {
            return Ok(());
        };
        let text = attempt.to.text();
        // A path of a socket and one of a URL need something between them.
        let gap = if text.starts_with("unix:") { ":" } else { "" };
        write!(f, ", upstream: \"{scheme}{text}{gap}{}\"", tw_log::Text(uri))
    }
}
