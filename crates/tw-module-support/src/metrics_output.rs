//! Output of all metrics: other tasks of the loop have their turns meanwhile.

use tw_core::event_loop::Counts;
use tw_core::metrics::{Format, MetricsWriter, ProcessUsage, Scrape, WriteProgress};
use tw_request::generation::LoopGeneration;
use tw_request::request::Request;
use tw_rt::watch;
use tw_server::http::history;

/// Appends all metrics to `out`, in one of their forms. Others have their turns meanwhile.
pub async fn write(r: &Request, usage: ProcessUsage, format: Format, out: &mut String) {
    let event_loop = r.client().event_loop.clone();
    let generation = r.generation().clone();
    write_all(&event_loop.counts, &generation, usage, format, out).await;
}

/// [`write()`], apart from requests.
pub async fn write_all(
    counts: &Counts,
    generation: &LoopGeneration,
    usage: ProcessUsage,
    format: Format,
    out: &mut String,
) {
    let scrape = Scrape::new(counts, generation, usage);
    let metrics = &generation.process.metrics;
    let mut writer = MetricsWriter::new(format, metrics.all());
    while watch::operation("writing metrics", || writer.write(&scrape, out)) == WriteProgress::More {
        tw_rt::yield_now().await;
    }
}

/// Resources of this process, as far as they can be read soon.
pub async fn process_usage(r: &mut Request) -> ProcessUsage {
    let generation = r.generation().clone();
    history::process_usage(generation.disks.default_disk(), &mut r.costs.account).await
}
