//! Task of a loop that exports batches, one after another. It begins with the first span and ends with the last one. A loop that
//! ends waits for it, but not for long.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use tw_connect::Resolving;
use tw_log::Level;
use tw_request::event_loop::Loop;
use tw_rt::Deadline;
use tw_rt::watch::Subject;

use super::otlp::{self, ExportOutcome, Signal};
use super::queue::{Batch, NextExport, SpanQueue, SpanQueues, SpanResult};

/// Waits between attempts: the first one, and the longest. Each is twice as long as the one before.
const BACKOFF_MIN: Duration = Duration::from_secs(1);

tw_base::limits! {
    /// Limits of this module.
    pub(super) const LIMITS;

    /// Time between two attempts to export a batch of spans.
    const BACKOFF_MAX: Duration = Duration::from_secs(30), time, "the collector is asked again";
    /// Time for which the export of one batch of spans is tried again.
    const RETRY_TIME_MAX: Duration = Duration::from_secs(60), time, "its spans are dropped and counted";
    /// Time for which a loop that ends waits for the export of its spans.
    const FLUSH_TIME_MAX: Duration = Duration::from_secs(5), time, "they are dropped";
}

/// Starts the task for the queue of the loop.
pub(super) fn start(event_loop: &Rc<Loop>, queues: &Arc<SpanQueues>, resolving: Resolving) {
    let export = Export { event_loop: event_loop.clone(), queues: queues.clone(), resolving };
    let subject = Subject { kind: "traces", id: event_loop.index as u64 };
    event_loop.connections.spawn_counted(subject, export.run());
}

/// Exports what is in the queue of the loop until it is empty.
pub(super) async fn export_queued(event_loop: &Rc<Loop>, queues: &Arc<SpanQueues>, resolving: Resolving) {
    if queues.of_loop(event_loop.index).is_empty() {
        return;
    }
    Export { event_loop: event_loop.clone(), queues: queues.clone(), resolving }.run().await;
}

/// Export of the spans of one loop.
struct Export {
    event_loop: Rc<Loop>,
    queues: Arc<SpanQueues>,
    /// For a collector that has a name.
    resolving: Resolving,
}

/// Lets another task export, should this one end before the queue is empty: by a panic, or with its loop.
struct ExportGuard<'a>(Option<&'a SpanQueue>);

impl Drop for ExportGuard<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|queue| queue.end_export());
    }
}

impl Export {
    fn queue(&self) -> &SpanQueue {
        self.queues.of_loop(self.event_loop.index)
    }

    async fn run(self) {
        let mut guard = ExportGuard(Some(self.queue()));
        let mut due = Deadline::new();
        let mut flush = Deadline::new();
        loop {
            let next =
                poll_fn(|cx| self.queue().poll_next(&mut due, self.event_loop.connections.is_stopping(), cx));
            let NextExport::Batch(batch) = next.await else {
                guard.0 = None;
                return;
            };
            if self.unless_late(&mut flush, self.export(&batch)).await.is_none() {
                // The first batch is among them.
                return self.queue().clear();
            }
            self.queue().pop();
        }
    }

    /// Runs `work`; `None` if the loop has been about to end for too long.
    async fn unless_late<T>(&self, flush: &mut Deadline, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        poll_fn(|cx| {
            if let Poll::Ready(done) = work.as_mut().poll(cx) {
                return Poll::Ready(Some(done));
            }
            if !self.event_loop.connections.is_stopping() {
                return Poll::Pending;
            }
            if flush.at().is_none() {
                flush.set(FLUSH_TIME_MAX);
            }
            flush.poll_elapsed(cx).map(|()| None)
        })
        .await
    }

    /// Exports a batch, with as many attempts as it takes and the time allows.
    async fn export(&self, batch: &Batch) {
        let queue = self.queue();
        let body =
            otlp::body(batch.target.transport, &batch.target.resource, &batch.target.scope, &batch.spans);
        let began = tw_rt::clock::now();
        let mut backoff = BACKOFF_MIN;
        let mut is_first = true;
        loop {
            let (after, why) = match self.attempt(batch, body.clone()).await {
                ExportOutcome::Accepted { rejected, message } => {
                    let rejected = usize::try_from(rejected).unwrap_or(usize::MAX).min(batch.count);
                    queue.count(SpanResult::Rejected, rejected);
                    queue.count(SpanResult::Exported, batch.count - rejected);
                    if rejected > 0 {
                        let text = format_args!("collector rejected {rejected} spans: \"{message}\"");
                        self.log(Level::Warn, batch, text);
                    }
                    return;
                }
                ExportOutcome::Refused { why } => (None, why),
                ExportOutcome::Retry { after, why } => (Some(after), why),
            };
            queue.failures.fetch_add(1, Relaxed);
            let tried = tw_rt::clock::now().saturating_duration_since(began);
            // The first failure of a batch is enough for the log.
            if std::mem::take(&mut is_first) {
                self.log(Level::Error, batch, format_args!("OTel export failure: {why}"));
            }
            let Some(after) = after.filter(|_| tried < RETRY_TIME_MAX) else {
                queue.count(SpanResult::Failed, batch.count);
                return;
            };
            let wait = after.unwrap_or(backoff).clamp(BACKOFF_MIN, BACKOFF_MAX);
            tw_rt::time::sleep(wait).await;
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
    }

    async fn attempt(&self, batch: &Batch, body: Bytes) -> ExportOutcome {
        let target = &batch.target;
        let request = target.request(Signal::Traces, body);
        match target.server.send(&self.event_loop, &self.resolving, request).await {
            Ok(response) => otlp::outcome(target.transport, &response),
            Err(failure) => ExportOutcome::Retry { after: None, why: failure.to_string() },
        }
    }

    fn log(&self, level: Level, batch: &Batch, text: std::fmt::Arguments<'_>) {
        let process = self.event_loop.process();
        process.error_log.write(level, None, format_args!("{text}, endpoint: {}", batch.target.endpoint));
    }
}
