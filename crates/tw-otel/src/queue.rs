//! Queue of spans of each loop: batches that are full or due are exported by a task of the loop. A request that finds the queue
//! full drops its spans, and never waits.
//!
//! ```text
//! request ─► open batch ─ batch_size, or interval ─► sealed batches, batch_count at most ─► export task
//! ```

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::Bytes;
use tw_base::FatalMutex;
use tw_core::metrics::{Metric, MetricKind, Samples, Scrape};
use tw_module_support::loop_sets::LoopSets;
use tw_rt::Deadline;

use super::export_target::ExportTarget;
use super::protobuf::Message;
use super::spans::EncodedSpans;

tw_base::limits! {
    /// Limits of this module.
    pub(super) const LIMITS;

    /// Batches of spans of one loop that wait for the collector.
    parameter "otel_exporter", "batch_count", "4", "spans are dropped and counted";
    /// Spans of one batch.
    parameter "otel_exporter", "batch_size", "512", "the batch is sent, and the next one begins";
    /// Bytes of the spans of one batch, and of the metrics of one export.
    ///
    /// Bytes of the spans of one batch. Collectors take 4 MiB in one message unless told otherwise.
    pub(super) const BATCH_BYTES_MAX: usize = 3 << 20, bytes, "the batch is sent, and the next one begins";
}

pub(super) const SPANS: Metric = Metric {
    name: "otel_spans_total",
    kind: MetricKind::Counter,
    labels: &["result"],
    doc: "Spans of otel_trace by the result of their export: exported, rejected (by the collector), dropped (the queue was full), \
          failed (the collector did not take them in time).",
    read: |scrape, out| {
        for result in SpanResult::ALL {
            total(scrape, out, &[result.word()], &|queue| &queue.counts[result as usize]);
        }
    },
};

pub(super) const QUEUED_SPANS: Metric = Metric {
    name: "otel_spans_queued",
    kind: MetricKind::Gauge,
    labels: &[],
    doc: "Spans that wait for their export.",
    read: |scrape, out| {
        total(scrape, out, &[], &|queue| &queue.queued);
    },
};

pub(super) const EXPORT_FAILURES: Metric = Metric {
    name: "otel_export_failures_total",
    kind: MetricKind::Counter,
    labels: &[],
    doc: "Attempts to export spans that failed; a batch has several.",
    read: |scrape, out| {
        total(scrape, out, &[], &|queue| &queue.failures);
    },
};

/// Writes the sum of a counter of the queues of requests and of sessions, if there are such.
fn total<const N: usize>(
    scrape: &Scrape<'_>,
    out: &mut Samples<'_>,
    labels: &[&str; N],
    which: &dyn Fn(&SpanQueue) -> &AtomicU64,
) {
    let of_requests = scrape.shared_objects::<SpanQueues>();
    let of_sessions = scrape.shared_objects::<SessionQueues>().map(|queues| &*queues.0);
    let sum = of_requests.chain(of_sessions).map(|queues| queues.0.total(which)).reduce(u64::wrapping_add);
    if let Some(sum) = sum {
        out.value(labels, sum);
    }
}

/// Result of the export of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SpanResult {
    Exported,
    Rejected,
    Dropped,
    Failed,
}

impl SpanResult {
    const ALL: [Self; 4] = [Self::Exported, Self::Rejected, Self::Dropped, Self::Failed];

    fn word(self) -> &'static str {
        match self {
            Self::Exported => "exported",
            Self::Rejected => "rejected",
            Self::Dropped => "dropped",
            Self::Failed => "failed",
        }
    }
}

/// Queues of all loops. They outlive configurations.
#[derive(Default)]
pub(super) struct SpanQueues(LoopSets<SpanQueue>);

/// Queues of the sessions of all loops, of which the first one is used. They outlive configurations.
#[derive(Default)]
pub(super) struct SessionQueues(pub(super) Arc<SpanQueues>);

impl SpanQueues {
    /// Queue of a loop.
    pub(super) fn of_loop(&self, index: usize) -> &SpanQueue {
        self.0.of_loop(index)
    }
}

/// Queue of one loop.
#[derive(Default)]
pub(super) struct SpanQueue {
    state: FatalMutex<QueueState>,
    counts: [AtomicU64; SpanResult::ALL.len()],
    /// Spans that wait, as the state has them.
    queued: AtomicU64,
    /// Attempts to export that failed.
    pub(super) failures: AtomicU64,
}

#[derive(Default)]
struct QueueState {
    open: Option<OpenBatch>,
    /// Batches to be exported; the first one may be under way.
    sealed: VecDeque<Batch>,
    /// True while a task exports.
    is_exporting: bool,
    waker: Option<Waker>,
}

/// Batch to which spans are added.
struct OpenBatch {
    target: Arc<ExportTarget>,
    /// Spans as fields of `ScopeSpans`.
    spans: Vec<u8>,
    count: usize,
    began: Instant,
}

/// Batch to be exported.
#[derive(Clone)]
pub(super) struct Batch {
    /// Destination.
    pub(super) target: Arc<ExportTarget>,
    /// Spans as fields of `ScopeSpans`.
    pub(super) spans: Bytes,
    /// Number of spans.
    pub(super) count: usize,
}

/// Next step of a task that exports.
pub(super) enum NextExport {
    /// A batch is due.
    Batch(Batch),
    /// The queue is empty: the task has ended, and the next spans start another one.
    Nothing,
}

impl QueueState {
    fn len(&self) -> usize {
        self.open.as_ref().map_or(0, |open| open.count)
            + self.sealed.iter().map(|batch| batch.count).sum::<usize>()
    }

    /// Makes the open batch one to be exported. Returns false if there are too many.
    fn seal(&mut self) -> bool {
        let Some(open) = &self.open else { return true };
        if self.sealed.len() >= open.target.batch_count {
            return false;
        }
        if let Some(OpenBatch { target, spans, count, .. }) = self.open.take() {
            self.sealed.push_back(Batch { target, spans: spans.into(), count });
        }
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
        true
    }

    /// Adds a span. Returns false if there is no room.
    fn push(&mut self, target: &Arc<ExportTarget>, span: &[u8], now: Instant) -> bool {
        let has_room = self.open.as_ref().is_some_and(|open| {
            Arc::ptr_eq(&open.target, target)
                && open.count < target.batch_size
                && open.spans.len() + span.len() <= BATCH_BYTES_MAX
        });
        if !has_room && !self.seal() {
            return false;
        }
        let open = self.open.get_or_insert_with(|| OpenBatch {
            target: target.clone(),
            spans: Vec::new(),
            count: 0,
            began: now,
        });
        Message(&mut open.spans).bytes(2, span);
        open.count += 1;
        true
    }
}

impl SpanQueue {
    /// Adds spans. Returns true if a task that exports has to be started.
    #[must_use]
    pub(super) fn push(&self, target: &Arc<ExportTarget>, spans: &EncodedSpans) -> bool {
        let now = tw_rt::clock::now();
        let mut state = self.state.lock();
        let dropped = spans.iter().filter(|span| !state.push(target, span, now)).count();
        self.count(SpanResult::Dropped, dropped);
        if state.open.as_ref().is_some_and(|open| open.count >= target.batch_size) {
            // If too many batches wait, the next span tries again.
            state.seal();
        }
        self.queued.store(state.len() as u64, Relaxed);
        !std::mem::replace(&mut state.is_exporting, true)
    }

    /// Returns true if no span waits.
    pub(super) fn is_empty(&self) -> bool {
        self.queued.load(Relaxed) == 0
    }

    /// Counts spans.
    pub(super) fn count(&self, result: SpanResult, spans: usize) {
        self.counts[result as usize].fetch_add(spans as u64, Relaxed);
    }

    /// Waits until a batch is due; at once if the loop `is_stopping`. The batch stays in the queue until [`pop`](Self::pop).
    pub(super) fn poll_next(
        &self,
        due: &mut Deadline,
        is_stopping: bool,
        cx: &mut Context<'_>,
    ) -> Poll<NextExport> {
        let mut state = self.state.lock();
        if state.sealed.is_empty()
            && let Some(open) = &state.open
        {
            due.set_at(open.began + open.target.interval);
            if !is_stopping && due.poll_elapsed(cx).is_pending() {
                state.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            state.seal();
        }
        match state.sealed.front() {
            Some(batch) => Poll::Ready(NextExport::Batch(batch.clone())),
            None => {
                state.is_exporting = false;
                Poll::Ready(NextExport::Nothing)
            }
        }
    }

    /// Removes the first batch, which has been exported or not.
    pub(super) fn pop(&self) {
        let mut state = self.state.lock();
        state.sealed.pop_front();
        self.queued.store(state.len() as u64, Relaxed);
    }

    /// Notes that no task exports any more: the next spans start one.
    pub(super) fn end_export(&self) {
        self.state.lock().is_exporting = false;
    }

    /// Gives up everything that waits.
    pub(super) fn clear(&self) {
        let mut state = self.state.lock();
        let lost = state.len();
        (state.open, state.sealed) = (None, VecDeque::new());
        self.queued.store(0, Relaxed);
        self.count(SpanResult::Failed, lost);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn target(batch_size: usize, batch_count: usize) -> Arc<ExportTarget> {
        Arc::new(ExportTarget::for_tests(batch_size, batch_count))
    }

    /// Sizes of the batches, the open one last, and the number of spans that found no room.
    fn after(batch_size: usize, batch_count: usize, spans: usize) -> (Vec<usize>, usize) {
        let target = target(batch_size, batch_count);
        let mut state = QueueState::default();
        let now = Instant::now();
        let dropped = (0..spans).filter(|_| !state.push(&target, b"span", now)).count();
        let sealed = state.sealed.iter().map(|batch| batch.count);
        (sealed.chain(state.open.iter().map(|open| open.count)).collect(), dropped)
    }

    #[test]
    fn spans_fill_batches_and_then_are_dropped() {
        for (batch_size, batch_count, spans, expected) in [
            (2, 2, 0, (vec![], 0)),
            (2, 2, 1, (vec![1], 0)),
            (2, 2, 5, (vec![2, 2, 1], 0)),
            (2, 2, 6, (vec![2, 2, 2], 0)),
            (2, 2, 9, (vec![2, 2, 2], 3)),
            (1, 1, 3, (vec![1, 1], 1)),
        ] {
            assert_eq!(after(batch_size, batch_count, spans), expected, "{batch_size} {batch_count} {spans}");
        }
    }

    #[test]
    fn large_spans_end_a_batch_early() {
        let target = target(100, 2);
        let mut state = QueueState::default();
        let span = vec![0; BATCH_BYTES_MAX / 2 + 1];
        assert!((0..3).all(|_| state.push(&target, &span, Instant::now())));
        assert_eq!((state.sealed.len(), state.len()), (2, 3));
    }

    #[test]
    fn spans_of_another_configuration_begin_a_batch() {
        let first = target(10, 2);
        let second = target(10, 2);
        let mut state = QueueState::default();
        let now = Instant::now();
        assert!(state.push(&first, b"a", now) && state.push(&second, b"b", now + Duration::from_secs(1)));
        assert!(Arc::ptr_eq(&state.sealed[0].target, &first));
        assert_eq!(&state.sealed[0].spans[..], b"\x12\x01a");
        assert!(state.open.is_some_and(|open| Arc::ptr_eq(&open.target, &second)));
    }
}
