//! `otel_metrics`: a task of the first loop that exports the metrics of the process from time to time.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use tw_core::metrics::{Format, Metric, MetricKind};
use tw_disk::{Account, JobClass, JobSource};
use tw_log::Level;
use tw_module_support::metrics_output;
use tw_request::event_loop::Loop;
use tw_request::generation::LoopGeneration;
use tw_server::http::{BackgroundTask, history};

use super::export_target::ExportTarget;
use super::metric_points::{self, PointTimes};
use super::otlp::{self, ExportOutcome, Signal};
use super::queue::BATCH_BYTES_MAX;

/// The task for one configuration.
pub(super) fn task(
    target: Arc<ExportTarget>,
    interval: Duration,
    counts: Arc<MetricExports>,
) -> BackgroundTask {
    BackgroundTask::new(move |event_loop| {
        let export = MetricsExport { event_loop, target: target.clone(), counts: counts.clone() };
        Box::pin(export.run(interval))
    })
}

pub(super) const METRIC_EXPORTS: Metric = Metric {
    name: "otel_metric_exports_total",
    kind: MetricKind::Counter,
    labels: &["result"],
    doc: "Exports of all metrics by otel_metrics: success, or failed.",
    read: |scrape, out| {
        for exports in scrape.shared_objects::<MetricExports>() {
            out.value(&["success"], exports.done.load(Relaxed));
            out.value(&["failed"], exports.failed.load(Relaxed));
        }
    },
};

/// Counts of exports of metrics. They outlive configurations.
#[derive(Default)]
pub(super) struct MetricExports {
    done: AtomicU64,
    failed: AtomicU64,
}

struct MetricsExport {
    event_loop: Rc<Loop>,
    target: Arc<ExportTarget>,
    counts: Arc<MetricExports>,
}

impl MetricsExport {
    async fn run(self, interval: Duration) {
        let generation = self.event_loop.generation();
        let mut has_failed = false;
        loop {
            tw_rt::time::sleep(interval).await;
            match self.export(&generation).await {
                Ok(()) => {
                    self.counts.done.fetch_add(1, Relaxed);
                    has_failed = false;
                }
                Err(why) => {
                    self.counts.failed.fetch_add(1, Relaxed);
                    // The first failure of many is enough for the log.
                    if !std::mem::replace(&mut has_failed, true) {
                        let endpoint = &self.target.endpoint;
                        let text = format_args!("OTel export failure: {why}, metrics, endpoint: {endpoint}");
                        generation.process.error_log.write(Level::Error, None, text);
                    }
                }
            }
        }
    }

    /// Exports all metrics once. They are not kept: the next export has newer ones.
    async fn export(&self, generation: &Rc<LoopGeneration>) -> Result<(), String> {
        let disk = generation.disks.default_disk();
        let mut account = Account::new(JobClass::Scan, JobSource::NONE);
        let usage = history::process_usage(disk, &mut account).await;
        let mut json = String::with_capacity(64 << 10);
        metrics_output::write_all(&self.event_loop.counts, generation, usage, Format::Json, &mut json).await;
        let times = self.times();
        let metrics = generation.process.metrics.clone();
        let work = move || metric_points::encode(&json, metrics.all(), times, BATCH_BYTES_MAX);
        let pieces = disk.pool().run(&mut account, work).await.map_err(|error| error.to_string())?;
        // The resolver of the first server is used, because most servers inherit that of `http`.
        let first = generation.servers.first().ok_or("there is no server")?;
        let resolving = &generation.plan(first.plan).core.resolving;
        let target = &self.target;
        for piece in pieces.ok_or("metrics are no JSON")? {
            let body: Bytes = otlp::body(target.transport, &target.resource, &target.scope, &piece);
            let request = target.request(Signal::Metrics, body);
            let sent = target.server.send(&self.event_loop, resolving, request).await;
            let response = sent.map_err(|failure| failure.to_string())?;
            match otlp::outcome(target.transport, &response) {
                ExportOutcome::Accepted { rejected: 0, .. } => {}
                ExportOutcome::Accepted { rejected, message } => {
                    return Err(format!("collector rejected {rejected} points: \"{message}\""));
                }
                ExportOutcome::Retry { why, .. } | ExportOutcome::Refused { why } => return Err(why),
            }
        }
        Ok(())
    }

    /// The start is the same for all exports: another one would mean that counters began anew.
    fn times(&self) -> PointTimes {
        let wall = self.event_loop.counts.started.wall;
        let started = (u64::try_from(wall.secs).unwrap_or(0) * 1000 + u64::from(wall.msec)) * 1_000_000;
        let now = u64::try_from(tw_rt::clock::wall_precise().as_nanos()).unwrap_or(u64::MAX);
        PointTimes { started, now }
    }
}
