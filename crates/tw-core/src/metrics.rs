//! Metrics as records, and the two forms in which they are written: Prometheus text and JSON.
//!
//! A record stands beside the code that counts, and is all there is to do: the `metrics` location writes it, the status
//! page can plot it, `docs/metrics.md` explains it. A module lists its own in `Settings::METRICS`:
//!
//! ```
//! use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
//! use tw_core::metrics::{MetricKind, Metric};
//!
//! /// Shared object of the module (`Resolve::keep`).
//! struct Zone {
//!     delayed: AtomicU64,
//! }
//!
//! const METRICS: &[Metric] = &[Metric {
//!     name: "limit_req_delayed_total",
//!     kind: MetricKind::Counter,
//!     labels: &["zone"],
//!     doc: "Requests that limit_req delayed.",
//!     // One sample per zone of the configuration.
//!     read: |scrape, out| {
//!         for (name, zone) in scrape.config().shared_objects.of_type::<Zone>() {
//!             out.value(&[&String::from_utf8_lossy(name)], zone.delayed.load(Relaxed));
//!         }
//!     },
//! }];
//! ```

mod connections;
mod disk;
mod history;
mod logs;
mod loops;
mod process;
mod text;
mod tls;
mod writer;

use std::borrow::Borrow;
use std::cell::OnceCell;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use tw_base::hist::Snapshot;
use tw_disk::{DeviceStats, PoolStats};

use crate::event_loop::Counts;
use crate::generation::{Config, Configuration, Generation};
use crate::pools::Disks;
use crate::reloaded_file;

pub use history::{COUNTERS_EVERY, COUNTERS_SIZE_MAX, History, KEPT_EVERY};
pub use loops::each_loop;
pub use text::{CONTENT_TYPE, json_string, label_value};
pub use writer::{MetricsWriter, WriteProgress};

/// Begins the name of every metric.
pub const PREFIX: &str = "tailwater_";

tw_base::limits! {
    /// Limits of what is written and kept.
    pub const LIMITS;

    use writer::LIMITS;
    use history::LIMITS;
}

/// The metrics that no protocol has to itself, in the order in which they are written, with what they are about.
pub static CORE: [(&str, &[Metric]); 7] = [
    ("the process", process::METRICS),
    ("connections", connections::METRICS),
    ("TLS", tls::METRICS),
    ("event loops", loops::METRICS),
    ("thread pools and devices", disk::METRICS),
    ("logs", logs::METRICS),
    ("files in memory", reloaded_file::METRICS),
];

/// All of them.
pub fn core() -> impl Iterator<Item = &'static Metric> {
    CORE.iter().flat_map(|(_, metrics)| *metrics)
}

/// A family of samples with one name.
pub struct Metric {
    /// Name without [`PREFIX`]; a counter's ends in `_total`, a time's in `_seconds`.
    pub name: &'static str,
    /// Kind of the metric.
    pub kind: MetricKind,
    /// Names of the labels every sample has.
    pub labels: &'static [&'static str],
    /// Description, one sentence.
    pub doc: &'static str,
    /// Writes the samples. Runs on a loop: it copies numbers and never waits.
    pub read: fn(&Scrape<'_>, &mut Samples<'_>),
}

/// Kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Spans of time by length.
    Histogram,
}

impl MetricKind {
    /// Name of the kind in Prometheus text.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// Upper bounds of the buckets of every histogram, in nanoseconds.
pub const BOUNDS_NS: [u64; 17] = [
    10_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    5_000_000_000,
    30_000_000_000,
];

/// Format of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Prometheus text, version 0.0.4.
    Prometheus,
    /// An object per metric: `"name": {"kind": …, "labels": […], "samples": [[[label values], number], …]}`. In place of
    /// the number a histogram has `[[counts up to each bound], sum in seconds, count]`.
    Json,
    /// [`Json`](Self::Json) without the samples that are zero.
    NonzeroJson,
}

impl Format {
    fn is_json(self) -> bool {
        self != Self::Prometheus
    }
}

/// Resources of the process that a thread of a pool has to read; what is `None` could not be read in time.
#[derive(Debug, Default, Clone, Copy)]
pub struct ProcessUsage {
    /// Memory that is in RAM, in bytes.
    pub resident_bytes: Option<u64>,
    /// Open descriptors.
    pub open_files: Option<u64>,
}

/// Bytes in RAM as `/proc/self/statm` has them (proc_pid_statm(5): the second number, in pages).
pub fn resident_bytes(statm: &[u8]) -> Option<u64> {
    let pages = std::str::from_utf8(statm).ok()?.split(' ').nth(1)?.parse::<u64>().ok()?;
    pages.checked_mul(rustix::param::page_size() as u64)
}

/// One look at what is counted. What several metrics read is copied once.
pub struct Scrape<'a> {
    counts: &'a Counts,
    generation: u64,
    config: &'a Config,
    disks: &'a Disks,
    usage: ProcessUsage,
    pools: OnceCell<Vec<PoolStats>>,
    devices: OnceCell<Vec<DeviceStats>>,
}

impl<'a> Scrape<'a> {
    /// A look at the counters of the process and at what `generation` has.
    pub fn new<C: Configuration>(
        counts: &'a Counts,
        generation: &'a Generation<C>,
        usage: ProcessUsage,
    ) -> Self {
        Self {
            counts,
            generation: generation.id,
            config: generation.config.process(),
            disks: &generation.disks,
            usage,
            pools: OnceCell::new(),
            devices: OnceCell::new(),
        }
    }

    /// Counters of the process.
    pub fn counts(&self) -> &'a Counts {
        self.counts
    }

    /// The configuration, and what it keeps for the process.
    pub fn config(&self) -> &'a Config {
        self.config
    }

    /// Shared objects of one type, in the order of their names.
    pub fn shared_objects<T: Send + Sync + 'static>(&self) -> impl Iterator<Item = &'a T> {
        self.config.shared_objects.of_type::<T>().into_iter().map(|(_, object)| object)
    }

    /// Every thread pool.
    pub fn pools(&self) -> &[PoolStats] {
        self.pools.get_or_init(|| self.disks.pools().map(|d| d.pool().stats()).collect())
    }

    /// Every device that was used.
    pub fn devices(&self) -> &[DeviceStats] {
        self.devices.get_or_init(tw_disk::devices)
    }

    /// Appends `metrics` to `out`: lines, or the members of a JSON object without its braces.
    /// For a few: of many a loop writes [`MetricsWriter`].
    pub fn write<'m>(&self, format: Format, metrics: impl IntoIterator<Item = &'m Metric>, out: &mut String) {
        let mut pieces = MetricsWriter::new(format, metrics.into_iter());
        while pieces.write(self, out) == WriteProgress::More {}
    }
}

/// Takes the samples of one metric.
pub struct Samples<'a> {
    metric: &'a Metric,
    format: Format,
    count: usize,
    out: &'a mut String,
    /// Length of `out` from which on samples are left to the next piece.
    end: usize,
    /// Labels of the samples that were written, as hashes.
    seen: &'a mut HashSet<u64>,
    is_cut: bool,
}

impl Samples<'_> {
    /// A sample. `labels` are the values of the metric's labels, in their order.
    pub fn value(&mut self, labels: &[&str], value: u64) {
        if (value > 0 || self.format != Format::NonzeroJson) && self.takes(labels) {
            self.sample(labels, format_args!("{value}"));
        }
    }

    /// A sample with a fraction.
    pub fn float(&mut self, labels: &[&str], value: f64) {
        if (value != 0.0 || self.format != Format::NonzeroJson) && self.takes(labels) {
            self.sample(labels, format_args!("{value}"));
        }
    }

    /// A sample of a histogram, which is copied only if it is written now.
    pub fn histogram<S: Borrow<Snapshot>>(&mut self, labels: &[&str], spans: impl FnOnce() -> S) {
        if self.takes(labels) {
            let spans = spans();
            let spans = spans.borrow();
            if self.format == Format::NonzeroJson && spans.count() == 0 {
                return;
            }
            let counts = spans.cumulative(&BOUNDS_NS);
            self.spans(labels, &counts, seconds(spans.sum_ns), spans.count());
        }
    }

    /// Tells whether a sample with these labels is written now: it was not yet, and there is room in this piece.
    fn takes(&mut self, labels: &[&str]) -> bool {
        let mut hasher = DefaultHasher::new();
        labels.hash(&mut hasher);
        let hash = hasher.finish();
        if self.seen.contains(&hash) {
            return false;
        }
        self.is_cut |= self.out.len() >= self.end;
        if !self.is_cut {
            self.seen.insert(hash);
        }
        !self.is_cut
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::generation;

    /// Every metric of the core as text.
    fn text(format: Format) -> String {
        let mut out = String::new();
        let usage = ProcessUsage { resident_bytes: Some(4096), ..ProcessUsage::default() };
        Scrape::new(&Counts::default(), &generation(), usage).write(format, core(), &mut out);
        out
    }

    #[test]
    fn names_follow_the_rules_and_stand_once() {
        let mut seen = HashSet::new();
        for metric in core() {
            assert!(seen.insert(metric.name), "{} stands twice", metric.name);
            assert_eq!(
                metric.name.ends_with("_total"),
                metric.kind == MetricKind::Counter,
                "{}",
                metric.name
            );
            assert!(metric.doc.ends_with('.'), "{}", metric.name);
            let is_plain = |text: &str| text.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
            assert!(is_plain(metric.name) && metric.labels.iter().all(|label| is_plain(label)));
        }
    }

    #[test]
    fn text_has_every_family_once_and_no_sample_without_one() {
        let text = text(Format::Prometheus);
        for metric in core() {
            let head = format!("# TYPE {PREFIX}{} {}\n", metric.name, metric.kind.word());
            assert_eq!(text.matches(&head).count(), 1, "{head}");
        }
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (name, value) = line.rsplit_once(' ').unwrap();
            assert!(name.starts_with(PREFIX) && value.parse::<f64>().is_ok(), "{line}");
        }
        assert!(text.contains("\ntailwater_process_resident_memory_bytes 4096\n"), "{text}");
    }

    #[test]
    fn json_has_the_same_families() {
        let json = text(Format::Json);
        for metric in core() {
            assert_eq!(json.matches(&format!("\"{}\":{{\"kind\":", metric.name)).count(), 1, "{json}");
        }
        assert_eq!(json.matches('{').count(), json.matches('}').count());
        assert_eq!(json.matches('[').count(), json.matches(']').count());
        assert!(!json.contains(",]") && !json.contains("[,"), "{json}");
    }
}
