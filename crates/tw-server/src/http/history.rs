//! Keeper of the status page's history: one loop records a moment every second, and the counters every ten, while the
//! configuration has such a page.

use std::ffi::CStr;
use std::rc::Rc;
use std::time::Duration;

use tw_core::metrics::{
    self, COUNTERS_EVERY, COUNTERS_SIZE_MAX, Format, History, KEPT_EVERY, MetricsWriter, ProcessUsage,
    Scrape, WriteProgress,
};
use tw_disk::{Account, Disk, DiskError, JobClass, JobSource};
use tw_rt::{Deadline, watch};

use tw_request::event_loop::Loop;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Time a scrape waits for a pool thread to read what `/proc` tells of the process.
    ///
    /// Longest wait of a loop for a thread to read about this process in `/proc`. Pools may be stuck when metrics are needed
    /// most: the other metrics are then returned alone.
    const PROC_TIMEOUT_MS: u64 = 50, millis, "the metric is left out";
}

/// Records moments if this is the first loop and there is a page. Never ends by itself then.
pub(crate) async fn run(event_loop: Rc<Loop>) {
    let generation = event_loop.generation();
    let Some(history) =
        generation.config.process.shared_objects.find::<History>(b"").filter(|_| event_loop.index == 0)
    else {
        return;
    };
    let mut account = Account::new(JobClass::Fill, JobSource::NONE);
    let mut due = tw_rt::clock::now();
    loop {
        let memory = resident_bytes(generation.disks.default_disk(), &mut account).await;
        watch::operation("keeping the history of the status page", || {
            history.record(&event_loop.counts, &generation.disks, memory, tw_rt::clock::now());
        });
        let now = tw_rt::clock::now();
        if now >= due {
            due = now + COUNTERS_EVERY;
            keep_counters(&event_loop, &history).await;
        }
        tw_rt::time::sleep(KEPT_EVERY).await;
    }
}

/// Keeps the counters of this moment as JSON, unless there are too many. Others have their turns meanwhile.
async fn keep_counters(event_loop: &Loop, history: &History) {
    let now = tw_rt::clock::now();
    let generation = event_loop.generation();
    let scrape = Scrape::new(&event_loop.counts, &generation, ProcessUsage::default());
    let mut writer = MetricsWriter::new(Format::NonzeroJson, history.counted());
    let mut text = String::from("{\"metrics\":{");
    let write = "keeping the counters of the status page";
    while watch::operation(write, || writer.write(&scrape, &mut text)) == WriteProgress::More {
        if text.len() > COUNTERS_SIZE_MAX {
            return history.discard_counters();
        }
        tw_rt::yield_now().await;
    }
    text.push_str("}}");
    history.keep_counters(text, now);
}

/// Bytes of this process in RAM, if the disk door can tell soon.
pub async fn resident_bytes(disk: &Disk, account: &mut Account) -> Option<u64> {
    metrics::resident_bytes(&read_soon(disk, account, c"/proc/self/statm", 256).await?)
}

/// Resources of this process, as far as a pool has read them soon.
pub async fn process_usage(disk: &Disk, account: &mut Account) -> ProcessUsage {
    let Some(resident_bytes) = resident_bytes(disk, account).await else {
        // If the first file came too late, the others would, too.
        return ProcessUsage::default();
    };
    // The size of this directory is the number of descriptors since Linux 6.2; it was 0 before.
    let open_files =
        soon(disk.stat(account, c"/proc/self/fd")).await.map(|meta| meta.size).filter(|count| *count > 0);
    ProcessUsage { resident_bytes: Some(resident_bytes), open_files }
}

/// A file of `/proc` of at most `max` bytes, if a thread has read it soon.
pub async fn read_soon(disk: &Disk, account: &mut Account, path: &CStr, max: usize) -> Option<Vec<u8>> {
    soon(disk.read_whole(account, path, max)).await
}

/// Result of an operation of a pool, if it succeeds soon.
async fn soon<T>(operation: impl Future<Output = Result<T, DiskError>>) -> Option<T> {
    let mut deadline = Deadline::new();
    deadline.set(Duration::from_millis(PROC_TIMEOUT_MS));
    deadline.guard(operation).await.ok()?.ok()
}
