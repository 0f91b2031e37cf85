//! Metrics of thread pools, their operations, and devices.

use tw_disk::{DeviceStats, FaultEffect, HungDevice, OpStats, PoolStats, Reads};

use super::metric::{Metric, MetricKind, Samples, Scrape};

pub(super) const METRICS: &[Metric] = &[
    Metric {
        name: "pool_threads",
        kind: MetricKind::Gauge,
        labels: &["pool"],
        doc: "Threads of a pool.",
        read: |scrape, out| pools(scrape, out, |pool| pool.threads.into()),
    },
    Metric {
        name: "pool_device_threads",
        kind: MetricKind::Gauge,
        labels: &["pool"],
        doc: "Threads of a pool that one device may occupy (device_threads).",
        read: |scrape, out| pools(scrape, out, |pool| pool.device_threads.into()),
    },
    Metric {
        name: "pool_hung_threads",
        kind: MetricKind::Gauge,
        labels: &["pool"],
        doc: "Threads that hang on a device and were replaced by others; not among the threads of the pool.",
        read: |scrape, out| pools(scrape, out, |pool| pool.hung_threads.into()),
    },
    Metric {
        name: "pool_hung_operations",
        kind: MetricKind::Gauge,
        labels: &["pool", "mount"],
        doc: "Operations on a device that have made no progress for device_timeout; only while there are some.",
        read: |scrape, out| hung(scrape, |labels, hung| out.value(labels, hung.operations.into())),
    },
    Metric {
        name: "pool_hung_since_timestamp_seconds",
        kind: MetricKind::Gauge,
        labels: &["pool", "mount"],
        doc: "When the first of them made its last progress, in seconds since 1970.",
        read: |scrape, out| hung(scrape, |labels, hung| out.value(labels, hung.since_s)),
    },
    Metric {
        name: "pool_refusals_total",
        kind: MetricKind::Counter,
        labels: &["pool"],
        doc: "Jobs refused or given up because their device hangs.",
        read: |scrape, out| pools(scrape, out, |pool| pool.refusals),
    },
    Metric {
        name: "pool_queue_limit",
        kind: MetricKind::Gauge,
        labels: &["pool"],
        doc: "The most jobs that may wait for each device (max_queue).",
        read: |scrape, out| pools(scrape, out, |pool| pool.max_queue as u64),
    },
    Metric {
        name: "pool_queue_length",
        kind: MetricKind::Gauge,
        labels: &["pool"],
        doc: "Jobs that wait for a thread now.",
        read: |scrape, out| pools(scrape, out, |pool| pool.waiting as u64),
    },
    Metric {
        name: "pool_running",
        kind: MetricKind::Gauge,
        labels: &["pool"],
        doc: "Jobs that hold a thread, or a place in the io_uring, now.",
        read: |scrape, out| pools(scrape, out, |pool| pool.running.into()),
    },
    Metric {
        name: "pool_overflows_total",
        kind: MetricKind::Counter,
        labels: &["pool"],
        doc: "Jobs refused because the queue was full.",
        read: |scrape, out| pools(scrape, out, |pool| pool.overflows),
    },
    Metric {
        name: "pool_cancellations_total",
        kind: MetricKind::Counter,
        labels: &["pool"],
        doc: "Jobs taken back before they began, because their client had gone.",
        read: |scrape, out| pools(scrape, out, |pool| pool.cancellations),
    },
    Metric {
        name: "pool_panics_total",
        kind: MetricKind::Counter,
        labels: &["pool"],
        doc: "Jobs that panicked: a bug in Tailwater.",
        read: |scrape, out| pools(scrape, out, |pool| pool.panics),
    },
    Metric {
        name: "pool_ring_reads_total",
        kind: MetricKind::Counter,
        labels: &["pool"],
        doc: "Reads done by io_uring (aio on).",
        read: |scrape, out| pools(scrape, out, |pool| pool.ring_reads),
    },
    Metric {
        name: "disk_inline_total",
        kind: MetricKind::Counter,
        labels: &["pool", "operation"],
        doc: "Operations that ended on the loop, because what they asked for was in memory.",
        read: |scrape, out| operations(scrape, |labels, op| out.value(labels, op.inline)),
    },
    Metric {
        name: "disk_jobs_total",
        kind: MetricKind::Counter,
        labels: &["pool", "operation"],
        doc: "Operations that became jobs of a pool, because they might have waited.",
        read: |scrape, out| operations(scrape, |labels, op| out.value(labels, op.jobs)),
    },
    Metric {
        name: "disk_queue_seconds",
        kind: MetricKind::Histogram,
        labels: &["pool", "operation"],
        doc: "Time a job waited for a thread.",
        read: |scrape, out| operations(scrape, |labels, op| out.histogram(labels, || &op.queue)),
    },
    Metric {
        name: "disk_service_seconds",
        kind: MetricKind::Histogram,
        labels: &["pool", "operation"],
        doc: "Time a job took once a thread had it: what the disk itself cost.",
        read: |scrape, out| operations(scrape, |labels, op| out.histogram(labels, || &op.service)),
    },
    Metric {
        name: "device_info",
        kind: MetricKind::Gauge,
        labels: &["device", "reads"],
        doc: "Always 1: how loops may read from a device: nowait, memory, job (never), or unknown yet.",
        read: |scrape, out| devices(scrape, |label, device| out.value(&[label, reads(device.reads)], 1)),
    },
    Metric {
        name: "device_inline_total",
        kind: MetricKind::Counter,
        labels: &["device"],
        doc: "Operations on open files of a device that ended on the loop.",
        read: |scrape, out| devices(scrape, |label, device| out.value(&[label], device.inline)),
    },
    Metric {
        name: "device_misses_total",
        kind: MetricKind::Counter,
        labels: &["device"],
        doc: "Reads of a device that became jobs: what they wanted was not in memory, or nobody could tell without waiting.",
        read: |scrape, out| devices(scrape, |label, device| out.value(&[label], device.misses)),
    },
    Metric {
        name: "device_access_time_reads_total",
        kind: MetricKind::Counter,
        labels: &["device"],
        doc: "Those of them that became jobs because they might have written the access time of a file that is not ours.",
        read: |scrape, out| devices(scrape, |label, device| out.value(&[label], device.access_times)),
    },
    Metric {
        name: "device_queue_seconds",
        kind: MetricKind::Histogram,
        labels: &["device"],
        doc: "Time jobs on a device waited for a thread.",
        read: |scrape, out| devices(scrape, |label, device| out.histogram(&[label], || &device.queue)),
    },
    Metric {
        name: "device_service_seconds",
        kind: MetricKind::Histogram,
        labels: &["device"],
        doc: "Time jobs on a device took once begun.",
        read: |scrape, out| devices(scrape, |label, device| out.histogram(&[label], || &device.service)),
    },
    Metric {
        name: "disk_faults_total",
        kind: MetricKind::Counter,
        labels: &["operation", "effect"],
        doc: "Operations that debug_disk_fault has delayed, or made fail; only once it was in force.",
        read: |_, out| {
            for fault in tw_disk::fault_counts() {
                let effect = match fault.effect {
                    FaultEffect::Delay => "delay",
                    FaultEffect::Error => "error",
                };
                out.value(&[fault.op.name(), effect], fault.count);
            }
        },
    },
];

fn pools(scrape: &Scrape<'_>, out: &mut Samples<'_>, read: impl Fn(&PoolStats) -> u64) {
    for pool in scrape.pools() {
        out.value(&[&pool.name], read(pool));
    }
}

fn hung(scrape: &Scrape<'_>, mut each: impl FnMut(&[&str], &HungDevice)) {
    for pool in scrape.pools() {
        for hung in &pool.hung {
            each(&[&pool.name, &hung.mount], hung);
        }
    }
}

fn operations(scrape: &Scrape<'_>, mut each: impl FnMut(&[&str], &OpStats)) {
    for pool in scrape.pools() {
        for op in &pool.ops {
            each(&[&pool.name, &snake(op.op.name())], op);
        }
    }
}

fn devices(scrape: &Scrape<'_>, mut each: impl FnMut(&str, &DeviceStats)) {
    for device in scrape.devices() {
        each(&name(device), device);
    }
}

/// `SetTimes` as `set_times`.
fn snake(name: &str) -> String {
    let mut snake = String::with_capacity(name.len() + 2);
    for (at, c) in name.char_indices() {
        if at > 0 && c.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(c.to_ascii_lowercase());
    }
    snake
}

/// Major and minor number, as `lsblk` shows them, or the path that is faulty on purpose.
pub(super) fn name(device: &DeviceStats) -> String {
    if let Some(path) = device.faulty_path {
        return String::from_utf8_lossy(path).into_owned();
    }
    match device.dev {
        Some(dev) => format!("{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev)),
        None => "other".to_owned(),
    }
}

fn reads(reads: Reads) -> &'static str {
    match reads {
        Reads::Unknown => "unknown",
        Reads::NoWait => "nowait",
        Reads::Memory => "memory",
        Reads::Job => "job",
    }
}
