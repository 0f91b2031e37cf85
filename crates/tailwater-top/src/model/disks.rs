//! Thread pools, and the devices that they read and write.

use super::change::{Change, P50, P99, share};

/// A pool or a device.
#[derive(Debug, Clone, PartialEq)]
pub struct DiskRow {
    /// Pool or device.
    pub kind: DiskKind,
    /// Name of the pool; mount point of the device, or its number.
    pub name: String,
    /// Threads that have a job, and all of them; only of a pool.
    pub threads: Option<(f64, f64)>,
    /// Jobs that wait for a thread; only of a pool.
    pub queue: Option<f64>,
    /// Operations a second that became jobs.
    pub jobs: Option<f64>,
    /// Share of operations that ended on a loop.
    pub inline: Option<f64>,
    /// 99 % of the jobs did not wait longer for a thread, in seconds.
    pub wait_p99: Option<f64>,
    /// Half of the jobs did not take longer, in seconds.
    pub service_p50: Option<f64>,
    /// 99 % of the jobs did not take longer, in seconds.
    pub service_p99: Option<f64>,
    /// Operations that hang.
    pub hung: Option<f64>,
    /// Jobs refused since the process began, because the queue was full or the device hangs.
    pub refused: Option<f64>,
}

/// Kind of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskKind {
    /// Thread pool.
    Pool,
    /// Device.
    Device,
}

pub(super) fn rows(change: &Change<'_>) -> Vec<DiskRow> {
    let pools = change.new.values("pool_threads", "pool");
    let devices = change.new.values("device_info", "device");
    let pools = pools.into_iter().map(|pool| pool_row(change, pool));
    pools.chain(devices.into_iter().map(|device| device_row(change, &device))).collect()
}

fn pool_row(change: &Change<'_>, pool: String) -> DiskRow {
    let of = [("pool", &*pool)];
    let running = change.level("pool_running", &of);
    let refused = [change.level("pool_overflows_total", &of), change.level("pool_refusals_total", &of)];
    let jobs = change.rate("disk_jobs_total", &of);
    DiskRow {
        kind: DiskKind::Pool,
        threads: running.zip(change.level("pool_threads", &of)),
        queue: change.level("pool_queue_length", &of),
        inline: share(change.rate("disk_inline_total", &of), jobs),
        jobs,
        wait_p99: change.quantile(P99, "disk_queue_seconds", &of),
        service_p50: change.quantile(P50, "disk_service_seconds", &of),
        service_p99: change.quantile(P99, "disk_service_seconds", &of),
        hung: Some(change.level("pool_hung_operations", &of).unwrap_or_default()),
        refused: refused.into_iter().flatten().reduce(|sum, number| sum + number),
        name: pool,
    }
}

fn device_row(change: &Change<'_>, device: &str) -> DiskRow {
    let of = [("device", device)];
    let place = change.new.mounts.get(device);
    let jobs = change.span_rate("device_service_seconds", &of);
    DiskRow {
        kind: DiskKind::Device,
        name: place.map_or_else(|| device.to_owned(), |place| format!("{place} {device}")),
        threads: None,
        queue: None,
        inline: share(change.rate("device_inline_total", &of), jobs),
        jobs,
        wait_p99: change.quantile(P99, "device_queue_seconds", &of),
        service_p50: change.quantile(P50, "device_service_seconds", &of),
        service_p99: change.quantile(P99, "device_service_seconds", &of),
        hung: place.map(|place| hung(change, place)),
        refused: None,
    }
}

/// Operations that hang on a mount, of which there are samples only while there are some; a mount is named as `/srv (ext4)`.
fn hung(change: &Change<'_>, place: &str) -> f64 {
    let point = place.rsplit_once(" (").map_or(place, |(point, _)| point);
    change.level("pool_hung_operations", &[("mount", point)]).unwrap_or_default()
}
