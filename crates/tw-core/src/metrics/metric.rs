//! Metric: its record, one look at what is counted, and the samples that it takes.

use std::borrow::Borrow;
use std::cell::OnceCell;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use tw_base::hist::Snapshot;
use tw_disk::{DeviceStats, PoolStats};

use crate::event_loop::Counts;
use crate::generation::{Config, Configuration, Generation};
use crate::pools::Disks;

/// Begins the name of every metric.
pub const PREFIX: &str = "tailwater_";

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
    pub(super) fn is_json(self) -> bool {
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
    pub(super) generation: u64,
    config: &'a Config,
    disks: &'a Disks,
    pub(super) usage: ProcessUsage,
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
}

/// Takes the samples of one metric.
pub struct Samples<'a> {
    pub(super) metric: &'a Metric,
    pub(super) format: Format,
    pub(super) count: usize,
    pub(super) out: &'a mut String,
    /// Length of `out` from which on samples are left to the next piece.
    pub(super) end: usize,
    /// Labels of the samples that were written, as hashes.
    pub(super) label_hashes: &'a mut HashSet<u64>,
    pub(super) is_cut: bool,
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

    /// Returns true if a sample with these labels is written now: it was not written yet, and there is room in this piece.
    fn takes(&mut self, labels: &[&str]) -> bool {
        let mut hasher = DefaultHasher::new();
        labels.hash(&mut hasher);
        let hash = hasher.finish();
        if self.label_hashes.contains(&hash) {
            return false;
        }
        self.is_cut |= self.out.len() >= self.end;
        if !self.is_cut {
            self.label_hashes.insert(hash);
        }
        !self.is_cut
    }
}

/// Seconds of a number of nanoseconds.
pub(super) fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
