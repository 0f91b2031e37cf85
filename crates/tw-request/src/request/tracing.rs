//! Trace of a request as it is served: its begin, its lookups, its end.

use std::sync::Arc;
use std::time::Instant;

use super::Request;
use super::trace::{LookupSpan, RECORDED_WAITS_MAX, RequestTrace, SpanSink};

impl Request {
    /// The trace, if its spans are recorded.
    pub fn sampled_trace(&self) -> Option<&RequestTrace> {
        self.context.trace.get().map(|trace| &**trace).filter(|trace| trace.is_sampled())
    }

    /// Records spans from now on, for `sink`. The request has a trace.
    pub fn sample_trace(&mut self, sink: Arc<dyn SpanSink>) {
        if let Some(trace) = self.context.trace.get_mut() {
            trace.sink = Some(sink);
            self.costs.account.record_waits(RECORDED_WAITS_MAX);
        }
    }

    /// Makes the trace a part of that of `parent`.
    pub(super) fn continue_trace(&mut self, parent: &Self) {
        let Some(trace) = parent.context.trace.get() else { return };
        if trace.is_sampled() {
            self.costs.account.record_waits(RECORDED_WAITS_MAX);
        }
        self.context.trace = Box::new(trace.child()).into();
    }

    /// Time at which a lookup in a cache begins, if that is to be recorded.
    pub fn lookup_began(&self) -> Option<Instant> {
        // The clock of the loop stands still in a turn, and many lookups begin and end in one.
        self.sampled_trace().map(|_| tw_rt::clock::precise())
    }

    /// Records a lookup that ends now.
    pub fn record_lookup(&mut self, began: Instant) {
        let cache = &self.upstream.cache;
        let has_cache = cache.cache.is_some();
        let status = cache.report.status;
        if let Some(trace) = self.context.trace.get_mut().filter(|_| has_cache) {
            trace.lookups.push(LookupSpan { began, ended: tw_rt::clock::precise(), status });
        }
    }

    /// Has the spans recorded. The request is over.
    pub fn end_trace(&mut self) {
        let Some(trace) = self.context.trace.take() else { return };
        if let Some(sink) = &trace.sink {
            self.upstream.close();
            sink.record(self, &trace);
        }
        self.context.trace = trace.into();
    }
}
