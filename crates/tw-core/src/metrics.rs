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
mod metric;
mod process;
mod table;
mod text;
mod tls;
mod writer;

use crate::reloaded_file;

pub use history::{COUNTERS_EVERY, COUNTERS_SIZE_MAX, History, KEPT_EVERY};
pub use loops::each_loop;
pub use metric::{
    BOUNDS_NS, Format, Metric, MetricKind, PREFIX, ProcessUsage, Samples, Scrape, resident_bytes,
};
pub use table::MetricsTable;
pub use text::{CONTENT_TYPE, json_string, label_value};
pub use writer::{MetricsWriter, WriteProgress};

tw_base::limits! {
    /// Limits of what is written and kept.
    pub(crate) const LIMITS;

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
#[cfg(test)]
fn core() -> impl Iterator<Item = &'static Metric> {
    CORE.iter().flat_map(|(_, metrics)| *metrics)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::event_loop::Counts;
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
        let mut seen_values = HashSet::new();
        for metric in core() {
            assert!(seen_values.insert(metric.name), "{} stands twice", metric.name);
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
