//! Table of all metrics that a program has with its modules.

use std::collections::HashSet;

use super::Metric;

/// Metrics of the core and of every module, in the order in which they are written, each set with its title.
#[derive(Default)]
pub struct MetricsTable {
    sets: Vec<(&'static str, Vec<&'static Metric>)>,
}

impl MetricsTable {
    /// Table of `sets`. Of several metrics with one name only the first stays: a module of several protocols has
    /// one set of metrics, which counts for all of them.
    pub fn new(sets: impl IntoIterator<Item = (&'static str, &'static [Metric])>) -> Self {
        let mut seen_values = HashSet::new();
        let mut first = |metrics: &'static [Metric]| -> Vec<&'static Metric> {
            metrics.iter().filter(|metric| seen_values.insert(metric.name)).collect()
        };
        Self { sets: sets.into_iter().map(|(title, metrics)| (title, first(metrics))).collect() }
    }

    /// The sets with their titles. A set is empty if another one has its metrics.
    pub fn sets(&self) -> &[(&'static str, Vec<&'static Metric>)] {
        &self.sets
    }

    /// All metrics.
    pub fn all(&self) -> impl Iterator<Item = &'static Metric> + '_ {
        self.sets.iter().flat_map(|(_, metrics)| metrics.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::MetricKind;

    static OWN: [Metric; 1] =
        [Metric { name: "own_total", kind: MetricKind::Counter, labels: &[], doc: "Own.", read: |_, _| {} }];

    #[test]
    fn metrics_of_a_module_in_two_protocols_stand_once() {
        let table = MetricsTable::new([("own", &OWN[..]), ("own of stream", &OWN[..])]);
        let [(first, one), (second, none)] = table.sets() else { panic!("two sets") };
        assert_eq!((*first, one.len(), *second, none.len()), ("own", 1, "own of stream", 0));
        assert_eq!(table.all().count(), 1);
    }
}
