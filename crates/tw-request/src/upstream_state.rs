//! Upstream state of a request: attempts, last response, cache lookup. Source of the `$upstream_*` variables. Plain data: the
//! proxy and the cache fill it in.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tw_connect::{AttemptPeer, UpstreamAttempt};

use super::cache_info::CacheInfo;
use super::header_names::HeaderNames;
use super::upstream_response::UpstreamResponse;

/// Memory for the head of an upstream request that stays with the memory of the request: most heads need less.
const SPARE_HEAD_MAX: usize = 4 << 10;

/// Upstream servers that a request was sent to, in order, and the last response.
#[derive(Default)]
pub struct UpstreamState {
    /// All attempts.
    pub attempts: Vec<Attempt>,
    /// Passes before the current one.
    earlier_passes: Vec<EarlierPass>,
    /// Response of the last attempt.
    pub answer: UpstreamResponse,
    /// State of the cache lookup.
    pub cache: CacheInfo,
    /// `X-Accel-Charset`: character set of the response, whatever the response says.
    pub charset: Option<Bytes>,
    /// Trailer fields that are hidden from the client; `None` hides all.
    pub trailers_hidden: Option<Arc<HeaderNames>>,
    /// URL of the upstream request of the current pass, for log lines.
    pub url: UpstreamUrl,
    /// Memory for the head of an upstream request.
    pub spare_head: Cell<Vec<u8>>,
    /// `Set-Cookie` of `sticky` for the peer that was chosen last.
    pub cookie: Option<Vec<u8>>,
}

/// URL of a request to an upstream server without the address.
#[derive(Default)]
pub struct UpstreamUrl {
    /// The scheme with `://`; empty if there is no request.
    pub scheme: &'static str,
    /// The path with arguments; empty for protocols without one.
    pub path: Vec<u8>,
}

/// Pass that an internal redirect has ended, after attempts at one upstream server at least.
struct EarlierPass {
    /// Number of attempts up to its last one.
    end: usize,
    url: UpstreamUrl,
}

/// Attempts of one pass of the request to a group of servers. An internal redirect may begin another one.
pub struct Pass<'a> {
    /// Attempts, at least one.
    pub attempts: &'a [Attempt],
    /// URL of their requests.
    pub url: &'a UpstreamUrl,
}

/// Attempt to get a response from one upstream server.
pub type Attempt = UpstreamAttempt<HttpAttempt>;

/// Part of an attempt that only HTTP has.
pub struct HttpAttempt {
    /// Status of the response, or of the failure; 0 if there is none yet.
    pub status: u16,
    /// Cause of the failure.
    pub failure: Option<Box<str>>,
    /// Time in the queue of the group (`queue`).
    pub queued: Option<Duration>,
    /// Time until the head of the response was there.
    pub header: Option<Duration>,
    /// Bytes of the body.
    pub length: u64,
}

impl UpstreamState {
    /// Clears all values and keeps the allocated memory.
    pub fn clear(&mut self) {
        self.attempts.clear();
        self.earlier_passes.clear();
        self.answer.clear();
        self.answer.fields.release();
        self.charset = None;
        self.trailers_hidden = None;
        self.url.scheme = "";
        self.url.path.clear();
        if self.spare_head.get_mut().capacity() > SPARE_HEAD_MAX {
            self.spare_head.take();
        }
        self.cookie = None;
        self.cache.clear();
    }

    /// Begins a pass. Attempts of the one before it stay with their URL.
    pub fn begin_pass(&mut self) {
        let end = self.attempts.len();
        if end > self.pass_start() {
            self.earlier_passes.push(EarlierPass { end, url: std::mem::take(&mut self.url) });
        }
    }

    /// Number of attempts before the current pass.
    fn pass_start(&self) -> usize {
        self.earlier_passes.last().map_or(0, |pass| pass.end)
    }

    /// Passes with an attempt at least, in order.
    // DIFF(nginx): a pass without an attempt, as one to an invalid address, leaves no separator.
    pub fn passes(&self) -> impl Iterator<Item = Pass<'_>> {
        let earlier = self.earlier_passes.iter().map(|pass| (pass.end, &pass.url));
        let mut start = 0;
        earlier.chain([(self.attempts.len(), &self.url)]).filter_map(move |(end, url)| {
            let attempts = self.attempts.get(start..end).filter(|attempts| !attempts.is_empty())?;
            start = end;
            Some(Pass { attempts, url })
        })
    }

    /// Adds an attempt.
    pub fn begin(&mut self, to: AttemptPeer, queued: Option<Duration>) {
        self.answer.clear();
        // Most requests ask one server.
        self.attempts.reserve_exact(1);
        let own = HttpAttempt { status: 0, failure: None, queued, header: None, length: 0 };
        self.attempts.push(Attempt::begin(to, own));
    }

    /// Sets the cause of the failure of the last attempt.
    pub fn record_failure(&mut self, cause: Option<impl fmt::Display>) {
        if let Some(attempt) = self.current() {
            attempt.failure = cause.map(|cause| cause.to_string().into());
        }
    }

    /// Ends an attempt that has no response when the time of its request is over.
    pub fn time_out(&mut self) {
        if let Some(attempt) = self.current().filter(|attempt| attempt.status == 0) {
            attempt.end();
            attempt.status = 504;
            attempt.failure = Some("request timed out".into());
        }
    }

    /// Ends the last attempt together with its request.
    pub fn close(&mut self) {
        if let Some(attempt) = self.current() {
            attempt.end();
        }
    }

    /// Last attempt of the current pass.
    pub fn current(&mut self) -> Option<&mut Attempt> {
        let start = self.pass_start();
        self.attempts.get_mut(start..)?.last_mut()
    }

    /// Last attempt of the current pass.
    pub fn last(&self) -> Option<&Attempt> {
        self.attempts.get(self.pass_start()..)?.last()
    }
}

/// `http://192.0.2.1:80/path`, for the error log.
struct UpstreamUrlText<'a>(&'a UpstreamUrl, &'a Attempt);

impl UpstreamState {
    /// URL of the last upstream request; `None` if there is none.
    pub fn url_text(&self) -> Option<impl fmt::Display> {
        let attempt = self.last()?;
        (!self.url.scheme.is_empty()).then_some(UpstreamUrlText(&self.url, attempt))
    }
}

impl fmt::Display for UpstreamUrlText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(UpstreamUrl { scheme, path }, attempt) = self;
        let text = attempt.to.text();
        // A path of a socket and one of a URL need something between them.
        let gap = if text.starts_with("unix:") { ":" } else { "" };
        write!(f, "{scheme}{text}{gap}{}", tw_log::Text(path))
    }
}
