//! Trace of a request: its identifiers, and the spans that only the server can see. A module begins it and sends its spans
//! ([`SpanSink`]); for a request without a trace, each hook costs one branch.
//!
//! ```text
//! identifiers ─► sample: SpanSink ─► cache lookups, waits for the disk, upstream attempts ─► end: SpanSink::record
//!                                                                                └─► subrequest: a span below this one
//! ```

use std::sync::Arc;
use std::time::Instant;

use crate::cache_info::UpstreamCacheStatus;
use crate::protocol::Session;
use crate::random_id::random_id;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Waits of a traced request for the disk that become spans.
    pub const RECORDED_WAITS_MAX: usize = 64, count, "further ones are only part of the request's `tailwater.disk.wait_time`";
}

/// Receiver of the spans of sampled requests.
pub trait SpanSink: Send + Sync {
    /// Records the spans of `r`, which is over. Never waits.
    fn record(&self, r: &Session, trace: &RequestTrace);
}

/// Trace of one request, or of a subrequest.
pub struct RequestTrace {
    /// Identifier of the trace.
    pub trace_id: [u8; 16],
    /// Span of the request.
    pub span_id: [u8; 8],
    /// Span that the request is a part of.
    pub parent: Option<ParentSpan>,
    /// `tracestate` of the client, if its context was extracted.
    pub state: Box<[u8]>,
    /// True once a location has decided whether the request is sampled.
    pub is_decided: bool,
    /// True if upstream servers get the context in the place of the client's fields.
    pub is_injected: bool,
    /// Lookups in a cache, in order.
    pub lookups: Vec<LookupSpan>,
    /// Receiver of the spans; `None` if the request is not sampled.
    pub(super) sink: Option<Arc<dyn SpanSink>>,
}

/// Span that a request is a part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParentSpan {
    /// Identifier of the span.
    pub id: [u8; 8],
    /// True if the parent is sampled.
    pub is_sampled: bool,
    /// True for a span of another process, the client.
    pub is_remote: bool,
}

/// Lookup in a cache.
pub struct LookupSpan {
    /// Begin of the lookup.
    pub began: Instant,
    /// Time of the decision.
    pub ended: Instant,
    /// Outcome; `None` if the lookup failed.
    pub status: Option<UpstreamCacheStatus>,
}

impl RequestTrace {
    /// A trace that continues `parent`, in the trace with `trace_id`.
    #[must_use]
    pub fn continued(trace_id: [u8; 16], parent: ParentSpan, state: &[u8]) -> Self {
        Self { trace_id, parent: Some(parent), state: state.into(), ..Self::new() }
    }

    /// A new trace.
    #[must_use]
    pub fn new() -> Self {
        Self {
            // Zero is not a valid identifier.
            trace_id: std::iter::repeat_with(random_id).find(|id| *id != [0; 16]).unwrap_or([1; 16]),
            span_id: random_span_id(),
            parent: None,
            state: Box::default(),
            is_decided: false,
            is_injected: false,
            lookups: Vec::new(),
            sink: None,
        }
    }

    /// Returns true if the spans are recorded.
    pub fn is_sampled(&self) -> bool {
        self.sink.is_some()
    }

    /// Identifier of the span of upstream attempt number `nth`.
    pub fn attempt_id(&self, nth: usize) -> [u8; 8] {
        // The finaliser of SplitMix64, a bijection: other numbers give other identifiers.
        let mut id = u64::from_be_bytes(self.span_id)
            .wrapping_add((nth as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        id = (id ^ (id >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        id = (id ^ (id >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (id ^ (id >> 31)).max(1).to_be_bytes()
    }

    /// Trace of a subrequest, a span below this one.
    pub(super) fn child(&self) -> Self {
        let is_sampled = self.is_sampled();
        let parent = ParentSpan { id: self.span_id, is_sampled, is_remote: false };
        let mut child = Self::continued(self.trace_id, parent, &self.state);
        if !is_sampled {
            // A request that is not sampled reports no spans, so its subrequests keep its span identifiers.
            (child.span_id, child.parent) = (self.span_id, self.parent);
        }
        (child.is_decided, child.is_injected) = (self.is_decided, self.is_injected);
        child.sink.clone_from(&self.sink);
        child
    }
}

impl Default for RequestTrace {
    fn default() -> Self {
        Self::new()
    }
}

/// Identifier of a span; never zero, which is none.
pub fn random_span_id() -> [u8; 8] {
    let id = random_id();
    let half = u64::from_be_bytes([id[0], id[1], id[2], id[3], id[4], id[5], id[6], id[7]]);
    half.max(1).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn attempts_have_identifiers_of_their_own() {
        let trace = RequestTrace::new();
        let ids: HashSet<_> = (0..1000).map(|nth| trace.attempt_id(nth)).collect();
        assert_eq!(ids.len(), 1000);
        assert!(!ids.contains(&trace.span_id) && !ids.contains(&[0; 8]));
        assert_eq!(trace.attempt_id(3), trace.attempt_id(3));
    }

    #[test]
    fn child_of_unsampled_trace_has_no_span_of_its_own() {
        let trace = RequestTrace::new();
        let child = trace.child();
        assert_eq!((child.trace_id, child.span_id, child.parent), (trace.trace_id, trace.span_id, None));
    }
}
