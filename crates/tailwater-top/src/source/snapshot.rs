//! One document of a server as data.

use std::collections::BTreeMap;

/// Everything that one document says.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Snapshot {
    /// Time of the server in seconds since 1970; `None` in a document of `metrics`.
    pub now: Option<f64>,
    /// Name of the machine; empty if unknown.
    pub host: String,
    /// Duration of a turn from which on it is a stall, in seconds.
    pub stall_threshold: Option<f64>,
    /// Upper bounds of the buckets of all spans, in seconds.
    pub bounds: Vec<f64>,
    /// The last stalls, newest first.
    pub stalls: Vec<Stall>,
    /// The slowest requests, slowest first; `None` in a document without them.
    pub slow_requests: Option<Vec<SlowRequest>>,
    /// Mount points of devices by their numbers.
    pub mounts: BTreeMap<String, String>,
    /// Metrics by name, without `tailwater_`.
    pub families: BTreeMap<String, Family>,
}

/// A turn of an event loop that took long.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Stall {
    /// Number of the loop.
    pub worker: u64,
    /// Duration, in seconds.
    pub turn: f64,
    /// Cause of most of it: `running`, `processor` or `kernel`.
    pub cause: String,
    /// Task that took longest; empty if unknown.
    pub by: String,
    /// Operation of the task; empty if unknown.
    pub operation: String,
    /// Address of its client; empty if unknown.
    pub client: String,
}

/// A request that took long.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SlowRequest {
    /// End, in seconds since 1970.
    pub at: f64,
    /// Number of the loop.
    pub worker: u64,
    /// Duration, in seconds.
    pub time: f64,
    /// Part of it in which the request waited for the disk, in seconds.
    pub disk_wait: f64,
    /// Status of the response.
    pub status: u64,
    /// Protocol, as `HTTP/1.1`.
    pub protocol: String,
    /// Address of the client.
    pub client: String,
    /// Host that was asked for.
    pub host: String,
    /// Method and path.
    pub request: String,
}

/// Samples of one metric.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Family {
    /// Names of the labels.
    pub labels: Vec<String>,
    /// Samples by the values of the labels.
    pub samples: BTreeMap<Vec<String>, Value>,
}

/// Value of a sample.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Counter or gauge.
    Number(f64),
    /// Histogram.
    Spans(Spans),
}

/// A histogram of spans of time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Spans {
    /// Number of spans up to each bound.
    pub below: Vec<f64>,
    /// Sum, in seconds.
    pub sum: f64,
    /// Number of all spans.
    pub count: f64,
}

impl Snapshot {
    /// The samples of a metric whose labels have these values, with all values of their labels.
    pub fn samples<'a>(
        &'a self,
        name: &str,
        labels: &'a [(&'a str, &'a str)],
    ) -> impl Iterator<Item = (&'a Family, &'a [String], &'a Value)> {
        self.families.get(name).into_iter().flat_map(move |family| {
            let is_selected = |values: &[String]| {
                labels.iter().all(|(label, value)| family.label(values, label) == Some(*value))
            };
            family
                .samples
                .iter()
                .filter(move |(values, _)| is_selected(values))
                .map(move |(values, sample)| (family, values.as_slice(), sample))
        })
    }

    /// Sum of the numbers of these samples; `None` if there is none.
    pub fn number(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let numbers = self.samples(name, labels).filter_map(|(_, _, value)| value.number());
        numbers.reduce(|sum, number| sum + number)
    }

    /// Sum of the spans of these samples; `None` if there is none.
    pub fn spans(&self, name: &str, labels: &[(&str, &str)]) -> Option<Spans> {
        let all = self.samples(name, labels).filter_map(|(_, _, value)| value.spans());
        all.fold(None, |sum: Option<Spans>, spans| match sum {
            None => Some(spans.clone()),
            Some(sum) => Some(sum.plus(spans)),
        })
    }

    /// Different values of a label of a metric, numbers in their order.
    pub fn values(&self, name: &str, label: &str) -> Vec<String> {
        let mut values: Vec<String> = Vec::new();
        for (family, labels, _) in self.samples(name, &[]) {
            if let Some(value) = family.label(labels, label)
                && !values.iter().any(|candidate| candidate == value)
            {
                values.push(value.to_owned());
            }
        }
        values.sort_by_key(|value| value.parse::<u64>().unwrap_or(u64::MAX));
        values
    }
}

impl Family {
    /// Value of a label among the values of a sample.
    pub fn label<'a>(&self, values: &'a [String], label: &str) -> Option<&'a str> {
        let at = self.labels.iter().position(|name| name == label)?;
        values.get(at).map(String::as_str)
    }
}

impl Value {
    fn number(&self) -> Option<f64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Spans(_) => None,
        }
    }

    fn spans(&self) -> Option<&Spans> {
        match self {
            Self::Number(_) => None,
            Self::Spans(spans) => Some(spans),
        }
    }
}

impl Spans {
    /// The spans of both.
    fn plus(self, other: &Self) -> Self {
        Self {
            below: self.below.iter().zip(&other.below).map(|(one, two)| one + two).collect(),
            sum: self.sum + other.sum,
            count: self.count + other.count,
        }
    }

    /// The spans that `earlier` has not.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            below: self.below.iter().zip(&earlier.below).map(|(new, old)| new - old).collect(),
            sum: self.sum - earlier.sum,
            count: self.count - earlier.count,
        }
    }

    /// Average in seconds; `None` without a span.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0.0).then(|| self.sum / self.count)
    }

    /// Duration that `share` of the spans do not exceed, in seconds; `None` without a span. Inside a bucket it is a guess: spans are
    /// taken as spread evenly. Those beyond the last bound count as it.
    pub fn quantile(&self, share: f64, bounds: &[f64]) -> Option<f64> {
        if self.count <= 0.0 {
            return None;
        }
        let rank = self.count * share;
        let mut low = 0.0;
        let mut before = 0.0;
        for (bound, below) in bounds.iter().zip(&self.below) {
            if *below >= rank && *below > before {
                return Some(low + (bound - low) * (rank - before).max(0.0) / (below - before));
            }
            (low, before) = (*bound, *below);
        }
        bounds.last().copied()
    }
}

/// Text of a document, without characters that a terminal would act on.
pub(super) fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_inside_their_buckets() {
        let bounds = [0.001, 0.01, 0.1];
        let spans = Spans { below: vec![50.0, 90.0, 99.0], sum: 1.0, count: 100.0 };
        for (share, expected) in [(0.5, 0.001), (0.25, 0.0005), (0.7, 0.0055), (0.9, 0.01), (0.999, 0.1)] {
            let value = spans.quantile(share, &bounds).unwrap();
            assert!((value - expected).abs() < 1e-9, "{share}: {value}");
        }
        assert_eq!(spans.mean(), Some(0.01));
        assert_eq!(Spans::default().quantile(0.5, &bounds), None);
        assert_eq!(Spans { count: 1.0, ..Spans::default() }.quantile(0.5, &[]), None);
    }

    #[test]
    fn samples_are_selected_by_labels() {
        let mut family = Family { labels: vec!["pool".into(), "operation".into()], ..Family::default() };
        for (pool, operation, number) in [("a", "open", 1.0), ("a", "read", 2.0), ("b", "open", 4.0)] {
            family.samples.insert(vec![pool.into(), operation.into()], Value::Number(number));
        }
        let mut snapshot = Snapshot::default();
        snapshot.families.insert("jobs".into(), family);
        assert_eq!(snapshot.number("jobs", &[]), Some(7.0));
        assert_eq!(snapshot.number("jobs", &[("pool", "a")]), Some(3.0));
        assert_eq!(snapshot.number("jobs", &[("pool", "c")]), None);
        assert_eq!(snapshot.number("jobs", &[("other", "c")]), None);
        assert_eq!(snapshot.values("jobs", "pool"), ["a", "b"]);
    }

    #[test]
    fn controls_do_not_reach_a_terminal() {
        assert_eq!(clean("a\u{1b}[2Jb\u{9b}\n"), "a\u{fffd}[2Jb\u{fffd}\u{fffd}");
    }
}
