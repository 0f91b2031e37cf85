//! Metrics written piece by piece, so that no turn of a loop takes long, however many samples there are.
//!
//! A metric that is cut is read again for the next piece, and samples that were written are passed over by their labels: what
//! comes and goes between two pieces neither doubles a sample nor hides another one.

use std::collections::HashSet;

use super::metric::{Format, Metric, Samples, Scrape};

tw_base::limits! {
    /// Limits of this module.
    pub(super) const LIMITS;

    /// Bytes of metrics that a loop writes in one turn, and one sample.
    ///
    /// Bytes after which a piece ends. 95 KB in one turn took a busy machine more than 10 ms, so this is below one.
    const PIECE_SIZE: usize = 8 << 10, bytes, "the rest is written in the next turns";
}

/// Progress of writing metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum WriteProgress {
    /// More is to be written.
    More,
    /// All is written.
    Done,
}

/// Metrics that are being written.
pub struct MetricsWriter<'m, I> {
    format: Format,
    metrics: I,
    size: usize,
    /// The metric that was cut, and how many samples of it were written.
    cut: Option<(&'m Metric, usize)>,
    label_hashes: HashSet<u64>,
    is_first: bool,
}

impl<'m, I: Iterator<Item = &'m Metric>> MetricsWriter<'m, I> {
    /// Nothing was written of `metrics` yet.
    pub fn new(format: Format, metrics: I) -> Self {
        Self { format, metrics, size: PIECE_SIZE, cut: None, label_hashes: HashSet::new(), is_first: true }
    }

    /// Appends the next piece to `out`: lines, or members of a JSON object without its braces.
    pub fn write(&mut self, scrape: &Scrape<'_>, out: &mut String) -> WriteProgress {
        let end = out.len() + self.size;
        loop {
            let (metric, cut) = match self.cut.take() {
                Some((metric, count)) => (metric, Some(count)),
                None => {
                    let Some(metric) = self.metrics.next() else { return WriteProgress::Done };
                    if self.format.is_json() && !self.is_first {
                        out.push(',');
                    }
                    self.is_first = false;
                    self.label_hashes.clear();
                    (metric, None)
                }
            };
            let format = self.format;
            let seen_values = &mut self.label_hashes;
            let count = cut.unwrap_or(0);
            let mut samples =
                Samples { metric, format, count, out, end, label_hashes: seen_values, is_cut: false };
            if cut.is_none() {
                samples.begin();
            }
            (metric.read)(scrape, &mut samples);
            if samples.is_cut {
                self.cut = Some((metric, samples.count));
                return WriteProgress::More;
            }
            samples.end();
            if out.len() >= end {
                return WriteProgress::More;
            }
        }
    }
}

impl Scrape<'_> {
    /// Appends `metrics` to `out`: lines, or the members of a JSON object without its braces.
    /// For a few: of many a loop writes [`MetricsWriter`].
    pub fn write<'m>(&self, format: Format, metrics: impl IntoIterator<Item = &'m Metric>, out: &mut String) {
        let mut pieces = MetricsWriter::new(format, metrics.into_iter());
        while pieces.write(self, out) == WriteProgress::More {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_loop::Counts;
    use crate::metrics::{MetricKind, ProcessUsage};
    use crate::testing::generation;

    const MANY: &[Metric] = &[
        Metric {
            name: "many_total",
            kind: MetricKind::Counter,
            labels: &["at"],
            doc: "Many.",
            read: |_, out| (0..50).for_each(|at| out.value(&[&at.to_string()], at)),
        },
        Metric { name: "none", kind: MetricKind::Gauge, labels: &[], doc: "None.", read: |_, _| {} },
        Metric {
            name: "many_seconds",
            kind: MetricKind::Histogram,
            labels: &["at"],
            doc: "Many.",
            read: |_, out| {
                (0..5).for_each(|at| out.histogram(&[&at.to_string()], tw_base::hist::Snapshot::empty));
            },
        },
    ];

    #[test]
    fn pieces_are_small_and_add_up_to_all_metrics() {
        let counts = Counts::default();
        let generation = generation();
        let scrape = Scrape::new(&counts, &generation, ProcessUsage::default());
        for format in [Format::Prometheus, Format::Json] {
            let mut whole = String::new();
            scrape.write(format, MANY, &mut whole);
            for size in [1, 100, 3000] {
                let mut out = String::new();
                let mut most = 0;
                let mut pieces = MetricsWriter { size, ..MetricsWriter::new(format, MANY.iter()) };
                let mut len = 0;
                while pieces.write(&scrape, &mut out) == WriteProgress::More {
                    most = most.max(out.len() - len);
                    len = out.len();
                }
                assert_eq!(out, whole);
                // A sample of a histogram is the longest thing that is not cut.
                assert!(most < size + 2000, "{size}: {most}");
            }
        }
    }
}
